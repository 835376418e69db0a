"""`wire_dtype`: training over a slow link is training with rounded gradients, to the bit.

Each case runs over gRPC and over shared memory, in messages of odd pieces, beside an embedded store
that is given what the wire makes of the gradients; both have the same digests in the end. The
rounding of the reference is NumPy's for float16, and for bfloat16 the choice between two
neighbours, written out.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.arithmetic import sum_by_key
from embstore.commands import Lookup, ReadRows, TableKeys
from embstore.errors import InvalidArgumentError
from embstore.handles.sessions import StepBags
from embstore.handles.store import Store
from embstore_client import connect
from embstore_proto import deltas, frame
from embstore_proto.received import array_of, split
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_proto.verbs import VERBS
from embstore_training.hotcold.run import HotColdRun
from tests.conformance.served import small_pieces
from tests.conformance.twin import bits, digests
from tests.service.faults.served import until
from tests.serving import Server, patient

NARROW = ("float16", "bfloat16")
TABLES: dict[str, dict[str, Any]] = {
    "ads": {"dim": 8, "rows": 1000, "optimizer": embstore.Adagrad(learning_rate=0.1)},
    "users": {"dim": 33, "rows": 300, "optimizer": embstore.Adam(learning_rate=0.01)},
    "wide": {"dim": 256, "rows": 200, "optimizer": embstore.Sgd(learning_rate=0.5)},
}


def rounded(values: Any, dtype: str) -> Any:
    """Return float32 values as they are after travelling as `dtype`."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "float16":
        with np.errstate(all="ignore"):
            return values.astype(np.float16).astype(np.float32)
    whole = values.view(np.uint32)
    toward_zero = whole & np.uint32(0xFFFF0000)
    away = toward_zero + np.uint32(0x10000)
    cut, is_odd = whole & np.uint32(0xFFFF), (toward_zero >> np.uint32(16)) & np.uint32(1)
    goes_away = (cut > 0x8000) | ((cut == 0x8000) & (is_odd == 1))
    nearest = np.where(goes_away, away, toward_zero)
    nan = np.uint32(0x7FC00000)
    return np.where(np.isnan(values), nan, nearest).astype(np.uint32).view(np.float32)


def sums(keys: Any, gradients: Any, dtype: str) -> tuple[Any, Any]:
    """Return what arrives of an update: each key once, and its sum rounded."""
    once, inverse = np.unique(keys, return_inverse=True)
    summed = sum_by_key(inverse.astype(np.int32), len(once), np.asarray(gradients, np.float32))
    return once, rounded(summed, dtype)


class Pair:
    """A served store by a narrow wire, and an embedded one that is given the same, rounded."""

    def __init__(self, server: Server, store: Store, twin: Store, dtype: str) -> None:
        self.server, self.store, self.twin, self.dtype = server, store, twin, dtype
        self.random = np.random.default_rng(7)
        for both in (store, twin):
            for name, config in TABLES.items():
                both.create_table(name, initializer=embstore.Normal(0.0, 1.0), **config)

    def keys(self, table: str, count: int) -> Any:
        rows = TABLES[table]["rows"]
        hot = self.random.integers(0, max(rows // 20, 1), count)
        return np.where(self.random.random(count) < 0.5, hot, self.random.integers(0, rows, count))

    def gradients(self, table: str, count: int) -> Any:
        size = (count, TABLES[table]["dim"])
        spread = 10.0 ** self.random.integers(-9, 3, (count, 1))
        return (self.random.standard_normal(size) * spread).astype(np.float32)

    def batch(self, counts: Mapping[str, int]) -> dict[str, tuple[Any, Any]]:
        return {name: (self.keys(name, n), self.gradients(name, n)) for name, n in counts.items()}

    def rounded_batch(self, batch: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
        return {name: sums(*part, self.dtype) for name, part in batch.items()}

    def check(self) -> None:
        """Compare all content: the digests, and the rows as they are looked up."""
        assert digests(self.store) == digests(self.twin)
        keys = {name: np.arange(config["rows"])[::-1] for name, config in TABLES.items()}
        self.check_rows(self.store.lookup(keys), self.twin.lookup(keys))

    def check_rows(self, found: Mapping[str, Any], exact: Mapping[str, Any]) -> None:
        assert list(found) == list(exact)
        for name, rows in exact.items():
            assert bits(found[name]) == bits(rounded(rows, self.dtype)), name


def opened(path: Path, **options: Any) -> Store:
    return embstore.open(path, cache_bytes=1 << 20, **options)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    path = tmp_path / "store"
    with small_pieces(), Server(partial(opened, path), path) as server:
        yield server


@pytest.fixture(params=["grpc", "unix"])
def address(request: pytest.FixtureRequest, server: Server) -> str:
    return server.address if request.param == "grpc" else f"unix:{server.socket}"


@pytest.fixture(params=NARROW)
def pair(
    request: pytest.FixtureRequest, server: Server, address: str, tmp_path: Path
) -> Iterator[Pair]:
    with patient(address, wire_dtype=request.param) as store, opened(tmp_path / "twin") as twin:
        yield Pair(server, store, twin, request.param)


# Training


def test_training_is_that_of_a_twin_with_rounded_gradients(pair):
    for count in (1, 40, 700, 0, 3):
        batch = pair.batch({"ads": count, "users": count // 2, "wide": count // 3})
        keys = {name: part[0] for name, part in batch.items()}
        pair.check_rows(pair.store.lookup(keys), pair.twin.lookup(keys))
        done = pair.store.update(batch, gradient_scale=0.5)
        as_sent = pair.twin.update(pair.rounded_batch(batch), gradient_scale=0.5)
        assert done.t == as_sent.t
        assert done.command == as_sent.command
    pair.check()


def test_rows_come_in_the_order_of_the_call(pair):
    table, twin = pair.store.table("ads"), pair.twin.table("ads")
    for keys in ([], [5], [1, 2, 9], [9, 2, 1], [7, 7, 7], [999, 0, 500, 0]):
        expected = rounded(twin.lookup(keys), pair.dtype)
        assert bits(table.lookup(keys)) == bits(expected)
        out = np.full((len(keys), 8), 3.0, np.float32)
        assert table.lookup(keys, out=out) is out
        assert bits(out) == bits(expected)


def accesses(store: Store) -> int:
    return sum(pool["accesses"] for pool in store.stats()["cache"]["pools"])


def test_accesses_are_counted_as_without(pair):
    keys, counts = [3, 9, 3, 1], [2, 5, 2**31, 7]
    before = [accesses(store) for store in (pair.store, pair.twin)]
    for store in (pair.store, pair.twin):
        store.table("ads").lookup(keys, counts=counts)
        store.table("ads").lookup([5, 5, 2])
        store.table("ads").lookup([8, 8], counts=[2**32 - 1] * 2)  # too many for one
    after = [accesses(store) for store in (pair.store, pair.twin)]
    grown = [now - then for now, then in zip(after, before, strict=True)]
    assert grown == [2 + 5 + 2**31 + 7 + 3 + 2 * (2**32 - 1)] * 2


def test_bags_have_their_gradients_rounded_one_by_one(pair):
    offsets, weights = [0, 3, 3, 90], np.linspace(-1, 2, 90).astype(np.float32)
    for mode, given in (("sum", None), ("mean", None), ("sum", weights)):
        keys, gradients = pair.keys("users", 90), pair.gradients("users", 3)
        table, twin = pair.store.table("users"), pair.twin.table("users")
        found = table.lookup_pooled(keys, offsets, mode, given)  # type: ignore[arg-type]
        exact = twin.lookup_pooled(keys, offsets, mode, given)  # type: ignore[arg-type]
        assert bits(found) == bits(rounded(exact, pair.dtype))
        table.update_pooled(keys, offsets, gradients, mode, given)  # type: ignore[arg-type]
        as_sent = rounded(gradients, pair.dtype)
        twin.update_pooled(keys, offsets, as_sent, mode, given)  # type: ignore[arg-type]
    pair.check()


def test_each_rank_has_its_own_sums_rounded(pair):
    ranks = [pair.batch({"ads": n, "wide": n // 2}) for n in (60, 0, 200)]
    pair.store.update_ranks(ranks, gradient_scale=1 / 3)
    pair.twin.update_ranks([pair.rounded_batch(rank) for rank in ranks], gradient_scale=1 / 3)
    pair.check()


def test_sessions_have_early_rows_and_the_same_digests(pair):
    members = {}
    for store in (pair.store, pair.twin):
        store.sessions.open("run", tuple(TABLES))
        members[store] = store.sessions.join("run", 0).member
    mine, its = pair.store.sessions, pair.twin.sessions
    steps = {
        number: {name: pair.random.permutation(150)[: 20 * number] for name in TABLES}
        for number in (1, 2, 3)
    }
    for store, member in members.items():
        store.sessions.announce(member, steps)
    member, other = members[pair.store], members[pair.twin]
    for number, announced in steps.items():
        pair.check_rows(mine.lookup_step(member, number), its.lookup_step(other, number))
        inverse, offsets = np.array([3, 3, 0, 7], np.int32), np.array([0, 1, 1, 4])
        bags = {"users": StepBags(inverse, offsets, "sum"), "ads": StepBags(inverse, offsets)}
        found = mine.lookup_step_pooled(member, number, bags)
        pair.check_rows(found, its.lookup_step_pooled(other, number, bags))
        coming: Any = None
        if number < 3:
            coming = mine.prefetch_step(member, number + 1)
            until(lambda: coming.early_bytes)  # noqa: B023  # within its turn
        gradients = {name: pair.gradients(name, len(keys)) for name, keys in announced.items()}
        mine.update_step(member, number, gradients)
        as_sent = {name: rounded(part, pair.dtype) for name, part in gradients.items()}
        its.update_step(other, number, as_sent)
        if coming is not None:
            pair.check_rows(coming.result(), its.lookup_step(other, number + 1))
            assert coming.late_bytes
    for store, secret in members.items():
        store.sessions.close(secret)
    pair.check()


def test_rows_that_are_put_assigned_or_read_are_exact(pair):
    rows = np.array([[1 + 2**-20, 1e30, -1e-40, np.inf, -np.inf, np.nan, -0.0, 70000]], np.float32)
    for store in (pair.store, pair.twin):
        table = store.table("ads")
        table.assign([4], rows)
        table.put_rows([6], rows, np.abs(np.nan_to_num(rows, posinf=1.0, neginf=1.0)), add_t=2)
    for key in (4, 6):
        found, exact = (s.table("ads").read_rows([key]) for s in (pair.store, pair.twin))
        assert [bits(part) for part in found] == [bits(part) for part in exact]
    pair.check()  # a lookup rounds them: to infinity what is too large, and NaN to the one NaN


# What is refused


def test_a_finite_gradient_that_would_overflow_is_refused_before_it_is_sent(pair):
    beyond = 65520.0 if pair.dtype == "float16" else 3.4e38
    largest = "65504" if pair.dtype == "float16" else "3.38953139e\\+38"
    bad, good = np.full((2, 8), -beyond, np.float32), np.ones((2, 8), np.float32)
    two = {"users": ([1], np.ones((1, 33), np.float32)), "ads": ([1, 2], bad)}
    table = pair.store.table("ads")
    pair.store.sessions.open("run", ("ads",))
    member = pair.store.sessions.join("run", 0).member
    pair.store.sessions.announce(member, {1: {"ads": [1, 2]}})
    before, t = digests(pair.store), table.t
    sent = pair.server.service.traffic
    calls = sum(traffic.calls for traffic in sent.values())
    message = f"^table 'ads': .*range of {pair.dtype}, found -.*value is {largest}"
    for call in (
        lambda: pair.store.update(two, on_nonfinite="skip"),
        lambda: table.update_pooled([1, 2], [0, 1, 2], bad),
        lambda: table.update_ranks([([1, 2], good), ([2, 3], bad)]),
        lambda: pair.store.sessions.update_step(member, 1, {"ads": bad}),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            call()
    assert sum(traffic.calls for traffic in sent.values()) <= calls + 2  # of those before
    assert (digests(pair.store), table.t) == (before, t)
    done = pair.store.sessions.update_step(member, 1, {"ads": good})  # the step is open still
    assert done.t == {"ads": t + 1}


def test_the_sum_counts_and_not_its_parts(pair):
    half = np.full((2, 8), 40000.0 if pair.dtype == "float16" else 2e38, np.float32)
    table, twin = pair.store.table("ads"), pair.twin.table("ads")
    half[1] *= -1
    table.update([3, 3], half)
    twin.update([3, 3], half)  # nought
    if pair.dtype == "float16":
        with pytest.raises(InvalidArgumentError, match="found 80000"):
            table.update([3, 3], np.abs(half))
    pair.check()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_was_not_finite_is_the_servers_to_refuse_or_skip(pair, value):
    gradients = np.ones((3, 8), np.float32)
    gradients[1, 2] = value
    table = pair.store.table("ads")
    before = digests(pair.store)
    with pytest.raises(InvalidArgumentError, match=r"table 'ads'.*key 2"):
        table.update([5, 2, 9], gradients)
    assert table.update([5, 2, 9], gradients, on_nonfinite="skip").skipped
    assert digests(pair.store) == before


@pytest.mark.parametrize("key", [-1, -(2**63), 1000, 2**63 - 1])
def test_keys_out_of_range_are_refused_as_ever(pair, key):
    table = pair.store.table("ads")
    gradients = np.ones((2, 8), np.float32)
    for call in (lambda: table.lookup([key, 3]), lambda: table.update([3, key], gradients)):
        with pytest.raises(InvalidArgumentError, match=rf"table 'ads'.*{key}"):
            call()
    pair.check()


def test_other_types_are_refused(server):
    for wrong in ("float64", "half", None, np.float16):
        with pytest.raises(InvalidArgumentError, match="expected wire_dtype to be"):
            connect(server.address, wire_dtype=wrong)  # type: ignore[arg-type]


def test_a_server_that_does_not_know_them_is_too_old(server, address, monkeypatch):
    old = [pb.DTYPE_INT64, pb.DTYPE_FLOAT32, pb.DTYPE_UINT32, pb.DTYPE_UINT8]
    monkeypatch.setattr("embstore_proto.fields.DTYPES", old)
    for dtype in NARROW:
        with pytest.raises(InvalidArgumentError, match=rf"too old for .*{dtype}.*float32, uint32"):
            patient(address, wire_dtype=dtype)
    with patient(address) as store:
        assert store.server_info().wire_dtypes == ("int64", "float32", "uint32", "uint8")


# The messages


def lookup_header(keys: Any, **fields: Any) -> Any:
    header = pb.LookupRequest.Header(**fields)
    header.tables.add(table="ads", keys=keys)
    return header


def test_messages_of_float32_are_what_they_were():
    part = TableKeys("ads", None, np.array([5, 3]), None)
    outgoing = VERBS["Lookup"].outgoing(Lookup((part,)))
    place = pb.Array(dtype=pb.DTYPE_INT64, shape=[2])
    assert outgoing.head == lookup_header(place, admit=True)
    assert VERBS["Lookup"].outgoing(Lookup((part,)), rows_dtype="float32").head == outgoing.head
    exact = VERBS["ReadRows"].outgoing(ReadRows(part), rows_dtype="float16")
    assert exact.head == VERBS["ReadRows"].outgoing(ReadRows(part)).head


def test_a_small_request_becomes_no_large_one():
    encoded: Any = deltas.encode(np.arange(1000))
    outgoing = VERBS["Lookup"].outgoing(Lookup((TableKeys("ads", None, encoded, None),)))
    assert outgoing.message is not None
    request = outgoing.message.joined(outgoing.serialised(None))
    assert len(request) < 2000
    assert VERBS["Lookup"].arrived(request, call_bytes_max=8000).grown_bytes == 8000
    with pytest.raises(InvalidArgumentError, match=r"'ads': keys: .*at most 7999 bytes"):
        VERBS["Lookup"].arrived(request, call_bytes_max=7999)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"size": 3, "shape": [4]}, "expected 3 bytes at offset 0 for 4 numbers"),
        ({"size": 5, "shape": [4]}, "found a payload of 4 bytes"),
        ({"size": 4, "shape": [4], "offset": 1}, "found a payload of 4 bytes"),
        ({"size": 4, "shape": [3]}, "expected 3 numbers as deltas, found 4"),
        ({"size": 2**64 - 1, "shape": [2**64 - 1]}, "found a payload of 4 bytes"),
        ({"size": 4, "shape": [2, 2]}, "expected int64 of 1 dimensions"),
        ({"size": 4, "shape": []}, "expected int64 of 1 dimensions"),
    ],
)
def test_keys_outside_the_payload_are_refused(place, message):
    header = lookup_header(pb.Array(dtype=pb.DTYPE_INT64_DELTA, **place))
    request = pb.LookupRequest(header=header, payload=b"\x01" * 4).SerializeToString()
    with pytest.raises(InvalidArgumentError, match=f"keys: .*{message}"):
        VERBS["Lookup"].arrived(request)


def test_rows_are_asked_for_in_a_type_of_rows():
    for dtype in (pb.DTYPE_UINT8, pb.DTYPE_INT64_DELTA, 77):
        header = pb.LookupRequest.Header(rows_dtype=dtype)
        with pytest.raises(InvalidArgumentError, match=f"expected rows_dtype .* found {dtype}"):
            VERBS["Lookup"].arrived(pb.LookupRequest(header=header).SerializeToString())


@pytest.mark.parametrize("dtype", NARROW)
def test_a_blank_message_is_rounded_into(dtype):
    rows = [np.linspace(-3, 9, n * 5).astype(np.float32).reshape(n, 5) for n in (3, 0, 7)]
    blank = frame.Blank(100, [part.shape for part in rows], dtype=dtype)
    header = pb.RowsReply.Header()
    for out, part in zip(blank.arrays, rows, strict=True):
        out[:] = part
        header.tables.add(rows=blank.add(out))
    assert blank.rounded_bytes == 4 * 50
    blank.round()
    received = split(blank.framed(header.SerializeToString()).joined())
    assert len(received.payload) < 2 * 50 + 2 * frame.ALIGNMENT
    for table, part in zip(header.tables, rows, strict=True):
        found = array_of(received, table.rows, np.float32, 2, "rows")
        assert bits(found) == bits(rounded(part, dtype))


def test_a_hot_cold_run_is_refused(server):
    """It would round what mixed batches send, and nothing of the hot ones."""
    with patient(server.address, wire_dtype="float16") as store:
        store.create_table("ads", initializer=embstore.Uniform(-1, 1), **TABLES["ads"])
        with pytest.raises(InvalidArgumentError, match=r'wire_dtype="float32" for a hot/cold run'):
            HotColdRun(store, {"ads": np.arange(3)}, {"ad": "ads"}, batch_size=4)


# What it is for


def traffic_of(server: Server, dtype: str) -> tuple[int, int]:
    """Return the bytes that one lookup and one update have cost, received and sent."""
    grpc = server.service.traffic["grpc"]
    random = np.random.default_rng(0)
    keys = random.integers(0, 100_000, 4000)
    gradients = random.standard_normal((4000, 16)).astype(np.float32)
    with patient(server.address, wire_dtype=dtype) as store:
        config: Any = {"dim": 16, "rows": 100_000, "optimizer": embstore.Sgd(learning_rate=0.1)}
        table = store.create_table("t", initializer=embstore.Normal(0.0, 1.0), **config)
        store.table("t")
        calls = grpc.calls
        table.describe()
        until(lambda: grpc.calls > calls)
        calls, received, sent = grpc.calls, grpc.received_bytes, grpc.sent_bytes
        table.lookup(keys)
        table.update(keys, gradients)
        until(lambda: grpc.calls >= calls + 2)
        return grpc.received_bytes - received, grpc.sent_bytes - sent


def test_half_the_bytes_travel(server):
    received, sent = traffic_of(server, "float32")
    keys = len(np.unique(np.random.default_rng(0).integers(0, 100_000, 4000)))
    for dtype in NARROW:
        less_received, less_sent = traffic_of(server, dtype)
        assert less_sent == pytest.approx(2 * 16 * keys, rel=0.02)
        assert less_sent < 0.52 * sent
        # Twice the keys, of a byte or so each, and the gradients; counts are as ever.
        assert less_received == pytest.approx((2 * 1.1 + 2 * 16 + 4) * keys, rel=0.04)
        assert less_received < 0.5 * received
