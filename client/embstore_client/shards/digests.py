"""Digests and scans over shards: the parts of all shards, in the order of blocks and keys.

A digest is the root of a hash tree whose leaves are hashes of blocks of rows. A block lies in one
partition, so its leaf is computed by one shard (contract.md, rules 11 and 12). Leaves are fetched
page by page, so the memory for them is bounded. A shard may still store blocks of partitions that
it no longer owns or does not own yet (`moving`): only the leaf of the owner is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore import commands as c
from embstore.arithmetic import LEAF_RECORD, Root, partitions_of_blocks
from embstore.arrays import KEY_BITS, KEY_MASK
from embstore.errors import OutcomeUnknownError
from embstore.results import Digest, Leaves, ScanFacts, ScannedRows, TableDescription

if TYPE_CHECKING:
    from embstore.config import TableConfig
    from embstore_client.shards.router import Call, Router

_TRIES = 5


class _ChangedError(Exception):
    """The table has changed between two pages, or differs between two shards."""


def get_digest(router: Router, command: c.GetDigest, call: Call) -> Digest:
    """Return the digest of a table: the root over the leaves of all shards.

    Raises
    ------
    OutcomeUnknownError : the table has changed during every try.
    """
    described = router.first(c.GetTable(command.table, command.table_id))
    for _ in range(_TRIES):
        try:
            return _digest(router, described, call)
        except _ChangedError:
            described = router.first(c.GetTable(command.table, command.table_id))
    raise _written_to(router, command.table, "its digest is computed")


def _written_to(router: Router, table: str, what: str) -> OutcomeUnknownError:
    found = router.all(c.GetTable(table))
    t = [one.t for one in found]
    apart = (
        f". Its t is {t}, by shard. If nothing trains it, an update has reached some shards only: "
        "drop the table, or restore a checkpoint of the cluster"
    )
    return OutcomeUnknownError(
        f"table {table!r}: expected no writes to it while {what} over shards: call again when "
        f"nothing trains it{apart if _are_apart(found) else ''}"
    )


def _are_apart(described: Sequence[TableDescription]) -> bool:
    """Return whether shards have other updates of a table, given the description of each shard."""
    return len({(one.t, one.update_ids) for one in described}) > 1


def _digest(router: Router, described: TableDescription, call: Call) -> Digest:
    name, table_id, low = described.config.name, described.table_id, 0
    first, whole = None, None
    while True:
        pages = router.all(c.GetLeaves(name, table_id, low), call)
        digests = [page.digest for page in pages]
        if first is None:
            first = digests
            whole = Root(described.config.identity_json(), digests[0].t)
        is_same = [one.digest for one in digests] == [one.digest for one in first]
        if not is_same or len({one.t for one in digests}) > 1:
            raise _ChangedError
        assert whole is not None
        records, low = _merged(router, described.config, pages)
        whole.add(records)
        if low < 0:
            if _are_apart(router.all(c.GetTable(name, table_id))):
                raise _ChangedError
            return Digest(whole.digest(), first[0].t, first[0].command)


def _merged(router: Router, config: TableConfig, pages: list[Leaves]) -> tuple[NDArray[Any], int]:
    """Return the next leaves of all shards, and the block from which to fetch more leaves; -1:
    there are no more."""
    found = [np.frombuffer(page.records, LEAF_RECORD) for page in pages]
    ends = [int(records["block"][-1]) for records in found if len(records)]
    if not ends:
        return np.empty(0, LEAF_RECORD), -1
    last = min(ends)
    parts = [records[records["block"] <= last] for records in found]
    for shard, records in enumerate(parts):
        blocks = np.ascontiguousarray(records["block"])
        of = partitions_of_blocks(config.seed, blocks, config.key_space)
        parts[shard] = records[router.owners.of(of) == shard]
    merged = np.concatenate(parts)
    return merged[np.argsort(merged["block"])], last + 1


def get_leaves(router: Router, command: c.GetLeaves, call: Call) -> Leaves:
    """Return the next leaves of all shards, and the digest, which is the root over all leaves.

    A page may contain only leaves of blocks that its shard does not own. In that case the next page
    is fetched, since an answer without records would mean that there are no more leaves.
    """
    described = router.first(c.GetTable(command.table, command.table_id))
    for _ in range(_TRIES):
        whole = get_digest(router, c.GetDigest(command.table, described.table_id), call)
        low = command.low
        while low >= 0:
            pages = router.all(c.GetLeaves(command.table, described.table_id, low), call)
            if any(page.digest.t != whole.t for page in pages):
                break
            records, low = _merged(router, described.config, pages)
            if len(records) or low < 0:
                return Leaves(whole, records.tobytes())
    raise _written_to(router, command.table, "its leaves are fetched")


# Scans


def open_scan(router: Router, command: c.OpenScan, call: Call) -> ScanFacts:
    """Make the rows of every shard readable, all in their state at one t."""
    with router.writing():
        found = router.all(command, call)
    if _are_apart([facts.table for facts in found]):
        router.all(c.CloseScan(command.scan, command.table), call)
        raise _written_to(router, command.table, "a scan is opened")
    router.shared.scans[command.scan] = found[0].table.config.is_sparse
    rows, deleted = sum(facts.rows for facts in found), sum(facts.deleted for facts in found)
    table = replace(found[0].table, update_ids=0)
    return replace(found[0], table=table, rows=rows, deleted=deleted)


def read_scan(router: Router, command: c.ReadScan, call: Call) -> ScannedRows:
    """Return the next rows in key order. Each shard is asked for `rows` rows; of the rows of all
    shards, the ones with the lowest keys are returned."""
    is_sparse = router.shared.scans.get(command.scan)
    if is_sparse is None:  # the scan was opened by another client
        is_sparse = router.tables.find(command.table, None).config.is_sparse
    if is_sparse:
        return _read_in_turn(router, command, call)
    pages = router.all(command, call)
    keys = np.concatenate([page.keys for page in pages])
    order = np.argsort(keys)[: command.rows]
    rows = np.concatenate([page.rows for page in pages])[order]
    after = int(keys[order][-1]) + 1 if len(order) else command.low
    if pages[0].state is None:
        return ScannedRows(keys[order], rows, None, after)
    state = np.concatenate([page.state for page in pages])[order]
    return ScannedRows(keys[order], rows, state, after)


def _read_in_turn(router: Router, command: c.ReadScan, call: Call) -> ScannedRows:
    """Return rows of a table with sparse keys: all rows of one shard, then of the next shard.
    `command.low` contains two numbers: the shard's number in the high bits, and the `low` for that
    shard in the low bits."""
    number, low = command.low >> KEY_BITS, command.low & KEY_MASK
    for shard in range(number, len(router.shards)):
        asked = replace(command, low=low if shard == number else 0)
        page = router.each({shard: asked}, call)[shard]
        if len(page.keys):
            break
    return replace(page, after=shard << KEY_BITS | page.after)


def close_scan(router: Router, command: c.CloseScan, call: Call) -> None:
    """Close a scan on every shard."""
    router.shared.scans.pop(command.scan, None)
    router.all(command, call)


HANDLERS = {
    c.GetDigest: get_digest,
    c.GetLeaves: get_leaves,
    c.OpenScan: open_scan,
    c.ReadScan: read_scan,
    c.CloseScan: close_scan,
}
