"""Commands that some shards have executed and others have not, at the barrier of a checkpoint."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore.commands import PartOf
from embstore.commands.executor import COUNT_BITS, sender_of
from embstore.config import Sgd
from embstore.errors import InvalidArgumentError, OutcomeUnknownError
from embstore.handles.store import Store
from embstore.tables.answers import GIVEN_UP_MAX, SENDERS_MAX, ClusterCommands
from embstore_client.barrier import pause_each, resume_all
from embstore_client.shards.command_ids import CommandIds
from embstore_client.shards.router import Router
from embstore_proto import shared_memory
from embstore_proto.envelope import metadata_of, part_of
from tests.clusters import Cluster, Watched, table

SHARDS = 3
KEYS = np.arange(0, 20_000, 7)
BEFORE, AFTER = (np.full((len(KEYS), 4), value, np.float32) for value in (1, 2))


def put(store: Store) -> None:
    rows = c.TableKeys("a", None, KEYS), AFTER, np.empty((len(KEYS), 0), np.float32)
    store.executor.execute(c.PutRows(*rows, 0))


WRITES: dict[str, Callable[[Store], object]] = {
    "assign": lambda store: store.table("a").assign(KEYS, AFTER),
    "delete": lambda store: store.table("a").delete(KEYS),
    "clear": lambda store: store.table("a").clear(),
    "put": put,
    "update": lambda store: store.table("a").update(KEYS, AFTER),
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, SHARDS)
    made.store().create_table("a", **table(Sgd(0.1))).assign(KEYS, BEFORE)
    yield made
    made.close()


class Held:
    """A shard, and a client that holds back what it sends to this shard."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster, self._number, self.goes = cluster, number, threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster.engines[self._number], name)

    def execute(self, command: Any, *, part_of: PartOf | None = None, **how: Any) -> Any:
        """Execute a command; first wait, if it is the shard's part of a command that writes."""
        if part_of is not None and part_of.command_id:
            self.goes.wait()
        shard = self._cluster.engines[self._number]
        return shard.execute(command, part_of=part_of, **how)


@contextmanager
def half_executed(
    cluster: Cluster, held: int, write: Callable[[Store], object]
) -> Iterator[tuple[threading.Event, Future[object]]]:
    """Begin a write whose part is held back from one shard, while all others execute theirs. Yield
    the event that lets the part go, and the write."""
    shards: list[Any] = cluster.shards()
    late = shards[held] = Held(cluster, held)
    frames = [e.tables.frame for number, e in cluster.engines.items() if number != held]
    before = [frame.command_number for frame in frames]
    with ThreadPoolExecutor(1) as thread:
        written = thread.submit(write, Store(Router(shards, cluster.map)))
        try:
            while any(f.command_number == b for f, b in zip(frames, before, strict=True)):
                assert not written.done()
            yield late.goes, written
        finally:
            late.goes.set()


def test_rows_that_a_session_deletes_are_tracked_too(cluster):
    sessions = cluster.store().sessions
    sessions.open("s", ["a"])
    member = sessions.join("s", 0).member
    delete = c.DeleteRows(c.TableKeys("a", None, KEYS), member=member)
    before = cluster.engines[0].cluster_commands.ids
    cluster.store().executor.execute(delete)
    after = [engine.cluster_commands.ids for engine in cluster.shards()]
    assert after[0] != before and after == SHARDS * after[:1]


def digest_of(cluster: Cluster) -> str:
    return cluster.store().table("a").digest()


@pytest.mark.parametrize("held", range(SHARDS))
@pytest.mark.parametrize("write", WRITES)
def test_a_checkpoint_contains_the_whole_of_it(cluster, write, held):
    with half_executed(cluster, held, WRITES[write]) as (goes, written):
        shards: list[Any] = cluster.shards()
        shards[held] = Watched(
            shards[held], lambda one: getattr(one, "until", None) is not None and goes.set()
        )
        Store(Router(shards, cluster.map)).checkpoint("while it runs")
        written.result()
    after = digest_of(cluster)
    cluster.store().table("a").update(KEYS, AFTER)
    cluster.store().restore("while it runs")
    assert digest_of(cluster) == after


@pytest.mark.parametrize("meanwhile", ["nothing", "restart", "commit", "another map"])
@pytest.mark.parametrize("held", range(SHARDS))
def test_a_part_that_does_not_come_is_refused_afterwards(cluster, held, meanwhile):
    others = [number for number in range(SHARDS) if number != held]
    pauses: list[float] = []
    with half_executed(cluster, held, WRITES["assign"]) as (goes, written):
        pause_each(cluster.shards(), "the test", wait=pauses.append)
        assert pauses
        if meanwhile == "another map":
            cluster.even(SHARDS - 1)
        elif meanwhile != "nothing":
            if meanwhile == "commit":
                Store(cluster.engines[held]).checkpoint("its own")
            cluster.kill(held)
            cluster.open(held)
        resume_all(cluster.shards(), "the test")
        goes.set()
        with pytest.raises(
            OutcomeUnknownError, match=rf"by shards \{others}.*did not wait.*Send it again"
        ):
            written.result()
    cluster.store().table("a").assign(KEYS, AFTER)  # as the error says
    assert np.array_equal(cluster.store().table("a").lookup(KEYS), AFTER)
    pause_each(cluster.shards(), "the test", tries=1)


@pytest.mark.parametrize("held", range(SHARDS))
def test_what_is_half_executed_is_known_after_a_restart(cluster, held):
    """Of all shards, after each has made a commit."""
    pauses: list[float] = []
    with half_executed(cluster, held, WRITES["delete"]) as (goes, written):
        for number in range(SHARDS):
            Store(cluster.engines[number]).checkpoint("its own")
            cluster.kill(number)
            cluster.open(number)
        pause_each(cluster.shards(), "the test", wait=pauses.append)
        assert pauses
        resume_all(cluster.shards(), "the test")
        goes.set()
        with pytest.raises(OutcomeUnknownError, match="did not wait"):
            written.result()


def test_a_shard_that_starts_again_refuses_nothing(cluster):
    for is_committed in (False, True):
        if is_committed:
            Store(cluster.engines[1]).checkpoint("its own")
        cluster.kill(1)
        cluster.open(1)
        pause_each(cluster.shards(), "the test", tries=1)
        resume_all(cluster.shards(), "the test")
    for write in WRITES.values():
        write(cluster.store())
    pause_each(cluster.shards(), "the test", tries=1)


def test_a_shard_that_joins_is_not_waited_for(cluster):
    cluster.add(1)
    cluster.store().table("a").assign(KEYS, AFTER)
    pause_each(cluster.shards(), "the test", tries=1)


def test_what_all_shards_refuse_is_no_half(cluster):
    with pytest.raises(InvalidArgumentError):
        cluster.store().table("a").update(KEYS, np.full_like(AFTER, np.nan))
    pause_each(cluster.shards(), "the test", tries=1)


def test_the_last_command_of_each_sender_is_known():
    commands, ids, stopped = ClusterCommands(), CommandIds(), CommandIds().begin()
    commands.answered(stopped)
    for _ in range(SENDERS_MAX + 1):
        commands.answered(last := ids.begin())
        ids.end(last)
    assert commands.ids == (stopped, last)
    commands.give_up([last, stopped + 1])
    assert commands.ids == (stopped,) and commands.given_up == (stopped + 1,)
    commands.check(last)
    with pytest.raises(OutcomeUnknownError):
        commands.check(stopped + 1)


def test_only_so_many_senders_are_known():
    commands = ClusterCommands()
    sent = tuple((sender << COUNT_BITS) + 1 for sender in range(SENDERS_MAX + 1))
    for command_id in sent:
        commands.answered(command_id)
    assert commands.ids == sent[1:]
    late = [command_id + 1 for command_id in sent]
    assert len(late) == GIVEN_UP_MAX + 1
    commands.give_up(late)
    assert commands.given_up == tuple(late[1:])


def test_a_sender_sends_one_command_after_the_other():
    ids = CommandIds()
    at_once = [ids.begin() for _ in range(3)]
    assert len({sender_of(one) for one in at_once}) == 3
    ids.end(at_once[1])
    assert ids.begin() == at_once[1] + 1
    assert sender_of(ids.begin()) not in {sender_of(one) for one in at_once}
    ids.end(0)
    assert ids.begin() > 1


def test_a_sender_ends_when_it_has_no_more_ids():
    ids = CommandIds()
    last = (3 << COUNT_BITS) + (1 << COUNT_BITS) - 2
    ids.end(last)
    assert ids.begin() == last + 1
    ids.end(last + 1)
    assert sender_of(ids.begin()) != 4


@pytest.mark.parametrize(
    "sent", [PartOf(1), PartOf(7, is_check=True), PartOf((1 << 63) - 1, (1 << 63) - 1)]
)
def test_parts_travel_beside_a_call(sent):
    assert part_of(metadata_of(sent)) == sent
    frame = shared_memory.part(sent)
    assert shared_memory.part_of(frame[shared_memory.HEAD_BYTES :]) == sent


@pytest.mark.parametrize("text", ["x", "--1", "1:", ":1", "1:2:3", "1 ", b"1", "9" * 20, "1:-2"])
def test_a_part_in_another_form_is_of_a_map_that_no_shard_has(text):
    found = part_of(text)
    assert found is not None and found.map_version >= 1 << 63


def test_a_call_without_a_part_has_none():
    assert part_of("") is None
