"""The tables of a store: created, found and dropped; and calls that name several tables.

A call that names several tables costs no more than a call that names one. An update of several
tables is applied to all of them or to none.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from embstore import commands as c
from embstore.arrays import Rows
from embstore.checks.arguments import mapping
from embstore.commands import Executor, OnNonfinite, Pooling
from embstore.config import Initializer, KeySpace, Optimizer, TableConfig
from embstore.handles import parts
from embstore.handles.table import Table
from embstore.results import AcknowledgedUpdate, TableFacts


class StoreTables:
    """Methods of a `Store` for tables."""

    executor: Executor

    def create_table(
        self,
        name: str,
        *,
        dim: int,
        rows: int | None = None,
        optimizer: Optimizer,
        initializer: Initializer,
        seed: int | None = None,
        key_space: KeySpace = "dense",
    ) -> Table:
        """Create a table, or return the existing table of this name and identity.

        An existing table keeps its learning rate; a different rate gives a warning. Set
        `Table.learning_rate` to change it.

        Parameters
        ----------
        name : parts of [A-Za-z0-9_.-] joined by '/'
        dim : elements of a row, 1 to 4096
        rows : number of rows, up to 2**40, for dense keys, which are in [0, rows); a row takes no
            space until it is written
        seed : seed of the initial rows, 0 to 2**64 - 1; None: derived from the name
        key_space : "dense"; or "sparse": any 64 bits of an int64 or a uint64 are a key, except
            2**64 - 1 (-1), and `rows` must be left out

        Raises
        ------
        TableExistsError : the name has another identity, or another number of rows; the error names
            the difference (for more rows see `Table.grow`).
        InvalidArgumentError, CapacityError : nothing has changed.
        """
        config = TableConfig.checked(
            name,
            dim=dim,
            rows=rows,
            optimizer=optimizer,
            initializer=initializer,
            seed=seed,
            key_space=key_space,
        )
        described = self.executor.execute(c.CreateTable(config))
        _warn_of_rate(name, described.config.optimizer.learning_rate, optimizer.learning_rate)
        return Table(self.executor, described)

    def table(self, name: str) -> Table:
        """Return a table by name, or raise TableNotFoundError."""
        return Table(self.executor, self.executor.execute(c.GetTable(name)))

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted."""
        return [table.config.name for table in self.executor.execute(c.ListTables())]

    def table_facts(self) -> dict[str, TableFacts]:
        """Return rows, t and learning rate of all tables, by name, with one call."""
        return {
            table.config.name: TableFacts(
                table.config.rows, table.t, table.config.optimizer.learning_rate
            )
            for table in self.executor.execute(c.ListTables())
        }

    def drop_table(self, name: str) -> int:
        """Delete a table and its rows; return the command number.

        Kept checkpoints still contain it.
        """
        return self.executor.execute(c.DropTable(name)).command

    # Several tables in one call

    def lookup(
        self,
        keys: Mapping[str, ArrayLike],
        *,
        admit: bool = True,
        out: Mapping[str, Any] | None = None,
        counts: Mapping[str, ArrayLike] | None = None,
    ) -> dict[str, Rows]:
        """Return the rows of several tables, {name: (n, dim) float32}, at the cost of one call.

        Parameters
        ----------
        keys : {name: (n,) int64}
        admit, out, counts : as in `Table.lookup`; `out` and `counts` can name only some of the
            tables
        """
        named = mapping(keys, "keys")
        given, counted = parts.some_of(out, "out", named), parts.some_of(counts, "counts", named)
        named_parts = tuple(
            [c.TableKeys(name, None, of, counted.get(name)) for name, of in named.items()]
        )
        outs = [given.get(name) for name in named] if given else None
        read = self.executor.execute(c.Lookup(named_parts, admit), out=outs)
        return parts.filled(read, given)

    def lookup_pooled(
        self,
        bags: Mapping[str, tuple[ArrayLike, ArrayLike]],
        mode: Pooling = "sum",
        weights: Mapping[str, ArrayLike] | None = None,
        *,
        admit: bool = True,
        out: Mapping[str, Any] | None = None,
    ) -> dict[str, Rows]:
        """Return the pooled rows of several tables, {name: (bags, dim) float32}, by one call.

        Parameters
        ----------
        bags : {name: (keys (n,), offsets (bags + 1,))}
        mode, weights, admit, out : as in `Table.lookup_pooled`; `weights` and `out` can name only
            some of the tables
        """
        named = parts.bags(bags, mode, weights)
        given = parts.some_of(out, "out", named)
        outs = [given.get(name) for name in named] if given else None
        tables = tuple(c.PooledKeys(name, None, keys, of) for name, (keys, of) in named.items())
        read = self.executor.execute(c.LookupPooled(tables, admit), out=outs)
        return parts.filled(read, given)

    def update_pooled(
        self,
        bags: Mapping[str, tuple[ArrayLike, ArrayLike]],
        gradients: Mapping[str, ArrayLike],
        mode: Pooling = "sum",
        weights: Mapping[str, ArrayLike] | None = None,
        *,
        learning_rate: c.LearningRate | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Apply the gradients of bags to several tables: either all of these tables change, or
        none.

        `bags` are as in `lookup_pooled`, `gradients` are {name: (bags, dim)} for the same tables.
        The options are as in `update`.
        """
        named, given = parts.bags(bags, mode, weights), mapping(gradients, "gradients")
        parts.check_same(given, named, "gradients")
        tables = tuple(
            c.PooledGradients(name, None, keys, given[name], of)
            for name, (keys, of) in named.items()
        )
        options = parts.options(learning_rate, gradient_scale, on_nonfinite)
        return self.executor.execute(c.UpdatePooled(tables, options))

    def update(
        self,
        gradients: Mapping[str, tuple[ArrayLike, ArrayLike]],
        *,
        learning_rate: c.LearningRate | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Apply one update, {name: (keys (n,), gradients (n, dim))}, to several tables: either all
        of these tables change, or none.

        The options are as in `Table.update`. Learning rates can be given by table, {name: rate}:
        other tables use their own rate, and rates of tables without gradients have no effect.
        """
        options = parts.options(learning_rate, gradient_scale, on_nonfinite)
        return self.executor.execute(c.Update(parts.gradients(gradients), options))

    def update_ranks(
        self,
        ranks: Sequence[Mapping[str, tuple[ArrayLike, ArrayLike]]],
        *,
        learning_rate: c.LearningRate | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Apply one update from several ranks; each rank's gradients are as in `update`.

        Gradients are added in rank order. t grows for every table that any rank names.
        """
        options = parts.options(learning_rate, gradient_scale, on_nonfinite)
        named_parts = tuple(c.Rank(parts.gradients(rank)) for rank in parts.ranks(ranks))
        return self.executor.execute(c.UpdateRanks(named_parts, options))


def _warn_of_rate(name: str, kept: float, given: float) -> None:
    """Warn that a table keeps its learning rate, if another rate was given."""
    if given != kept:
        warnings.warn(
            f"table {name!r} is there already and keeps its learning rate {kept:g}; the one given, "
            f"{given:g}, has no effect: store.table({name!r}).learning_rate = {given:g} changes it",
            stacklevel=3,
        )
