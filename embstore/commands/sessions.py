"""Commands that open, join and leave look-ahead sessions, and that announce steps."""

from typing import Literal

from embstore import results
from embstore.arrays import Keys
from embstore.commands import joins
from embstore.commands.base import Command, Effect, Part, Right, Trait

LOOKAHEAD, LEASE_MS, RANK_TIMEOUT_MS = 16, 10_000, 60_000
"""The defaults of a session."""

Waits = results.Waits
RowsWhere = Literal["auto", "host", "device"]
"""The memory in which the rows of a session's steps are returned: that of the host, that of the
device, or, with "auto", the memory that contains the keys of the batch."""


class StepTable(Part):
    """The keys of one table that a step will use. Each key appears once."""

    table: str
    keys: Keys


class StepKeys(Part):
    """One rank's announcement of one step."""

    step: int
    tables: tuple[StepTable, ...]


class OpenSession(
    Command[results.SessionFacts],
    effect=Effect.TUNES,
    right=Right.WRITE,
    traits=Trait.OF_THE_LEADER,
):
    """Open a look-ahead session, or find an open session of that name with the same options."""

    name: str
    tables: tuple[str, ...]
    lookahead_steps_max: int = LOOKAHEAD
    world_size: int = 1
    planner: str = "per_step"
    shared: bool = False
    lease_ms: int = LEASE_MS
    rank_timeout_ms: int = RANK_TIMEOUT_MS
    waits: Waits = "late"


class JoinSession(
    Command[results.Membership], effect=Effect.PROMPT, right=Right.WRITE, traits=Trait.JOINS
):
    """Take a rank of a session.

    `member` is a secret of 16 to 64 characters; if it is empty, the server makes one.
    """

    name: str
    rank: int
    member: str = ""


class RenewLease(
    Command[results.SessionFacts],
    effect=Effect.PROMPT,
    right=Right.WRITE,
    join=joins.least("last_step"),
):
    """Renew the lease of a rank. Every other command of the rank also renews it."""

    member: str


class CloseSession(
    Command[None], effect=Effect.TUNES, right=Right.WRITE, traits=Trait.LEAVES, join=joins.nothing
):
    """Leave a session. The session ends when the last rank leaves. With `forget`, the session's
    resume position (its last finished step) is deleted as well."""

    member: str
    forget: bool = False


class EndSession(
    Command[None],
    effect=Effect.TUNES,
    right=Right.WRITE,
    traits=Trait.AUDITED | Trait.OF_ALL_SHARDS,
):
    """End a session for all its ranks, which get an error. The session's resume position stays.

    This command is for operators: ranks close their own sessions.
    """

    name: str


class Announce(Command[results.Announced], effect=Effect.LONG, right=Right.WRITE):
    """Announce the keys that coming steps will use.

    `is_last` is true if the rank has no steps after `steps`; later steps of the other ranks then do
    not wait for this rank.
    """

    member: str
    steps: tuple[StepKeys, ...]
    is_last: bool = False
