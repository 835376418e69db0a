"""The options of a store: `embstore.open` takes each by name, with its default."""

import inspect
from dataclasses import fields

import embstore
from embstore.options import StoreOptions, descriptions


def test_open_takes_each_option_with_its_default() -> None:
    taken = inspect.signature(embstore.open).parameters
    options = {f.name: f.default for f in fields(StoreOptions)}
    assert {n: p.default for n, p in taken.items() if n not in ("path", "files")} == options


def test_every_option_is_described_in_the_help_of_open() -> None:
    texts = descriptions()
    assert texts.keys() == {f.name for f in fields(StoreOptions)}
    shown = " ".join(inspect.getdoc(embstore.open).split())
    assert all(f"{name} : {text}" in shown for name, text in texts.items())
