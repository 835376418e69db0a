"""The description of the REST border: whole, with examples that fit."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

import embstore
from embstore_server.admin import (
    cache,
    durability,
    figures,
    frequency,
    models,
    probes,
    server,
    sessions,
    statistics,
    tables,
)
from tests.service.rest import Rest, filled, run

MODULES: tuple[ModuleType, ...] = (
    *(cache, durability, figures, frequency, models, probes, server, sessions, statistics, tables),
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a store with two tables."""
    return filled(tmp_path / "store")


@pytest.fixture
def openapi(data: Path) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def scenario(rest: Rest) -> None:
        found.append(await rest.get("/openapi.json"))

    run(data, scenario)
    return found[0]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    if isinstance(tree, dict | list):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from _nodes(branch)


def test_openapi_document_is_whole(openapi: dict[str, Any]) -> None:
    assert openapi["openapi"].startswith("3.1")
    assert openapi["info"]["version"] == embstore.__version__
    schemas = openapi["components"]["schemas"]
    references = {node["$ref"] for node in _nodes(openapi) if isinstance(node.get("$ref"), str)}
    assert references == {f"#/components/schemas/{name}" for name in schemas}
    operations = [o for path in openapi["paths"].values() for o in path.values()]
    identifiers = [operation["operationId"] for operation in operations]
    assert len(set(identifiers)) == len(identifiers)
    assert "GetTableStats" in identifiers
    for operation in operations:
        assert operation["description"], operation
        assert "422" not in operation["responses"]
    for path, methods in openapi["paths"].items():
        if path.startswith("/api/"):
            for operation in methods.values():
                told = operation["responses"]["default"]["content"]["application/json"]["schema"]
                assert told == {"$ref": "#/components/schemas/ErrorReply"}


def test_openapi_examples_fit_their_models(openapi: dict[str, Any]) -> None:
    by_name = {
        name: model
        for module in MODULES
        for name, model in vars(module).items()
        if inspect.isclass(model) and issubclass(model, BaseModel)
    }
    shown = 0
    for name, schema in openapi["components"]["schemas"].items():
        for example in schema.get("examples", []):
            model = by_name[name].model_validate(example)
            assert set(example) <= set(model.model_dump())
            shown += 1
    assert shown >= 8


def test_every_field_says_what_it_is(openapi: dict[str, Any]) -> None:
    silent = {"context", "table", "checkpoint", "cache", "storage", "memory", "service", "stats"}
    silent |= {"misses", "evictions", "log", "merges", "limits", "queue"}  # their types say it
    silent |= {"read_only", "ready", "label", "name", "pools"}  # their names do
    bare = [
        f"{name}.{field}"
        for name, schema in openapi["components"]["schemas"].items()
        for field, told in schema["properties"].items()
        if "description" not in told and field not in silent
    ]
    assert not bare
