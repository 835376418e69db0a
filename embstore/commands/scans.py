"""Commands that read the rows of a table in order."""

from embstore import results
from embstore.commands.base import Command, Effect, Reads, Right


class OpenScan(Command[results.ScanFacts], effect=Effect.LONG, right=Right.READ, reads=Reads.TABLE):
    """Make the written rows of a table readable in order, as of one command.

    `scan` is the name of the scan, a secret of 16 to 255 characters (a server puts the caller's
    name and a colon before it). `label` is a kept checkpoint; None: the store commits, and the scan
    reads that commit. `since` is another checkpoint; rows that were not written after that
    checkpoint are left out. `moved` is for a shard: the scan then reads the rows that the shard has
    in partitions of other shards, and not the rows of its own partitions.
    """

    scan: str
    table: str
    table_id: int | None = None
    label: str | None = None
    since: str | None = None
    moved: bool = False


class ReadScan(Command[results.ScannedRows], effect=Effect.LONG, right=Right.READ):
    """Return the first rows of a scan, at most `rows`, whose key is at least `low`.

    With `deleted`, return instead the first keys of rows that were deleted after the checkpoint
    `since` of the scan; the returned rows then have no elements.
    """

    scan: str
    table: str
    low: int
    rows: int
    with_state: bool = False
    deleted: bool = False


class CloseScan(Command[None], effect=Effect.LONG, right=Right.READ):
    """End a scan. It is no error if the scan does not exist."""

    scan: str
    table: str
