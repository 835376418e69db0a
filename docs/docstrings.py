"""Reads the project's docstrings for the API reference (mkdocs.yml names this file).

NumPy's form of a parameter is `name : type`, with the description on the lines below. The types are
in the signature here, so `name : description` is written, on as many lines as it takes; so are
errors. This puts each description where the parser of NumPy's form looks for it.
"""

import re
from collections.abc import Iterator
from typing import Any

import griffe

_SECTION = re.compile(r"^(Parameters|Raises|Returns)\n-+\n((?:.+\n)*)", re.MULTILINE)
_ITEM = re.compile(r"([\w`*]+(?:, [\w`*]+)*) : (.*)")


class Descriptions(griffe.Extension):
    """Moves each description to lines of its own."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object that was just loaded."""
        if obj.docstring is not None:
            returned = str(getattr(obj, "returns", None))
            obj.docstring.value = _SECTION.sub(
                lambda section: _rewritten(section, returned), obj.docstring.value + "\n"
            )


def _rewritten(section: re.Match[str], returned: str) -> str:
    title, text = section.groups()
    written = text.splitlines()
    lines = [returned, *_indented(written)] if title == "Returns" else _items(title, written)
    return "\n".join([title, "-" * len(title), *lines, ""])


def _items(title: str, written: list[str]) -> Iterator[str]:
    names: list[str] = []
    description: list[str] = []
    for line in written:
        item = _ITEM.fullmatch(line)
        if item is None and line.startswith(" "):
            description.append(line)
            continue
        yield from _described(names, description)
        if item is not None:
            names, description = item[1].split(", "), [item[2]]
        else:  # words in place of a name: what others raise
            names, description = ["Exception"] if title == "Raises" else [line], [line]
    yield from _described(names, description)


def _described(names: list[str], description: list[str]) -> Iterator[str]:
    for name in names:
        yield name
        yield from _indented(description)


def _indented(lines: list[str]) -> Iterator[str]:
    return (f"    {line.strip()}" for line in lines)
