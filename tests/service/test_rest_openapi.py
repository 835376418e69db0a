"""The OpenAPI document: whole, with examples that fit."""

import asyncio
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

import embstore
from embstore_proto.verbs import JSON_VERBS
from tests.service.access.tenants import write_tokens
from tests.service.rest import unopened


@pytest.fixture(scope="module")
def openapi(tmp_path_factory: pytest.TempPathFactory) -> Any:
    async def found() -> Any:
        async with unopened(tmp_path_factory.mktemp("none")) as (rest, _):
            return await rest.get("/openapi.json")

    return asyncio.run(found())


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    if isinstance(tree, dict | list):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from _nodes(branch)


def test_openapi_document_is_whole(openapi):
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


def test_openapi_examples_fit_their_models(openapi):
    """Validated as a client would: by the schemas themselves, and with no field that they lack."""
    schemas = openapi["components"]["schemas"]
    closed = {name: one | {"additionalProperties": False} for name, one in schemas.items()}
    shown = 0
    for name, schema in schemas.items():
        whole = {"components": {"schemas": closed}, "$ref": f"#/components/schemas/{name}"}
        for example in schema.get("examples", []):
            jsonschema_rs.validator_for(whole).validate(example)
            shown += 1
    assert shown >= 20


def test_commands_show_the_fields_of_their_messages(openapi):
    for name, verb in JSON_VERBS.items():
        operation = openapi["paths"][f"/api/v1/commands/{name}"]["post"]
        bodies = operation["requestBody"], operation["responses"]["200"]
        for body, message in zip(bodies, (verb.request, verb.reply), strict=True):
            fields = body["content"]["application/json"]["schema"]["properties"]
            assert fields.keys() == set(message.DESCRIPTOR.fields_by_name), name


def test_document_asks_for_a_token_where_the_server_does(openapi, tmp_path):
    async def found() -> Any:
        async with unopened(tmp_path, tokens=write_tokens(tmp_path / "tokens")) as (rest, _):
            return await rest.get("/openapi.json")

    for path, methods in asyncio.run(found())["paths"].items():
        for operation in methods.values():
            assert ("security" in operation) == (path not in ("/healthz", "/readyz"))
    assert not any("security" in o for path in openapi["paths"].values() for o in path.values())


def test_every_field_says_what_it_is(openapi):
    bare = [
        f"{name}.{field}"
        for name, schema in openapi["components"]["schemas"].items()
        for field, told in schema["properties"].items()
        if "description" not in told and "$ref" not in told  # whose type says it
    ]
    assert not bare
