"""Checkpoints of a cluster: one label on all shards at one barrier, or none."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import commands as c
from embstore.cluster_checkpoints import marked, pause_name
from embstore.config import Adagrad
from embstore.errors import (
    CapacityError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    OutcomeUnknownError,
    StoreClosedError,
    WritesPausedError,
)
from embstore.handles.store import Store
from embstore.storage.labels import SPARE
from embstore_client.shards.router import Router
from tests.clusters import Cluster, Watched, table

DIM, ROWS, LABELS = 4, 20_000, 3
TABLE = table(Adagrad(0.5), ROWS)
KEYS = np.arange(0, ROWS, 100)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "cluster", 3)
    made.store().create_table("a", **TABLE)
    yield made
    made.close()


def update(store: Store, number: int) -> None:
    gradients = np.random.default_rng(number).standard_normal((len(KEYS), DIM), np.float32)
    store.table("a").update(KEYS, gradients)


def labels_of(store: Any) -> list[str]:
    return [one.label for one in Store(getattr(store, "executor", store)).checkpoints()]


def digest_after(path: Path, updates: int) -> str:
    """Return what one store has after so many."""
    with embstore.open(path, cache_bytes=1 << 20, device="cpu") as store:
        store.create_table("a", **TABLE)
        for number in range(updates):
            update(store, number)
        return store.table("a").digest()


def test_labels_are_at_one_boundary_while_others_write(cluster, tmp_path):
    ended = threading.Event()

    def write() -> None:
        writer, number = cluster.store(), 0
        while not ended.is_set():
            update(writer, number)
            number += 1

    store = cluster.store()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        for number in range(LABELS):
            seen = store.table("a").t
            while store.table("a").t == seen:
                assert not writing.done(), writing.result()
            store.checkpoint(f"kept-{number}", {"number": number})
        ended.set()
        writing.result()
    assert [one.metadata for one in store.checkpoints()] == [{"number": n} for n in range(LABELS)]
    for number in reversed(range(LABELS)):
        store.restore(f"kept-{number}")
        [t] = {engine.execute(c.GetTable("a")).t for engine in cluster.shards()}
        assert store.table("a").digest() == digest_after(tmp_path / f"one-{number}", t)


def test_what_was_cut_short_is_none_and_is_replaced(cluster):
    """A client has died, when some shards had its label; and another, too."""
    store, (first, second, _) = cluster.store(), cluster.shards()
    first.execute(c.Checkpoint("kept", marked({}, "one try")))
    second.execute(c.Checkpoint("kept", marked({}, "another try")))
    assert labels_of(store) == []
    with pytest.raises(CheckpointNotFoundError):
        store.restore("kept")
    update(store, 0)
    store.checkpoint("kept", {"what": "is whole"})
    assert [(one.label, one.metadata) for one in store.checkpoints()] == [
        ("kept", {"what": "is whole"})
    ]
    with pytest.raises(CheckpointExistsError):
        store.checkpoint("kept")
    assert labels_of(store) == ["kept"]
    update(store, 1)
    store.restore("kept")
    assert store.table("a").t == 1


def test_tries_that_meet_under_one_label_are_none(cluster):
    for number, shard in enumerate(cluster.shards()):
        shard.execute(c.Checkpoint("kept", marked({}, f"try {min(number, 1)}")))
    store = cluster.store()
    assert labels_of(store) == []
    with pytest.raises(CheckpointNotFoundError, match="a different one on each shard"):
        store.restore("kept")


def test_a_label_of_a_shard_alone_is_left_to_it(cluster):
    store, (first, *others) = cluster.store(), cluster.shards()
    first.execute(c.Checkpoint("own", {}))
    with pytest.raises(CheckpointExistsError):
        store.checkpoint("own")
    assert labels_of(first) == ["own"]
    assert [labels_of(one) for one in others] == [[], []]
    update(store, 0)  # nothing is paused any more


def test_a_shard_that_dies_leaves_no_label(cluster):
    store = cluster.store()
    cluster.kill(1)
    with pytest.raises(StoreClosedError):
        store.checkpoint("kept")
    cluster.open(1)
    store = cluster.store()
    assert labels_of(store) == []
    update(store, 0)
    store.checkpoint("kept")
    assert labels_of(store) == ["kept"]


def test_checkpoints_that_one_shard_refuses_displace_none(cluster):
    def refuse(command: Any) -> None:
        if isinstance(command, c.Checkpoint):
            raise CapacityError("the disk is full")

    store, shards = cluster.store(), cluster.shards()
    whole = [f"whole-{number}" for number in range(5)]
    for label in whole:
        update(store, 0)
        store.checkpoint(label)
    full = Store(Router([shards[0], Watched(shards[1], refuse), shards[2]], cluster.map))
    assert labels_of(store) == whole[-3:]
    for number in range(5):
        with pytest.raises(CapacityError):
            full.checkpoint(f"failed-{number}")
        assert [labels_of(shard) for shard in shards] == 3 * [whole[-3:]]
    store.restore(whole[-3])
    assert store.table("a").t == 3


def restarting(cluster: Cluster, times: int) -> Store:
    """Return the store of a client for which a shard is started again just before it makes its next
    checkpoints: its lease is forgotten, and somebody assigns a row, which leaves t as it is."""
    first, second, third = cluster.shards()
    starts = [None] * times

    def start_again(command: Any) -> None:
        if isinstance(command, c.Checkpoint) and starts:
            starts.pop()
            second.execute(c.ResumeWrites())
            rows = np.zeros((1, DIM), np.float32)
            second.execute(c.Assign(c.TableKeys("a", None, np.array([0])), rows))

    return Store(Router([first, Watched(second, start_again), third], cluster.map))


def test_checkpoints_that_are_made_again_displace_none(cluster):
    whole = [f"whole-{number}" for number in range(3)]
    for label in whole:
        cluster.store().checkpoint(label)
    with pytest.raises(OutcomeUnknownError, match="in all 5 tries"):
        restarting(cluster, times=5).checkpoint("kept")
    assert [labels_of(shard) for shard in cluster.shards()] == 3 * [whole]


def dying(cluster: Cluster) -> Store:
    """Return the store of a client that dies in a checkpoint, when the first shard has made its
    part. The shards' pauses end."""
    first, *others = cluster.shards()
    is_dead = threading.Event()

    def die(command: Any) -> None:
        if isinstance(command, c.Checkpoint):
            is_dead.set()
            for shard in cluster.shards():
                shard.execute(c.ResumeWrites())

    def refuse(command: Any) -> None:
        if isinstance(command, c.Checkpoint):
            is_dead.wait()
        if is_dead.is_set():
            raise StoreClosedError("the client is dead")

    def refuse_later(command: Any) -> None:
        if is_dead.is_set():
            raise StoreClosedError("the client is dead")

    last = Watched(first, refuse_later, after=die)
    return Store(Router([last, *(Watched(one, refuse) for one in others)], cluster.map))


@pytest.mark.parametrize("among", range(3))
def test_clients_that_die_in_a_checkpoint_displace_none(cluster, among):
    store, shards = cluster.store(), cluster.shards()
    for number in range(3):
        store.checkpoint(f"whole-{number}")
        for died in range(2 * SPARE if number == among else 0):
            with pytest.raises(StoreClosedError):
                dying(cluster).checkpoint(f"died-{died}")
            assert len(shards[0].execute(c.ListCheckpoints())) == number + 2
    assert labels_of(store) == ["whole-0", "whole-1", "whole-2"]
    store.checkpoint("whole-3")
    assert [labels_of(shard) for shard in shards] == 3 * [["whole-1", "whole-2", "whole-3"]]


def test_pushing_out_by_an_outdated_list_changes_nothing(cluster):
    """A client was stopped until its pause had ended, and others have made checkpoints since."""
    shard, store = cluster.engines[0], cluster.store()
    for number in range(3):
        store.checkpoint(f"whole-{number}")
    Store(shard).pause_writes("another", lease_ms=3_600_000)
    shard.execute(c.ResumeWrites("stopped", ("whole-0",)))
    shard.execute(c.ResumeWrites("another"))
    shard.execute(c.ResumeWrites("stopped", ("whole-0",)))
    assert labels_of(shard) == ["whole-0", "whole-1", "whole-2"]


def test_a_label_of_a_move_displaces_none(cluster):
    store, shard = cluster.store(), cluster.engines[0]
    for number in range(3):
        store.checkpoint(f"whole-{number}")
    shard.execute(c.Checkpoint("died", marked({}, "died")))
    shard.execute(c.Checkpoint("embstore-move/1", {}))
    assert labels_of(store) == ["whole-0", "whole-1", "whole-2"]


def test_a_client_that_was_stopped_makes_its_checkpoint_again(cluster):
    """Its pause has ended, and another client has dropped the part that was made."""
    first, second, third = cluster.shards()
    cluster.store().checkpoint("before")
    is_made, has_stopped = threading.Event(), threading.Event()

    def made(command: Any) -> None:
        if isinstance(command, c.Checkpoint):
            is_made.set()

    def stop(command: Any) -> None:
        if isinstance(command, c.Checkpoint) and not has_stopped.is_set():
            is_made.wait()
            has_stopped.set()
            for shard in cluster.shards():
                shard.execute(c.ResumeWrites())
            cluster.store().checkpoint("other")

    shards: list[Any] = [Watched(first, after=made), Watched(second, stop), third]
    Store(Router(shards, cluster.map)).checkpoint("kept")
    assert [labels_of(shard) for shard in cluster.shards()] == 3 * [["before", "other", "kept"]]


def test_a_shard_makes_only_the_checkpoints_of_the_client_that_has_paused_it(cluster):
    shard = cluster.engines[0]
    Store(shard).pause_writes(pause_name("one"), lease_ms=3_600_000)
    with pytest.raises(WritesPausedError, match="a checkpoint, one"):
        shard.execute(c.Checkpoint("another's", marked({}, "another")))
    shard.execute(c.Checkpoint("its own", marked({}, "one")))
    shard.execute(c.Checkpoint("of no cluster", {}))


def test_what_a_shard_wrote_meanwhile_is_not_in_a_label(cluster):
    store = restarting(cluster, times=1)
    made = store.checkpoint("kept")
    assert labels_of(store) == ["kept"]
    at = [shard.execute(c.ListCheckpoints())[0].command for shard in cluster.shards()]
    assert at == [made.command, made.command + 1, made.command]


def test_a_lease_ends_by_itself_and_with_the_process(cluster):
    store, shard = cluster.store(timeout_s=300.0), Store(cluster.engines[0])
    shard.pause_writes("somebody", lease_ms=50)
    update(store, 0)  # waits
    shard.pause_writes("somebody", lease_ms=3_600_000)
    with pytest.raises(WritesPausedError, match="somebody has paused them"):
        shard.pause_writes("another")
    with pytest.raises(WritesPausedError, match="somebody has paused them"):
        shard.pause_writes("another", lease_ms=1)
    shard.resume_writes("another")
    with pytest.raises(WritesPausedError):
        shard.table("a").update([], np.empty((0, DIM), np.float32))
    shard.resume_writes("somebody")
    update(store, 1)
    shard.pause_writes("somebody", lease_ms=3_600_000)
    cluster.kill(0)
    cluster.open(0)
    update(cluster.store(), 2)
    assert cluster.store().table("a").t == 3


def test_only_the_checkpoint_of_a_mark_is_dropped(cluster):
    """A client was stopped between its list of labels and the drop."""
    shard = cluster.engines[0]
    shard.execute(c.Checkpoint("kept", marked({}, "made again")))
    with pytest.raises(CheckpointNotFoundError, match="made again meanwhile"):
        shard.execute(c.SetRetention("kept", "dropped", "listed"))
    assert labels_of(shard) == ["kept"]
    shard.execute(c.SetRetention("kept", "dropped", "made again"))
    assert labels_of(shard) == []
