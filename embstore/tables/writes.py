"""Writes: update by gradients, assign, put_rows, delete, clear. A write is checked before it
begins.

An update runs in four steps, so that a refused update has changed nothing:

1. the keys of each pool are made unique and looked up, or grouped by their slots; gradients are
   summed by key and scaled, and large sums are noted in the same pass (rules 2, 4, 9);
2. the host waits for the device, once, and checks keys and sums;
3. rows are made resident, or space in the log is reserved for rows that will have to leave;
4. the optimizer is applied, and t of each table grows (rules 4, 5).

On a GPU that has all rows, if nothing must be logged, all four steps are queued before the host
waits for the device. In this case the last step does nothing if the second step would refuse
(`_is_updated`), and the steps then run again, one by one.

From step 4 on, a command can be stopped only by a broken disk, by a lost device, or by a corrupt
record in a call that is larger than the cache. In this case the store fails as a whole
(storage.py), because some of its rows have changed.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import canonicalize_nans, scalars_of, unaccepted
from embstore.arrays import Keys, Rows, refused_gradient
from embstore.cache.pool import Pool
from embstore.commands import OnNonfinite, UpdateOptions
from embstore.device.values import Array
from embstore.errors import InvalidArgumentError
from embstore.layout import RECORD_HEADER_BYTES, VALUE
from embstore.row_keys import RowKeys
from embstore.stages import Stages, now
from embstore.tables.ranks import added, on_host
from embstore.tables.state import PoolBatch, Share, TableState, batches, check_writer, sums_of
from embstore.tables.written_keys import WrittenKeys, written_ids

T_MAX = 2**64 - 1
"""The largest t, because the digest contains t as eight bytes."""
Wrong = tuple[int, int, NDArray[np.float32]]
"""A refused sum: the id of the table, the key, and the sum (dim,)."""
Change = Callable[[Array, int, int], None]
"""A function change(slots, low, high), which changes the rows of keys[low:high] in `slots`."""
Summed = Callable[[list[tuple[RowKeys, Keys, Rows]]], None]
"""A function summed(pools) that gets copies of each pool's unique row keys (u,) and sums (u,
dim)."""


@dataclass(frozen=True)
class Put:
    """Rows of one table that were trained outside the store, by `add_t` updates."""

    share: Share
    weights: Rows  # (n, dim)
    state: Rows  # (n, state_dim)
    add_t: int


def update(
    shares: Sequence[Share],
    options: UpdateOptions,
    *,
    stages: Stages,
    parts: Sequence[PoolBatch] | None = None,
    session: str = "",
    summed: Summed | None = None,
) -> bool:
    """Apply one update to every table of `shares`; return False if it was skipped.

    Parameters
    ----------
    parts : the batches of the shares; None: this function makes them
    session : name of the writer's session; "": the writer has no session
    summed : function called with the summed update before anything changes

    Raises
    ------
    InvalidArgumentError : a key is out of range, an optimizer does not accept the learning rate, or
        rule 9 refuses a gradient and `on_nonfinite` is not "skip".
    CapacityError, CorruptTableError : nothing has changed.
    """
    tables = [share.table for share in shares]
    check_writer(tables, session)
    if parts is None:
        parts = batches(shares, grouped=True, of="update")
    stages.laps += "unique", now()
    scale = np.float32(options.gradient_scale)
    _check_learning_rates(tables, options)
    if summed is None and parts and parts[0].pool.device.is_queued:
        if _is_updated(parts, tables, scale, options):
            stages.laps += "apply", now()
            return True
        if any(part.needs_order for part in parts):
            parts = _in_order(parts, shares)
    sums = sums_of(parts, scale)
    if sums is None:
        parts = _in_order(parts, shares)
        sums = sums_of(parts, scale)
        assert sums is not None, "only a batch by slots can be void"
    wrong: list[Wrong] = []
    for part, own in zip(parts, sums, strict=True):
        part.pool.finder.updates_miss = part.batch.found.missing > 0
        if part.batch.found.large >= 0:
            wrong += _unaccepted(part.pool, part.batch.unique_keys, own)
    stages.laps += "sum_by_key", now()
    if summed is not None:
        summed(on_host(_pools(parts, sums)))
    if wrong:
        return _refuse(wrong, shares, options.on_nonfinite)
    _apply(_pools(parts, sums), tables, options, stages)
    return True


def _in_order(parts: Sequence[PoolBatch], shares: Sequence[Share]) -> list[PoolBatch]:
    """Return the batches of an update, made again with keys in order of occurrence."""
    for part in parts:
        part.pool.finder.updates_miss = part.batch.found.missing > 0
    return batches(shares, of="update")


def _is_updated(
    parts: Sequence[PoolBatch],
    tables: Sequence[TableState],
    scale: np.float32,
    options: UpdateOptions,
) -> bool:
    """Queue an update before it is known whether all its rows are resident, so that the device does
    not idle.

    Return False if nothing has changed, because rows are missing, or because other work must be
    done first.
    """
    found = []
    for part in parts:
        finder = part.pool.finder
        slots = None if finder.updates_miss else finder.looked_at(part.batch)
        if slots is None:
            return False
        found.append(slots)
    if any(table.digest.reading is not None for table in tables):
        return False
    _set_scalars(tables, options)
    for part in parts:
        part.pool.followers.prepare(len(part.batch.unique_keys))
    updates = [
        part.pool.writer.begin(part.batch, part.gradients, scale, slots)
        for part, slots in zip(parts, found, strict=True)
    ]
    answer = parts[0].pool.device.rows.begin_update(updates)
    assert answer is not None, "work is queued"
    storage = parts[0].pool.storage
    is_done = False
    with storage.irreversible:
        try:
            storage.is_changing = True
            is_done = storage.is_changing = answer()
        finally:
            for part in parts if not is_done else ():
                part.pool.writer.take_back()
        for part in parts if is_done else ():
            part.pool.writer.end(part.batch)
            part.pool.followers.written(part.batch.unique_keys)
        for table in tables if is_done else ():
            table.wrote(1)
    return is_done


def update_ranks(
    ranks: Sequence[Sequence[Share]],
    options: UpdateOptions,
    *,
    stages: Stages,
    session: str = "",
) -> bool:
    """Apply the shares of several ranks as one update (rule 6); return False if it was skipped.

    Raises
    ------
    The errors of `update`. The error of a refused sum names the first such table in the order of
    the call, and its first such key in the order of occurrence, rank after rank.
    """
    everyone = [share for shares in ranks for share in shares]
    tables = list({share.table.table_id: share.table for share in everyone}.values())
    check_writer(tables, session)
    _check_learning_rates(tables, options)
    total = added(ranks, np.float32(options.gradient_scale))
    wrong = [
        found
        for one in total
        if one.may_be_refused
        for found in _unaccepted(one.pool, one.keys, one.sums)
    ]
    stages.laps += "sum_by_key", now()
    if wrong:
        return _refuse(wrong, everyone, options.on_nonfinite)
    named = [(one.pool, one.keys, one.sums) for one in total]
    _apply(named, tables, options, stages)
    return True


def assign(share: Share, weights: Rows) -> None:
    """Set the weights of each key, and reset the optimizer state (rule 7). If a key repeats, its
    last weights count."""
    table = share.table
    initial = table.pool.parameters.initial_state[table.number]
    state = np.full((len(weights), table.config.state_dim), initial, VALUE)
    put_rows([Put(share, weights, state, 0)])


def delete(share: Share, session: str = "") -> int:
    """Delete rows, as if they had never been written. Return how many of them were written rows.

    `session` is the name of the writer's session, "" if there is none.

    Raises
    ------
    TableHeldError, InvalidArgumentError, CapacityError : nothing has changed.
    """
    check_writer([share.table], session)
    (part,) = batches([share], known=True)
    return _deleted(share.table, part.pool.device.memory.download(part.batch.unique_keys))


def clear(
    table: TableState, owns: Callable[[Keys], NDArray[np.bool_]] | None, session: str = ""
) -> int:
    """Delete all rows of a table. Return how many written rows with keys that this store owns were
    deleted.

    `owns` returns which of some keys this store owns; None: all keys. Raises the errors of
    `delete`.
    """
    check_writer([table], session)
    table.pool.finder.finish_arriving()
    if table.config.is_sparse:
        keys = written_ids(table.pool)
    else:
        keys = WrittenKeys(table.pool, table.table_id, nullcontext).all()
    return _deleted(table, keys, owns)


def _deleted(
    table: TableState, keys: Keys, owns: Callable[[Keys], NDArray[np.bool_]] | None = None
) -> int:
    """Delete the rows of unique row keys; return how many of these were written rows."""
    from embstore.cache.deleting import KEYS_MAX, Deletion  # few stores ever delete

    pool, storage, reading, count = table.pool, table.pool.storage, table.digest.reading, 0
    pieces = [keys[low : low + KEYS_MAX] for low in range(0, len(keys), KEYS_MAX)]
    deletions = [Deletion(pool, piece) for piece in pieces]
    tombstones = sum(deletion.tombstones for deletion in deletions)
    storage.appender.reserve(tombstones, RECORD_HEADER_BYTES)
    for piece in pieces:
        if reading is not None:
            reading.preserve(piece, are_deleted=True)
    storage.begin_change()
    with storage.irreversible:
        for piece, deletion in zip(pieces, deletions, strict=True):
            was_written = deletion.apply()
            was_written &= True if owns is None else owns(pool.row_keys.keys(piece))
            count += int(np.count_nonzero(was_written))
        table.deletions += 1
        table.wrote(0)
    return count


def put_rows(puts: Sequence[Put], session: str = "") -> None:
    """Set weights and state of each key, and add `Put.add_t` to the table's t (rule 7). If a key
    repeats, its last row counts.

    All tables are changed, or no table. `session` is the name of the writer's session, "" if there
    is none.

    Raises
    ------
    TableHeldError, InvalidArgumentError, CapacityError, CorruptTableError : nothing has changed.
    """
    tables = [put.share.table for put in puts]
    check_writer(tables, session)
    parts = batches([put.share for put in puts], known=True)
    by_table = {put.share.table.table_id: put for put in puts}
    named = [
        _overwriting(part, [by_table[share.table.table_id] for share in part.shares])
        for part in parts
    ]
    _write(named, tables, [put.add_t for put in puts], Stages())


def _pools(parts: Sequence[PoolBatch], sums: Sequence[Array]) -> list[tuple[Pool, Array, Array]]:
    return [(p.pool, p.batch.unique_keys, own) for p, own in zip(parts, sums, strict=True)]


def _check_learning_rates(tables: Sequence[TableState], options: UpdateOptions) -> None:
    """Check that the optimizer of every table accepts the learning rate of a call."""
    if options.learning_rate is None and not options.learning_rates:
        return
    for table in tables:
        given = options.rate_of(table.name)
        if given is not None:
            what = f"table {table.name!r}: learning_rate"
            table.config.optimizer.check_learning_rate(given, what)


def _apply(
    parts: Sequence[tuple[Pool, Array, Array]],
    tables: Sequence[TableState],
    options: UpdateOptions,
    stages: Stages,
) -> None:
    """Apply an update. `parts` are (pool, unique row keys (u,), scaled sums); the array of the sums
    can be larger than (u, dim)."""
    _set_scalars(tables, options)
    named = [(pool, keys, partial(pool.writer.apply, keys, sums)) for pool, keys, sums in parts]
    _write(named, tables, [1] * len(tables), stages)


def _set_scalars(tables: Sequence[TableState], options: UpdateOptions) -> None:
    """Set the scalars of the tables' optimizers, which the kernels of the next update use."""
    by_table, every = options.learning_rates, options.learning_rate
    for table in tables:
        if table.t == T_MAX:
            raise InvalidArgumentError(
                f"table {table.name!r}: t is {T_MAX} and cannot grow; create another table, and "
                "copy the rows to it"
            )
        given = by_table.get(table.name, every)
        rate = table.learning_rate if given is None else given
        table.pool.parameters.scalars[table.number] = scalars_of(
            table.config.optimizer, table.t + 1, rate, table.dim
        )


def _overwriting(part: PoolBatch, puts: Sequence[Put]) -> tuple[Pool, Array, Change]:
    """Return the write that sets the rows of one pool: the pool, the unique row keys, and the
    change. `puts` are in the order of the pool's batch."""
    pool, keys = part.pool, part.batch.unique_keys
    last = np.empty(len(keys), np.int64)
    last[pool.device.memory.download(part.batch.inverse)] = np.arange(part.batch.position_count)
    rows = np.zeros((len(keys), pool.layout.stride), pool.layout.element)
    dim, end = pool.layout.dim, pool.layout.dim + pool.layout.state_dim
    rows[:, :dim] = np.concatenate([put.weights for put in puts])[last]
    rows[:, dim:end] = np.concatenate([put.state for put in puts])[last]
    canonicalize_nans(rows)

    def scatter(slots: Array, low: int, high: int) -> None:
        pool.device.rows.scatter_rows(
            rows[low:high], pool.slots.memory.rows, pool.device.memory.download(slots)
        )
        pool.device.slots.mark(pool.slots.memory, slots, dirty=True)

    return pool, keys, scatter


def _write(
    writes: Sequence[tuple[Pool, Array, Change]],
    tables: Sequence[TableState],
    add_t: Sequence[int],
    stages: Stages,
) -> None:
    prepared = [pool.writer.prepare(keys) for pool, keys, _ in writes]
    if len(writes) > 1:
        # Making room for one pool can have evicted rows of another pool that were already resident.
        count = sum(len(keys) for _, keys, _ in writes)
        record_bytes = max(pool.layout.record_bytes for pool, _, _ in writes)
        for pool, _, _ in writes:  # all pools share one log
            pool.storage.appender.reserve(count, record_bytes)
    stages.laps += "hold", now()
    if not tables:
        return
    for table in tables:
        if table.digest.reading is not None:
            _set_aside(table, writes)
    for pool, keys, _ in writes:
        pool.followers.prepare(len(keys))
    # Rows, leaves and t change together: an interrupt, also by a signal, fails the store.
    storage = tables[0].pool.storage
    if storage.is_check:
        storage.end_check()
    storage.is_changing = True
    with storage.irreversible:
        for (pool, keys, change), slots in zip(writes, prepared, strict=True):
            pool.writer.write(keys, slots, change)
            pool.followers.written(keys)
        for table, more in zip(tables, add_t, strict=True):
            table.wrote(more)
    stages.laps += "apply", now()


def _set_aside(table: TableState, writes: Sequence[tuple[Pool, Array, Change]]) -> None:
    """Copy rows for the running digest: rows that are about to change, and that it has not read
    yet."""
    assert table.digest.reading is not None
    for pool, d_keys, _ in writes:
        if pool is table.pool:
            keys = pool.device.memory.download(d_keys)
            table.digest.reading.preserve(keys[pool.row_keys.are_of(keys, table.table_id)])


def count_skipped(tables: Iterable[TableState]) -> None:
    """Count a skipped update once for each of its tables, even if a table is named more than
    once."""
    for table in {table.table_id: table for table in tables}.values():
        table.skipped_updates += 1


def _unaccepted(pool: Pool, keys: Array, sums: Array) -> list[Wrong]:
    ((named, row_keys, rows),) = on_host([(pool, keys, sums)])
    return [
        (int(named.table_ids(row_key)), named.key_of(row_key), gradient)
        for row_key, gradient in unaccepted(row_keys, rows)
    ]


def _refuse(wrong: list[Wrong], shares: Sequence[Share], on_nonfinite: OnNonfinite) -> bool:
    """Raise an error that names the first refused table in call order, and the first wrong key of
    this table by occurrence. If the update is to be skipped, return False instead."""
    if on_nonfinite == "skip":
        count_skipped(share.table for share in shares)
        return False
    names = {share.table.table_id: share.table.name for share in shares}
    order = {table_id: place for place, table_id in enumerate(names)}
    table_id, key, gradient = min(wrong, key=lambda found: order[found[0]])
    raise refused_gradient(names[table_id], key, gradient)
