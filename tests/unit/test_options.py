"""Options are said once: who takes them by name has each, with its default and its text."""

import inspect
from dataclasses import fields

import pytest

import embstore
from embstore.handles.run_options import RunOptions
from embstore.options import StoreOptions, descriptions


@pytest.mark.parametrize(
    ("function", "options", "others"),
    [
        (embstore.open, StoreOptions, {"path", "files"}),
        (embstore.Store.session, RunOptions, {"self", "tables"}),
    ],
)
def test_each_option_is_taken_with_its_default_and_text(function, options, others):
    taken = inspect.signature(function).parameters
    assert {name: taken[name].default for name in taken if name not in others} == {
        f.name: f.default for f in fields(options)
    }
    assert inspect.getdoc(options) in inspect.getdoc(function)


def test_every_option_of_a_store_is_described():
    assert descriptions().keys() == {f.name for f in fields(StoreOptions)}


@pytest.mark.parametrize("indentation", ["", "    "])
def test_descriptions_are_found_at_any_indentation_of_a_docstring(indentation):
    """Python 3.13 removes it, earlier versions keep it."""
    lines = "Options.", "", "first : a text", "    of two lines", "second : another"
    of = type("Options", (), {"__doc__": ("\n" + indentation).join(lines)})
    assert descriptions(of) == {"first": "a text of two lines", "second": "another"}
