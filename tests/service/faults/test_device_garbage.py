"""What no client says of a GPU's memory that it shares: it costs the call, or the connection."""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore_proto import device_segment as frames
from embstore_proto.device_places import DEVICE_OFFSET
from embstore_proto.shared_memory import Kind
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_proto.verbs import VERBS
from tests.service.device.samples import WIDE, GpuServer
from tests.service.faults.losing import needs_compiler
from tests.service.faults.served import Served, on_loop_call, until
from tests.service.faults.sharing import EndedError, Sharer, make_wide
from tests.serving import patient

pytestmark = needs_compiler

PATIENCE_S = 30.0
COUNT, KEYS_BYTES = 10, 80
SEGMENT_BYTES = 2 << 20
KEYS = np.arange(COUNT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuServer]:
    path = tmp_path_factory.mktemp("device")
    with GpuServer(path / "store", socket=str(path / "socket")) as made:
        yield made
        made.runtime.memories.check_guards(everywhere=True)


@pytest.fixture
def sharer(server: GpuServer) -> Iterator[Sharer]:
    with Sharer(server.socket) as made:
        assert made.ask_for_device(1).kind == Kind.DEVICE_SEGMENT
        yield made
    until(lambda: segment_bytes(server) == 0, PATIENCE_S)


def segment_bytes(server: Served) -> int:
    found: int = on_loop_call(lambda: server.service.traffic["shared_memory"].device_segment_bytes)
    return found


def step_header(verb: str, member: str, **changed: Any) -> bytes:
    """Return the header of a lookup, or an update, of a step of "wide", with occurrences of keys;
    `changed` is the place of these. Gradients are in the segment."""
    inverse = np.arange(COUNT, dtype=np.uint32)
    if verb == "LookupStepPooled":
        command: Any = c.LookupStepPooled(member, 1, (c.StepBags("wide", inverse),))
    else:
        rows = np.zeros((COUNT, WIDE), np.float32)
        command = c.UpdateStep(member, 1, (c.StepGradients("wide", rows, None, inverse),))
    outgoing = VERBS[verb].outgoing(command)
    (table,) = outgoing.head.tables
    table.inverse.CopyFrom(pb.Array(shape=[COUNT], **changed))
    if verb == "UpdateStep":
        table.gradients.offset = DEVICE_OFFSET
    return outgoing.serialised(None)


def lookup_header(**changed: Any) -> bytes:
    """Return the header of a lookup whose keys are in the segment; `changed` is of their place."""
    command = c.Lookup((c.TableKeys("wide", None, KEYS),))
    outgoing = VERBS["Lookup"].outgoing(command)
    place = {"dtype": pb.DTYPE_INT64, "shape": [COUNT], "offset": DEVICE_OFFSET} | changed
    outgoing.head.tables[0].keys.CopyFrom(pb.Array(**place))
    return outgoing.serialised(None)


def assert_serves(server: GpuServer) -> None:
    with patient(f"unix:{server.socket}") as store:
        assert store.lookup({"wide": KEYS})["wide"].shape[0] == COUNT


def test_a_lookup_that_comes_after_its_announcement_has_its_arrays_there(server, sharer):
    """By itself it looks like one that may be answered where it is read."""
    sharer.say(frames.on_device(KEYS_BYTES))
    assert_serves(server)  # it has been read by then
    assert sharer.call("Lookup", lookup_header(), None).kind == Kind.RESULT


@pytest.mark.parametrize("announced", [KEYS_BYTES, SEGMENT_BYTES + 1, 2**64 - 1, None])
@pytest.mark.parametrize(
    "place",
    [
        {},
        {"offset": DEVICE_OFFSET + 64},
        {"offset": DEVICE_OFFSET + SEGMENT_BYTES},
        {"offset": DEVICE_OFFSET + 8},
        {"offset": 2**64 - 64},
        {"offset": DEVICE_OFFSET - 64},
        {"shape": [COUNT + 1]},
        {"shape": [2**61]},
        {"shape": [2**63, 0]},
        {"shape": [2, 5]},
        {"shape": []},
        {"dtype": pb.DTYPE_FLOAT32},
        {"dtype": pb.DTYPE_INT64_DELTA},
        {"dtype": 77},
    ],
    ids=str,
)
def test_what_is_elsewhere_of_another_kind_or_more_than_the_segment_has_is_refused(
    server, sharer, place, announced
):
    """And so are places of a GPU's memory in a call that announces none."""
    if place or announced != KEYS_BYTES:
        said = sharer.call("Lookup", lookup_header(**place), announced)
        assert said.refusal.name == "InvalidArgumentError"
    assert sharer.call("Lookup", lookup_header(), KEYS_BYTES).kind == Kind.RESULT


def test_a_call_without_a_segment_is_refused(server):
    with Sharer(server.socket) as sharer:
        said = sharer.call("Lookup", lookup_header(), KEYS_BYTES)
        assert "shared memory of a GPU of 0 bytes" in said.refusal.text


@pytest.mark.parametrize("verb", ["GetStats", "ReadRows", "Assign", "ReadStep", "PutRows"])
def test_verbs_that_use_no_memory_of_a_gpu_refuse_it(sharer, verb):
    said = sharer.call(verb, b"", 0)
    assert f"host arrays in {verb}" in said.refusal.text


@pytest.fixture
def member(server: GpuServer) -> Iterator[str]:
    """A member of a session whose first two steps are of the same keys."""
    with patient(f"unix:{server.socket}") as store:
        store.sessions.open("s", ["wide"])
        made = store.sessions.join("s", 0).member
        store.sessions.announce(made, {1: {"wide": KEYS}, 2: {"wide": KEYS + 5}})
        yield made
        store.sessions.close(made)


@pytest.mark.parametrize("verb", ["LookupStepPooled", "UpdateStep"])
@pytest.mark.parametrize("dtype", [pb.DTYPE_UINT32, pb.DTYPE_INT64, pb.DTYPE_FLOAT32])
def test_occurrences_of_a_step_are_the_host_s(sharer, member, verb, dtype):
    header = step_header(verb, member, dtype=dtype, offset=DEVICE_OFFSET)
    said = sharer.call(verb, header, 4 * COUNT * WIDE)
    assert said.refusal.name == "InvalidArgumentError"
    assert "inverse" in said.refusal.text


def test_counts_of_a_lookup_are_the_host_s(sharer):
    head = VERBS["Lookup"].request.Header.FromString(lookup_header())
    there = pb.Array(dtype=pb.DTYPE_INT64, shape=[COUNT], offset=DEVICE_OFFSET)
    head.tables[0].counts.CopyFrom(there)
    said = sharer.call("Lookup", head.SerializeToString(), KEYS_BYTES)
    assert said.refusal.name == "InvalidArgumentError"


def test_early_rows_of_a_step_are_the_host_s(server, sharer, member):
    """Step 2 has early rows while step 1 is not finished."""
    header = VERBS["LookupStep"].outgoing(c.LookupStep(member, 2, early=True)).serialised(None)
    said = sharer.call("LookupStep", header, 0)
    assert "early=false" in said.refusal.text
    header = VERBS["LookupStep"].outgoing(c.LookupStep(member, 1, early=True)).serialised(None)
    assert sharer.call("LookupStep", header, 0).kind == Kind.RESULT


def test_rows_of_two_bytes_are_refused(sharer):
    head = VERBS["Lookup"].request.Header.FromString(lookup_header())
    head.rows_dtype = pb.DTYPE_FLOAT16
    said = sharer.call("Lookup", head.SerializeToString(), KEYS_BYTES)
    assert "float32 rows" in said.refusal.text


@pytest.mark.parametrize("size", [2**63, 2**64 - 1])
def test_a_segment_above_the_most_is_refused(server, size):
    with Sharer(server.socket) as sharer:
        assert "split the call" in sharer.ask_for_device(size).refusal.text
        assert sharer.ask_for_device(1).kind == Kind.DEVICE_SEGMENT
    until(lambda: segment_bytes(server) == 0, PATIENCE_S)


@pytest.mark.parametrize("kind", [Kind.DEVICE_SEGMENT, Kind.ON_DEVICE])
@pytest.mark.parametrize("body", [b"", bytes(7), bytes(9)])
def test_frames_that_are_none_end_the_connection(server, kind, body):
    with Sharer(server.socket) as sharer:
        sharer.say(struct.pack("<IBB", len(body), kind, 0) + body)
        assert sharer.next().refusal.name == "InvalidArgumentError"
        with pytest.raises(EndedError):
            sharer.next()
    assert_serves(server)


def test_a_segment_is_freed_when_its_tether_has_ended_and_not_before(server):
    with Sharer(server.socket) as sharer:
        sharer.ask_for_device(1)
        sharer.ask_for_device(1)
        assert segment_bytes(server) == 2 * SEGMENT_BYTES
        sharer._descriptors.reverse()
        sharer.end_tether()  # of the first
        until(lambda: segment_bytes(server) == SEGMENT_BYTES, PATIENCE_S)
        sharer.socket.close()
        until(lambda: server.service.traffic["shared_memory"].connections == 0, PATIENCE_S)
        assert segment_bytes(server) == SEGMENT_BYTES
        sharer.end_tether()
        until(lambda: segment_bytes(server) == 0, PATIENCE_S)


def test_a_server_on_the_cpu_refuses_to_share_its_memory(tmp_path):
    with Served(tmp_path / "store", socket=str(tmp_path / "socket")) as served:
        served.on_engine(make_wide)
        with Sharer(served.socket) as sharer:
            assert "the rows are on cpu" in sharer.ask_for_device(1).refusal.text
            assert sharer.call("Lookup", lookup_header(), KEYS_BYTES).kind == Kind.ERROR
        served.assert_free()
