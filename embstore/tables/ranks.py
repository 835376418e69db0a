"""The gradients of several ranks as one sum per key: rule 6 of the contract.

First the share of each rank is summed by key (rule 2); then the sums of the ranks are added in rank
order. On a device that queues work, the sums of all ranks stay on the device, one rank after the
other, and are summed by key once more. For up to 64 occurrences, rule 2 adds one occurrence after
the other, starting from the first, as rule 6 requires for ranks. With more ranks, and on the CPU,
the host adds the sums.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from embstore.arithmetic import add_ranks, scale_sums, unique
from embstore.arithmetic.sums import CHUNK_OCCURRENCES
from embstore.arrays import Keys, Rows
from embstore.cache.pool import Pool
from embstore.device.values import Array, Gradients
from embstore.layout import VALUE
from embstore.row_keys import RowKeys
from embstore.tables.state import Share, batches, sums_of

_EVERY_KEY = -1  # unsigned
"""The limit of keys when row keys are made unique as if they were the keys of a single table."""


class Total(NamedTuple):
    """The scaled sums of all ranks in one pool."""

    pool: Pool
    keys: Array  # (u,) unique row keys in order of first occurrence, rank after rank
    sums: Array  # (u, dim) or more
    may_be_refused: bool
    """Whether rule 9 may refuse one of the sums."""


def added(ranks: Sequence[Sequence[Share]], scale: np.float32) -> list[Total]:
    """Return the shares of several ranks as one sum per key, by pool.

    Raises
    ------
    InvalidArgumentError : a key is out of range.
    """
    is_queued = any(share.table.pool.device.is_queued for shares in ranks for share in shares)
    if is_queued and len(ranks) <= CHUNK_OCCURRENCES:
        return _added_on_device(ranks, scale)
    by_pool: dict[int, tuple[Pool, list[tuple[Keys, Rows]]]] = {}
    for pool, keys, sums in _sums(ranks):
        ((_, own_keys, own_sums),) = on_host([(pool, keys, sums)])
        by_pool.setdefault(id(pool), (pool, []))[1].append((own_keys, own_sums))
    return [_added_here(pool, parts, scale) for pool, parts in by_pool.values()]


def _sums(ranks: Sequence[Sequence[Share]]) -> Iterator[tuple[Pool, Array, Array]]:
    """Yield each rank's sums in each pool; sums are valid until the next sums are yielded."""
    for shares in ranks:
        parts = batches(shares)
        sums = sums_of(parts, np.float32(1.0))
        assert sums is not None, "only a batch by slots can be void"
        for part, own in zip(parts, sums, strict=True):
            yield part.pool, part.batch.unique_keys, own


def _added_here(pool: Pool, parts: list[tuple[Keys, Rows]], scale: np.float32) -> Total:
    """Add the ranks' sums on the host."""
    keys, inverse = unique(np.concatenate([own for own, _ in parts]))
    ids = np.split(inverse, np.cumsum([len(own) for own, _ in parts])[:-1])
    total = add_ranks(len(keys), [(i, sums) for i, (_, sums) in zip(ids, parts, strict=True)])
    upload = pool.device.memory.upload
    return Total(pool, upload(keys), upload(scale_sums(total, float(scale))), True)


class _Kept(NamedTuple):
    """Space for the keys and sums of all ranks in one pool."""

    pool: Pool
    keys: Array  # (positions,) int64
    sums: Array  # (positions, dim)
    counts: list[int]
    """The number of unique keys of each rank so far."""


def _added_on_device(ranks: Sequence[Sequence[Share]], scale: np.float32) -> list[Total]:
    """Add the ranks' sums on the device."""
    kept: dict[int, _Kept] = {}
    for pool, count in _positions(ranks).values():
        memory, dim = pool.device.memory, pool.layout.dim
        room = memory.allocate(count, np.int64), memory.allocate(count, VALUE, width=dim)
        kept[id(pool)] = _Kept(pool, *room, [])
    for pool, keys, sums in _sums(ranks):
        of, low = kept[id(pool)], sum(kept[id(pool)].counts)
        high = low + len(keys)
        pool.device.memory.copy(keys, of.keys[low:high])
        pool.device.memory.copy(sums[: len(keys)], of.sums[low:high])
        of.counts.append(len(keys))
    return [_summed_again(of, scale) for of in kept.values()]


def _positions(ranks: Sequence[Sequence[Share]]) -> dict[int, tuple[Pool, int]]:
    """Return the pools of all ranks' keys, and the number of keys in each pool."""
    found: dict[int, tuple[Pool, int]] = {}
    for shares in ranks:
        for share in shares:
            pool = share.table.pool
            found[id(pool)] = pool, found.get(id(pool), (pool, 0))[1] + len(share.keys)
    return found


def _summed_again(kept: _Kept, scale: np.float32) -> Total:
    pool, count, device = kept.pool, sum(kept.counts), kept.pool.device
    batch = device.keys.unique([(0, _EVERY_KEY, kept.keys[:count])])
    sums = pool.writer.sum_by_key(batch, [Gradients(kept.sums[:count])], scale)
    device.keys.synchronize(batch)
    return Total(pool, batch.unique_keys, sums, batch.found.large >= 0)


def on_host(pools: Sequence[tuple[Pool, Array, Array]]) -> list[tuple[RowKeys, Keys, Rows]]:
    """Return copies of the unique row keys (u,) and of their sums (u, dim) of each pool."""
    asked = []
    for pool, keys, sums in pools:
        memory = pool.device.memory
        asked.append((pool, memory.ask(keys), memory.ask(sums[: len(keys)])))
    return [(p.row_keys, keys(), rows().reshape(-1, p.layout.dim)) for p, keys, rows in asked]
