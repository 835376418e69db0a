"""Commands of the steps of a session: they return the rows of a step, and finish it."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from embstore import results
from embstore.arrays import Inverse, Keys, Rows
from embstore.commands.base import Command, Effect, Part, Reads, Retry, Right, Trait
from embstore.commands.rows import Bags, UpdateOptions
from embstore.results import AcknowledgedUpdate


class StepGradients(Part):
    """Gradients of one table in a step.

    Without `positions` and `inverse`, there is one gradient per announced key, (u, dim), in
    announced order. `positions`, (n,), ascending, are the indices of the announced keys that have a
    gradient; gradients are (n, dim). `inverse`, (n,), is the index of the announced key of each
    occurrence, in any order, repeats allowed; gradients are (n, dim), or (bags, dim) for the bags
    of the occurrences. With `inverse`, the gradients of each key are summed (rules 2, 8). Keys
    without a gradient are not updated.
    """

    table: str
    gradients: Rows
    positions: Inverse | None = None
    inverse: Inverse | None = None
    bags: Bags | None = None


@runtime_checkable
class RowsChecksum(Protocol):
    """The checksum of a step's rows. Each shard is sent the checksum of its own rows. Any thread
    can use the object."""

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
    """Return the rows of an announced step, in announced order, once all earlier steps are finished
    (the step's turn). With `early`, a server sends rows that no unfinished earlier step touches
    already before that turn, in a separate answer."""

    member: str
    step: int
    early: bool = True


class LookupStepPooled(
    Command[results.RowsRead], effect=Effect.READS, right=Right.WRITE, reads=Reads.OF_STEP
):
    """Return rows for occurrences of announced keys. Occurrences in bags are pooled."""

    member: str
    step: int
    tables: tuple[StepBags, ...]


class ReadStep(Command[results.StepRecords], effect=Effect.READS, right=Right.WRITE):
    """Return weights and state of the rows of some announced keys, as soon as the rows are in the
    cache.

    The command does not wait until earlier steps are finished. It is for a session whose trainer
    does not wait for updates.
    """

    member: str
    step: int
    tables: tuple[StepPositions, ...]


class UpdateStep(
    Command[AcknowledgedUpdate], effect=Effect.WRITES, retry=Retry.STEP, traits=Trait.ON_DEVICE
):
    """Send one rank's gradients of a step. The command of the last rank applies the gradients of
    all ranks (rule 6).

    `rows_checksum` covers the rows from which the gradients were computed: all rows that the rank
    announced (`embstore.arithmetic.checksum`). If the store's rows differ, no gradient is applied.
    `is_finite` states whether rule 9 (finite gradients) accepts the whole update, of all ranks and
    shards. None: the sender does not know; the store receives the whole update, and checks it.
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
    """Write rows of a hot replica (a trainer's copy of the hot rows), in several tables of the
    session of `member`."""

    member: str
    tables: tuple[StepPut, ...]
