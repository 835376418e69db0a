"""The exchange of rows and gradients between the steps of one run and its session.

Steps call only an `Exchange`. `SessionExchange` exchanges rows and gradients with a store:

    on a server   each key is sent once, and gradients as sums (contract.md, rule 2), in announced
                  order, so that neither side has to search for them. Rows of the next step are
                  requested while the loop works on the present step. Bags are pooled by the store,
                  or here, if their rows arrive early anyway (`Step.lookup_pooled`)
    embedded      nothing is sent: on its device, the store spreads and pools rows and sums
                  gradients, and it accepts and returns arrays in the device's memory
    server's GPU  the server shares its GPU's memory with this process: the same as embedded, for
                  steps whose rows are wanted on the device. Only the positions of the keys are
                  sent

Each call is made with the rank's present member. The seconds for which the loop waits are counted
(`times`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import sum_by_key
from embstore.arrays import Rows, is_on_device
from embstore.checks.arguments import one_of
from embstore.commands import RowsChecksum, RowsWhere, UpdateOptions
from embstore.errors import InvalidArgumentError
from embstore.handles.sessions import BagGradients, MakeRows, Sessions, SomeGradients, StepBags
from embstore.results import AcknowledgedUpdate
from embstore_training.bags import Forms, Of, as_gradients, bag_count, made_of, of_each_key, summed
from embstore_training.rank_session import RankSession
from embstore_training.read_ahead import Entry, OnceKeys, ReadAhead
from embstore_training.times import Times

Given = Mapping[str, tuple[Of, Any]]
"""By table, gradients with their unit."""
_IDS_A_BAG = 3
"""The mean number of ids per bag above which a step waits for pooled rows, although its rows could
be sent early: far fewer pooled rows have to be sent."""


def rows_where(given: Any, waits: str, sessions: Sessions) -> RowsWhere:
    """Return the checked argument `rows` of a session: where its steps return their rows."""
    where: RowsWhere = one_of(given, "rows", get_args(RowsWhere))
    if where == "device" and waits == "none" and not sessions.is_embedded:
        raise InvalidArgumentError(
            "expected rows='host' or 'auto' with waits='none', which keeps rows in the host's "
            "memory where the store is in another process, found rows='device'"
        )
    return where


def check_reached(where: RowsWhere, sessions: Sessions) -> None:
    """Refuse rows on a device that this process cannot reach, with the reason."""
    if where != "device":
        return
    try:
        sessions.check_device()
    except InvalidArgumentError as exc:
        raise InvalidArgumentError(
            "expected rows='host' or 'auto' for a store whose device memory this process cannot "
            f"reach, found rows='device': {exc}"
        ) from exc


class Exchange(ABC):
    """The source of steps' rows, and the receiver of their gradients, for the loop's thread."""

    is_embedded = False
    """Whether the store is in this process. If so, the store spreads and pools rows, and sums
    gradients."""
    reaches_device = False
    """Whether rows and gradients of steps can be in the memory of the store's device."""

    @abstractmethod
    def lookup(self, entry: Entry, forms: Forms) -> dict[str, Any]:
        """Return the rows of some of a step's tables, in the units of `forms`."""

    def lookup_into(self, entry: Entry, make: MakeRows) -> dict[str, Any]:
        """Return the rows of a step's distinct keys, in arrays that `make` returns.

        Raises InvalidArgumentError if the store does not fill such arrays.
        """
        raise InvalidArgumentError(
            "expected no `out` where rows do not come from the memory of the store's device, found "
            "one"
        )

    @abstractmethod
    def update(self, entry: Entry, given: Given, options: UpdateOptions) -> AcknowledgedUpdate:
        """Finish a step by an update.

        Raises InvalidArgumentError if gradients have another shape or dtype, or if the store
        refuses the update.
        """

    @abstractmethod
    def finish(self, entry: Entry, verb: str) -> AcknowledgedUpdate:
        """Finish a step as "released" or "skipped"."""


class SessionExchange(Exchange):
    """The calls that steps make to a session. Only the loop's thread makes them, except for
    `prepare`."""

    def __init__(
        self, sessions: Sessions, session: RankSession, times: Times, rows: RowsWhere = "host"
    ) -> None:
        self.sessions = sessions
        self.ahead: ReadAhead | None = None  # None unless a loop runs.
        self._session = session
        self._times = times
        self._rows_where = rows
        self.is_embedded = sessions.is_embedded
        self._sums: dict[
            str, NDArray[np.float32]
        ] = {}  # Buffers by table, of the largest size so far.
        self._whole: dict[str, Rows] | None = (
            None  # Rows of this step that came early, from which its bags are made.
        )

    def begin_loop(self) -> None:
        """Note that a loop begins; all earlier steps are finished."""

    def prepare(self, entry: Entry) -> None:
        """Prepare the next step, which was just read. The reader's thread calls this."""

    def begin(self, entry: Entry) -> None:
        """Note that the loop has taken a step."""
        self._whole = None

    def forget_rows(self) -> None:
        """Note that rows were deleted: rows that have arrived are looked up again."""
        self._whole = None

    def synchronize(self) -> None:
        """Wait until every finished step is acknowledged. In this class, every finished step is
        acknowledged already."""

    def close(self, failure: BaseException | None) -> None:
        """Note that the run ends."""

    # Rows

    def lookup(self, entry: Entry, forms: Forms) -> dict[str, Any]:
        """See `Exchange`."""
        if self.is_embedded or self._is_on_device(entry):
            return self._made_on_device(entry, forms)
        if not any(isinstance(of, StepBags) for of in forms.values()):
            rows = self.rows(entry)
            self.send_for_next()
            return made(rows, entry, forms)
        if self.sessions.rounds_rows:  # the server pools rows, before it rounds them
            return self._pooled(entry, forms)
        if self._whole is None and entry.prefetched is not None:
            self._whole = self.rows(entry)
        came = self._whole
        found = self._pooled(entry, forms) if came is None else made(came, entry, forms)
        outputs = (_count_of(of, entry.once[table]) for table, of in entry.bags.items())
        self.send_for_next(_IDS_A_BAG * sum(outputs))
        return found

    def lookup_into(self, entry: Entry, make: MakeRows) -> dict[str, Any]:
        """See `Exchange`."""
        if not self.is_embedded and not self.reaches_device:
            return super().lookup_into(entry, make)
        entry.prefetched = None  # from a request of a step with rows on the host
        look_up = self.sessions.lookup_step
        with self._times.part("lookup"):
            return self._session.call(lambda member: look_up(member, entry.number, out=make))

    def rows(self, entry: Entry) -> dict[str, Rows]:
        """Return the rows of a step's unique keys."""

        def looked_up(member: str) -> dict[str, Rows]:
            prefetched, entry.prefetched = entry.prefetched, None
            if prefetched is not None and entry.prefetched_by == member:
                return prefetched.result(None)
            return self.sessions.lookup_step(member, entry.number)

        with self._times.part("lookup"):
            return self._session.call(looked_up)

    def _pooled(self, entry: Entry, forms: Forms) -> dict[str, Rows]:
        """Return a step's rows: the store pools the rows of pooled tables; the rows of plain tables
        are spread to their keys here."""
        once = entry.once
        sent = {
            table: of if isinstance(of, StepBags) else _each(once[table])
            for table, of in forms.items()
        }
        look_up = self.sessions.lookup_step_pooled
        with self._times.part("lookup"):
            rows = self._session.call(lambda member: look_up(member, entry.number, sent))
        return {
            table: found if isinstance(forms[table], StepBags) else once[table].spread(found)
            for table, found in rows.items()
        }

    def _made_on_device(self, entry: Entry, forms: Forms) -> dict[str, Any]:
        """Return rows that the store has spread or pooled, on its device or on the host, as
        configured."""
        on_device, number, sessions = self._is_on_device(entry), entry.number, self.sessions
        there = {table: _there(of, entry.once[table]) for table, of in forms.items()}
        with self._times.part("lookup"):
            if len(there) == len(entry.once) and all(of == "unique" for of in there.values()):
                return self._session.call(
                    lambda member: sessions.lookup_step(member, number, on_device=on_device)
                )
            sent = {
                table: of if isinstance(of, StepBags) else _each(entry.once[table])
                for table, of in there.items()
            }
            return self._session.call(
                lambda member: sessions.lookup_step_pooled(
                    member, number, sent, on_device=on_device
                )
            )

    def _is_on_device(self, entry: Entry) -> bool:
        if self._rows_where == "auto":
            return entry.was_on_device and self.reaches_device
        return self._rows_where == "device"

    @cached_property
    def reaches_device(self) -> bool:  # type: ignore[override]
        """See `Exchange`; False if rows are wanted on the host."""
        return self._rows_where != "host" and self.sessions.reaches_device

    def send_for_next(self, most: int | None = None) -> None:
        """Request the rows of the next step, unless that step has more than `most` keys (repeated
        keys are counted) or the store makes that step's rows on the device."""
        following = self.ahead.peek() if self.ahead is not None else None
        if following is None or following.prefetched is not None or self._is_on_device(following):
            return
        count = sum(len(once.inverse) for once in following.once.values())
        if most is None or count <= most:
            following.prefetched_by = member = self._session.member
            following.prefetched = self.sessions.prefetch_step(member, following.number)

    # Gradients

    def update(self, entry: Entry, given: Given, options: UpdateOptions) -> AcknowledgedUpdate:
        """See `Exchange`."""
        sums = {table: self._sent(table, entry, *of_table) for table, of_table in given.items()}
        try:
            return self._finished(entry, "updated", sums, options)
        except BaseException:
            self._sums.clear()  # a call that failed may still read its buffers
            raise

    def _sent(self, table: str, entry: Entry, of: Of, values: Any) -> Any:
        """Return gradients as they are sent: as sums by key, or unchanged if the store sums."""
        once = entry.once[table]
        rows = as_gradients(values, once, of, table)
        if is_on_device(rows) or (self.is_embedded and self._session.facts.world_size == 1):
            there = _there(of, once)
            return BagGradients(there, rows) if isinstance(there, StepBags) else rows
        if isinstance(rows, SomeGradients):
            return rows
        if isinstance(of, StepBags) and of.inverse is not once.inverse:
            return summed(table, once, of, rows)
        return self.sum(table, once, of, rows)

    def sum(self, table: str, once: OnceKeys, of: Of, gradients: Rows) -> Rows:
        """Return the sums by key, (u, dim), in a buffer that the table's next sums reuse."""
        if of == "unique":
            return gradients
        rows = of_each_key(gradients, of)
        if once.is_identity:
            return rows
        count, dim = len(once.keys), rows.shape[1]
        if table not in self._sums or len(self._sums[table]) < count * dim:
            self._sums[table] = np.empty(count * dim, np.float32)
        out = self._sums[table][: count * dim].reshape(count, dim)
        return sum_by_key(once.inverse, count, rows, out)

    def finish(self, entry: Entry, verb: str) -> AcknowledgedUpdate:
        """See `Exchange`."""
        return self._finished(entry, verb)

    def _finished(
        self,
        entry: Entry,
        verb: str,
        sums: Mapping[str, Any] | None = None,
        options: UpdateOptions | None = None,
    ) -> AcknowledgedUpdate:
        """Finish a step as "updated", "released" or "skipped", by a call of this rank's member."""
        send = finishing(self.sessions, entry.number, verb, sums, options)
        with self._times.part("send"):
            done = self._session.finish(entry.number, verb, send)
        if self.ahead is not None:
            self.ahead.finish(entry.number)
        return done


def made(rows: Mapping[str, Rows], entry: Entry, forms: Forms) -> dict[str, Rows]:
    """Return rows in the units of `forms`, made from a step's distinct rows."""
    return {table: made_of(rows[table], entry.once[table], of) for table, of in forms.items()}


def _count_of(of: Of, once: OnceKeys) -> int:
    """Return the number of rows that a lookup returns."""
    return bag_count(of) if isinstance(of, StepBags) else len(once.inverse)


def _each(once: OnceKeys) -> StepBags:
    """Return one occurrence of each distinct key, without bags."""
    return StepBags(np.arange(len(once.keys), dtype=np.int32))


def _there(of: Of, once: OnceKeys) -> Of:
    """Return the unit that is passed to the store: "keys" becomes "unique" if no key is repeated,
    else the single occurrences of the distinct keys; other units are unchanged."""
    if of == "keys":
        return "unique" if once.is_identity else StepBags(once.inverse)
    return of


class OwnUpdate(NamedTuple):
    """The facts about an update that the trainer has applied to its own rows."""

    rows_checksum: RowsChecksum  # of the rows before the update
    is_finite: bool  # whether rule 9 accepts the sums of all ranks; if not, the update is skipped


def finishing(
    sessions: Sessions,
    number: int,
    verb: str,
    sums: Mapping[str, Any] | None = None,
    options: UpdateOptions | None = None,
    *,
    judged: OwnUpdate | None = None,
) -> Callable[[str], AcknowledgedUpdate]:
    """Return a function that is called with a member, and finishes a step as "updated", "released"
    or "skipped".

    judged : the facts about an update that was applied here; None: it was not applied here
    """
    if verb == "released":
        return lambda member: sessions.release_step(member, number)
    if verb == "skipped" or sums is None or options is None:
        return lambda member: sessions.skip_step(member, number)

    def update(member: str) -> AcknowledgedUpdate:
        more: Any = {} if judged is None else judged._asdict()
        return sessions.update_step(
            member,
            number,
            sums,
            learning_rate=options.learning_rates or options.learning_rate,
            gradient_scale=options.gradient_scale,
            on_nonfinite=options.on_nonfinite,
            **more,
        )

    return update
