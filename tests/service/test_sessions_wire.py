"""Look-ahead sessions as the .proto file says them, by a client of generated code alone."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import embstore
from embstore.config import RowWiseAdagrad, Uniform
from embstore_proto.v1 import embstore_pb2 as pb
from tests.reference import ReferenceStore
from tests.service.plain import INVALID, Payload, array_of, chunks, refused
from tests.serving import Server

DIM, ROWS = 5, 100
OPTIMIZER, INITIALIZER = RowWiseAdagrad(0.1), Uniform(-1.0, 1.0)
STEPS = {1: [7, 3, 99], 2: [3, 8], 3: [50, 99, 7, 3]}
TIMEOUT_S = 60.0
LEASE_MS = 600_000
"""No rank of a test may be away for longer."""
WAITING_CALLS = 40
"""More than the threads that asyncio lends."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    def open_store() -> embstore.Store:
        store = embstore.open(tmp_path, cache_bytes=16 << 20)
        add(store, "a")
        add(store, "wide", dim=512, rows=4000)
        return store

    with Server(open_store, tmp_path) as server:
        yield server


def add(store: Any, name: str, dim: int = DIM, rows: int = ROWS) -> Any:
    return store.create_table(
        name, dim=dim, rows=rows, optimizer=OPTIMIZER, initializer=INITIALIZER
    )


@pytest.fixture
def reference() -> Any:
    return add(ReferenceStore(), "a")


# A rank of generated code


class Rank:
    """One member of a session, and what its calls answer. `piece_bytes` 0: unary calls."""

    def __init__(self, stub: Any, session: str, rank: int = 0, piece_bytes: int = 0) -> None:
        self.stub = stub
        self._piece_bytes = piece_bytes
        self.joined = stub.JoinSession(pb.JoinSessionRequest(name=session, rank=rank))
        self.member, self.last_step = self.joined.member, self.joined.last_step

    def announce(self, steps: Mapping[int, Sequence[int]], table: str = "a") -> Any:
        payload = Payload(3)
        header = pb.AnnounceRequest.Header(member=self.member)
        for number, keys in steps.items():
            step = header.steps.add(step=number)
            step.tables.add(table=table, keys=payload.add(keys, "<i8"))
        request = pb.AnnounceRequest(header=header, payload=payload.content)
        return self._call("Announce", request, pb.AnnouncedReply).header

    def share(self, step: int, gradients: Any, table: str = "a", **options: Any) -> Any:
        payload = Payload(5)
        header = pb.UpdateStepRequest.Header(member=self.member, step=step)
        header.tables.add(table=table, gradients=payload.add(gradients, "<f4"))
        header.options.CopyFrom(pb.UpdateOptions(**options))
        return pb.UpdateStepRequest(header=header, payload=payload.content)

    def update(self, step: int, gradients: Any, table: str = "a", **options: Any) -> Any:
        request = self.share(step, gradients, table, **options)
        return self._call("UpdateStep", request, pb.BulkAcknowledgedReply).header

    def release(self, step: int) -> Any:
        return self.stub.ReleaseStep(pb.ReleaseStepRequest(member=self.member, step=step))

    def lookup(self, step: int, **options: Any) -> Iterator[Any]:
        """Yield the messages of LookupStep as they come."""
        request = pb.LookupStepRequest(member=self.member, step=step, **options)
        return messages(self.stub.LookupStep(request, timeout=TIMEOUT_S), pb.StepRowsReply)

    def pooled(self, step: int, inverse: Any, dtype: str, offsets: Any, **bags: Any) -> Any:
        payload = Payload(1)  # nothing is aligned
        header = pb.LookupStepPooledRequest.Header(member=self.member, step=step)
        header.tables.add(
            table="a",
            inverse=payload.add(inverse, dtype),
            bags=pb.Bags(offsets=payload.add(offsets, "<i8"), **bags),
        )
        request = pb.LookupStepPooledRequest(header=header, payload=payload.content)
        (reply,) = messages(self.stub.LookupStepPooled(chunks(request, 7)), pb.RowsReply)
        return reply

    def renew(self) -> Any:
        return self.stub.RenewLease(pb.RenewLeaseRequest(member=self.member)).session

    def close(self, **options: Any) -> Any:
        return self.stub.CloseSession(pb.CloseSessionRequest(member=self.member, **options))

    def _call(self, verb: str, request: Any, reply: Any) -> Any:
        if not self._piece_bytes:
            return getattr(self.stub, verb)(request)
        sent = chunks(request, self._piece_bytes)
        (whole,) = messages(getattr(self.stub, f"{verb}Stream")(sent), reply)
        return whole


def messages(came: Iterable[Any], kind: Any) -> Iterator[Any]:
    """Yield the bulk messages that a stream of Chunks is, each when its last piece has come."""
    total, pieces = 0, b""
    for chunk in came:
        assert bool(chunk.total_bytes) == (len(pieces) == total), "one begins where another ends"
        if chunk.total_bytes:
            total, pieces = chunk.total_bytes, b""
        pieces += chunk.piece
        if len(pieces) == total:
            yield kind.FromString(pieces)
    assert len(pieces) == total


def opened(stub: Any, *tables: str, **options: Any) -> Any:
    """Open the session "s" of table "a", or of others."""
    given = {"name": "s", "tables": tables or ("a",), "lease_ms": LEASE_MS} | options
    request = pb.OpenSessionRequest(**given)
    return stub.OpenSession(request).session


@pytest.fixture
def rank(stub: Any) -> Rank:
    opened(stub)
    return Rank(stub, "s")


def rows_of(reply: Any, count: int) -> Any:
    """Return (rows, places) that one message of LookupStep brought."""
    (table,) = reply.header.tables
    rows = array_of(reply, table.rows)
    if not table.HasField("positions"):
        return rows, np.arange(count)
    return rows, array_of(reply, table.positions)


def assembled(replies: Iterable[Any], count: int, dim: int = DIM) -> Any:
    """Return the rows of a step; each position must come exactly once."""
    rows, seen = np.empty((count, dim), np.float32), np.zeros(count, np.int64)
    for reply in replies:
        came, places = rows_of(reply, count)
        rows[places] = came
        np.add.at(seen, places, 1)
    assert (seen == 1).all()
    return rows


def grads(step: int, count: int, dim: int = DIM) -> Any:
    return np.random.default_rng(step).standard_normal((count, dim), np.float32)


# Training


@pytest.mark.parametrize("piece_bytes", [0, 7, 1 << 20], ids=["unary", "pieces of 7", "one piece"])
def test_a_session_trains_as_plain_updates_do(stub, reference, piece_bytes):
    assert opened(stub).last_step == 0
    rank = Rank(stub, "s", piece_bytes=piece_bytes)
    assert rank.announce(STEPS).announced_step == 3
    for step, keys in STEPS.items():
        rows = assembled(rank.lookup(step), len(keys))
        assert rows.tobytes() == reference.lookup(keys).tobytes()
        options: dict[str, Any] = {"learning_rate": 0.1 * step, "gradient_scale": 0.5}
        done = rank.update(step, grads(step, len(keys)), **options)
        reference.update(keys, grads(step, len(keys)), **options)
        assert dict(done.t) == {"a": step}
        assert done.context.command > step
    digest = stub.GetDigest(pb.GetDigestRequest(table="a"))
    assert (digest.digest, digest.t) == (reference.digest(), reference.t)
    assert rank.renew().last_step == 3


def test_a_session_tells_what_it_was_opened_with(stub):
    options: dict[str, Any] = {"lookahead_steps_max": 4, "world_size": 2, "planner": "group:2"}
    found = opened(stub, "a", "wide", rank_timeout_ms=7_000, **options)
    assert (found.name, found.tables, found.world_size) == ("s", ["a", "wide"], 2)
    assert (found.lookahead_steps_max, found.planner, found.shared) == (4, "group:2", False)
    assert (found.lease_ms, found.rank_timeout_ms) == (LEASE_MS, 7_000)
    rank = Rank(stub, "s")
    assert rank.joined.rank_timeout_ms == rank.renew().rank_timeout_ms == 7_000
    assert refused(lambda: opened(stub, "a", "wide", rank_timeout_ms=8_000, **options)) == HELD


def test_a_join_is_answered_again_to_the_same_member_alone(stub):
    opened(stub)
    request = pb.JoinSessionRequest(name="s", rank=0, member="0123456789abcdef")
    first, again = stub.JoinSession(request), stub.JoinSession(request)
    assert first.member == again.member == request.member
    request.member = "fedcba9876543210"
    assert refused(lambda: stub.JoinSession(request)) == HELD
    stub.CloseSession(pb.CloseSessionRequest(member=first.member))
    opened(stub)
    request.member = "short"
    assert refused(lambda: stub.JoinSession(request)) == INVALID


# Early and late rows


def test_rows_that_no_earlier_step_has_come_early(rank, reference):
    second = [3, 8, 9, 7]
    rank.announce({1: [7, 3], 2: second})
    coming = rank.lookup(2)
    early = next(coming)
    assert early.header.early
    rows, places = rows_of(early, 4)
    assert sorted(places) == [1, 2]
    assert rows.tobytes() == reference.lookup([second[place] for place in places]).tobytes()
    rank.update(1, grads(1, 2))
    reference.update([7, 3], grads(1, 2))
    (late,) = coming
    assert not late.header.early
    assert late.header.tables[0].t == 1
    assert assembled([early, late], 4).tobytes() == reference.lookup(second).tobytes()


def test_the_first_step_and_one_that_wants_no_early_rows_come_in_one_message(rank):
    rank.announce({1: [7, 3], 2: [8, 9]})
    (first,) = rank.lookup(1)
    assert not first.header.tables[0].HasField("positions")
    rank.release(1)
    (second,) = rank.lookup(2, early=False)
    assert not second.header.early
    assert not second.header.tables[0].HasField("positions")


def test_a_step_whose_rows_all_come_early_still_tells_when_it_is_ready(rank):
    rank.announce({1: [7], 2: [8, 9]})
    coming = rank.lookup(2)
    assert len(rows_of(next(coming), 2)[1]) == 2
    rank.release(1)
    (late,) = coming
    assert len(rows_of(late, 2)[1]) == 0


def test_both_messages_of_many_pieces_are_whole(stub):
    opened(stub, "wide")
    rank = Rank(stub, "s")
    first, second = range(1000), range(500, 2000)
    rank.announce({1: first, 2: second}, "wide")
    coming = rank.lookup(2)
    early = next(coming)
    assert len(rows_of(early, 1500)[1]) == 1000
    rank.update(1, grads(1, 1000, 512), "wide")
    found = assembled([early, *coming], 1500, 512)
    rank.release(2)
    rank.announce({3: second}, "wide")
    assert found.tobytes() == assembled(rank.lookup(3), 1500, 512).tobytes()


# Pooling


@pytest.mark.parametrize("dtype", ["<i8", "<u4"])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_a_step_are_the_references(rank, reference, dtype, mode):
    rank.announce({1: [7, 3, 99]})
    inverse, offsets = [0, 1, 0, 2], [0, 1, 1, 4]
    reply = rank.pooled(1, inverse, dtype, offsets, mode=pb.PoolingMode.Value(_MODES[mode]))
    expected = reference.lookup_pooled([7, 3, 7, 99], offsets, mode)
    assert array_of(reply, reply.header.tables[0].rows).tobytes() == expected.tobytes()


_MODES = {"sum": "POOLING_MODE_SUM", "mean": "POOLING_MODE_MEAN"}


@pytest.mark.parametrize(
    "inverse", [[0, 3], [0, -1], [0, 1 << 31]], ids=["beyond", "below", "too large"]
)
def test_an_inverse_beyond_the_announced_keys_is_refused(rank, inverse):
    rank.announce({1: [7, 3, 99]})
    assert refused(lambda: rank.pooled(1, inverse, "<i8", [0, 2])) == INVALID
    assert len(assembled(rank.lookup(1), 3)) == 3


# Several ranks, and calls that wait


@pytest.fixture
def pair(stub: Any) -> tuple[Rank, Rank]:
    opened(stub, world_size=2)
    return Rank(stub, "s", 0), Rank(stub, "s", 1)


def test_calls_that_wait_hold_no_thread(stub, pair):
    for rank in pair:
        rank.announce({1: [7]})
    request = pb.ReleaseStepRequest(member=pair[0].member, step=1)
    waiting = [stub.ReleaseStep.future(request, timeout=TIMEOUT_S) for _ in range(WAITING_CALLS)]
    assert pair[1].announce({2: [8]}).announced_step == 2
    assert len(assembled(pair[1].lookup(1), 1)) == 1
    assert not any(call.done() for call in waiting)
    done = pair[1].release(1)
    assert {call.result().context.command for call in waiting} == {done.context.command}


def test_a_cancelled_lookup_leaves_the_step(stub, rank):
    rank.announce({1: [7], 2: [8, 7]})
    call = stub.LookupStep(pb.LookupStepRequest(member=rank.member, step=2))
    assert next(call).total_bytes
    call.cancel()
    rank.release(1)
    assert len(assembled(rank.lookup(2), 2)) == 2


def test_a_server_that_stops_ends_calls_that_wait(stub, server, rank):
    rank.announce({1: [7], 2: [8]})
    coming = rank.lookup(2)
    assert next(coming).header.early
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    assert refused(lambda: list(coming)) == ("UNAVAILABLE", "StoreClosedError")
    stopping.join(TIMEOUT_S)


# What is refused


HELD = ("FAILED_PRECONDITION", "TableHeldError")


def test_an_announcement_names_each_step_and_table_once(rank):
    header = pb.AnnounceRequest.Header(member=rank.member)
    for _ in range(2):
        header.steps.add(step=1)
    request = pb.AnnounceRequest(header=header)
    assert refused(lambda: rank.stub.Announce(request)) == INVALID
    del header.steps[1]
    payload = Payload(0)
    for _ in range(2):
        header.steps[0].tables.add(table="a", keys=payload.add([1], "<i8"))
    request = pb.AnnounceRequest(header=header, payload=payload.content)
    assert refused(lambda: rank.stub.Announce(request)) == INVALID


@pytest.mark.parametrize("given", [["a", "wide", "idle"], ["a", "a", "wide"]])
def test_an_update_of_a_step_names_announced_tables_and_no_others(stub, server, given):
    """Each at most once, in any order; one without keys counts, one left out does not."""
    server.on_engine(lambda store: add(store, "idle"))
    opened(stub, "a", "wide", "idle")
    rank, payload = Rank(stub, "s"), Payload(0)
    header = pb.AnnounceRequest.Header(member=rank.member)
    tables = header.steps.add(step=1).tables
    tables.add(table="a", keys=payload.add([7], "<i8"))
    tables.add(table="wide", keys=payload.add([], "<i8"))
    stub.Announce(pb.AnnounceRequest(header=header, payload=payload.content))
    counts = {"a": (1, DIM), "wide": (0, 512), "idle": (0, DIM)}

    def update(names: list[str]) -> Any:
        payload = Payload(0)
        header = pb.UpdateStepRequest.Header(member=rank.member, step=1)
        for name in names:
            header.tables.add(table=name, gradients=payload.add(np.ones(counts[name]), "<f4"))
        return stub.UpdateStep(pb.UpdateStepRequest(header=header, payload=payload.content))

    assert refused(lambda: update(given)) == INVALID
    assert dict(update(["wide", "a"]).header.t) == {"a": 1, "wide": 1, "idle": 0}


def test_more_steps_than_any_session_may_announce_are_not_looked_at(rank):
    header = pb.AnnounceRequest.Header(member=rank.member)
    for step in range(1, 1026):
        header.steps.add(step=step)
    with pytest.raises(grpc.RpcError, match="at most 1024 steps in a call, found 1025"):
        rank.stub.Announce(pb.AnnounceRequest(header=header))


# Figures


def test_bytes_and_engine_time_of_a_lookup_are_counted(server, rank):
    rank.announce({1: [7], 2: [7, 8]})
    coming = rank.lookup(2)
    next(coming)
    rank.release(1)
    list(coming)
    rank.close()
    totals: Any = server.service.metrics.stats()["LookupStep"]
    assert totals["codes"] == {"OK": 1}
    assert totals["sent_bytes"] > 2 * 4 * DIM
    latencies = server.service.metrics.stats()
    assert latencies["LookupStep"]["engine"]["count"] == 1
    assert latencies["Announce"]["engine"]["count"] == 0
