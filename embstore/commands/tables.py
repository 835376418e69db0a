"""Commands that create, describe, change, drop and digest tables."""

from embstore import results
from embstore.commands import joins
from embstore.commands.base import Command, Effect, Reads, Right, Trait
from embstore.config import TableConfig
from embstore.results import Acknowledged, Deleted


class CreateTable(Command[results.TableDescription], effect=Effect.WRITES, traits=Trait.AUDITED):
    """Create a table, or find the table of that name, which must have the same configuration.

    A new table gets the next id, or `first_id` if that is larger, but by 256 at most.
    """

    config: TableConfig
    first_id: int = 0


class GetTable(Command[results.TableDescription], effect=Effect.READS, join=joins.table):
    """Describe a table.

    A cluster's answer has the number of rows and the t that every shard has reached, because a
    table can grow, or be updated, on one shard before it is on another.
    """

    table: str
    table_id: int | None = None


class ListTables(
    Command[tuple[results.TableDescription, ...]], effect=Effect.READS, right=Right.KNOWN
):
    """Describe all tables, in the order of their names. A server describes only the tables that the
    caller can read."""


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
    """Delete all rows of a table. Afterwards they are as if they had never been written (rule 7).

    `member` is as in `DeleteRows`.
    """

    table: str
    table_id: int | None = None
    member: str | None = None


class GrowTable(
    Command[Acknowledged], effect=Effect.WRITES, traits=Trait.AUDITED, join=joins.first
):
    """Give a table more rows.

    `members` are the secrets of the sender in its sessions. If a session is the table's only
    writer, the sender must be a member of that session.
    """

    table: str
    table_id: int | None
    rows: int
    members: tuple[str, ...] = ()


class SetLearningRate(
    Command[Acknowledged], effect=Effect.WRITES, traits=Trait.AUDITED, join=joins.first
):
    """Set the learning rate of updates that contain none. `members` is as in `GrowTable`."""

    table: str
    table_id: int | None
    learning_rate: float
    members: tuple[str, ...] = ()


class GetDigest(Command[results.Digest], effect=Effect.LONG, right=Right.READ, reads=Reads.TABLE):
    """Return the digest of a table's content (rule 11) as of the moment when the command begins."""

    table: str
    table_id: int | None = None


class GetLeaves(Command[results.Leaves], effect=Effect.LONG, right=Right.READ, reads=Reads.TABLE):
    """Return some leaves of a table's digest, from block `low` on.

    Clients use leaves to find where two stores differ, and to combine the digests of shards.
    """

    table: str
    table_id: int | None = None
    low: int = 0
