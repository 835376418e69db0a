"""What no client sends: noise, messages cut off or with flipped bits. Each is refused by name.

A refusal changes nothing, which the command number and the digest say, and no other client notices.
"""

import sys
import threading
from typing import Any

import grpc
import numpy as np
import pytest

from embstore_proto.status import ANSWERS
from embstore_proto.v1 import embstore_pb2 as pb
from tests.service.faults.ledger import Ledger, gradients
from tests.service.faults.wire import Refusal, Wire, lookup, refusal, refusal_of, update

SEED = 20_261_120
METHODS = list(pb.DESCRIPTOR.services_by_name["Embstore"].methods)
CODES = {(kind.__name__, answer.code.name) for kind, answer in ANSWERS.items()}
NOISES = 8


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    sys.stdout.write(f"seed {SEED}\n")
    return np.random.default_rng([SEED, *request.node.name.encode()])


def sent(wire: Wire, method: Any, message: bytes) -> Refusal | None:
    """Send bytes to a method; return how they were refused, or None if they meant something."""
    try:
        if method.client_streaming:
            list(wire.begin_method(method.name, [message]))
        else:
            wire.unary(method.name, message)
    except grpc.RpcError as exc:
        found = refusal_of(exc)
        assert (found.error, found.code) in CODES, found
        return found
    return None


def assert_serves(wire: Wire, ledger: Ledger, n: int) -> None:
    """Check that a call that means something is answered, in its turn."""
    reply = wire.unary("Update", update(gradients(n)).joined())
    header = pb.BulkAcknowledgedReply.Header.FromString(reply[2 : 2 + reply[1]])
    ledger.acknowledged[n] = header.context.command
    assert ledger.acknowledged[n] == ledger.first_command + len(ledger.acknowledged) - 1


def test_noise_is_refused_by_name(wire, served, ledger, rng):
    for number, method in enumerate(METHODS):
        before = served.store.command
        for _ in range(NOISES):
            noise = rng.integers(0, 256, rng.integers(1, 200), np.uint8).tobytes()
            found = sent(wire, method, noise)
            assert found is not None and found.error == "InvalidArgumentError", method.name
        assert served.store.command == before, method.name
        assert_serves(wire, ledger, number)


def _method(name: str) -> Any:
    return next(method for method in METHODS if method.name == name)


def test_unknown_method_is_refused(wire, ledger):
    for call in (lambda: wire.unary("Upsert", b"x"), lambda: wire.stream("Upsert", [b"x"])):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert refusal_of(caught.value).code == "UNIMPLEMENTED"
    assert_serves(wire, ledger, 0)


NAMES = [
    "",
    "A B",
    "a" * 5000,
    "ä" * 1900,
    "\U0001f600" * 1900,
    "a\nb",
    "a\0b",
    "../x",
    "a//b",
    "\t",
]


@pytest.mark.parametrize("table", NAMES, ids=[ascii(n[:4]) + str(len(n)) for n in NAMES])
def test_name_of_no_table_is_told_as_it_came(table, wire, ledger):
    """A message of any length and alphabet fits the status that it travels in."""
    config = pb.TableConfig(name=table, dim=4, rows=10, sgd=pb.Sgd(), constant=pb.Constant())
    messages = {
        "CreateTable": pb.CreateTableRequest(config=config).SerializeToString(),
        "GetTable": pb.GetTableRequest(table=table).SerializeToString(),
        "DropTable": pb.DropTableRequest(table=table).SerializeToString(),
        "Update": update({table: ([0], [[1.0]])}).joined(),
        "Lookup": lookup({table: [0]}).joined(),
    }
    for name, message in messages.items():
        found = sent(wire, _method(name), message)
        assert found is not None
        assert found.error in ("InvalidArgumentError", "TableNotFoundError")
        assert found.text
    assert_serves(wire, ledger, 0)


TEXTS = ['{"a": ' * 2000, "[]", "1" * 9000, "{", '{"a": NaN}', '"\\ud800"', '{"a": "\\ud800"}x']


@pytest.mark.parametrize("text", TEXTS, ids=[t[:6] for t in TEXTS])
def test_metadata_that_is_no_object_is_refused(text, wire, ledger):
    request = pb.CheckpointRequest(label="x", metadata_json=text)
    found = sent(wire, _method("Checkpoint"), request.SerializeToString())
    assert found is not None and found.error == "InvalidArgumentError"
    assert_serves(wire, ledger, 0)


def test_a_request_whose_message_never_comes_ends_at_its_deadline(serve):
    served, never = serve(call_timeout_s=0.05), threading.Event()
    with Wire(served.address) as wire:
        call = wire.begin_method("ListTables", (never.wait() for _ in range(1)), timeout=None)
        found = refusal(lambda: list(call))
        never.set()
    assert (found.code, found.error) == ("DEADLINE_EXCEEDED", "DeadlineError")
    served.assert_idle()
