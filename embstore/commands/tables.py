"""Tables: made, described, dropped, and digested."""

from embstore import results
from embstore.commands import joins
from embstore.commands.base import Command, Effect, Reads, Right, Trait
from embstore.config import TableConfig
from embstore.results import Acknowledged, Deleted


class CreateTable(
    Command[results.TableDescription],
    effect=Effect.WRITES,
    traits=Trait.AUDITED,
    join=joins.same("table_id"),
):
    """Create a table, or find the one of the same configuration."""

    config: TableConfig


class GetTable(
    Command[results.TableDescription], effect=Effect.READS, join=joins.least("config.rows")
):
    """Describe a table; in a cluster with the rows that it has on every shard, as one shard may
    grow before another."""

    table: str
    table_id: int | None = None


class ListTables(
    Command[tuple[results.TableDescription, ...]], effect=Effect.READS, right=Right.KNOWN
):
    """Describe all tables, by name; of a server, those that the caller may read."""


class DropTable(Command[Acknowledged], effect=Effect.WRITES, right=Right.ADMIN, join=joins.first):
    """Delete a table and its rows."""

    table: str
    table_id: int | None = None


class ClearTable(
    Command[Deleted],
    effect=Effect.WRITES,
    traits=Trait.AUDITED,
    join=joins.first_with_sum("rows"),
):
    """Delete all rows of a table: they are as if they had never been written (rule 7); `member` as
    in `DeleteRows`."""

    table: str
    table_id: int | None = None
    member: str | None = None


class GrowTable(
    Command[Acknowledged], effect=Effect.WRITES, traits=Trait.AUDITED, join=joins.first
):
    """Give a table more rows.

    `members` are the sender's own, of any sessions: one of them may hold the table.
    """

    table: str
    table_id: int | None
    rows: int
    members: tuple[str, ...] = ()


class SetLearningRate(
    Command[Acknowledged], effect=Effect.WRITES, traits=Trait.AUDITED, join=joins.first
):
    """Set the learning rate of updates that do not give one; `members` as in `GrowTable`."""

    table: str
    table_id: int | None
    learning_rate: float
    members: tuple[str, ...] = ()


class GetDigest(Command[results.Digest], effect=Effect.LONG, right=Right.READ, reads=Reads.TABLE):
    """The digest of a table's content (rule 11), at the command's turn."""

    table: str
    table_id: int | None = None


class GetLeaves(Command[results.Leaves], effect=Effect.LONG, right=Right.READ, reads=Reads.TABLE):
    """Some leaves of a table's digest, from block `low` on: to compare stores that differ, and to
    combine the digests of shards."""

    table: str
    table_id: int | None = None
    low: int = 0
