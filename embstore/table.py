"""A table's handle: checked arguments in, rows out, and the acknowledgement of what was changed."""

from collections.abc import Sequence
from typing import Any, Literal

from numpy.typing import ArrayLike

from embstore import reads, writes
from embstore.arguments import (
    bag_gradients,
    bag_weights,
    check_call_bytes,
    checked_options,
    gradient_share,
    lookup_share,
    output,
    put_of,
)
from embstore.arrays import (
    Rows,
    as_keys,
    as_offsets,
    as_out,
    as_pair,
    as_ranks,
    as_rows,
)
from embstore.config import Initializer, Optimizer, TableConfig
from embstore.engine import Engine
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
            factors = bag_weights(self.name, mode, weights, len(share.keys))
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
            factors = bag_weights(self.name, mode, weights, len(checked))
            rows = as_rows(grads, (len(bounds) - 1, table.dim), self.name, "gradients")
            share = Share(table, checked, bag_gradients(rows, bounds, mode, factors))
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
