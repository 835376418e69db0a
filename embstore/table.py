"""A table's handle: checked arguments in, rows out, and the acknowledgement of what was changed."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore import reads, writes
from embstore.arrays import (
    Keys,
    Rows,
    as_counts,
    as_keys,
    as_offsets,
    as_out,
    as_pair,
    as_ranks,
    as_rows,
    fp32_scalar,
)
from embstore.config import Initializer, Optimizer, TableConfig
from embstore.device.base import Array, Gradients
from embstore.engine import Engine
from embstore.errors import InvalidArgumentError
from embstore.figures import table_figures
from embstore.results import Acknowledged
from embstore.tablestate import Share, TableState
from embstore.writes import OnNonfinite

PoolingMode = Literal["sum", "mean"]


class Table:
    """One table of an open store. Any thread; calls wait for each other.

    Keys are int64 in [0, rows), in any order, repeated or not; rows and gradients float32 (float16
    is widened). Arrays passed as `out` are filled and returned. A call that raises has changed
    nothing.
    """

    def __init__(self, engine: Engine, table: TableState) -> None:
        self._engine = engine
        self._id = table.table_id
        self.name = table.name

    def __repr__(self) -> str:
        return f"<embstore.Table {self.name!r}>"

    @property
    def _table(self) -> TableState:
        return self._engine.table(self._id, self.name)

    # What it is

    @property
    def table_id(self) -> int:
        """The number that this table has in the store, and no other ever gets."""
        return self._id

    @property
    def config(self) -> TableConfig:
        """The whole configuration, with today's rows and learning rate."""
        return self._table.current_config()

    @property
    def dim(self) -> int:
        """Elements of a row."""
        return self._table.dim

    @property
    def rows(self) -> int:
        """Keys are below this; `grow` raises it."""
        return self._table.rows

    @property
    def t(self) -> int:
        """Updates that named the table and were applied."""
        return self._table.t

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, with today's learning rate."""
        return self._table.current_config().optimizer

    @property
    def initializer(self) -> Initializer:
        """What a row holds that was never written."""
        return self._table.config.initializer

    @property
    def seed(self) -> int:
        """The seed of the initial rows."""
        return self._table.config.seed

    @property
    def learning_rate(self) -> float:
        """The rate of updates that give none; setting it is a mutating command."""
        return self._table.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        with self._engine.writing():
            self._engine.set_learning_rate(self._table, value)

    # Reading

    def lookup(
        self,
        keys: ArrayLike,
        admit: bool = True,
        *,
        out: Rows | None = None,
        counts: ArrayLike | None = None,
    ) -> Rows:
        """Return the rows of `keys`, (n, dim) float32.

        Parameters
        ----------
        keys : (n,) int64; on a GPU also an array in its memory (of CuPy, PyTorch or Numba: of what
            has `__cuda_array_interface__`), and `out` likewise, which then must be given
        admit : keep missed rows in the cache; False reads around it, for evaluation
        out : (n, dim) float32 to fill and return
        counts : (n,) integers, 1 to 2**32 - 1: how many accesses each key stands for, from a caller
            that has de-duplicated its keys; None: 1 each. They are for `accesses` and `access_hits`
            of the store's stats, and nothing else depends on them.

        Raises
        ------
        InvalidArgumentError : keys or counts of another shape, dtype or range; the call is too
            large.
        """
        with self._engine.reading():
            table = self._table
            share = lookup_share(table, keys, counts)
            check_call_bytes(self._engine, [share])
            rows = output(share, out)
            reads.lookup([share], [rows], admit=admit, stages=self._engine.stages)
            if admit:
                self._engine.frequencies.note([share])
            return rows if out is None else out

    def lookup_pooled(
        self,
        keys: ArrayLike,
        offsets: ArrayLike,
        mode: PoolingMode = "sum",
        weights: ArrayLike | None = None,
        *,
        admit: bool = True,
        out: Rows | None = None,
    ) -> Rows:
        """Return the sum or mean of each bag's rows, (bags, dim) float32; an empty bag is zeros.

        Parameters
        ----------
        keys : (n,) int64, bag after bag
        offsets : (bags + 1,) int64, from 0 to n: bag b is keys[offsets[b]:offsets[b + 1]]
        weights : (n,) float32, finite; with mode "sum" only

        Raises
        ------
        InvalidArgumentError : any of that does not hold.
        """
        with self._engine.reading():
            table = self._table
            share = Share(table, as_keys(keys, self.name))
            bounds = as_offsets(offsets, len(share.keys), self.name)
            check_call_bytes(self._engine, [share], bounds.nbytes + 4 * table.dim * len(bounds))
            factors = self._checked_weights(mode, weights, len(share.keys))
            out = as_out(out, (len(bounds) - 1, table.dim), self.name)
            reads.lookup_pooled(
                share,
                bounds,
                out,
                mean=mode == "mean",
                weights=factors,
                admit=admit,
                stages=self._engine.stages,
            )
            if admit:
                self._engine.frequencies.note([share])
            return out

    def read_rows(
        self, keys: ArrayLike, *, out: tuple[Rows, Rows] | None = None
    ) -> tuple[Rows, Rows]:
        """Return weights (n, dim) and state (n, state_dim), leaving no trace in the cache.

        `out` is a pair of arrays of these shapes, to fill and return.
        """
        with self._engine.reading():
            table = self._table
            share = Share(table, as_keys(keys, self.name))
            count, state_dim = len(share.keys), table.config.state_dim
            check_call_bytes(self._engine, [share], 4 * state_dim * count)
            weights, state = (None, None) if out is None else as_pair(out, self.name)
            weights = as_out(weights, (count, table.dim), self.name)
            state = as_out(state, (count, state_dim), self.name)
            reads.read_rows(share, weights, state)
            return weights, state

    # Writing

    def update(
        self,
        keys: ArrayLike,
        grads: ArrayLike,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> Acknowledged:
        """Sum the gradients by key and apply the optimizer once to each.

        Parameters
        ----------
        keys : (n,) int64; on a GPU also an array in its memory, see `lookup`
        grads : (n, dim) float32, likewise
        learning_rate : for this update only; None: the table's
        gradient_scale : multiplies every sum, finite and >= 0
        on_nonfinite : "refuse" raises for a sum that is not finite, "skip" acknowledges and does
            nothing

        Raises
        ------
        InvalidArgumentError : shape, dtype, range, or a non-finite sum, which is named.
        CapacityError : no disk space for the rows that would leave the cache.
        """
        with self._engine.writing():
            table = self._table
            share = gradient_share(table, keys, grads)
            check_call_bytes(self._engine, [share])
            applied = writes.update(
                [share],
                **checked_options(learning_rate, gradient_scale, on_nonfinite),
                stages=self._engine.stages,
            )
            return self._acknowledged(table, applied)

    def update_pooled(
        self,
        keys: ArrayLike,
        offsets: ArrayLike,
        grads: ArrayLike,
        mode: PoolingMode = "sum",
        weights: ArrayLike | None = None,
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> Acknowledged:
        """Apply the gradients of bags: the backward pass of `lookup_pooled`, then `update`.

        Parameters
        ----------
        grads : (bags, dim) float32; the others as in `lookup_pooled` and `update`
        """
        with self._engine.writing():
            table = self._table
            checked = as_keys(keys, self.name)
            bounds = as_offsets(offsets, len(checked), self.name)
            factors = self._checked_weights(mode, weights, len(checked))
            rows = as_rows(grads, (len(bounds) - 1, table.dim), self.name, "gradients")
            share = Share(table, checked, _bag_gradients(rows, bounds, mode, factors))
            check_call_bytes(self._engine, [share], bounds.nbytes + rows.nbytes)
            applied = writes.update(
                [share],
                **checked_options(learning_rate, gradient_scale, on_nonfinite),
                stages=self._engine.stages,
            )
            return self._acknowledged(table, applied)

    def update_ranks(
        self,
        ranks: Sequence[tuple[ArrayLike, ArrayLike]],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> Acknowledged:
        """Apply one update from several ranks: (keys, gradients) of each, added in rank order.

        The result is that of contract.md rule 6, which differs in its last bits from one update
        with all keys together.
        """
        with self._engine.writing():
            table = self._table
            pairs = [as_pair(rank, self.name) for rank in as_ranks(ranks, self.name)]
            shares = [[gradient_share(table, *pair)] for pair in pairs]
            check_call_bytes(self._engine, [share for rank in shares for share in rank])
            applied = writes.update_ranks(
                shares,
                **checked_options(learning_rate, gradient_scale, on_nonfinite),
                stages=self._engine.stages,
            )
            return self._acknowledged(table, applied)

    def assign(self, keys: ArrayLike, rows: ArrayLike) -> Acknowledged:
        """Set rows, (n, dim) float32; of repeated keys the last wins. Optimizer state starts anew.

        Infinities are stored as they are, NaNs as the one NaN of the contract; t stays.
        """
        with self._engine.writing():
            table = self._table
            share = Share(table, as_keys(keys, self.name))
            check_call_bytes(self._engine, [share])
            weights = as_rows(rows, (len(share.keys), table.dim), self.name, "rows")
            writes.assign(share, weights)
            return self._acknowledged(table)

    def put_rows(
        self, keys: ArrayLike, weights: ArrayLike, state: ArrayLike, add_t: int
    ) -> Acknowledged:
        """Set weights (n, dim) and optimizer state (n, state_dim), and add `add_t` to t.

        What a hot replica sends back: rows trained elsewhere, and by how many updates.
        """
        with self._engine.writing():
            table = self._table
            put = put_of(table, keys, weights, state, add_t)
            check_call_bytes(self._engine, [put.share], put.state.nbytes)
            writes.put_rows([put])
            return self._acknowledged(table)

    def grow(self, rows: int) -> Acknowledged:
        """Let the table have `rows` rows, no fewer than now."""
        with self._engine.writing():
            table = self._table
            self._engine.grow(table, rows)
            return self._acknowledged(table)

    # Looking after it

    def flush(self) -> int:
        """Write dirty rows to the log and return how many.

        They stay in the cache; durable is only a checkpoint.
        """
        with self._engine.reading():
            return self._engine.flush(self._table)

    def digest(self) -> str:
        """Return the table's digest (contract.md, rule 11), 64 hexadecimal digits.

        Costs what was written since the last call; the first call reads the whole table.
        """
        with self._engine.reading():
            return self._engine.digest(self._table)

    def stats(self) -> dict[str, Any]:
        """Return rows, dim, t, learning rate, and how many rows are resident and dirty."""
        with self._engine.reading():
            return table_figures(self._table)

    def _acknowledged(self, table: TableState, applied: bool = True) -> Acknowledged:
        return Acknowledged(self._engine.command_number + 1, table.t, not applied)

    def _checked_weights(
        self, mode: str, weights: ArrayLike | None, count: int
    ) -> NDArray[np.float32] | None:
        if mode not in ("sum", "mean"):
            raise InvalidArgumentError(
                f'table {self.name!r}: expected mode "sum" or "mean", found {mode!r}'
            )
        if weights is None:
            return None
        if mode != "sum":
            raise InvalidArgumentError(f'table {self.name!r}: weights go with mode "sum" only')
        checked = as_rows(weights, (count,), self.name, "weights")
        if not np.isfinite(checked).all():
            raise InvalidArgumentError(f"table {self.name!r}: expected finite weights")
        return checked


def put_of(
    table: TableState, keys: ArrayLike, weights: ArrayLike, state: ArrayLike, add_t: Any
) -> writes.Put:
    """Return what a hot replica sends back of one table, its arguments checked.

    Raises
    ------
    InvalidArgumentError
    """
    share = Share(table, as_keys(keys, table.name))
    count = len(share.keys)
    if (
        isinstance(add_t, bool)
        or not isinstance(add_t, int | np.integer)
        or not 0 <= add_t <= writes.T_MAX - table.t
    ):
        raise InvalidArgumentError(
            f"table {table.name!r}: expected add_t to be an integer >= 0, found {add_t!r}"
        )
    return writes.Put(
        share,
        as_rows(weights, (count, table.dim), table.name, "weights"),
        as_rows(state, (count, table.config.state_dim), table.name, "state"),
        int(add_t),
    )


def check_call_bytes(engine: Engine, shares: Iterable[Share], more: int = 0) -> None:
    """Refuse a call that is too large: 8 bytes a key, 4 an element of its row, `more` beside.

    Raises
    ------
    InvalidArgumentError
    """
    size = more + sum(len(s.keys) * (8 + 4 * s.table.dim) for s in shares)
    if size > engine.limits.call_bytes_max:
        raise InvalidArgumentError(
            f"expected a call of at most {engine.limits.call_bytes_max} bytes of keys and rows "
            f"(limits.call_bytes_max), found {size}; split the call"
        )


def lookup_share(table: TableState, keys: ArrayLike, counts: ArrayLike | None) -> Share:
    """Return one table's share of a lookup, its arguments checked.

    Raises
    ------
    InvalidArgumentError
    """
    checked = _checked_keys(table, keys)
    if counts is None:
        return Share(table, checked)
    return Share(table, checked, counts=as_counts(counts, len(checked), table.name))


def gradient_share(table: TableState, keys: ArrayLike, gradients: ArrayLike) -> Share:
    """Return one table's share of an update, its arguments checked.

    Raises
    ------
    InvalidArgumentError
    """
    checked = _checked_keys(table, keys)
    rows = _adopted(table, gradients, len(checked), "gradients")
    if rows is None:
        rows = as_rows(gradients, (len(checked), table.dim), table.name, "gradients")
    return Share(table, checked, Gradients(rows))


def output(share: Share, out: Any) -> Rows | Array:
    """Return the array for the rows of a lookup: the caller's, or a new one on the host.

    Raises
    ------
    InvalidArgumentError : also where keys are in the device's memory and `out` is not given: what
        is made here would go with the caller's last reference, whatever its streams still do.
    """
    table, count = share.table, len(share.keys)
    if out is None and not isinstance(share.keys, np.ndarray):
        raise InvalidArgumentError(
            f"table {table.name!r}: expected out to be given with keys in the device's memory"
        )
    adopted = _adopted(table, out, count, "out", write=True)
    return as_out(out, (count, table.dim), table.name) if adopted is None else adopted


def _checked_keys(table: TableState, keys: ArrayLike) -> Keys | Array:
    adopted = table.pool.device.adopt(keys, np.int64, 1)
    return as_keys(keys, table.name) if adopted is None else adopted


def _adopted(
    table: TableState, rows: Any, count: int, what: str, *, write: bool = False
) -> Array | None:
    """Return a caller's rows that are in the device's memory; None for those of the host."""
    adopted = table.pool.device.adopt(rows, np.float32, 2, write=write)
    if adopted is not None and (len(adopted), adopted.width) != (count, table.dim):
        raise InvalidArgumentError(
            f"table {table.name!r}: expected {what} of shape {count, table.dim}, found "
            f"{len(adopted), adopted.width}"
        )
    return adopted


def checked_options(
    learning_rate: float | None, gradient_scale: float, on_nonfinite: str
) -> dict[str, Any]:
    """Return an update's options, checked.

    Raises
    ------
    InvalidArgumentError
    """
    if on_nonfinite not in ("refuse", "skip"):
        raise InvalidArgumentError(
            f'expected on_nonfinite to be "refuse" or "skip", found {on_nonfinite!r}'
        )
    if learning_rate is not None:
        learning_rate = fp32_scalar(learning_rate, "learning_rate")
    return {
        "learning_rate": learning_rate,
        "gradient_scale": fp32_scalar(gradient_scale, "gradient_scale"),
        "on_nonfinite": on_nonfinite,
    }


def _bag_gradients(
    rows: Rows,
    offsets: NDArray[np.int64],
    mode: str,
    weights: NDArray[np.float32] | None,
) -> Gradients:
    counts = np.diff(offsets)
    source = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    if mode == "mean":
        return Gradients(rows, source, counts.astype(np.float32)[source], divide=True)
    return Gradients(rows, source, weights)
