"""Prose is plain: words of a dialect are rare in docstrings, help texts and pages.

Sentences without a noun of their own ("What is read of who asked") are hard to read for those who
do not know the code yet. They show in a few words, which well-kept libraries hardly use: numpy,
httpx, h11 and typer have "what" 0.3 to 1.6 times in 1,000 words, "that of" at most 0.2 times.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.style.sources import ROOT, nodes, place, project_files

PACKAGES = ("embstore", "proto", "client", "server")
PER_1000_WORDS = {
    r"\b[Ww]hat(?:ever)?\b": 3.0,
    r"\b(?:that|those) of\b": 0.4,
    r"\b(?:[Ww]ho|[Ww]hoever|[Nn]obody|[Ww]hom)\b": 0.5,
    r"\b[Bb]esides?\b": 0.5,
    r"\b(?:[Tt]old|[Tt]ells?)\b": 0.5,
    r"(?:^|[.:] )(?:Of|As|So) (?:a|the|an|long|many|much|all|each|what|its|it)\b": 0.3,
}
_SHOWN = 30


class Text(NamedTuple):
    """A docstring, a help text, or a line of a page, and where it is."""

    place: str
    words: str


def of_code() -> list[Text]:
    return [
        text
        for package in PACKAGES
        for path in project_files(".py", under=package)
        for text in _of_file(path)
    ]


def _of_file(path: Path) -> Iterator[Text]:
    if "_pb2" in path.name:
        return
    for node in nodes(path):
        match node:
            case ast.Expr(value=ast.Constant(value=str(words))):
                yield Text(place(path, node), words)
            case ast.keyword(arg="help", value=ast.Constant(value=str(words))):
                yield Text(place(path, node.value), words)


def of_pages() -> list[Text]:
    return [
        Text(f"{path.relative_to(ROOT)}:{number}", line)
        for path in project_files(".md")
        for number, line in enumerate(path.read_text().splitlines(), 1)
    ]


def hits(words: str) -> int:
    return sum(len(re.findall(pattern, words, re.MULTILINE)) for pattern in PER_1000_WORDS)


def worst(texts: list[Text]) -> str:
    """Return the sentences with the most of these words, worst first."""
    sentences = [
        (sentence, text.place)
        for text in texts
        for sentence in re.split(r"(?<=[.:;])\s+", " ".join(text.words.split()))
    ]
    scored = [(hits(s) / (len(s.split()) + 8), f"{place}: {s}") for s, place in sentences]
    scored = [(score, line) for score, line in scored if score]
    return "\n".join(line for _, line in sorted(scored, reverse=True)[:_SHOWN])


@pytest.mark.parametrize("texts", [of_code, of_pages])
def test_words_of_a_dialect_are_rare(texts):
    found = texts()
    words = sum(len(text.words.split()) for text in found)
    assert words > 10_000
    for pattern, goal in PER_1000_WORDS.items():
        count = sum(len(re.findall(pattern, text.words, re.MULTILINE)) for text in found)
        rate = 1000 * count / words
        assert rate <= goal, f"{pattern} {rate:.2f} in 1,000 words, not {goal}\n{worst(found)}"


def test_the_worst_sentences_are_found():
    texts = [
        Text("a:1", "Return what it tells of who asked. Return the rows."),
        Text("b:2", "So it is."),
    ]
    assert worst(texts) == "a:1: Return what it tells of who asked.\nb:2: So it is."
