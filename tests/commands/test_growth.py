"""Random commands over a cluster that grows from two shards to three and back, and one store.

What a change of the map ends in a cluster (sessions, scans, labels) is ended in both before it. The
numbers of commands are left out: rows that are moved are commands of the shard that gets them. So
are profiles and hot sets, which stay where they are.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from embstore import commands as c
from embstore.errors import EmbstoreError
from tests.clusters import Cluster
from tests.commands.lists import Author
from tests.commands.model import Model
from tests.commands.test_executors import (
    COUNT,
    OPTIONS,
    SEEDS,
    digests,
    equal,
    of_cluster,
    outcome,
)
from tests.conformance.backends import Embedded

CHANGES: dict[int, Callable[[Cluster], Any]] = {
    50: lambda cluster: cluster.add(1),
    90: lambda cluster: cluster.even(3),
    140: lambda cluster: cluster.even(2),
    180: lambda cluster: cluster.remove(1),
    200: lambda cluster: cluster.add(1),
    220: lambda cluster: cluster.even(3, few_rows=0),
}
"""What is done before a command of the list."""


OF_SHARDS = (c.SetShardMap,)
"""Of one shard."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "cluster", 2, **OPTIONS)
    yield made
    made.close()


def unnumbered(value: Any) -> Any:
    """Return a result without numbers of commands."""
    if is_dataclass(value) and not isinstance(value, type):
        names = {f.name for f in fields(value)}
        changes: dict[str, Any] = {n: 0 for n in ("command", "since_command") if n in names}
        if "digest" in names and is_dataclass(value.digest):  # type: ignore[attr-defined]
            changes["digest"] = unnumbered(value.digest)  # type: ignore[attr-defined]
        return replace(value, **changes) if changes else value
    return value


def shown(command: c.Command[Any], result: Any) -> Any:
    """Return what of an outcome is the same however shards have come and gone."""
    if isinstance(command, c.Backup) and command.label is None:
        return None  # a cluster refuses it
    if isinstance(result, EmbstoreError):
        return EmbstoreError
    match command:
        case c.Checkpoint() | c.SetRetention():
            return kept(result)
        case c.ListCheckpoints():
            return tuple(map(kept, result))
        case c.Backup() | c.ExportProfile() | c.GetHotSet():
            return type(result).__name__
    return unnumbered(of_cluster(command, result))


def kept(checkpoint: Any) -> Any:
    return checkpoint.label, checkpoint.metadata, checkpoint.protected, checkpoint.content


def ending(model: Model) -> Iterator[c.Command[Any]]:
    """Yield what ends all that does not outlive a change of the map."""
    for name in list(model.sessions):
        yield c.EndSession(name)
    for name, scan in list(model.scans.items()):
        yield c.CloseScan(name, scan.table)
    for label in list(model.kept):
        yield c.SetRetention(label, "routine")
        yield c.SetRetention(label, "dropped")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_that_grows_and_shrinks_gives_the_results_of_one_store(
    here: Embedded, cluster: Cluster, seed: int
) -> None:
    author = Author(seed, model := Model())
    near, far = here.open_store(**OPTIONS).executor, cluster.store().executor

    def both(command: c.Command[Any], what: Any) -> None:
        result, told = outcome(near, command), outcome(far, command)
        assert equal(shown(command, result), shown(command, told)), f"{what}: {command}"
        if not isinstance(result, EmbstoreError):
            model.follow(command, result)

    for number in range(COUNT):
        if number in CHANGES:
            for command in ending(model):
                both(command, f"before {number}")
            CHANGES[number](cluster)
            assert digests(far) == model.digests()
        command = author.next()
        if not isinstance(command, OF_SHARDS):
            both(command, number)
    assert digests(near) == digests(far) == model.digests()
    assert far.execute(c.CheckIntegrity()) == ""
