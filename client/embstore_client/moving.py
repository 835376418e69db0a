"""Changes the shard map of a cluster while clients read and write.

The program that changes a cluster has a connection to each shard, and one location where the map is
recorded durably. Every change has the same phases (`switch`):

    pause     all shards pause their writes, at one barrier
    prepare   a new shard starts at the position of the other shards (`join`), or the last writes
              are copied (`move`)
    record    the new map is recorded: from here on it is the map of the cluster
    give      every shard gets the new map, and accepts writes again

A failure before `record` changes nothing: writes resume. If the program ends during `record` or
later, shards stay paused until `resolve` is called with the recorded map, old or new. A shard that
is restarted gets the map from the process that starts it.

**Partitions are moved in rounds.** Scans copy the written rows of the partitions to their next
owners. The next owner does not own these partitions yet, so no client reads the copies. The first
round copies all rows. Each further round copies the rows written since the round before, until they
are few. The last rows are copied while writes are paused. Then the digest leaves (the hashes of
blocks of rows) of these partitions must be equal at the old and the new owner; otherwise nothing is
moved.

**Rows that stay at the old owner.** A shard that loses a partition keeps the partition's rows, but
they are ignored: scans leave them out, and digests cover only owned partitions. If the partition
returns to that shard, the kept rows are deleted first, since the new owner may have deleted some of
them in the meantime.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore import commands as c
from embstore.arithmetic import LEAF_RECORD, partitions, partitions_of_blocks
from embstore.arrays import Keys
from embstore.commands import Executor
from embstore.errors import (
    CheckpointNotFoundError,
    EmbstoreError,
    InvalidArgumentError,
    TableNotFoundError,
)
from embstore.handles.scan import DELETED_KEYS, Scan
from embstore.results import Barrier, TableDescription
from embstore.sharding import PARTITIONS, ShardMap
from embstore_client.barrier import pause_all, resume_all

FEW_ROWS = 1 << 16
"""If fewer rows than this were written since the last round, these rows are copied while writes are
paused."""
ROUNDS_MAX = 8
_LONG_S = 3600.0
"""The timeout in seconds of a call that reads or writes all rows of a shard."""
LABELS = "embstore-move"
"""The folder of the labels that a move keeps. Retention counts labels by folder, so these labels
displace no labels of other folders."""

Record = Callable[[ShardMap], Any]
"""A function that records the map durably. If it raises, the map may be recorded or not."""
Report = Callable[[str, int], Any]
"""A function that is called with the name of the present work, and the number of rows copied."""


def switch(
    shards: Sequence[Executor],
    shard_map: ShardMap,
    record: Record,
    *,
    by: str,
    prepare: Callable[[Barrier], Any] = lambda barrier: None,
) -> None:
    """Pause all present shards at one barrier, and give the new map to the shards that are in it.
    Shards that leave the cluster stay paused.

    Parameters
    ----------
    shards : the shards of the present map, by number
    by : the name of the pause during which the map changes

    Raises
    ------
    EmbstoreError : if the error was raised before `record`, nothing has changed; else see
        `resolve`.
    """
    barrier = pause_all(shards, by)
    try:
        prepare(barrier)
    except BaseException:
        with suppress(EmbstoreError):  # `resolve` resumes a shard that is unreachable now
            resume_all(shards, by)
        raise
    record(shard_map)
    give(shards[: len(shard_map.shards)], shard_map)


def give(shards: Iterable[Executor], shard_map: ShardMap) -> None:
    """Give shards a map that is recorded. Shards that have this map already, or a newer map, keep
    it.

    Raises
    ------
    EmbstoreError : the error of the first shard that did not get the map; all shards that were
        reached have the map.
    """
    each = [partial(_give, shard, shard_map) for shard in shards]
    with ThreadPoolExecutor(len(each), "embstore-map") as threads:
        calls = [threads.submit(one) for one in each]
    for call in calls:
        call.result()


def _give(shard: Executor, shard_map: ShardMap) -> None:
    found = shard.execute(c.GetServerInfo()).shard_map
    if found is None or found.version < shard_map.version:
        shard.execute(c.SetShardMap(shard_map))


def resolve(shards: Sequence[Executor], shard_map: ShardMap) -> None:
    """End an interrupted change: give all shards the recorded map, and resume writes.

    Raises
    ------
    EmbstoreError : a shard could not be reached; call this function again.
    """
    give(shards, shard_map)
    resume_all(shards)


def join(
    shards: Sequence[Executor],
    joining: Sequence[Executor],
    shard_map: ShardMap,
    record: Record,
    *,
    by: str,
) -> None:
    """Have new shards receive every command from now on. They own no partition yet.

    Parameters
    ----------
    joining : stores without rows, served as shards with the next free numbers
    shard_map : the next map: the same owners, and the addresses of all shards
    """

    def prepare(barrier: Barrier) -> None:
        for shard in joining:
            shard.execute(c.SetShardMap(shard_map, barrier))

    switch(shards, shard_map, record, by=by, prepare=prepare)


def move(
    shards: Sequence[Executor],
    before: ShardMap,
    shard_map: ShardMap,
    record: Record,
    *,
    by: str,
    report: Report = lambda what, rows: None,
    few_rows: int = FEW_ROWS,
) -> int:
    """Move partitions to other shards of the cluster, and return how many rows were copied.

    Parameters
    ----------
    shards : all shards, by number
    before, shard_map : the present map, and the next map, with other owners
    """
    moving = Moving(shards, before, shard_map, report)
    try:
        moving.copy()
        moving.digest()
        for _ in range(ROUNDS_MAX):
            if moving.copy() <= few_rows:
                break

        def prepare(barrier: Barrier) -> None:
            moving.finish()
            moving.compare(barrier.tables)

        switch(shards, shard_map, record, by=by, prepare=prepare)
    finally:
        moving.close()
    return moving.rows


@dataclass
class _Source:
    """A shard that loses partitions."""

    shard: Executor
    to: NDArray[np.int32]
    """The next owner of each partition, (PARTITIONS,); -1: the partition does not move."""
    label: str = ""
    """The label of the last round."""
    copied: set[int] = field(default_factory=set)
    """Ids of the tables whose rows were copied in the last round."""


class Moving:
    """Copies the rows of partitions to their next owners. Only one thread may use it at a time."""

    def __init__(
        self,
        shards: Sequence[Executor],
        before: ShardMap,
        after: ShardMap,
        report: Report = lambda what, rows: None,
    ) -> None:
        if len(before.shards) != len(shards) or len(after.shards) != len(shards):
            raise InvalidArgumentError(
                f"expected two maps of {len(shards)} shards, found {len(before.shards)} and "
                f"{len(after.shards)}: shards join before, and leave after"
            )
        self._shards, self._report = shards, report
        self._name, self._rounds = os.urandom(4).hex(), 0
        owners = np.array(before.owners, np.int32), np.array(after.owners, np.int32)
        self._sources = []
        for number in np.unique(owners[0][owners[0] != owners[1]]).tolist():
            leaves = (owners[0] == number) & (owners[1] != number)
            to = np.where(leaves, owners[1], np.int32(-1))
            self._sources.append(_Source(shards[number], to))
        self.rows = 0
        """The number of rows copied so far."""

    def copy(self) -> int:
        """Copy the rows that were written since the last round, or all rows in the first round;
        return their number."""
        self._rounds += 1
        before = self.rows
        for source in self._sources:
            label = f"{LABELS}/{self._name}-{self._rounds}"
            source.shard.execute(c.Checkpoint(label, {}), timeout_s=_LONG_S)
            copied = set()
            for table in source.shard.execute(c.ListTables()):
                with suppress(TableNotFoundError):  # the table is being created or dropped
                    self._copy(source, table, label)
                    copied.add(table.table_id)
            self._drop(source)
            source.label, source.copied = label, copied
        return self.rows - before

    def digest(self) -> None:
        """Have the shards compute the digest leaves of their partitions in advance. While writes
        are paused, only the leaves of blocks that have changed since are computed."""
        self._report("leaves are computed", self.rows)
        giving = [source.shard for source in self._sources]
        taking = {n for source in self._sources for n in np.unique(source.to[source.to >= 0])}
        for shard in (*giving, *(self._shards[number] for number in sorted(taking))):
            for table in shard.execute(c.ListTables()):
                with suppress(TableNotFoundError):  # the table has been dropped since
                    digest = c.GetDigest(table.config.name, table.table_id)
                    shard.execute(digest, timeout_s=_LONG_S)

    def finish(self) -> None:
        """Copy the rows that remain, while writes are paused."""
        self._report("writes are paused", self.rows)
        for source in self._sources:
            for table in source.shard.execute(c.ListTables()):
                self._copy(source, table, None)

    def _copy(self, source: _Source, table: TableDescription, label: str | None) -> None:
        config, name = table.config, table.config.name
        since = source.label if table.table_id in source.copied else None
        if not since:
            self._delete_stale(source, table)
        scan = Scan(
            source.shard,
            name,
            table.table_id,
            label=label,
            since=since or None,
            with_state=True,
            timeout_s=_LONG_S,
        )

        def to_of(keys: Keys) -> NDArray[np.int32]:
            to: NDArray[np.int32] = source.to[partitions(config.seed, keys, config.key_space)]
            return to

        with scan:
            for keys in scan.deleted():
                for shard, mine in _taking(to_of(keys)):
                    self._delete(shard, table, keys[mine])
            for batch in scan:
                keys, weights, state = batch[0], batch[1], batch[2]  # type: ignore[misc]
                for shard, mine in _taking(to_of(keys)):
                    part = c.TableKeys(name, table.table_id, keys[mine])
                    put = c.PutRows(part, weights[mine], state[mine], 0, moved=True)
                    self._shards[shard].execute(put)
                    self.rows += len(part.keys)
                self._report(f"table {name!r} is copied", self.rows)

    def _delete_stale(self, source: _Source, table: TableDescription) -> None:
        """Delete the old rows that shards still store in partitions that return to them."""
        config = table.config
        for shard in np.unique(source.to[source.to >= 0]).tolist():
            there, name = self._shards[shard], config.name
            with Scan(there, name, table.table_id, moved=True, timeout_s=_LONG_S) as scan:
                for keys, *_ in scan:
                    to = source.to[partitions(config.seed, keys, config.key_space)]
                    self._delete(shard, table, keys[to == shard])

    def _delete(self, shard: int, table: TableDescription, keys: Keys) -> None:
        for low in range(0, len(keys), DELETED_KEYS):
            part = c.TableKeys(table.config.name, table.table_id, keys[low : low + DELETED_KEYS])
            self._shards[shard].execute(c.DeleteRows(part, moved=True))

    def compare(self, tables: Sequence[TableDescription]) -> None:
        """Compare the digest leaves of all moving partitions at their old and their new owner.

        Raises
        ------
        EmbstoreError : the leaves differ.
        """
        self._report("leaves are compared", self.rows)
        for table in tables:
            found: dict[int, dict[int, bytes]] = {}
            for source in self._sources:
                expected = _hashes(source.shard, table, source.to >= 0)
                for shard in np.unique(source.to[source.to >= 0]).tolist():
                    if shard not in found:
                        found[shard] = _hashes(self._shards[shard], table, self._arriving(shard))
                for partition in np.flatnonzero(source.to >= 0).tolist():
                    other = found[int(source.to[partition])].get(partition)
                    if other != expected.get(partition):
                        raise EmbstoreError(
                            f"table {table.config.name!r}: expected partition {partition} to have "
                            "the same digest at its new owner, found another one: no partition "
                            "was moved; the new owner may have rows that the old one does not have"
                        )

    def _arriving(self, shard: int) -> NDArray[np.bool_]:
        arriving = np.zeros(PARTITIONS, np.bool_)
        for source in self._sources:
            arriving |= source.to == shard
        return arriving

    def close(self) -> None:
        """Drop the labels that this object has kept. A label that stays on an unreachable shard is
        displaced by later labels."""
        for source in self._sources:
            with suppress(EmbstoreError):
                self._drop(source)

    def _drop(self, source: _Source) -> None:
        if source.label:
            with suppress(CheckpointNotFoundError):
                source.shard.execute(c.SetRetention(source.label, "dropped"))


def _taking(to: NDArray[np.int32]) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Yield pairs: the number of a shard in `to`, and a mask of the keys that this shard gets."""
    for shard in np.unique(to[to >= 0]).tolist():
        yield shard, to == shard


def _hashes(
    shard: Executor, table: TableDescription, wanted: NDArray[np.bool_]
) -> dict[int, bytes]:
    """Return, by partition, a hash of its digest leaves, for the wanted partitions that have
    leaves."""
    hashes: dict[int, Any] = {}
    config = table.config
    for records in _leaves(shard, table):
        blocks = np.ascontiguousarray(records["block"])
        of = partitions_of_blocks(config.seed, blocks, config.key_space)
        for partition in np.unique(of[wanted[of]]).tolist():
            own = records[of == partition].tobytes()
            hashes.setdefault(partition, blake2b(digest_size=32)).update(own)
    return {partition: own.digest() for partition, own in hashes.items()}


def _leaves(shard: Executor, table: TableDescription) -> Iterator[NDArray[Any]]:
    low = 0
    while True:
        leaves = c.GetLeaves(table.config.name, table.table_id, low)
        page = shard.execute(leaves, timeout_s=_LONG_S)
        records = np.frombuffer(page.records, LEAF_RECORD)
        if not len(records):
            return
        yield records
        low = int(records["block"][-1]) + 1
