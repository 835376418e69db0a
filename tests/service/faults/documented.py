"""Requests that are made of the OpenAPI document, and a model that judges what they have done.

Schemathesis makes them: such as fit their schemas, such as do not, and, as random names are of no
table, such as are about what there is. Which answers conform is left to the document.

The requests of an operation come one after the other, so their answers are in the order of their
commands: the model of tests/commands is told what was acknowledged, and tables, digests and the
number of the last command have to be its own in the end. A table that nobody names is as it was.
"""

from collections import Counter
from copy import deepcopy
from typing import Any
from uuid import uuid4

import numpy as np
import requests
import schemathesis
from google.protobuf import json_format
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from embstore import commands as c
from embstore_proto.status import ANSWERS
from embstore_proto.verbs import VERBS
from tests.service.faults.logged import LoggedServer
from tests.service.faults.mutated import CACHE_BYTES, ERRORS, ROWS, OwnUpdate

NAMES = ["a", "b", "part/c", "kept", "train", "no/such"]
NAMED = {"table", "name", "label"}
RIGHT: dict[str, dict[str, Any]] = {
    "ResizeCache": {"cache_bytes": CACHE_BYTES // 2},
    "SetPolicy": {"policy": "lfu"},
    "CreateTable": {
        "config": {"name": "d", "dim": 4, "rows": 9, "sgd": {"learning_rate": 0.5}, "constant": {}}
    },
    "GrowTable": {"table": "a", "rows": ROWS + 9},
    "SetLearningRate": {"table": "b", "learning_rate": 0.5},
    "Checkpoint": {"label": "one", "metadata_json": '{"step": 1}'},
    "SetRetention": {"label": "kept", "retention": "RETENTION_ROUTINE"},
    "Restore": {"label": "kept"},
    "OpenSession": {"name": "train", "tables": ["a", "b"]},
    "JoinSession": {"name": "train", "member": "0123456789abcdef"},
    "EndSession": {"name": "train"},
}
"""A request by its verb; where there is none, names do."""
FOLLOWED = (
    *(c.CreateTable, c.DropTable, c.ClearTable, c.GrowTable, c.SetLearningRate),
    *(c.Checkpoint, c.Restore),
)
KEPT = 3
"""Checkpoints that the server keeps."""
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
REFUSALS = {
    *((kind.__name__, ANSWERS[kind].http) for kind in ANSWERS if kind.__name__ in dict(ERRORS)),
    *(("InvalidArgumentError", status) for status in (404, 405, 411, 413, 415)),
}
"""How a request may be refused: by the store, and by HTTP itself."""
PROBES = "/healthz", "/readyz"
"""Whoever asks is answered."""


def bare(document: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenAPI document without what would be sent besides: credentials, as a caller has
    its own, and origins, as a repeated one is answered as before."""
    changed = deepcopy(document)
    for methods in changed["paths"].values():
        for operation in methods.values():
            operation.pop("security", None)
            _body(changed, operation).get("properties", {}).pop("origin", None)
    return changed


def knowing(document: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenAPI document whose requests are about what there is."""
    changed = bare(document)
    for path, methods in changed["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    parameter["schema"] = {"enum": NAMES}
            body, right = _body(changed, operation), RIGHT.get(path.rpartition("/")[2], {})
            fields = body.get("properties", {})
            fields.pop("table_id", None)
            known = dict.fromkeys(NAMED, NAMES) | {name: [v] for name, v in right.items()}
            for name in known.keys() & fields.keys():
                fields[name] = {"enum": known[name]}
            body["required"] = sorted(known.keys() & fields.keys())
    return changed


def _body(document: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of what an operation takes as JSON; empty where it takes none."""
    content = operation.get("requestBody", {}).get("content", {})
    schema: dict[str, Any] = content.get("application/json", {}).get("schema", {})
    schema = next((one for one in schema.get("anyOf", ()) if "$ref" in one), schema)
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def made(operation: APIOperation, mode: GenerationMode, count: int) -> list[Case]:
    """Return so many requests of an operation, or all where there are fewer."""
    found: list[Case] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(mode))
    def generate(case: Case) -> None:
        found.append(case)

    generate()
    return found


class Requests(OwnUpdate):
    """The operations of a served document, requested by one caller."""

    def __init__(self, server: LoggedServer, token: str | None, operator: str | None) -> None:
        super().__init__(server.address, operator)
        self._base = f"http://{server.admin}"
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._session = requests.Session()
        self.document = self._session.get(f"{self._base}/openapi.json").json()
        self._bare = schemathesis.openapi.from_dict(bare(self.document))
        self._knowing = schemathesis.openapi.from_dict(knowing(self.document))

    def close(self) -> None:
        """End the connections."""
        self._session.close()
        self.store.close()

    def operations(self) -> list[APIOperation]:
        """Return what there is to request."""
        return [found.ok() for found in self._bare.get_all_operations()]

    def request(self, operation: APIOperation, count: int) -> Counter[int]:
        """Request an operation so often; return how often it had each status."""
        cases = made(operation, GenerationMode.POSITIVE, count)
        known = self._knowing[operation.path][operation.method]
        cases += made(known, GenerationMode.POSITIVE, count)
        if self._may_be_wrong(operation):
            cases += made(operation, GenerationMode.NEGATIVE, count)
        statuses: Counter[int] = Counter()
        for case in cases:
            statuses[self._answer(operation, case)] += 1
        return statuses

    def _may_be_wrong(self, operation: APIOperation) -> bool:
        """Tell whether there are requests that do not fit: any path is one, and any file."""
        described = self.document["paths"][operation.path][operation.method]
        content = described.get("requestBody", {}).get("content", {})
        places = {parameter["in"] for parameter in described.get("parameters", ())}
        return "query" in places or "application/json" in content

    def _answer(self, operation: APIOperation, case: Case) -> int:
        answer = case.call_and_validate(self._base, self._session, self._headers, checks=CHECKS)
        status: int = answer.status_code
        if status >= 400 and operation.path not in PROBES:
            assert (answer.json()["error"], status) in REFUSALS, (case, answer.text)
        elif operation.method == "post":
            self._follow(operation.path, answer.request.body or b"{}", answer.text)
        return status

    # What they do

    def begin(self) -> None:
        """Make the tables anew, and what else may be named."""
        self._begin_anew()
        for label in [uuid4().hex for _ in range(KEPT)] + ["kept"]:  # in place of one of this name
            self._do(c.Checkpoint(label, {}))
        self._do(c.Assign(c.TableKeys("a", None, np.arange(9)), np.ones((9, 3), np.float32)))

    def _follow(self, path: str, body: bytes, text: str) -> None:
        """Have the model follow what was acknowledged."""
        verb = VERBS.get(path.rpartition("/")[2])
        if verb is None or verb.command not in FOLLOWED:
            return
        command = verb.arrived(verb.request_of_json(body).SerializeToString()).command
        if path.startswith("/api/v1/commands/"):
            reply = json_format.Parse(text, verb.reply())
            self._model.follow(command, verb.answer(reply.SerializeToString()).value)

    def end(self) -> None:
        """Compare what there is with what was acknowledged; be a client of another table."""
        self._judge()
        self._look()
