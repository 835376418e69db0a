"""Names in the code are made of the field's words: docs/glossary.md says which are not used."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.style.sources import ROOT, nodes, place, project_files, table_rows

PACKAGES = ("embstore", "proto", "client", "server")


class Banned(NamedTuple):
    """A row of the glossary's last table."""

    words: str
    instead: str
    stays_in: set[str]

    def is_in(self, name: str) -> bool:
        if self.words[0].isupper():
            return name == self.words
        spelled = f"_{snake_case(name)}_"
        for known in self.stays_in:
            spelled = spelled.replace(f"_{snake_case(known)}_", "_")
        return f"_{self.words}_" in spelled


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def banned_words() -> list[Banned]:
    page = (ROOT / "docs" / "glossary.md").read_text()
    return [
        Banned(word.strip("`"), instead, set(stays.replace("`", "").split()))
        for word, instead, stays in table_rows(page, "not in names")
    ]


def names() -> Iterator[tuple[str, str]]:
    """Yield every name that the product defines, with where."""
    for package in PACKAGES:
        for path in project_files(".py", under=package):
            if "_pb2" in path.name:
                continue
            yield path.stem, place(path)
            for node in nodes(path):
                yield from ((name, place(path, node)) for name in defined(node))


def defined(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.arg(arg=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name


def test_no_name_is_made_of_a_banned_word():
    places = dict(names())
    found = [
        f"{where}: {name}, use {word.instead}"
        for word in banned_words()
        for name, where in places.items()
        if word.is_in(name)
    ]
    assert not found, "\n".join(found)


def test_words_are_found_within_names():
    words = {word.words: word for word in banned_words()}
    assert words["told"].is_in("last_told") and not words["told"].is_in("untold")
    assert words["no_way_back"].is_in("_no_way_back") and not words["tend"].is_in("extend")
    assert words["Once"].is_in("Once") and not words["Once"].is_in("at_once")
    assert words["border"].is_in("GrpcBorder")
    assert words["held"].is_in("held_keys") and not words["held"].is_in("_held_out_auc")
