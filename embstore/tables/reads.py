"""Lookups: rows by key, pooled rows, whole rows. A lookup changes no row.

With `admit=False` a lookup does not change the cache: it uses resident rows, reads other rows
without keeping them, and changes no score. Therefore an evaluation costs a running training some
time, but none of its cached rows.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Rows
from embstore.stages import Stages, now
from embstore.tables.state import Share, batches, synchronize


def lookup(
    shares: Sequence[Share],
    outs: Sequence[Rows],
    *,
    admit: bool,
    stages: Stages,
    resident_only: bool = False,
) -> bool:
    """Write the weights of every key of share i to outs[i], (n_i, dim) float32.

    With `resident_only`, return False, without any effect, if a row is not in the cache.
    """
    if _needs_no_batch(shares) and _looked_up(shares, outs, admit=admit):
        stages.laps += "gather", now()
        return True
    parts = batches(shares, of="lookup" if admit else "", known=True)
    stages.laps += "unique", now()
    for part in parts:
        part.pool.finder.lookups_miss = part.batch.found.missing > 0
        if resident_only and part.batch.found.missing:
            return False
    out_of = dict(zip(map(id, shares), outs, strict=True))
    for part in parts:
        own = [*map(out_of.__getitem__, map(id, part.shares))]
        if admit:
            part.pool.reader.gather(part.batch, own, part.counts)
        else:
            rows, slots = part.pool.reader.peek_rows(part.batch)
            part.pool.device.rows.gather(rows, slots, part.batch, part.pool.layout.dim, own)
        stages.laps += "gather", now()
    return True


def _needs_no_batch(shares: Sequence[Share]) -> bool:
    """Return whether shares can be looked up without a batch: they are in one pool, with few
    keys."""
    if not shares:
        return False
    pool, count = shares[0].table.pool, 0
    for share in shares:
        if share.table.pool is not pool:
            return False
        count += len(share.keys)
    return 0 < count <= pool.device.rows.look_up_keys_max


def _looked_up(shares: Sequence[Share], outs: Sequence[Rows], *, admit: bool) -> bool:
    named = [(share.table, share.keys) for share in shares]
    segments = [(table.number, table.limit, keys) for table, keys in named]
    accesses = 0
    for share in shares:
        accesses += len(share.keys) if share.counts is None else share.accesses
    return shares[0].table.pool.reader.look_up(segments, outs, accesses, admit=admit)


def lookup_pooled(
    share: Share,
    offsets: NDArray[np.int64],
    out: Rows,
    *,
    mean: bool,
    weights: NDArray[np.float32] | None,
    admit: bool,
    stages: Stages,
) -> None:
    """Write the pooled weights of every bag to `out`, (bags, dim) float32 (contract.md, rule 8)."""
    (part,) = parts = batches([share])
    reader, batch, pooling = part.pool.reader, part.batch, (offsets, mean, weights)
    end = reader.begin_pooled(batch, pooling, out, admit=admit)
    synchronize(parts)
    stages.laps += "unique", now()
    if end is not None and not batch.found.missing:
        reader.end(end, batch, admit=admit)
    elif admit:
        reader.gather_pooled(batch, pooling, out)
    else:
        rows, slots = reader.peek_rows(batch)
        part.pool.device.rows.gather_pooled(rows, slots, batch, *pooling, out)
    stages.laps += "gather_pooled", now()


def read_rows(share: Share, weights: Rows, state: Rows) -> None:
    """Write weights (n, dim) and optimizer state (n, state_dim). The cache does not change."""
    (part,) = batches([share], known=True)
    device, dim = part.pool.device, share.table.dim
    rows = device.rows.read_rows(*part.pool.reader.peek_rows(part.batch))[
        device.memory.download(part.batch.inverse)
    ]
    weights[:] = rows[:, :dim]
    state[:] = rows[:, dim : dim + share.table.config.state_dim]
