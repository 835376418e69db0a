"""A session as one rank has it, also over restarts of the server and leases that ran out.

A session ends with its server's process. Its place is left, the last finished step, as durable as
the rows. Therefore a loop can go on behind a restart, if nothing was lost: the session is opened
again at its place, steps that are announced and not finished are announced again, and the call that
was out is repeated. A step that was sent to be finished, and is not after the place, has been
finished: it is not sent again, and only its answer is lost.

A trainer that was killed keeps its place until its lease has run out, which ends the session. For a
restart at once, joining a session waits for that: it is opened and joined, over and over. The rank
chooses the token by which it joins, so that it can leave a session even if the answer to its join
was lost.

**Which call notices.** The first call whose answer is that its member is unknown, on any thread: of
the loop, of the announcements, or the renewal of the lease, so that a rank that computes takes its
place again as well. It opens the session again while the other threads wait for it, and their calls
are then repeated with the new member. A call of the old member does nothing at the new server.

**Several tries.** Coming back may fail, as another server of a cluster is started again meanwhile.
It is tried again as the same member, which is closed only when there is no other try: a router over
shards takes a closed member for the end of the run, and forgets the steps that its rank has sent.

**A trainer that was stopped** for longer than its lease comes back in the same way: its session has
ended, at a server that knows all of it (`LeaseExpiredError`). Its tables were free meanwhile, so it
goes on only if their t is its own still.

**The conditions.** A session that ended otherwise (a rank failed, another client closed it) is not
opened again: the server's process is the same then. Nor is one whose store is in another epoch,
which has lost commands: a rank that did not learn that a step was finished would also repeat it,
while others know it as finished. And a place that this rank has not brought about belongs to
another trainer. If one of several ranks loses its lease, that is a failure to all of them
(`RankFailedError`), since the others cannot distinguish a rank that is stopped from one that is
dead.

**Several ranks.** Each finds out for itself, and takes its place at the new server; they wait for
one another as ever. Those whose step was not finished send it again, and the sums are the same.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from secrets import token_hex
from time import monotonic, sleep
from typing import NoReturn, TypeVar

from embstore.arrays import Keys
from embstore.errors import (
    EmbstoreError,
    InvalidArgumentError,
    LeaseExpiredError,
    OutcomeUnknownError,
    SessionExpiredError,
    TableHeldError,
    TableNotFoundError,
)
from embstore.handles.run_options import RunOptions
from embstore.handles.sessions import Serving, Sessions
from embstore.results import AcknowledgedUpdate, Membership, SessionFacts
from embstore_training.lease import Lease

T = TypeVar("T")

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.05, 0.5
_LEAVE_S = 1.0
"""How long leaving takes at most where it is of little use: the lease ends the place as well."""


@dataclass(frozen=True)
class Opening:
    """The arguments with which a rank opens its session, each time."""

    name: str
    tables: tuple[str, ...]
    options: RunOptions

    def opened(self, sessions: Sessions) -> SessionFacts:
        """Open the session, or find it open."""
        options = self.options
        return sessions.open(
            self.name,
            self.tables,
            lookahead_steps_max=options.lookahead,
            world_size=options.world_size,
            planner=options.planner,
            shared=options.shared,
            lease_ms=options.lease_ms,
            rank_timeout_ms=options.rank_timeout_ms,
            waits=options.waits,
        )

    @property
    def patience_s(self) -> float:
        """Seconds to wait for the rank's place and its tables: for the lease of a trainer that was
        killed, or for other ranks that are still to leave the session before."""
        options = self.options
        if options.wait_s is not None:
            return options.wait_s
        patience_ms = 1.5 * options.lease_ms
        if options.world_size > 1:
            patience_ms = max(patience_ms, options.rank_timeout_ms)
        return patience_ms / 1000


class RankSession:
    """A rank's session from joining to leaving. Any thread; steps are finished one by one, or, in a
    session with waits="none", several at once."""

    def __init__(self, sessions: Sessions, opening: Opening) -> None:
        """Open the session and join it; wait until its place and its tables are free.

        Raises
        ------
        TableHeldError : another trainer keeps the place, or other sessions the tables.
        """
        self._sessions, self._opening = sessions, opening
        self._resuming = threading.Lock()  # Held while the session is opened again.
        self._guard = threading.Lock()  # Of the fields below, for a moment.
        self._member: str | None = None  # None once the rank has left.
        self._joining: str | None = token_hex(16)  # The member to come; None: it has come.
        self._unfinished: dict[int, Mapping[str, Keys]] = {}  # Announced to this member, by step.
        self._sent_step = 0  # The last that was sent to be finished.
        self._has_ended = False  # It has no more steps; others may go on.
        self._lost: EmbstoreError | None = None  # Why it cannot go on.
        self._t: dict[str, int] = {}  # Of each table, after all that was acknowledged here.
        self._lease: Lease | None = None
        self._serving = sessions.serving()
        self.facts: SessionFacts
        """The session as it was when it was joined last."""
        self._place = 0  # When the session was joined last.
        self.last_step = 0
        """The last step known to be finished."""
        try:
            membership = self._join(self._joining)
            self._member, self._joining = membership.member, None
            self._place = self.last_step = membership.last_step
            self._lease = Lease(self._renew, self.facts.lease_ms)
        except (TableHeldError, SessionExpiredError):
            raise
        except BaseException as failure:
            self.leave(failure)
            raise

    def _join(self, member: str) -> Membership:
        opening, begun, pause = self._opening, monotonic(), _PAUSE_FIRST_S
        while True:
            try:
                self.facts = opening.opened(self._sessions)
                return self._sessions.join(opening.name, opening.options.rank, member=member)
            except (TableHeldError, SessionExpiredError):
                left = begun + opening.patience_s - monotonic()
                if left <= 0:
                    raise
            sleep(min(pause, left))
            pause = min(2 * pause, _PAUSE_MAX_S)

    def leave(self, failure: BaseException | None) -> None:
        """Close the session for this rank, after any outcome.

        After a failure, or when the server does not answer any more, it waits no longer than a
        moment: the lease will end the rest.
        """
        with self._guard:
            members = self._member, self._joining  # The store may have taken it unheard.
            self._member = self._joining = None
        try:
            if self._lease is not None:
                self._lease.stop()
        finally:
            with ExitStack() as closing:  # each, even if others fail
                for member in filter(None, members):
                    closing.callback(self._close, member, failure)

    def _close(self, member: str, failure: BaseException | None) -> None:
        is_answered = self._lease is None or self._lease.is_answered
        timeout_s = None if failure is None and is_answered else _LEAVE_S
        try:
            forgets = self._opening.options.name is None  # not known elsewhere: no place to keep
            self._sessions.close(member, forget=forgets, timeout_s=timeout_s)
        except EmbstoreError as exc:
            if failure is None:
                raise
            failure.add_note(f"closing session {self._opening.name!r} failed as well: {exc}")

    @property
    def member(self) -> str:
        """The member that calls of this rank name now, or InvalidArgumentError once it has left."""
        member = self._member
        if member is None:
            raise InvalidArgumentError("expected the run to be used inside its with block")
        return member

    # Calls

    def call(self, work: Callable[[str], T]) -> T:
        """Return the result of `work`, called with the member; it is repeated in a session that was
        opened again, so it must bear that.

        Raises
        ------
        SessionExpiredError : the session has ended otherwise, or its server has lost commands.
        """
        while True:
            member = self.member
            try:
                done = work(member)
                if isinstance(done, AcknowledgedUpdate):
                    self._note(done)
                return done
            except (SessionExpiredError, OutcomeUnknownError) as ended:
                self._go_on(member, ended)

    def announce(self, steps: Mapping[int, Mapping[str, Keys]]) -> None:
        """Announce steps, each the next one."""

        def announced(member: str) -> str:
            self._sessions.announce(member, steps)
            return member

        while True:
            member = self.call(announced)
            with self._resuming, self._guard:
                if self._member in (member, None):
                    self._unfinished.update(steps)
                    return
            # It was announced to a server that has gone since.

    def end_steps(self) -> None:
        """Declare that this rank has no more steps, and wait until no rank has."""

        def ended(member: str) -> int:
            return self._sessions.announce(member, {}, is_last=True).ranks_at_work

        self._has_ended, pause = True, _PAUSE_FIRST_S
        while self.call(ended):
            sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)
        self.last_step = self.call(self._sessions.renew).last_step

    def finish(
        self, number: int, verb: str, send: Callable[[str], AcknowledgedUpdate]
    ) -> AcknowledgedUpdate:
        """Finish a step as "updated", "released" or "skipped", once, by a call of the member.

        Returns
        -------
        If the step was done and its answer is lost: command number 0, and the tables' t.
        """

        def finished(member: str) -> AcknowledgedUpdate:
            if self._place >= number:
                return self._found_finished(verb)
            with self._guard:  # several may be sent at once
                self._sent_step = max(self._sent_step, number)
            try:
                return send(member)
            except LeaseExpiredError:  # it was not done, nor were those after it
                with self._guard:
                    self._sent_step = min(self._sent_step, number - 1)
                raise

        done = self.call(finished)
        with self._guard:
            self._unfinished.pop(number, None)
            self.last_step = max(self.last_step, number)
        return done

    def _note(self, done: AcknowledgedUpdate) -> None:
        """Note t: among concurrent calls the later answer may come first."""
        with self._guard:
            for name, t in done.t.items():
                self._t[name] = max(t, self._t.get(name, t))

    def _found_finished(self, verb: str) -> AcknowledgedUpdate:
        """Return the answer of the step at the place, as far as the tables show it."""
        t = self._sessions.t(self._opening.tables)
        is_unapplied = verb == "updated" and t == self._t
        return AcknowledgedUpdate(0, t, skipped=verb == "skipped" or is_unapplied)

    def _renew(self, timeout_s: float) -> None:
        self.call(lambda member: self._sessions.renew(member, timeout_s=timeout_s))

    # After a restart, or a lease that ran out

    def _go_on(self, member: str, ended: EmbstoreError) -> None:
        """Open the session again, if `member` was joined at a server that was started again since,
        or was silent for too long.

        Raises `ended` where it was not; SessionExpiredError: the server has lost something.
        """
        with self._resuming:
            if self._member != member:
                return  # Another thread was here, or the rank has left.
            if self._lost is not None:
                raise type(self._lost)(*self._lost.args)
            process = self._serving.process
            while True:
                serving = self._sessions.serving()
                if serving.process == process and not self._was_silent(member, ended):
                    raise ended
                with self._guard:
                    if self._member is None:
                        return  # The rank has left.
                    self._joining = self._joining or token_hex(16)
                try:
                    self._resume(self._joining, serving)
                    return
                except (SessionExpiredError, OutcomeUnknownError) as again:
                    if self._lost is not None:
                        raise
                    process, ended = serving.process, again

    def _was_silent(self, member: str, ended: EmbstoreError) -> bool:
        """Return whether a member's session has ended with its lease."""
        if isinstance(ended, OutcomeUnknownError):  # which does not say how
            try:
                self._sessions.renew(member)
            except EmbstoreError as exc:
                ended = exc
        return isinstance(ended, LeaseExpiredError)

    def _resume(self, member: str, serving: Serving) -> None:
        try:
            try:
                self._join(member)
            except (TableNotFoundError, TableHeldError) as refused:
                if serving.epoch != self._serving.epoch:
                    what = "commands after the last commit are lost"
                    self._end(f"{what}; it cannot be opened: {refused}", serving)
                raise
            if self._sessions.serving() != serving:
                raise SessionExpiredError("the server was restarted while the rank joined")
            known = self.last_step  # Before the place: calls of the member before may still end.
            place = self._sessions.renew(member).last_step
            self._check_kept(known, place, serving)
            with self._guard:
                unfinished = list(self._unfinished.items())
            for number, keys in unfinished:
                self._sessions.announce(member, {number: keys})
            self._place, self._serving = place, serving
            with self._guard:
                if self._member is None:
                    raise SessionExpiredError("the rank has left the session meanwhile")
                self._member, self._joining = member, None
                if self._lease is not None and self._lease.has_ended:  # by a store that had failed
                    self._lease = Lease(self._renew, self.facts.lease_ms)
        except BaseException as failure:
            if self._lost is not None or self._member is None:  # it is not tried again
                self._close(member, failure)
            raise

    def _check_kept(self, known: int, place: int, serving: Serving) -> None:
        """Raise SessionExpiredError unless the server has the steps that this rank knew to be
        finished, and no others."""
        last = max(self.last_step, self._sent_step)
        if place < known:
            first = place + 1
            steps, were, are = f"steps {first} to {known}", "were", "are"
            if first == known:
                steps, were, are = f"step {known}", "was", "is"
            what = (
                f"{steps}, which {were} finished, {are} lost, because neither a commit nor the "
                f"command log had them. Restore your model to step {place}, and"
            )
        elif place > last and not self._has_ended:
            what = f"another process has trained on from step {last}, the last of this rank;"
        elif serving.epoch != self._serving.epoch:
            what = (
                "no finished step of this rank is lost, but writes of other clients may be: step "
                f"{place} is the last one that the server has, and commands since the last commit "
                "may be gone. Read t of the tables, and"
            )
        elif serving.process == self._serving.process and self._was_written(place - known):
            what = (
                "other clients have written to its tables meanwhile, and this rank may have "
                "looked up older rows. To go on from the rows of the store,"
            )
        else:
            return
        self._end(f"{what} open the session again: it goes on after step {place}", serving)

    def _was_written(self, own_steps: int) -> bool:
        """Return whether t of a table has grown by more than some steps of this rank, whose answers
        were lost."""
        if self._opening.options.shared:
            return False
        found = self._sessions.t(self._opening.tables)
        return any(not 0 <= found[name] - t <= own_steps for name, t in self._t.items())

    def _end(self, why: str, serving: Serving) -> NoReturn:
        """Stop going on: keep the reason, and raise it."""
        is_other = serving.process != self._serving.process
        what = "the server was restarted" if is_other else "its lease had run out"
        self._lost = SessionExpiredError(f"session {self._opening.name!r}: {what}, and {why}")
        raise self._lost
