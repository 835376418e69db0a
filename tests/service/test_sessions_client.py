"""What the network client makes of a session's answers: early and late rows, calls that were lost.

The test gives the answers itself, by a real gRPC server that knows nothing of sessions.
"""

import queue
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest

from embstore.errors import (
    DeadlineError,
    EmbstoreError,
    OutcomeUnknownError,
    SessionExpiredError,
    StoreClosedError,
)
from embstore.handles.store import Store
from embstore_client import connect
from embstore_proto.frame import Framed, Message
from embstore_proto.status import ERROR_METADATA, answer_of
from embstore_proto.v1 import embstore_pb2 as pb
from tests.service.faults.served import until

PATIENCE_S = 300.0
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
JOINED = pb.MembershipReply(
    context=CONTEXT, member="m", name="s", rank=0, rank_timeout_ms=9_000_000
)
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
    store: Store

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
def test_rows_stand_in_announced_order(far, messages, announced):
    if announced:
        far.announce()
    far.server.give("LookupStep", *messages, None)
    rows = far.sessions.lookup_step("m", 1)["a"]
    assert np.array_equal(rows, ROWS)
    assert rows.flags.writeable


def test_early_rows_are_in_place_before_late_ones_come(far):
    far.announce()
    far.server.give("LookupStep", EARLY_ROWS)
    handle = far.sessions.prefetch_step("m", 1)
    until(lambda: handle.early_bytes)
    assert not handle.done()
    with pytest.raises(DeadlineError, match="step 1: its rows did not arrive within"):
        handle.result(timeout_s=0.001)
    far.server.give("LookupStep", LATE_ROWS, None)
    assert np.array_equal(handle.result()["a"], ROWS)
    assert handle.done()
    assert handle.result()["a"] is handle.result()["a"]
    assert (handle.early_bytes, handle.late_bytes) == (4 * DIM * len(EARLY), 4 * DIM * len(LATE))


def test_prefetch_that_waited_too_long_is_asked_for_again(far):
    far.announce()
    far.server.give("LookupStep", EARLY_ROWS, DeadlineError("LookupStep: no answer in time"))
    handle = far.sessions.prefetch_step("m", 1)
    until(handle._over.is_set)
    assert not handle.done()
    far.server.give("LookupStep", ALL, None)
    assert np.array_equal(handle.result()["a"], ROWS)
    assert (handle.early_bytes, handle.late_bytes) == (0, ROWS.nbytes)


def test_rows_that_are_lacking_are_noticed(far):
    far.announce()
    far.server.give("LookupStep", EARLY_ROWS, rows_message(LATE[:-1]), None)
    with pytest.raises(EmbstoreError, match="expected the rows of a step"):
        far.sessions.lookup_step("m", 1)


# Lost calls


def test_rows_lost_in_the_middle_are_sent_again(far):
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
def test_step_whose_answer_was_lost_is_finished_again(far, verb):
    finish, answer = FINISHING[verb]
    far.server.give(verb, LOST, answer)
    acknowledged = finish(far.sessions)
    assert (acknowledged.command, acknowledged.t) == (5, {"a": 3})


@by_verb
def test_step_of_a_session_that_ended_is_refused(far, verb):
    far.server.give(verb, GONE)
    with pytest.raises(SessionExpiredError, match="no session has this member"):
        FINISHING[verb][0](far.sessions)


@by_verb
@pytest.mark.parametrize(
    "lost",
    [LOST, StoreClosedError("the server is stopping; send the call again later")],
    ids=["connection", "stopping"],
)
def test_nobody_knows_of_a_step_that_was_out_as_its_session_ended(far, verb, lost):
    far.server.give(verb, lost, GONE)
    with pytest.raises(OutcomeUnknownError, match="its last step shows whether"):
        FINISHING[verb][0](far.sessions)


def test_lookup_of_a_session_that_ended_has_changed_nothing(far):
    far.server.give("LookupStep", LOST, GONE)
    with pytest.raises(SessionExpiredError):
        far.sessions.lookup_step("m", 1)


def test_a_lost_join_is_sent_again_with_the_same_member(far):
    for _ in range(2):
        far.server.give("JoinSession", LOST, JOINED.SerializeToString())
        assert far.sessions.join("s", 0).member == "m"
    sent = [pb.JoinSessionRequest.FromString(r).member for r in far.server.requests["JoinSession"]]
    assert (sent[0], sent[2]) == (sent[1], sent[3])
    assert sent[0] != sent[2]
    assert all(len(member) == len(bytes.fromhex(member)) * 2 >= 32 for member in sent)


def test_calls_of_a_step_wait_for_as_long_as_the_server_says(far):
    def remaining_s() -> float:
        far.server.give("ReleaseStep", FINISHED.SerializeToString())
        far.sessions.release_step("m", 1)
        return far.server.remaining_s["ReleaseStep"]

    def about(seconds: float) -> Any:
        return pytest.approx(seconds, abs=PATIENCE_S)

    assert remaining_s() == about(PATIENCE_S)
    far.server.give("JoinSession", JOINED.SerializeToString())
    far.sessions.join("s", 0)
    assert remaining_s() == about(PATIENCE_S + 9000)
    session = pb.SessionDescription(name="s", rank_timeout_ms=5_000_000)
    renewed = pb.SessionReply(context=CONTEXT, session=session)
    far.server.give("RenewLease", renewed.SerializeToString())
    assert far.sessions.renew("m", timeout_s=3000.0).rank_timeout_ms == 5_000_000
    assert far.server.remaining_s["RenewLease"] == about(3000)
    assert remaining_s() == about(PATIENCE_S + 5000)


def test_prefetch_of_a_connection_that_is_closed_ends(far):
    far.server.give("LookupStep", EARLY_ROWS)
    handle = far.sessions.prefetch_step("m", 1)
    until(lambda: handle.early_bytes)
    far.store.close()
    far.server.give("LookupStep", None)
    with pytest.raises(StoreClosedError):
        handle.result()


def test_close_is_harmless_and_forgets_what_was_announced(far):
    far.announce()
    far.server.give("CloseSession", *[CLOSED.SerializeToString()] * 2)
    far.sessions.close("m")
    far.sessions.close("m", forget=True)
    assert not far.store.executor.members.places
