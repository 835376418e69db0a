"""Commands that read and write rows. A command consists of parts, each of which names a table."""

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from embstore import results
from embstore.arrays import AccessCounts, Factors, Keys, Offsets, Rows
from embstore.commands.base import Command, Effect, Part, Reads, Trait
from embstore.results import AcknowledgedUpdate, Deleted

Pooling = Literal["sum", "mean"]
OnNonfinite = Literal["refuse", "skip"]


class TableKeys(Part):
    """Keys of one table; in a lookup, also the number of accesses for which each key stands."""

    table: str
    table_id: int | None
    keys: Keys
    counts: AccessCounts | None = None


class TableGradients(Part):
    """Gradients of one table, (n, dim)."""

    table: str
    table_id: int | None
    keys: Keys
    gradients: Rows


class Bags(Part):
    """The bags by which keys are pooled: bag b has keys[offsets[b]:offsets[b + 1]].

    Only the mode "sum" can have weights.
    """

    offsets: Offsets
    mode: Pooling = "sum"
    weights: Factors | None = None


class PooledKeys(Part):
    """Bags of keys of one table."""

    table: str
    table_id: int | None
    keys: Keys
    bags: Bags


class PooledGradients(Part):
    """Gradients of bags of one table, (bags, dim)."""

    table: str
    table_id: int | None
    keys: Keys
    gradients: Rows
    bags: Bags


LearningRate = float | Mapping[str, float]
"""The learning rate of an update: one rate for all its tables, or a rate by table. Tables without a
given rate use their own rates."""


class UpdateOptions(Part):
    """The options by which an update is applied."""

    learning_rate: float | None = None
    gradient_scale: float = 1.0
    on_nonfinite: OnNonfinite = "refuse"
    learning_rates: dict[str, float] = field(default_factory=dict)
    """Rates by table, in place of `learning_rate`. Rates of tables that are not updated have no
    effect."""

    def rate_of(self, table: str) -> float | None:
        """Return the learning rate that is given for a table; None: none is given, so the table's
        own rate is used."""
        return self.learning_rates.get(table, self.learning_rate)


class Rank(Part):
    """One rank's contribution to an update."""

    tables: tuple[TableGradients, ...]


class Lookup(
    Command[results.RowsRead], effect=Effect.READS, reads=Reads.ROWS, traits=Trait.ON_DEVICE
):
    """Return rows of several tables. If `admit` is true, rows that were not in the cache are kept
    there."""

    tables: tuple[TableKeys, ...]
    admit: bool = True


class LookupPooled(
    Command[results.RowsRead], effect=Effect.READS, reads=Reads.ROWS, traits=Trait.ON_DEVICE
):
    """Return pooled rows of bags of several tables (rule 8)."""

    tables: tuple[PooledKeys, ...]
    admit: bool = True


class ReadRows(Command[results.RowsRead], effect=Effect.READS, reads=Reads.RECORDS):
    """Return weights and optimizer state; the cache does not change."""

    keys: TableKeys


class Update(
    Command[AcknowledgedUpdate], effect=Effect.WRITES, traits=Trait.ADDS | Trait.ON_DEVICE
):
    """Update several tables once: either all of them or none (rules 2 and 4)."""

    tables: tuple[TableGradients, ...]
    options: UpdateOptions = UpdateOptions()


class UpdatePooled(
    Command[AcknowledgedUpdate], effect=Effect.WRITES, traits=Trait.ADDS | Trait.ON_DEVICE
):
    """Update several tables once by the gradients of bags: either all tables or none (rule 8)."""

    tables: tuple[PooledGradients, ...]
    options: UpdateOptions = UpdateOptions()


class UpdateRanks(Command[AcknowledgedUpdate], effect=Effect.WRITES, traits=Trait.ADDS):
    """Update several tables once, by the gradients of several ranks, added in rank order (rule
    6)."""

    ranks: tuple[Rank, ...]
    options: UpdateOptions = UpdateOptions()


class Assign(Command[AcknowledgedUpdate], effect=Effect.WRITES):
    """Set the weights of rows; optimizer state starts anew. If a key is repeated, its last row
    counts (rule 7)."""

    keys: TableKeys
    rows: Rows


class DeleteRows(Command[Deleted], effect=Effect.WRITES):
    """Delete rows. Afterwards they are as if they had never been written (rule 7).

    The answer contains the number of deleted rows that had been written. `moved` is as in
    `PutRows`. `member` is the secret of a member of the session that is the table's only writer, if
    there is such a session.
    """

    keys: TableKeys
    moved: bool = False
    member: str | None = None


class PutRows(Command[AcknowledgedUpdate], effect=Effect.WRITES, traits=Trait.ADDS):
    """Set weights and state of rows that were trained elsewhere, and add to t (rule 7).

    `moved` is true if the rows are in partitions that another shard still owns, so that nobody
    reads them on this shard. With `moved`, the command is executed even if writes are paused, or if
    a session is the table's only writer.
    """

    keys: TableKeys
    weights: Rows
    state: Rows
    add_t: int
    moved: bool = False
