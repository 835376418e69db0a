"""Writes: update by gradients, assign, put_rows. Checked whole, then applied whole.

An update runs in four steps, so that what is refused has changed nothing:

1. the keys of each pool are made unique and looked for; gradients are summed by key and scaled, and
    in the same pass noticed if not finite (rules 2, 4, 9);
2. the device is waited for, once; keys and sums are checked;
3. rows are made resident, or room is reserved for those that will have to leave;
4. the optimizer is applied, tables count (rules 4, 5).

From step 4 on only a broken disk, a lost device or a corrupt record of a call larger than the cache
can stop a command; the store then fails as a whole (storage.py), because some of its rows have
changed.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np

from embstore.arithmetic import (
    add_ranks,
    canonicalize_nans,
    scale_sums,
    unique,
    update_scalars,
)
from embstore.arrays import KEY_BITS, Keys, Rows
from embstore.cache.pool import Pool
from embstore.device.base import Array
from embstore.errors import InvalidArgumentError
from embstore.stages import Stages
from embstore.tablestate import (
    PoolBatch,
    Share,
    TableState,
    batches,
    check_writer,
    key_name,
    settle,
    table_of,
)

T_MAX = 2**64 - 1
"""t stands in the digest as eight bytes."""
OnNonfinite = Literal["refuse", "skip"]
Change = Callable[[Array, int, int], None]
"""change(slots, low, high) changes the rows of keys[low:high], which are in `slots`."""


@dataclass(frozen=True)
class Put:
    """Rows of one table that were trained elsewhere, by `add_t` updates."""

    share: Share
    weights: Rows  # (n, dim)
    state: Rows  # (n, state_dim)
    add_t: int


@dataclass(frozen=True)
class KeySums:
    """What an update does to one pool: one gradient for each unique row key."""

    pool: Pool
    keys: Array  # (u,)
    sums: Array  # (u, dim) or more, scaled


@dataclass(frozen=True)
class RankSums:
    """One rank's part of that, unscaled, on the host, where ranks are added."""

    keys: Keys  # (u,)
    sums: Rows  # (u, dim)


def update(
    shares: Sequence[Share],
    *,
    learning_rate: float | None,
    gradient_scale: float,
    on_nonfinite: OnNonfinite,
    stages: Stages,
) -> bool:
    """Apply one update to every table of `shares`; return False if it was skipped.

    Raises
    ------
    InvalidArgumentError : a key out of range, or a non-finite gradient that is not to be skipped.
    CapacityError, CorruptTableError : nothing has changed.
    """
    check_writer([share.table for share in shares], "")
    parts = batches(shares)
    stages.lap("unique")
    return update_batches(
        parts,
        shares,
        learning_rate=learning_rate,
        gradient_scale=gradient_scale,
        on_nonfinite=on_nonfinite,
        stages=stages,
    )


def update_batches(
    parts: Sequence[PoolBatch],
    shares: Sequence[Share],
    *,
    learning_rate: float | None,
    gradient_scale: float,
    on_nonfinite: OnNonfinite,
    stages: Stages,
) -> bool:
    """Do the same with the batches of the shares, whose slots are known or being looked for."""
    scale = np.float32(gradient_scale)
    sums = [_summed(part, scale) for part in parts]
    settle(parts)
    wrong = [_key_of(part, id) for part in parts if (id := part.batch.found.not_finite) >= 0]
    stages.lap("sum_by_key")
    if wrong:
        return _refuse(_first_named(shares, wrong), shares, on_nonfinite)
    named = [KeySums(p.pool, p.batch.unique_keys, s) for p, s in zip(parts, sums, strict=True)]
    _apply(named, [share.table for share in shares], learning_rate, stages)
    return True


def update_ranks(
    ranks: Sequence[Sequence[Share]],
    *,
    learning_rate: float | None,
    gradient_scale: float,
    on_nonfinite: OnNonfinite,
    stages: Stages,
    session: str = "",
) -> bool:
    """Apply the shares of several ranks as one update (rule 6); return False if it was skipped.

    Raises
    ------
    As `update`. A non-finite sum names the first table by naming and its first key by occurrence,
    over the ranks in order.
    """
    check_writer([share.table for shares in ranks for share in shares], session)
    one = np.float32(1.0)
    by_pool: dict[int, tuple[Pool, list[RankSums]]] = {}
    for shares in ranks:
        parts = batches(shares)
        sums = [_summed(part, one) for part in parts]
        settle(parts)
        for part, d_sums in zip(parts, sums, strict=True):
            by_pool.setdefault(id(part.pool), (part.pool, []))[1].append(_on_host(part, d_sums))
    everyone = [share for shares in ranks for share in shares]
    total = [(pool, *_added(parts, gradient_scale)) for pool, parts in by_pool.values()]
    wrong = [int(key) for _, keys, g in total for key in keys[~np.isfinite(g).all(axis=1)]]
    stages.lap("sum_by_key")
    if wrong:
        return _refuse(_first_named(everyone, wrong), everyone, on_nonfinite)
    tables = list({share.table.table_id: share.table for share in everyone}.values())
    named = [KeySums(p, p.device.upload(keys), p.device.upload(g)) for p, keys, g in total]
    _apply(named, tables, learning_rate, stages)
    return True


def assign(share: Share, weights: Rows) -> None:
    """Set the weights of each key, the last of repeats winning; its state starts anew (rule 7)."""
    table = share.table
    initial = table.pool.parameters.initial_state[table.table_id]
    state = np.full((len(weights), table.config.state_dim), initial, np.float32)
    put_rows([Put(share, weights, state, 0)])


def put_rows(puts: Sequence[Put], session: str = "") -> None:
    """Set weights and state of each key, the last of repeats winning, and add to t (rule 7).

    All tables or none; `session` is the writer's, if any.

    Raises
    ------
    TableHeldError, InvalidArgumentError, CapacityError, CorruptTableError : nothing has changed.
    """
    tables = [put.share.table for put in puts]
    check_writer(tables, session)
    parts = batches([put.share for put in puts])
    settle(parts)
    by_table = {put.share.table.table_id: put for put in puts}
    named = [
        _overwriting(part, [by_table[share.table.table_id] for share in part.shares])
        for part in parts
    ]
    _write(named, tables, [put.add_t for put in puts], Stages())


def _summed(part: PoolBatch, scale: np.float32) -> Array:
    gradients = [share.gradients for share in part.shares if share.gradients is not None]
    return part.pool.sum_by_key(part.batch, gradients, scale)


def _key_of(part: PoolBatch, id: int) -> int:
    return int(part.pool.device.download(part.batch.unique_keys[id : id + 1])[0])


def _on_host(part: PoolBatch, sums: Array) -> RankSums:
    device, keys = part.pool.device, part.batch.unique_keys
    rows = device.download(sums[: len(keys)]).reshape(len(keys), part.pool.layout.dim)
    return RankSums(device.download(keys).copy(), rows.copy())


def _added(parts: list[RankSums], gradient_scale: float) -> tuple[Keys, Rows]:
    """Add the ranks' sums of one pool in rank order, then scale."""
    keys, inverse = unique(np.concatenate([part.keys for part in parts]))
    cuts = np.cumsum([len(part.keys) for part in parts])[:-1]
    ids = np.split(inverse, cuts)
    total = add_ranks(len(keys), [(i, part.sums) for i, part in zip(ids, parts, strict=True)])
    return keys, scale_sums(total, gradient_scale)


def _apply(
    parts: Sequence[KeySums],
    tables: Sequence[TableState],
    learning_rate: float | None,
    stages: Stages,
) -> None:
    for table in tables:
        if table.t == T_MAX:
            raise InvalidArgumentError(
                f"table {table.name!r}: t is {T_MAX} and cannot grow; the table must be made anew"
            )
    for table in tables:
        rate = table.learning_rate if learning_rate is None else learning_rate
        table.pool.parameters.scalars[table.table_id] = update_scalars(
            table.config.optimizer, table.t + 1, rate, table.dim
        )
    named = [(part.pool, part.keys, _optimizer(part)) for part in parts]
    _write(named, tables, [1] * len(tables), stages)


def _optimizer(part: KeySums) -> Change:
    pool = part.pool

    def apply(slots: Array, low: int, high: int) -> None:
        pool.device.apply(
            pool.layout.optimizer,
            pool.memory,
            slots,
            part.keys[low:high],
            part.sums[low:high],
            pool.parameters,
        )

    return apply


def _overwriting(part: PoolBatch, puts: Sequence[Put]) -> tuple[Pool, Array, Change]:
    """Return how the rows of one pool are set; `puts` are in the order of its batch."""
    pool, keys = part.pool, part.batch.unique_keys
    last = np.empty(len(keys), np.int64)
    last[pool.device.download(part.batch.inverse)] = np.arange(part.batch.position_count)
    rows = np.zeros((len(keys), pool.layout.stride), np.float32)
    dim, end = pool.layout.dim, pool.layout.dim + pool.layout.state_dim
    rows[:, :dim] = np.concatenate([put.weights for put in puts])[last]
    rows[:, dim:end] = np.concatenate([put.state for put in puts])[last]
    canonicalize_nans(rows)

    def scatter(slots: Array, low: int, high: int) -> None:
        pool.device.scatter_rows(rows[low:high], pool.memory.rows, pool.device.download(slots))
        pool.device.mark(pool.memory, slots, dirty=True)

    return pool, keys, scatter


def _write(
    writes: Sequence[tuple[Pool, Array, Change]],
    tables: Sequence[TableState],
    add_t: Sequence[int],
    stages: Stages,
) -> None:
    held = [pool.prepare_write(keys) for pool, keys, _ in writes]
    if len(writes) > 1:
        # Making room for one pool may have evicted rows of another that were resident before.
        storage = writes[0][0].storage
        storage.reserve(
            sum(len(keys) for _, keys, _ in writes),
            max(pool.layout.stride for pool, _, _ in writes),
        )
    stages.lap("hold")
    # Rows, leaves and t change together: whatever interrupts this, a signal too, fails the store.
    with tables[0].pool.storage.no_way_back() if tables else nullcontext():
        for (pool, keys, change), slots in zip(writes, held, strict=True):
            pool.write(keys, slots, change)
            _note_written([table for table in tables if table.pool is pool], keys)
        for table, more in zip(tables, add_t, strict=True):
            table.t += more
    stages.lap("apply")


def _note_written(tables: Sequence[TableState], d_keys: Array) -> None:
    followed = [table for table in tables if table.digest.is_followed]
    if not followed:
        return
    keys = followed[0].pool.device.download(d_keys)
    for table in followed:
        one = keys if len(tables) == 1 else keys[keys >> KEY_BITS == table.table_id]
        table.digest.note_written(one)


def _first_named(shares: Sequence[Share], wrong: list[int]) -> int:
    """Return the row key of the first table in call order, and of it the first by occurrence."""
    order: dict[int, int] = {}
    for share in shares:
        order.setdefault(share.table.table_id, len(order))
    return min(wrong, key=lambda key: order[key >> KEY_BITS])


def _refuse(row_key: int, shares: Sequence[Share], on_nonfinite: OnNonfinite) -> bool:
    if on_nonfinite == "skip":
        return False
    name = table_of(shares, row_key).name
    raise InvalidArgumentError(
        f"table {name!r}: expected finite gradients, found a sum or scaled sum that is not, "
        f'for key {key_name(row_key)}; give on_nonfinite="skip" to skip such an update'
    )
