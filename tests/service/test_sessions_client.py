"""The network client's sessions: rows that come early and late, lost calls, servers that restart.

What the client makes of answers is tested with answers that the test gives itself, by a real gRPC
server that knows nothing of sessions (`Scripted`); the rest with a served store.
"""

import queue
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest

import embstore
from embstore.config import Adagrad, Adam, Normal, Uniform
from embstore.errors import (
    DeadlineError,
    EmbstoreError,
    InvalidArgumentError,
    OutcomeUnknownError,
    SessionExpiredError,
    StoreClosedError,
    TableHeldError,
)
from embstore.feed.bags import StepBags
from embstore_client import RemoteStore, connect
from embstore_proto import codec
from embstore_proto.codec import Framed, Message
from embstore_proto.status import ERROR_METADATA, answer_of
from embstore_proto.v1 import embstore_pb2 as pb
from tests.reference import ReferenceStore
from tests.service.faults.proxy import Proxy
from tests.service.faults.served import until
from tests.serving import Server

PATIENCE_S = 20.0
DIM, COUNT = 3, 7
ROWS = np.arange(COUNT * DIM, dtype=np.float32).reshape(COUNT, DIM)
EARLY, LATE = [1, 2, 5], [0, 3, 4, 6]
CONTEXT = pb.Context(store_id="store", epoch=1, command=5, instance="first")


def rows_message(
    positions: list[int] | None, *, early: bool = False, rows: Any = ROWS, table: str = "a"
) -> Framed:
    """Return a message of LookupStep with some rows of one table, or with all."""
    message = Message()
    header = pb.StepRowsReply.Header(context=CONTEXT, early=early)
    if positions is None:
        header.tables.add(table=table, rows=message.add(rows))
    else:
        places = message.add(np.array(positions, np.uint32))
        header.tables.add(table=table, rows=message.add(rows[positions]), positions=places)
    return message.framed(header.SerializeToString())


ALL = rows_message(None)
EARLY_ROWS, LATE_ROWS = rows_message(EARLY, early=True), rows_message(LATE)
LOST = grpc.StatusCode.UNAVAILABLE
"""A status that names no error of the tree: the connection was lost."""

FINISHED = pb.StepReply(context=CONTEXT, t={"a": 3})
ANNOUNCED = pb.AnnouncedReply.Header(context=CONTEXT, announced_step=1)
ACKNOWLEDGED = pb.BulkAcknowledgedReply.Header(context=CONTEXT, t={"a": 3})
JOINED = pb.MembershipReply(context=CONTEXT, member="m", name="s", rank=0, rank_timeout_ms=90_000)
CLOSED = pb.SessionClosedReply(context=CONTEXT)


def framed(header: Any) -> bytes:
    return Message().framed(header.SerializeToString()).joined()


class Scripted(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers each verb by what the test has put into its queue, in that order.

    A message is sent; an error is what the call ends with, and `None` the end of a stream.
    """

    def __init__(self) -> None:
        self.answers: dict[str, queue.Queue[Any]] = defaultdict(queue.Queue)
        self.begun: queue.Queue[str] = queue.Queue()
        self.requests: dict[str, list[bytes]] = defaultdict(list)  # of unary calls, by verb
        self.remaining_s: dict[str, float] = {}  # of each verb's last unary call, as it came
        names = pb.ServerLimits.DESCRIPTOR.fields_by_name
        limits = pb.ServerLimits(**dict.fromkeys(names, 1 << 24))
        info = pb.GetServerInfoReply(context=CONTEXT, limits=limits)
        self.give("GetServerInfo", info.SerializeToString())

    def give(self, verb: str, *answers: Any) -> None:
        for answer in answers:
            self.answers[verb].put(answer)

    def service(self, details: Any) -> Any:
        verb = details.method.rpartition("/")[2]

        def unary(request: bytes, context: Any) -> Any:
            self.requests[verb].append(request)
            self.remaining_s[verb] = context.time_remaining()
            return next(self._answers(verb, context))

        def stream(_: Any, context: Any) -> Iterator[bytes]:
            for message in self._answers(verb, context):
                yield from message.chunks()

        if verb.startswith("LookupStep"):
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    def _answers(self, verb: str, context: Any) -> Iterator[Any]:
        self.begun.put(verb)
        while (answer := self.answers[verb].get(timeout=PATIENCE_S)) is not None:
            if isinstance(answer, grpc.StatusCode):
                context.abort(answer, "a network, as they are")
            if isinstance(answer, Exception):
                context.set_trailing_metadata([(ERROR_METADATA, type(answer).__name__)])
                context.abort(answer_of(answer).code, str(answer))
            yield answer


class Far(NamedTuple):
    """A client, and what it is answered."""

    server: Scripted
    store: RemoteStore

    @property
    def sessions(self) -> Any:
        return self.store.sessions

    def announce(self) -> None:
        self.server.give("Announce", framed(ANNOUNCED))
        self.sessions.announce("m", {1: {"a": np.arange(COUNT)}})


@pytest.fixture
def far() -> Iterator[Far]:
    script = Scripted()
    with ThreadPoolExecutor(8) as threads:
        server = grpc.server(threads, handlers=[script])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with connect(f"127.0.0.1:{port}", timeout_s=PATIENCE_S) as store:
            yield Far(script, store)
        server.stop(None).wait(PATIENCE_S)


# Rows


@pytest.mark.parametrize("announced", [True, False], ids=["announced here", "by another client"])
@pytest.mark.parametrize(
    "messages",
    [
        [ALL],
        [EARLY_ROWS, LATE_ROWS],
        [rows_message([], early=True), ALL],
        [rows_message(list(range(COUNT)), early=True), rows_message([])],
    ],
    ids=["at once", "early and late", "none early", "none late"],
)
def test_rows_stand_in_announced_order(far: Far, messages: list[Framed], announced: bool) -> None:
    if announced:
        far.announce()
    far.server.give("LookupStep", *messages, None)
    rows = far.sessions.lookup_step("m", 1)["a"]
    assert np.array_equal(rows, ROWS)
    assert rows.flags.writeable


def test_rows_of_many_chunks(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "CHUNK_BYTES", 41)
    far.announce()
    far.server.give("LookupStep", EARLY_ROWS, LATE_ROWS, None)
    assert np.array_equal(far.sessions.lookup_step("m", 1)["a"], ROWS)


def test_early_rows_are_in_place_before_late_ones_come(far: Far) -> None:
    far.announce()
    far.server.give("LookupStep", EARLY_ROWS)
    handle = far.sessions.prefetch_step("m", 1)
    until(lambda: handle.early_bytes)
    assert not handle.done()
    with pytest.raises(DeadlineError, match="step 1: its rows did not come within"):
        handle.result(timeout_s=0.001)
    far.server.give("LookupStep", LATE_ROWS, None)
    assert np.array_equal(handle.result()["a"], ROWS)
    assert handle.done()
    assert handle.result()["a"] is handle.result()["a"]
    assert (handle.early_bytes, handle.late_bytes) == (4 * DIM * len(EARLY), 4 * DIM * len(LATE))


def test_prefetch_that_waited_too_long_is_asked_for_again(far: Far) -> None:
    far.announce()
    far.server.give("LookupStep", EARLY_ROWS, DeadlineError("LookupStep: no answer in time"))
    handle = far.sessions.prefetch_step("m", 1)
    until(handle._over.is_set)
    assert not handle.done()
    far.server.give("LookupStep", ALL, None)
    assert np.array_equal(handle.result()["a"], ROWS)
    assert (handle.early_bytes, handle.late_bytes) == (0, ROWS.nbytes)


@pytest.mark.parametrize("messages", [[ALL], [EARLY_ROWS, LATE_ROWS]], ids=["at once", "in two"])
def test_out_is_filled(far: Far, messages: list[Framed]) -> None:
    out = np.zeros((COUNT, DIM), np.float32)
    far.server.give("LookupStep", *messages, None)
    assert far.sessions.lookup_step("m", 1, out={"a": out})["a"] is out
    assert np.array_equal(out, ROWS)


@pytest.mark.parametrize("messages", [[ALL], [EARLY_ROWS, LATE_ROWS]], ids=["at once", "in two"])
def test_out_that_does_not_fit_is_refused(far: Far, messages: list[Framed]) -> None:
    far.announce()
    out = np.zeros((COUNT, DIM + 1), np.float32)
    far.server.give("LookupStep", *messages, None)
    with pytest.raises(InvalidArgumentError, match="table 'a': expected out to be a writable"):
        far.sessions.lookup_step("m", 1, out={"a": out})
    assert not out.any()


def test_rows_that_are_lacking_are_noticed(far: Far) -> None:
    far.announce()
    far.server.give("LookupStep", EARLY_ROWS, rows_message(LATE[:-1]), None)
    with pytest.raises(EmbstoreError, match="expected the rows of a step"):
        far.sessions.lookup_step("m", 1)


# Lost calls


def test_rows_lost_in_the_middle_are_sent_again(far: Far) -> None:
    far.announce()
    far.server.give("LookupStep", EARLY_ROWS, LOST, EARLY_ROWS, LATE_ROWS, None)
    handle = far.sessions.prefetch_step("m", 1)
    assert np.array_equal(handle.result()["a"], ROWS)
    assert handle.early_bytes + handle.late_bytes == ROWS.nbytes


def update(sessions: Any) -> Any:
    return sessions.update_step("m", 1, {"a": ROWS})


def release(sessions: Any) -> Any:
    return sessions.release_step("m", 1)


def skip(sessions: Any) -> Any:
    return sessions.skip_step("m", 1)


FINISHING = {
    "UpdateStep": (update, framed(ACKNOWLEDGED)),
    "ReleaseStep": (release, FINISHED.SerializeToString()),
    "SkipStep": (skip, FINISHED.SerializeToString()),
}
by_verb = pytest.mark.parametrize("verb", FINISHING)
GONE = SessionExpiredError("no session has this member")


@by_verb
def test_step_whose_answer_was_lost_is_finished_again(far: Far, verb: str) -> None:
    finish, answer = FINISHING[verb]
    far.server.give(verb, LOST, answer)
    acknowledged = finish(far.sessions)
    assert (acknowledged.command, acknowledged.t) == (5, {"a": 3})


@by_verb
def test_step_of_a_session_that_ended_is_refused(far: Far, verb: str) -> None:
    far.server.give(verb, GONE)
    with pytest.raises(SessionExpiredError, match="no session has this member"):
        FINISHING[verb][0](far.sessions)


@by_verb
@pytest.mark.parametrize(
    "lost",
    [LOST, StoreClosedError("the server is stopping; send the call again later")],
    ids=["connection", "stopping"],
)
def test_nobody_knows_of_a_step_that_was_out_as_its_session_ended(
    far: Far, verb: str, lost: Any
) -> None:
    far.server.give(verb, lost, GONE)
    with pytest.raises(OutcomeUnknownError, match="its last step tells whether"):
        FINISHING[verb][0](far.sessions)


def test_lookup_of_a_session_that_ended_has_changed_nothing(far: Far) -> None:
    far.server.give("LookupStep", LOST, GONE)
    with pytest.raises(SessionExpiredError):
        far.sessions.lookup_step("m", 1)


def test_a_lost_join_is_sent_again_with_the_same_member(far: Far) -> None:
    for _ in range(2):
        far.server.give("JoinSession", LOST, JOINED.SerializeToString())
        assert far.sessions.join("s", 0).member == "m"
    sent = [pb.JoinSessionRequest.FromString(r).member for r in far.server.requests["JoinSession"]]
    assert (sent[0], sent[2]) == (sent[1], sent[3])
    assert sent[0] != sent[2]
    assert all(len(member) == len(bytes.fromhex(member)) * 2 >= 32 for member in sent)


def test_calls_of_a_step_wait_for_as_long_as_the_server_says(far: Far) -> None:
    def remaining_s() -> float:
        far.server.give("ReleaseStep", FINISHED.SerializeToString())
        far.sessions.release_step("m", 1)
        return far.server.remaining_s["ReleaseStep"]

    assert remaining_s() == pytest.approx(PATIENCE_S, abs=5)
    far.server.give("JoinSession", JOINED.SerializeToString())
    far.sessions.join("s", 0)
    assert remaining_s() == pytest.approx(PATIENCE_S + 90, abs=5)
    session = pb.SessionDescription(name="s", rank_timeout_ms=50_000)
    renewed = pb.SessionReply(context=CONTEXT, session=session)
    far.server.give("RenewLease", renewed.SerializeToString())
    assert far.sessions.renew("m", timeout_s=3.0).rank_timeout_ms == 50_000
    assert far.server.remaining_s["RenewLease"] == pytest.approx(3, abs=2)
    assert remaining_s() == pytest.approx(PATIENCE_S + 50, abs=5)


def test_a_call_that_changes_nothing_and_is_late_is_not_said_to_have_changed_anything(
    far: Far,
) -> None:
    with pytest.raises(DeadlineError) as read:
        far.sessions.lookup_step("m", 1, timeout_s=0.05)
    with pytest.raises(DeadlineError, match="the call may have been applied") as written:
        far.sessions.release_step("m", 1, timeout_s=0.05)
    assert str(written.value).startswith(str(read.value))
    assert str(read.value).endswith("did not answer in time")
    far.server.give("LookupStep", None)
    far.server.give("ReleaseStep", FINISHED.SerializeToString())


def test_join_of_a_rank_that_another_has_is_refused_at_once(far: Far) -> None:
    far.server.give("JoinSession", TableHeldError("session 's': rank 0 is another client's"))
    with pytest.raises(TableHeldError):
        far.sessions.join("s", 0)


def test_prefetch_of_a_connection_that_is_closed_ends(far: Far) -> None:
    far.server.give("LookupStep", EARLY_ROWS)
    handle = far.sessions.prefetch_step("m", 1)
    until(lambda: handle.early_bytes)
    far.store.close()
    far.server.give("LookupStep", None)
    with pytest.raises(StoreClosedError):
        handle.result()


def test_close_is_harmless_and_forgets_what_was_announced(far: Far) -> None:
    far.announce()
    far.server.give("CloseSession", *[CLOSED.SerializeToString()] * 2)
    far.sessions.close("m")
    far.sessions.close("m", forget=True)
    assert not far.sessions._places


# Against a served store

TABLES: dict[str, dict[str, Any]] = {
    "a": {"dim": 5, "rows": 90, "optimizer": Adam(0.01), "initializer": Uniform(-1.0, 1.0)},
    "b": {"dim": 16, "rows": 70, "optimizer": Adagrad(0.1), "initializer": Normal(0.0, 1.0)},
}
STEPS = 30
LOOKAHEAD = 8
SEED = 20_261_121


def make_tables(store: Any) -> Any:
    for name, config in TABLES.items():
        store.create_table(name, **config)
    return store


def step_keys(step: int, rank: int = 0) -> dict[str, Any]:
    """Return the unique keys of a step; about half of them were in the step before."""
    rng = np.random.default_rng([SEED, step, rank])
    return {
        name: rng.permutation(config["rows"])[: 20 + step % 7] for name, config in TABLES.items()
    }


def step_gradients(step: int, rank: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng([SEED, step, rank, 1])
    return {
        name: rng.standard_normal((len(keys), TABLES[name]["dim"]), np.float32)
        for name, keys in step_keys(step, rank).items()
    }


def share(step: int, rank: int = 0) -> dict[str, Any]:
    """Return a step's keys and gradients by table, as the reference takes them."""
    keys, grads = step_keys(step, rank), step_gradients(step, rank)
    return {name: (keys[name], grads[name]) for name in keys}


def digests(store: Any) -> dict[str, str]:
    return {name: store.table(name).digest() for name in TABLES}


def join(store: Any, **options: Any) -> str:
    """Open a session of both tables as its only rank; return the member."""
    store.sessions.open("s", list(TABLES), lookahead_steps_max=LOOKAHEAD, **options)
    member: str = store.sessions.join("s", 0).member
    return member


def announce(sessions: Any, member: str, last_step: int, rank: int = 0) -> None:
    steps = range(last_step + 1, last_step + LOOKAHEAD + 1)
    sessions.announce(member, {n: step_keys(n, rank) for n in steps})


@pytest.fixture
def reference() -> ReferenceStore:
    made: ReferenceStore = make_tables(ReferenceStore())
    return made


def open_server(path: Path, **settings: Any) -> Server:
    def open_store() -> embstore.Store:
        return embstore.open(path, cache_bytes=1 << 20, threads=1)

    return Server(open_store, path, drain_s=1.0, **settings)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with open_server(tmp_path / "served") as made:
        made.on_engine(make_tables)
        yield made


@pytest.fixture
def store(server: Server) -> Iterator[RemoteStore]:
    with connect(server.address, timeout_s=PATIENCE_S) as made:
        yield made


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Any]:
    with embstore.open(tmp_path / "embedded", cache_bytes=1 << 20, threads=1) as made:
        yield make_tables(made)


def assert_rows(rows: dict[str, Any], reference: ReferenceStore, keys: dict[str, Any]) -> None:
    assert list(rows) == list(keys)
    for name, wanted in keys.items():
        assert rows[name].tobytes() == reference.table(name).lookup(wanted).tobytes()


def test_steps_train_as_the_reference_does(store: RemoteStore, reference: ReferenceStore) -> None:
    sessions, member = store.sessions, join(store)
    early_bytes = 0
    announce(sessions, member, 0)
    handle = sessions.prefetch_step(member, 1)
    for step in range(1, STEPS + 1):
        assert_rows(handle.result(), reference, step_keys(step))
        early_bytes += handle.early_bytes
        announce(sessions, member, step - 1)
        handle = sessions.prefetch_step(member, step + 1)
        until(partial(getattr, handle, "early_bytes"))
        match step % 5:
            case 3:
                sessions.release_step(member, step)
            case 4:
                sessions.skip_step(member, step)
            case _:
                acknowledged = sessions.update_step(
                    member, step, step_gradients(step), gradient_scale=0.5
                )
                reference.update(share(step), gradient_scale=0.5)
                assert acknowledged.t == {name: reference.table(name).t for name in TABLES}
    sessions.close(member)
    assert digests(store) == digests(reference)
    assert early_bytes


def test_pooled_rows_are_those_of_the_reference(
    store: RemoteStore, reference: ReferenceStore
) -> None:
    member = join(store)
    announce(store.sessions, member, 0)
    keys = step_keys(1)
    weights = np.array([0.5, -1.0, 2.0, 0.25], np.float32)
    inverse, offsets = np.array([3, 0, 3, 1], np.int32), np.array([0, 1, 1, 4])
    bags = {
        "b": StepBags(inverse, offsets, "mean"),
        "a": StepBags(inverse, offsets, "sum", weights),
    }
    pooled = store.sessions.lookup_step_pooled(member, 1, bags)
    assert list(pooled) == ["b", "a"]
    for name, b in bags.items():
        table = reference.table(name)
        wanted = table.lookup_pooled(keys[name][inverse], offsets, b.mode, b.weights)
        assert pooled[name].tobytes() == wanted.tobytes()


def test_ranks_of_several_clients_train_as_the_reference_does(
    server: Server, reference: ReferenceStore
) -> None:
    def train(rank: int) -> dict[str, str]:
        with connect(server.address, timeout_s=PATIENCE_S) as store:
            sessions = store.sessions
            sessions.open("s", list(TABLES), lookahead_steps_max=LOOKAHEAD, world_size=2)
            member = sessions.join("s", rank).member
            for step in range(1, STEPS + 1):
                announce(sessions, member, step - 1, rank)
                sessions.lookup_step(member, step)
                sessions.update_step(member, step, step_gradients(step, rank))
            sessions.close(member)
            return digests(store)

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(train, range(2)))
    for step in range(1, STEPS + 1):
        reference.update_ranks([share(step, rank) for rank in range(2)])
    assert found == [digests(reference)] * 2


@pytest.mark.parametrize("unary_bytes_max", [4096, 512], ids=["unary", "streamed"])
def test_shares_too_large_to_be_in_flight_together_still_finish_their_step(
    reference: ReferenceStore, tmp_path: Path, unary_bytes_max: int
) -> None:
    shares = [{"b": share(1, rank)["b"]} for rank in range(4)]
    bound = {"unary_bytes_max": unary_bytes_max, "inflight_bytes_max": 4096}
    assert min(gradients.nbytes for s in shares for _, gradients in s.values()) > 1024

    def train(address: str, rank: int) -> None:
        with connect(address, timeout_s=PATIENCE_S) as store:
            store.sessions.open("s", ["b"], world_size=4, rank_timeout_ms=int(PATIENCE_S * 1000))
            member = store.sessions.join("s", rank).member
            ((keys, gradients),) = shares[rank].values()
            store.sessions.announce(member, {1: {"b": keys}})
            store.sessions.update_step(member, 1, {"b": gradients})

    with open_server(tmp_path, **bound) as server, ThreadPoolExecutor(4) as threads:
        server.on_engine(make_tables)
        list(threads.map(partial(train, server.address), range(4)))
        reference.update_ranks(shares)
        assert server.on_engine(digests) == digests(reference)


def test_facts_are_those_of_the_session(store: RemoteStore) -> None:
    assert store.sessions.facts() == []
    member = join(store)
    announce(store.sessions, member, 0)
    (facts,) = store.sessions.facts()
    assert (facts["name"], facts["last_step"], facts["announced_step"]) == ("s", 0, LOOKAHEAD)
    assert store.sessions.renew(member).tables == tuple(TABLES)


KEYS = {"a": np.arange(4), "b": np.arange(3)}
GRADS = {"a": np.ones((4, 5), np.float32), "b": np.ones((3, 16), np.float32)}
REFUSED: dict[str, Callable[[Any, str], Any]] = {
    "open with other options": lambda s, m: s.open("s", ["a"]),
    "open with no such table": lambda s, m: s.open("other", ["c"]),
    "open with one name for a list": lambda s, m: s.open("other", "a"),
    "open a held table": lambda s, m: s.open("other", ["a"]),
    "open with no world": lambda s, m: s.open("other", ["a"], world_size=0),
    "open with no planner": lambda s, m: s.open("other", ["a"], planner=""),
    "open with another planner": lambda s, m: s.open("other", ["a"], planner="best"),
    "open with no table": lambda s, m: s.open("other", []),
    "open with a table twice": lambda s, m: s.open("other", ["a", "a"]),
    "open with another kind of shared": lambda s, m: s.open("other", ["a"], shared=1),
    "open with a number for a name": lambda s, m: s.open(7, ["a"]),
    "join no session": lambda s, m: s.join("other", 0),
    "join a number": lambda s, m: s.join(7, 0),
    "join a rank that is joined": lambda s, m: s.join("s", 0),
    "join a rank beyond the world": lambda s, m: s.join("s", 1),
    "join a negative rank": lambda s, m: s.join("s", -1),
    "unknown member": lambda s, m: s.renew("nobody"),
    "member that is no text": lambda s, m: s.renew(7),
    "announce no mapping": lambda s, m: s.announce(m, [KEYS]),
    "announce no mapping of keys": lambda s, m: s.announce(m, {2: [1, 2]}),
    "announce out of order": lambda s, m: s.announce(m, {3: KEYS}),
    "announce a negative step": lambda s, m: s.announce(m, {-1: KEYS}),
    "announce too far": lambda s, m: s.announce(m, dict.fromkeys(range(2, LOOKAHEAD + 2), KEYS)),
    "announce other keys again": lambda s, m: s.announce(m, {1: {"a": [1]}}),
    "announce duplicates": lambda s, m: s.announce(m, {2: {"a": [1, 2, 1]}}),
    "announce a key too large": lambda s, m: s.announce(m, {2: {"a": [90]}}),
    "announce floats": lambda s, m: s.announce(m, {2: {"a": [1.5]}}),
    "announce another table": lambda s, m: s.announce(m, {2: {"c": [1]}}),
    "announce a step that is no number": lambda s, m: s.announce(m, {"2": KEYS}),
    "look up a step not announced": lambda s, m: s.lookup_step(m, 2),
    "look up no step": lambda s, m: s.lookup_step(m, 0),
    "look up a negative step": lambda s, m: s.lookup_step(m, -1),
    "look up a step beyond 64 bits": lambda s, m: s.lookup_step(m, 1 << 64),
    "out that does not fit": lambda s, m: s.lookup_step(m, 1, out={"a": np.ones((4, 4), "f4")}),
    "pool another table": lambda s, m: s.lookup_step_pooled(
        m, 1, {"c": StepBags(np.zeros(1, np.int32), np.array([0, 1]))}
    ),
    "pool beyond the keys": lambda s, m: s.lookup_step_pooled(
        m, 1, {"a": StepBags(np.full(1, 4, np.int32), np.array([0, 1]))}
    ),
    "pool by a negative index": lambda s, m: s.lookup_step_pooled(
        m, 1, {"a": StepBags(np.full(1, -1, np.int32), np.array([0, 1]))}
    ),
    "gradients of another shape": lambda s, m: s.update_step(m, 1, GRADS | {"a": GRADS["a"][1:]}),
    "gradients of float64": lambda s, m: s.update_step(m, 1, GRADS | {"a": np.ones((4, 5))}),
    "gradients of too few tables": lambda s, m: s.update_step(m, 1, {"a": GRADS["a"]}),
    "gradients of another table": lambda s, m: s.update_step(m, 1, GRADS | {"c": GRADS["a"]}),
    "gradients that are no mapping": lambda s, m: s.update_step(m, 1, GRADS["a"]),
    "gradients that are not finite": lambda s, m: s.update_step(
        m, 1, GRADS | {"a": np.full((4, 5), np.nan, np.float32)}
    ),
    "a rate below 0": lambda s, m: s.update_step(m, 1, GRADS, learning_rate=-1.0),
    "on_nonfinite of another kind": lambda s, m: s.update_step(m, 1, GRADS, on_nonfinite="drop"),
    "finish a step not announced": lambda s, m: s.release_step(m, 2),
    "skip a step before its turn": lambda s, m: s.skip_step(m, 3),
}


@pytest.mark.parametrize("do", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_refused_as_embedded(
    do: Callable[[Any, str], Any], store: RemoteStore, embedded: Any
) -> None:
    errors = []
    for opened in (embedded, store):
        member = join(opened)
        opened.sessions.announce(member, {1: KEYS})
        before = digests(opened), opened.command
        with pytest.raises(EmbstoreError) as caught:
            do(opened.sessions, member)
        errors.append(caught.value)
        assert (digests(opened), opened.command) == before
        opened.sessions.update_step(member, 1, GRADS)
    assert type(errors[0]) is type(errors[1]), errors


# Faults


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.address) as made:
        yield made


@pytest.fixture
def distant(proxy: Proxy) -> Iterator[RemoteStore]:
    with connect(proxy.address, timeout_s=PATIENCE_S) as made:
        yield made


def test_every_step_is_done_once_however_often_connections_are_cut(
    proxy: Proxy, distant: RemoteStore, reference: ReferenceStore
) -> None:
    sys.stdout.write(f"seed {SEED}\n")
    rng = np.random.default_rng(SEED)
    sessions, member = distant.sessions, join(distant)
    for step in range(1, STEPS + 1):
        proxy.cut_after(int(rng.integers(12_000)))
        announce(sessions, member, step - 1)
        handle = sessions.prefetch_step(member, step)
        assert_rows(handle.result(), reference, step_keys(step))
        sessions.update_step(member, step, step_gradients(step))
        reference.update(share(step))
    sessions.close(member)
    assert digests(distant) == digests(reference)
    assert proxy.cuts > STEPS // 4


def test_session_goes_on_at_its_place_after_a_restart(
    server: Server, proxy: Proxy, distant: RemoteStore, reference: ReferenceStore, tmp_path: Path
) -> None:
    sessions, member = distant.sessions, join(distant)
    announce(sessions, member, 0)
    handle = sessions.prefetch_step(member, 3)
    for step in (1, 2):
        sessions.update_step(member, step, step_gradients(step))
        reference.update(share(step))
    server.stop()
    with open_server(tmp_path / "served") as restarted:
        proxy.upstream = restarted.address
        proxy.cut()
        with suppress(SessionExpiredError):
            assert_rows(handle.result(), reference, step_keys(3))  # they came before
        with pytest.raises(SessionExpiredError):
            sessions.update_step(member, 3, step_gradients(3))
        sessions.close(member)
        assert sessions.open("s", list(TABLES)).last_step == 2
        assert digests(distant) == digests(reference)
        sessions.close(sessions.join("s", 0).member)


# Runs


def train_by_run(store: Any) -> list[Any]:
    """Train with keys that repeat; return every row that was looked up."""
    rows = []
    batches = [np.random.default_rng([SEED, n]).integers(0, 60, 80) for n in range(12)]
    with store.session(tables=["a", "b"], lookahead=4) as run:
        for step in run.steps(batches, keys=lambda batch: {"a": batch, "b": batch[:9]}):
            found = step.lookup()
            rows += [found["a"], found["b"]]
            step.update({name: 0.1 * r for name, r in found.items()}, gradient_scale=0.5)
    return rows


def test_a_trainer_that_was_killed_goes_on_when_it_is_started_again(store: RemoteStore) -> None:
    store.sessions.open("job", ["a"], lease_ms=400)
    killed = store.sessions.join("job", 0).member
    store.sessions.announce(killed, {1: {"a": [1]}, 2: {"a": [2]}})
    store.sessions.release_step(killed, 1)
    with pytest.raises(TableHeldError), store.session(["a"], name="job", lease_ms=400, wait_s=0):
        pass
    with store.session(["a"], name="job", lease_ms=400) as run:
        assert run.last_step == 1
        for step in run.steps([np.array([2])], keys=lambda batch: {"a": batch}):
            step.lookup()
    assert store.sessions.facts() == []
    with pytest.raises(SessionExpiredError):
        store.sessions.renew(killed)


def test_leaving_a_server_that_has_gone_takes_a_moment(server: Server, proxy: Proxy) -> None:
    begun = 0.0
    with connect(proxy.address, timeout_s=PATIENCE_S) as store:
        with pytest.raises(KeyboardInterrupt), store.session(["a"]):
            server.stop()
            proxy.cut()
            begun = monotonic()
            raise KeyboardInterrupt
    assert monotonic() - begun < PATIENCE_S / 2


def test_run_is_that_of_the_embedded_store(store: RemoteStore, embedded: Any) -> None:
    for here, there in zip(train_by_run(embedded), train_by_run(store), strict=True):
        assert here.tobytes() == there.tobytes()
    assert digests(store) == digests(embedded)
    assert store.sessions.facts() == []
