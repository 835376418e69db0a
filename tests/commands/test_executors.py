"""The same commands for the store of this process, for a server, and for the reference model.

Results and errors are equal, and so are digests; a list of the acknowledged commands, done again in
an empty store, gives the same digests.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore.arithmetic import LEAF_RECORD
from embstore.commands import COMMANDS, Command, Executor
from embstore.config import Adam, Normal, TableConfig
from embstore.errors import EmbstoreError
from embstore.lookahead.handles import StepOutcome
from embstore.results import Leaves, ScannedRows, SessionFacts
from embstore.values import same
from tests.commands.lists import SPARSE, WAITING, Author
from tests.commands.model import Model
from tests.commands.rows import in_order
from tests.conformance.backends import Embedded
from tests.conformance.served import Served, small_pieces
from tests.conformance.sharded import OneShard, Sharded, TwoShards

COUNT = 250
"""Commands of a list."""
SEEDS = range(10)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Served]:
    backend = Served(tmp_path / "there")
    with small_pieces():
        yield backend
    backend.close()


def outcome(executor: Executor, command: Command[Any]) -> Any:
    """Return what a command gives, or what it is refused with."""
    if isinstance(command, c.Backup):  # each store has its own
        command = replace(command, destination=f"{command.destination}-{id(executor)}")
    try:
        match command:
            case c.GetLeaves():
                return whole_leaves(executor, command)
            case c.ReadScan() if command.table in SPARSE:
                return whole_scan(executor, command)
        return executor.execute(command)
    except EmbstoreError as error:
        return error


def whole_leaves(executor: Executor, command: c.GetLeaves) -> Leaves:
    """Return what pages of leaves have together: those of a cluster may be shorter."""
    page = whole = executor.execute(command)
    while page.records:
        last = np.frombuffer(page.records, LEAF_RECORD)["block"][-1]
        page = executor.execute(replace(command, low=int(last) + 1))
        whole = replace(whole, records=whole.records + page.records)
    return whole


def whole_scan(executor: Executor, command: c.ReadScan) -> ScannedRows:
    """Return what the pages of a scan of sparse keys have together: those of a cluster are each of
    one shard."""
    pages = [executor.execute(command)]
    while len(pages[-1].keys):
        pages.append(executor.execute(replace(command, low=pages[-1].after)))
    keys, rows = (np.concatenate([getattr(page, n) for page in pages]) for n in ("keys", "rows"))
    states = [page.state for page in pages if page.state is not None]
    return ScannedRows(keys, rows, np.concatenate(states) if states else None)


def shown(command: Command[Any], result: Any) -> Any:
    """Return what of an outcome is the same everywhere."""
    match command, result:
        case _, EmbstoreError():
            return type(result), re.sub(r"[0-9.]+ s ", "", str(result))  # since a session was heard
        case c.GetServerInfo(), _:
            return result.version, result.policy, result.cache_bytes, result.limits
        case c.GetStats(), _:
            return {name: result[name] for name in ("rows", "t", "learning_rate")}
        case c.Checkpoint() | c.SetRetention(), _:
            return described(result)
        case c.Backup(), _:
            return result.label, result.command
        case c.ListCheckpoints(), _:
            return tuple(map(described, result))
        case c.Announce(), _:
            return result.announced_step  # how far planning is depends on its thread
        case c.ExportProfile(), _:
            return replace(result, store_id="", trace=None)
        case c.ReadScan(), _ if command.table in SPARSE:
            return in_order(result)
        case c.PinHotSet(), _:
            return result.version, result.rows
        case c.UnpinHotSet() | c.WarmCache() | c.Flush(), _:
            return type(result).__name__
    return result


def of_cluster(command: Command[Any], result: Any) -> Any:
    """Return what of an outcome is the same in a cluster: which of two reasons a command is refused
    for may be another one, each shard has a cache, and a backup needs a label there."""
    match command, result:
        case c.Backup(label=None), _:
            return None
        case _, SessionFacts():
            return replace(result, written=())  # of each shard
        case _, EmbstoreError():
            return EmbstoreError
        case c.GetServerInfo(), _:
            return result.version, result.policy, result.limits
    return shown(command, result)


def described(checkpoint: Any) -> Any:
    """Return what the wire says of a checkpoint: not when it was made."""
    return replace(checkpoint, made_at=None)


def equal(one: Any, other: Any) -> bool:
    """Compare results: dataclasses by their fields, arrays by their bits."""
    if type(one) is not type(other):
        return False
    if hasattr(one, "__dataclass_fields__"):
        return all(equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return same(one, other)


def digests(executor: Executor) -> dict[str, str]:
    """Return the digest of every table."""
    names = [table.config.name for table in executor.execute(c.ListTables())]
    return {name: executor.execute(c.GetDigest(name)).digest for name in names}


OPTIONS = {"count_rate": 1.0, "cache_bytes": 1 << 20}


def compared(
    near: Executor, far: Executor, seed: int, view: Callable[[Command[Any], Any], Any]
) -> tuple[Model, list[Command[Any]]]:
    """Give a list's commands to both, whose outcomes are the same as a view has them; return the
    model of it, and what was acknowledged."""
    author, acknowledged = Author(seed, model := Model()), []
    for number in range(COUNT):
        command = author.next()
        result, told = outcome(near, command), outcome(far, command)
        assert equal(view(command, result), view(command, told)), f"{number}: {command}"
        if not isinstance(result, EmbstoreError):
            model.follow(command, result)
            acknowledged.append(command)
    assert digests(near) == digests(far) == model.digests()
    assert last_command(near) == last_command(far)
    assert near.execute(c.CheckIntegrity()) == far.execute(c.CheckIntegrity()) == ""
    return model, acknowledged


@pytest.mark.parametrize("seed", SEEDS)
def test_results_errors_and_digests_are_equal(here: Embedded, there: Served, seed: int) -> None:
    near, far = (backend.open_store(**OPTIONS).executor for backend in (here, there))
    model, acknowledged = compared(near, far, seed, shown)
    again = here.open_store("again", **OPTIONS).executor
    for command in acknowledged:
        again.execute(command)
    assert digests(again) == model.digests()
    assert last_command(again) == last_command(near) == model.store.command_number


@pytest.fixture(params=[OneShard, TwoShards, Sharded])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sharded]:
    backend = request.param(tmp_path / "cluster")
    yield backend
    backend.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_gives_results_errors_and_digests_of_one_store(
    here: Embedded, cluster: Sharded, seed: int
) -> None:
    near, far = (backend.open_store(**OPTIONS).executor for backend in (here, cluster))
    compared(near, far, seed, of_cluster)


def last_command(executor: Executor) -> int:
    """Return the number of the last acknowledged command."""
    return executor.execute(c.GetServerInfo()).context.command


def test_lists_have_every_verb(here: Embedded) -> None:
    """What is random may miss a verb in one list, but not in all."""
    done: set[Any] = set()
    for seed in range(2 * len(SEEDS)):
        model = Model()
        author = Author(seed, model)
        executor = here.open_store(f"store-{seed}", **OPTIONS).executor
        for _ in range(COUNT):
            command = author.next()
            if not isinstance(result := outcome(executor, command), EmbstoreError):
                model.follow(command, result)
                done.add(type(command))
    of_shards = {c.SetShardMap, c.PauseWrites, c.ResumeWrites}  # service/test_shards.py
    assert done == set(COMMANDS.values()) - of_shards


def test_ranks_of_a_step_may_be_recorded_in_either_order(here: Embedded) -> None:
    members = "rank 0 of the session", "rank 1 of the session"
    config = TableConfig.checked(
        "a", dim=3, rows=9, optimizer=Adam(0.1), initializer=Normal(0.0, 1.0)
    )
    keys = c.StepTable("a", np.arange(4)), c.StepTable("a", np.arange(2, 9))
    rows = [np.full((len(part.keys), 3), 1 / 3, np.float32) for part in keys]
    before = [
        c.CreateTable(config),
        c.OpenSession("s", ("a",), world_size=2, **WAITING),
        *(c.JoinSession("s", rank, member) for rank, member in enumerate(members)),
    ]
    pairs = [
        [
            c.Announce(member, (c.StepKeys(1, (part,)), c.StepKeys(2, (part,)))),
            c.UpdateStep(member, 1, (c.StepGradients("a", gradients),)),
            c.SkipStep(member, 2),
        ]
        for member, part, gradients in zip(members, keys, rows, strict=True)
    ]
    found = []
    for ranks in (pairs, pairs[::-1]):
        engine = here.open_store(f"store-{len(found)}", **OPTIONS).executor
        commands = chain(before, *zip(*ranks, strict=True))
        waiting = [engine.begin(command) for command in commands]
        outcomes = [handle.poll() for handle in waiting if isinstance(handle, StepOutcome)]
        assert [done.command for done in outcomes] == [2, 2, 3, 3]
        found.append(digests(engine))
    assert found[0] == found[1]
