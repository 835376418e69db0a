"""The lazy names of embstore: what type checkers are told, __all__ and what is found agree."""

import ast
import importlib
import inspect

import pytest

import embstore
from embstore import errors
from tests.style.sources import ROOT, parse


def declared() -> dict[str, str]:
    """Return the names imported for type checkers, each with its module."""
    of_errors = {name: "embstore.errors" for name in vars(errors) if name.endswith("Error")}
    return of_errors | {
        alias.asname or alias.name: str(node.module)
        for node in ast.walk(parse(ROOT / "embstore" / "__init__.py"))
        if isinstance(node, ast.ImportFrom)
        and str(node.module).startswith("embstore")
        and node.module not in ("embstore", "embstore.version", "embstore.errors")
        for alias in node.names
    }


def test_all_is_what_type_checkers_are_told():
    assert {*embstore.__all__, "open"} == declared().keys()


def test_all_names_leave_the_builtin_open_alone():
    names: dict[str, object] = {}
    exec("from embstore import *", names)
    assert "open" not in names and names["connect"] is embstore.connect


@pytest.mark.parametrize("name", ["files", "jax", "keras", "torch"])
def test_an_adapter_is_found_under_the_name_that_users_import(name):
    library = {"files": "embstore_client.files"}.get(name, name)
    pytest.importorskip(library, reason=f"needs the extra {name}")
    adapter = importlib.import_module(f"embstore.{name}")
    home = importlib.import_module(f"embstore_client.{name}")
    assert adapter.__all__ == home.__all__
    assert all(getattr(adapter, each) is getattr(home, each) for each in home.__all__)


@pytest.mark.parametrize("name", sorted(declared()))
def test_name_is_found_where_it_is_declared(name):
    home = importlib.import_module(declared()[name])
    assert getattr(embstore, name) is getattr(home, name)


def test_every_error_class_is_public():
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert classes == {name for name in embstore.__all__ if name.endswith("Error")}


def test_dir_lists_every_public_name():
    assert set(embstore.__all__) <= set(dir(embstore))


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'embstore' has no attribute 'lookup'"):
        _ = embstore.lookup
