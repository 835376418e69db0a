"""The calls that steps make in a run with waits="none", which keeps their rows at the trainer."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from embstore import commands as c
from embstore.arrays import Rows, as_rows, on_host
from embstore.checks import checked
from embstore.commands import UpdateOptions
from embstore.errors import DeadlineError, EmbstoreError, InvalidArgumentError
from embstore.handles.sessions import Sessions, SomeGradients, step_gradients
from embstore.results import AcknowledgedUpdate, TableDescription
from embstore_training.bags import Forms, Of
from embstore_training.exchange import OwnUpdate, SessionExchange, finishing, made
from embstore_training.rank_session import RankSession
from embstore_training.read_ahead import Entry
from embstore_training.replicas.ranks import AllGather, Verb, meet
from embstore_training.times import Times
from embstore_training.write_behind.pieces import Wanted, pieces
from embstore_training.write_behind.rows import ArrivedRows, RowsInFlight, StepSums
from embstore_training.write_behind.sending import Sending
from embstore_training.write_behind.slots import Placed, TableSlots
from embstore_training.write_behind.workers import Workers

_ANSWER_S = 1.0
"""Seconds within which the store must answer a call at the end of a failed run; otherwise the end
does not wait for the steps that were sent."""

_VERBS = {"released": Verb.RELEASE, "skipped": Verb.SKIP}


@dataclass
class _Flight:
    """The state of one step, apart from its batch."""

    placed: dict[str, Placed]
    is_expected: bool = False  # Whether its new rows, if any, have been requested.
    came: "Future[list[ArrivedRows]] | None" = None  # The new rows; None: no new rows.
    is_admitted: bool = False
    asked_on: bool = False  # Whether the rows of the following steps were requested.


class WriteBehind(SessionExchange):
    """The calls that steps make. Only the loop's thread makes them, except for `prepare`."""

    def __init__(
        self,
        sessions: Sessions,
        session: RankSession,
        times: Times,
        *,
        depth: int,
        all_gather: AllGather | None,
    ) -> None:
        super().__init__(sessions, session, times)
        self.is_embedded = False
        self._depth, self._all_gather = depth, all_gather
        self._readers = Workers(depth, "embstore-reader")
        self._sending: Sending | None = None  # None before the first loop.
        self._slots: dict[str, TableSlots] = {}  # For the reader's thread.
        self._is_torn = False  # Whether an interrupt may have come after applying, before sending.

    # A loop

    def begin_loop(self) -> None:
        """Drop all rows, and read t and rates. All earlier steps must be finished.

        Raises
        ------
        InvalidArgumentError : an earlier step is not finished, because sending that step has
            failed.
        """
        if self._sending is not None:
            if self._sending.has_failed:
                raise InvalidArgumentError(
                    "expected the run to end after a step that could not be sent; open it again: "
                    f"it goes on after step {self._session.last_step}"
                )
            self._sending.stop()
        tables, window = self.sessions.tables(self._session.facts.tables), 2 * self._depth
        self._rows = self._made_rows(tables, window)
        self._slots = {name: TableSlots(window) for name in tables}
        self._bytes_max = self.sessions.call_bytes_max()
        self._sending = Sending(
            self._session, self._depth, self._bytes_max, self._acknowledged, self._failed
        )

    def _made_rows(self, tables: Mapping[str, TableDescription], window: int) -> RowsInFlight:
        return RowsInFlight(tables, window, self._all_gather)

    def _acknowledged(self, number: int) -> None:
        if (ahead := self.ahead) is not None:
            ahead.finish(number)

    def _failed(self, failure: BaseException) -> None:
        if (ahead := self.ahead) is not None:
            ahead.fail(failure)

    def prepare(self, entry: Entry) -> None:
        """Assign slots to the keys of the next step. The reader's thread calls this."""
        slots = self._slots
        entry.flight = _Flight(
            {name: slots[name].place(keys, entry.number) for name, keys in entry.keys.items()}
        )

    def begin(self, entry: Entry) -> None:
        """Begin a step. Its rows have been requested already, except for a loop's first step. For
        that step, request its rows and the rows of the next steps now."""
        self._current = entry
        if not entry.flight.is_expected:
            self._ask(entry)
            self._ask_on(entry)

    def _ask_on(self, entry: Entry) -> None:
        """Request the rows of the next steps, as far as the steps are announced."""
        entry.flight.asked_on = True
        for following in self.ahead.announced(self._depth) if self.ahead is not None else ():
            if following.number <= entry.number + self._depth:
                self._ask(following)

    def _ask(self, entry: Entry) -> None:
        flight: _Flight = entry.flight
        if not flight.is_expected:
            flight.is_expected = True
            self._rows.expect(flight.placed)
            if any(len(places.new) for places in flight.placed.values()):
                flight.came = self._readers.submit(lambda: self._read(entry))

    def _read(self, entry: Entry) -> list[ArrivedRows]:
        """Read the new rows of a step, and write them to their slots. Any thread can call this."""
        rows, placed, read = self._rows, entry.flight.placed, self.sessions.read_step
        new = {name: places.new for name, places in placed.items() if len(places.new)}

        def put(wanted: Wanted) -> list[ArrivedRows]:
            records = self._session.call(lambda member: read(member, entry.number, wanted))
            return rows.put(placed, wanted, records)

        wanted = pieces(new, rows.row_bytes, self._bytes_max)
        return [came for piece in wanted for came in put(piece)]

    def synchronize(self) -> None:
        """Wait until every finished step is acknowledged."""
        if self._sending is not None:
            self._sending.synchronize()

    def close(self, failure: BaseException | None) -> None:
        """Wait until the sent steps are acknowledged, and end the threads.

        After a failure this waits only if the store still answers.
        """
        try:
            if failure is not None and self._sending is not None and self._sending.is_behind:
                self.sessions.renew(self._session.member, timeout_s=_ANSWER_S)
            self.synchronize()
        except EmbstoreError as exc:
            sent = 0 if self._sending is None else self._sending.last_number
            if sent > self._session.last_step:
                (failure or exc).add_note(
                    f"steps {self._session.last_step + 1} to {sent}, which the loop has finished, "
                    "were not acknowledged, and may be lost; open the session again, and train "
                    f"them again{'' if failure in (None, exc) else f': {exc}'}"
                )
            if failure is None:
                raise
        finally:
            self._readers.stop()
            if self._sending is not None:
                self._sending.stop()

    # A step

    def lookup(self, entry: Entry, forms: Forms) -> dict[str, Any]:
        """Return a step's rows in the units of `forms`, made from its distinct rows. Wait for rows
        that have been requested and have not arrived."""
        rows = self.rows(entry)
        self.send_for_next()
        return made(rows, entry, forms)

    def send_for_next(self, most: int | None = None) -> None:
        """Let threads send steps and request rows, now that the loop begins to compute."""
        if self._sending is not None:
            self._sending.go_on()
        if not self._current.flight.asked_on:
            self._ask_on(self._current)

    def rows(self, entry: Entry) -> dict[str, Rows]:
        """Return the rows of a step's unique keys."""
        with self._times.part("lookup"):
            return self._rows.lookup(self._admitted(entry))

    def _admitted(self, entry: Entry) -> dict[str, Placed]:
        flight: _Flight = entry.flight
        if self._is_torn:
            raise InvalidArgumentError(
                "expected the run to end after an update that was interrupted; open it again"
            )
        if not flight.is_admitted:
            self._rows.admit(flight.placed, entry.keys, self._came(entry))
            flight.is_admitted = True
        return flight.placed

    def _came(self, entry: Entry) -> list[ArrivedRows]:
        """Wait for a step's new rows, and return which rows have arrived."""
        flight: _Flight = entry.flight
        if flight.came is None:
            return []
        try:
            return flight.came.result()
        except DeadlineError:  # the call began long before the step's turn
            return self._read(entry)

    def _sent(self, table: str, entry: Entry, of: Of, values: Any) -> Any:
        """Return sums by key on the host, where the sums are applied."""
        return super()._sent(table, entry, of, on_host(values))

    def _finished(
        self,
        entry: Entry,
        verb: str,
        sums: Mapping[str, Any] | None = None,
        options: UpdateOptions | None = None,
    ) -> AcknowledgedUpdate:
        """Finish a step at the trainer as "updated", "released" or "skipped", and queue it for the
        store.

        This waits only while `depth` steps are not acknowledged.
        """
        with self._times.part("send"):
            assert self._sending is not None, "the loop has begun"
            self._sending.make_room()
            number, flight = entry.number, entry.flight
            self._admitted(entry)
            if not flight.asked_on:
                self._ask_on(entry)
            if verb != "updated" or options is None:
                meet(self._all_gather, _VERBS[verb])
                send = finishing(self.sessions, number, verb)
                self._sending.send(number, verb, 0, send)
                return AcknowledgedUpdate(0, self._rows.t, skipped=verb == "skipped")
            own, given = self._own(entry, sums or {}, options)
            checksum = self._rows.checksum(flight.placed)
            self._is_torn = True
            try:
                is_applied = self._rows.update(number, given, options)
            except InvalidArgumentError:  # refused as a whole
                self._is_torn = False
                raise
            judged = OwnUpdate(checksum, is_finite=is_applied)
            send = finishing(self.sessions, number, verb, own, options, judged=judged)
            size = sum(
                self._rows.gradient_bytes(name) * len(of.slots) for name, of in given.items()
            )
            self._sending.send(number, verb, size, send)
            self._is_torn = False
            return AcknowledgedUpdate(0, self._rows.t, skipped=not is_applied)

    def _own(
        self, entry: Entry, sums: Mapping[str, Any], options: UpdateOptions
    ) -> tuple[dict[str, Any], dict[str, StepSums]]:
        """Return a step's sums in two forms: the form to send, and the form to apply.

        Raises InvalidArgumentError for every mistake for which the store would refuse the step.
        """
        parts = tuple(step_gradients(name, given) for name, given in sums.items())
        command = checked(c.UpdateStep(self._session.member, entry.number, parts, options))
        sent: dict[str, Any] = {}
        applied: dict[str, StepSums] = {}
        for part in command.tables:
            name, positions = part.table, part.positions
            keys, slots = entry.once[name].keys, entry.flight.placed[name].slots
            if positions is not None:
                if len(positions) and positions[-1] >= len(keys):
                    raise InvalidArgumentError(
                        f"table {name!r}: expected positions below {len(keys)}, the number of "
                        f"announced keys, found {positions[-1]}"
                    )
                positions = positions.copy()
                keys, slots = keys[positions], slots[positions]
            shape = len(keys), self._rows.dim(name)
            rows = np.array(as_rows(part.gradients, shape, name, "gradients"))
            applied[name] = StepSums(keys, rows, slots)
            sent[name] = rows if positions is None else SomeGradients(positions, rows)
        return sent, applied
