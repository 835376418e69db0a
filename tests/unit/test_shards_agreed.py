"""Commands that one shard of a cluster refuses: no other shard has executed them."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore.commands import COMMANDS, PartOf, Retry, Trait
from embstore.config import Sgd, TableConfig
from embstore.errors import (
    CapacityError,
    CheckpointNotFoundError,
    CheckpointProtectedError,
    DeadlineError,
    EmbstoreError,
    InvalidArgumentError,
    MovedError,
    OutcomeUnknownError,
    PermissionDeniedError,
    SessionExpiredError,
    StoreClosedError,
    TableHeldError,
    TableNotFoundError,
    WritesPausedError,
)
from embstore.handles.store import Store
from embstore_client.barrier import pause_each, resume_all
from embstore_client.shards.following import Following
from embstore_client.shards.router import Router
from tests.clusters import Cluster, Watched, table

KEYS = np.arange(0, 20_000, 7)
ROWS = np.ones((len(KEYS), 4), np.float32)


@pytest.fixture(params=["dense", "sparse"])
def cluster(request: Any, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "cluster", 3)
    config = table(Sgd(0.1))
    if request.param == "sparse":
        del config["rows"]
        config["key_space"] = "sparse"
    with_table = made.store().create_table("a", **config)
    for label in ("l1", "l2"):
        with_table.update(KEYS, ROWS)
        made.store().checkpoint(label)
    with_table.update(KEYS, ROWS)
    yield made
    made.close()


def state_of(store: Store) -> dict[str, Any]:
    """Return what the commands of these tests can change."""
    described = store.executor.execute(c.ListTables())
    tables = {one.config.name: (one, store.table(one.config.name).digest()) for one in described}
    kept = [(one.label, one.protected) for one in store.checkpoints()]
    return {"tables": tables, "kept": kept, "command": store.command, "epoch": store.epoch}


def states(cluster: Cluster) -> list[Any]:
    """Return the state of each shard."""
    return [state_of(Store(shard)) for shard in cluster.shards()]


CHANGES: dict[str, Callable[[Store], object]] = {
    "assign": lambda store: store.table("a").assign(KEYS, ROWS),
    "delete": lambda store: store.table("a").delete(KEYS),
    "clear": lambda store: store.table("a").clear(),
    "rate": lambda store: setattr(store.table("a"), "learning_rate", 0.5),
    "drop": lambda store: store.drop_table("a"),
    "restore": lambda store: store.restore("l1"),
}


@pytest.mark.parametrize("change", [change for change in CHANGES if change != "rate"])
@pytest.mark.parametrize("shard", range(3))
def test_a_session_that_one_shard_has_changes_no_shard(cluster, shard, change):
    Store(cluster.engines[shard]).sessions.open("left", ["a"])
    before = states(cluster)
    with pytest.raises(TableHeldError):
        CHANGES[change](cluster.store())
    assert states(cluster) == before
    cluster.store().sessions.end("left")
    CHANGES[change](cluster.store())
    assert states(cluster) != before


@pytest.mark.parametrize("shard", range(3))
def test_a_checkpoint_that_one_shard_protects_is_protected(cluster, shard):
    Store(cluster.engines[shard]).set_retention("l2", "protected")
    store, before = cluster.store(), states(cluster)
    assert [one.protected for one in store.checkpoints()] == [False, True]
    with pytest.raises(CheckpointProtectedError):
        store.restore("l1")
    with pytest.raises(CheckpointProtectedError):
        store.set_retention("l2", "dropped")
    assert states(cluster) == before
    store.set_retention("l2", "routine")
    store.restore("l1")
    assert [one.label for one in store.checkpoints()] == ["l1"]


def test_a_label_that_one_shard_alone_has_and_protects_can_be_made_routine(cluster):
    for shard in range(3):
        Store(cluster.engines[shard]).set_retention("l2", "dropped" if shard else "protected")
    store = cluster.store()
    with pytest.raises(CheckpointProtectedError):
        store.restore("l1")
    store.set_retention("l2", "routine")
    store.restore("l1")
    with pytest.raises(CheckpointNotFoundError):
        store.set_retention("l1-other", "routine")


@pytest.mark.parametrize("change", CHANGES)
def test_a_shard_that_is_down_refuses_a_change_for_all(cluster, change):
    before = states(cluster)

    def is_down(_: Any) -> None:
        raise DeadlineError("no answer")

    with pytest.raises(DeadlineError):
        CHANGES[change](watched(cluster, {1: is_down}, of=c.Command))
    assert states(cluster) == before


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("error", [DeadlineError("no answer"), CapacityError("the disk is full")])
def test_a_shard_that_fails_after_the_check_is_told_and_the_command_completes_it(
    cluster, change, error
):
    seen = []

    def fail_once(command: Any) -> None:
        seen.append(command)
        if len(seen) == 2:
            raise error

    store = watched(cluster, {1: fail_once}, of=WRITTEN)
    with pytest.raises(OutcomeUnknownError, match=r"shards \[0, 2\].*Send it again"):
        CHANGES[change](store)
    CHANGES[change](store)
    found = {frozenset(one["tables"]) for one in states(cluster)}
    assert found == {frozenset() if change == "drop" else frozenset({"a"})}
    pause_each(cluster.shards(), "the test", wait=[].append)  # for the part that does not come
    resume_all(cluster.shards(), "the test")
    cluster.store().checkpoint("whole")


WRITTEN = (c.Assign, c.DeleteRows, c.ClearTable, c.SetLearningRate, c.DropTable, c.Restore)


def watched(cluster: Cluster, by: dict[int, Callable[[Any], object]], *, of: Any) -> Store:
    """Return a client for which functions are called before the commands of some shards."""

    def before(shard: int, command: Any) -> None:
        if isinstance(command, of) and not isinstance(command, c.GetTable | c.ListCheckpoints):
            by[shard](command)

    shards = [
        Watched(engine, lambda command, n=number: before(n, command) if n in by else None)
        for number, engine in enumerate(cluster.shards())
    ]
    router = Router(shards, cluster.map)
    return Store(Following(router, lambda name: cluster.engines[int(name)]))


def test_a_session_that_some_shards_have_is_ended(cluster):
    Store(cluster.engines[2]).sessions.open("left", ["a"])
    cluster.store().sessions.end("left")
    with pytest.raises(SessionExpiredError):
        cluster.store().sessions.end("left")


def test_a_table_that_some_shards_lack_is_named_and_can_be_dropped(cluster):
    Store(cluster.engines[0]).create_table("half", **table(Sgd(0.1)))
    store = cluster.store()
    with pytest.raises(OutcomeUnknownError, match=r"only shards \[0\] have table 'half'"):
        pause_each(cluster.shards(), "the test", tries=3, wait=[].append)
    store.drop_table("half")
    with pytest.raises(TableNotFoundError):
        store.drop_table("half")


@pytest.mark.parametrize("shard", range(3))
def test_after_half_created_tables_were_dropped_another_one_is_created(cluster, shard):
    store, engine = cluster.store(), cluster.engines[shard]
    for name in ("b", "c"):
        engine.execute(c.CreateTable(TableConfig.checked(name, **table(Sgd(0.1)))))
        store.drop_table(name)
    store.create_table("d", **table(Sgd(0.1))).update(KEYS, ROWS)
    assert len({one.execute(c.GetTable("d")).table_id for one in cluster.shards()}) == 1


def test_a_table_with_different_ids_is_named_and_can_be_created_again(cluster):
    """As of clients that create two tables at the same time."""
    b, d = (c.CreateTable(TableConfig.checked(name, **table(Sgd(0.1)))) for name in "bd")
    for shard, engine in cluster.engines.items():
        for create in (d, b) if shard == 1 else (b, d):
            engine.execute(create)
    store = cluster.store()
    with pytest.raises(EmbstoreError, match=r"the same table id from every shard.*drop"):
        store.create_table("b", **table(Sgd(0.1)))
    store.drop_table("b")
    store.create_table("b", **table(Sgd(0.1))).update(KEYS, ROWS)


def test_rates_that_differ_are_named(cluster):
    Store(cluster.engines[0]).table("a").learning_rate = 0.5
    with pytest.raises(OutcomeUnknownError, match=r"rates \[0.5, 0.1.*set them again"):
        pause_each(cluster.shards(), "the test", tries=3, wait=[].append)
    cluster.store().table("a").learning_rate = 0.5
    cluster.store().checkpoint("l3")


# A shard that only checks a command


def test_a_check_changes_nothing_and_ignores_a_pause(cluster):
    shard, part_of = cluster.engines[0], PartOf(cluster.map.version, is_check=True)
    Store(shard).pause_writes("the test")
    before = state_of(Store(shard))
    for command in (
        c.SetLearningRate("a", None, 0.5),
        c.ClearTable("a"),
        c.DropTable("a"),
        c.Restore("l1"),
        c.Restore("l1", force=True),
        c.SetRetention("l1", "dropped"),
        c.Checkpoint("l3", {}),
    ):
        with pytest.raises(WritesPausedError, match="to be checked only"):
            shard.execute(command, part_of=part_of)
        assert state_of(Store(shard)) == before, command
    shard.execute(c.ResumeWrites())


def test_what_cannot_be_checked_is_refused():
    names = {name for name, one in COMMANDS.items() if one.can_be_checked}
    assert {"Assign", "ClearTable", "CreateTable", "DropTable", "Restore"} <= names
    assert not names & {"Update", "PutRows", "UpdateStep", "Lookup", "Promote", "SetShardMap"}
    for name in names:
        assert COMMANDS[name].retry is Retry.WINDOW and Trait.ADDS not in COMMANDS[name].traits


def test_an_update_is_not_checked_only(cluster):
    shard, before = cluster.engines[0], states(cluster)
    update = c.PutRows(c.TableKeys("a", None, KEYS[:0]), ROWS[:0], ROWS[:0, :0], 1)
    with pytest.raises(InvalidArgumentError, match="cannot be checked only"):
        shard.execute(update, part_of=PartOf(cluster.map.version, is_check=True))
    assert states(cluster) == before


class ClosesAfter:
    """A shard, and what is done before it closes."""

    def __init__(self, shard: Any, before: Callable[[], object]) -> None:
        self._shard, self._before = shard, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def close(self) -> None:
        """Close the shard, as an engine does."""
        self._before()
        self._shard.close()


def test_a_router_that_closes_sends_no_shard_an_update(cluster):
    """The call falls between the end of the router's threads and the close of the first shard."""

    def update() -> None:
        with pytest.raises(StoreClosedError):
            store.table("a").update(KEYS, ROWS)
        with pytest.raises(StoreClosedError):
            store.table("a").assign(KEYS, ROWS)
        after.extend(states(cluster))

    after: list[Any] = []
    shards: list[Any] = list(cluster.shards())
    store = Store(Router([ClosesAfter(shards[0], update), *shards[1:]], cluster.map))
    before = states(cluster)
    store.close()
    assert after == before


class Unanswered:
    """A shard that executes updates, and is killed before it answers them; its server, which runs
    again as a standby, refuses them much later."""

    def __init__(self, shard: Any) -> None:
        self._shard = shard
        self.is_over, self.has_refused = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def execute(self, command: Any, **how: Any) -> Any:
        """Execute a command, as an engine does."""
        answer = self._shard.execute(command, **how)
        if isinstance(command, c.Update):
            assert self.is_over.wait(300.0)
            self.has_refused.set()
            raise PermissionDeniedError("this is a standby")
        return answer


def test_an_update_whose_shard_was_replaced_meanwhile_is_not_sent_again(cluster):
    """The standby of shard 0 has the update, which the other shards have refused: writes were
    paused there, and then they had a newer map."""

    def refuse(command: Any) -> None:
        if isinstance(command, c.Update):
            raise MovedError("the shard has a newer map")

    lost = Unanswered(cluster.engines[0])
    shards = [lost, *(Watched(cluster.engines[n], refuse) for n in (1, 2))]
    others = set(threading.enumerate())
    router = Router(shards, cluster.map, timeout_s=0.1)
    successors = {"standby": cluster.engines[0], "1": cluster.engines[1], "2": cluster.engines[2]}
    store = Store(Following(router, successors.__getitem__))
    before = [Store(engine).table("a").t for engine in cluster.shards()]
    newer = replace(cluster.map, version=2, shards=("standby", "1", "2"))
    for engine in cluster.shards():
        Store(engine).set_shard_map(newer)
    try:
        with pytest.raises(OutcomeUnknownError):
            store.table("a").update(KEYS, ROWS)
    finally:
        lost.is_over.set()
    assert lost.has_refused.wait(300.0)
    router.shared.close()
    for thread in set(threading.enumerate()) - others:
        thread.join()
    assert Store(cluster.engines[0]).table("a").t == before[0] + 1
