"""Commands of a session's steps: they return its rows, and end it."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from embstore import results
from embstore.arrays import Inverse, Keys, Rows
from embstore.commands.base import Command, Effect, Part, Reads, Retry, Right, Trait
from embstore.commands.rows import Bags, UpdateOptions
from embstore.results import AcknowledgedUpdate


class StepGradients(Part):
    """Gradients of one table in a step.

    Without `positions` and `inverse`: one gradient per announced key, (u, dim), in announced order.
    With `positions`, (n,), ascending: the indices of the keys that have a gradient; gradients are
    (n, dim). With `inverse`, (n,): the index of the key of each occurrence, in any order and
    repeated; gradients are (n, dim), or (bags, dim) for the bags of the occurrences. They are
    summed by key (rules 2, 8). Keys without a gradient are not updated.
    """

    table: str
    gradients: Rows
    positions: Inverse | None = None
    inverse: Inverse | None = None
    bags: Bags | None = None


@runtime_checkable
class RowsChecksum(Protocol):
    """The checksum of a step's rows; each shard is sent the checksum of its own rows. Any
    thread."""

    def __index__(self) -> int:
        """Return the checksum of all rows (`embstore.arithmetic.checksum`)."""

    def of(self, positions: Mapping[str, Inverse]) -> int:
        """Return the checksum of the rows at these positions, (n,) ascending, of every table."""


class StepBags(Part):
    """Occurrences of announced keys of one table, and the bags that contain them.

    Without bags, a row is read for each occurrence.
    """

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
    """Return the rows of an announced step, in announced order, when its turn has come."""

    member: str
    step: int
    early: bool = True


class LookupStepPooled(
    Command[results.RowsRead], effect=Effect.READS, right=Right.WRITE, reads=Reads.OF_STEP
):
    """Return rows of occurrences of announced keys; occurrences in bags are pooled."""

    member: str
    step: int
    tables: tuple[StepBags, ...]


class ReadStep(Command[results.StepRecords], effect=Effect.READS, right=Right.WRITE):
    """Return weights and state of some announced keys, as soon as they are in the cache.

    The command does not wait for the step's turn: it is for a session whose trainer does not wait
    for updates.
    """

    member: str
    step: int
    tables: tuple[StepPositions, ...]


class UpdateStep(
    Command[AcknowledgedUpdate], effect=Effect.WRITES, retry=Retry.STEP, traits=Trait.ON_DEVICE
):
    """Send one rank's gradients of a step; the last rank's command applies them all (rule 6).

    `rows_checksum` covers the rows from which the gradients were computed: all rows that the rank
    announced (`embstore.arithmetic.checksum`). If the store's rows differ, no gradient is applied.
    `is_finite`: whether rule 9 accepts the whole update, of all ranks and shards, if the sender
    knows it; None: the store that receives the whole update checks it.
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
    """Write rows of a hot replica, of several tables of the member's session."""

    member: str
    tables: tuple[StepPut, ...]
