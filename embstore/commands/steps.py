"""Steps of sessions: their rows, and how they end."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from embstore import results
from embstore.arrays import Inverse, Keys, Rows
from embstore.commands.base import Command, Effect, Part, Reads, Retry, Right, Trait
from embstore.commands.rows import Bags, UpdateOptions
from embstore.results import AcknowledgedUpdate


class StepGradients(Part):
    """One gradient for each announced key of a table, (u, dim), in announced order.

    Or for some of them: `positions` (n,) says which, ascending, and gradients are (n, dim). Or for
    each occurrence: `inverse` (n,) has the index of its key, in any order and repeated, and
    gradients are (n, dim), or (bags, dim) for the bags that the occurrences lie in; they are summed
    by key (rules 2, 8). Keys without a gradient are not updated.
    """

    table: str
    gradients: Rows
    positions: Inverse | None = None
    inverse: Inverse | None = None
    bags: Bags | None = None


@runtime_checkable
class RowsChecksum(Protocol):
    """The checksum of a step's rows; each shard is sent the checksum of its own. Any thread."""

    def __index__(self) -> int:
        """Return the checksum of all rows (`embstore.arithmetic.checksum`)."""

    def of(self, positions: Mapping[str, Inverse]) -> int:
        """Return the checksum of the rows at some positions, (n,) ascending, of every table."""


class StepBags(Part):
    """Occurrences of announced keys of one table, and the bags that they lie in; without bags, a
    row is read for each occurrence."""

    table: str
    inverse: Inverse
    bags: Bags | None = None


class StepPositions(Part):
    """The indices of some announced keys of one table, (n,), ascending."""

    table: str
    positions: Inverse


class StepPut(Part):
    """Rows of one table that were trained elsewhere, by `add_t` updates."""

    table: str
    keys: Keys
    weights: Rows
    state: Rows
    add_t: int


class LookupStep(
    Command[results.RowsRead], effect=Effect.READS, right=Right.WRITE, reads=Reads.OF_STEP
):
    """The rows of an announced step, in announced order, when its turn has come."""

    member: str
    step: int
    early: bool = True


class LookupStepPooled(
    Command[results.RowsRead], effect=Effect.READS, right=Right.WRITE, reads=Reads.OF_STEP
):
    """Rows of occurrences of announced keys, pooled by bags where they lie in some."""

    member: str
    step: int
    tables: tuple[StepBags, ...]


class ReadStep(Command[results.StepRecords], effect=Effect.READS, right=Right.WRITE):
    """Weights and state of some announced keys, as soon as they are in the cache, at any step's
    turn: for a session whose trainer does not wait for updates."""

    member: str
    step: int
    tables: tuple[StepPositions, ...]


class UpdateStep(
    Command[AcknowledgedUpdate], effect=Effect.WRITES, retry=Retry.STEP, traits=Trait.ON_DEVICE
):
    """One rank's gradients of a step; the last rank's applies them all (rule 6).

    `rows_checksum` is of the rows that the gradients were computed with, all that the rank
    announced (`embstore.arithmetic.checksum`). If the store's rows differ, no gradient is applied.
    `is_finite` says whether rule 9 accepts the whole update, of all ranks and shards, where the
    sender knows; None: the store that has all of it checks it.
    """

    member: str
    step: int
    tables: tuple[StepGradients, ...]
    options: UpdateOptions = UpdateOptions()
    rows_checksum: int | RowsChecksum | None = None
    is_finite: bool | None = None


class ReleaseStep(Command[AcknowledgedUpdate], effect=Effect.WRITES, retry=Retry.STEP):
    """Finish a step whose rows were only read."""

    member: str
    step: int


class SkipStep(Command[AcknowledgedUpdate], effect=Effect.WRITES, retry=Retry.STEP):
    """Finish a step whose gradients are not applied."""

    member: str
    step: int


class PutStepRows(Command[AcknowledgedUpdate], effect=Effect.WRITES, traits=Trait.ADDS):
    """Rows of a hot replica, of several tables of the member's session."""

    member: str
    tables: tuple[StepPut, ...]
