"""The session of one rank, which survives restarts of the server and expired leases.

A session ends with its server's process, but the store keeps the session's resume position. This
position is the number of the last finished step, and is as durable as the rows. Therefore a loop
can continue after a restart if nothing was lost. The session is opened again at its position, steps
that are announced and not finished are announced again, and the unanswered call is repeated. A call
to finish a step may have been sent before the restart. If the step's number is not above the
position, the step has been finished: it is not sent again, and only its answer is lost.

A trainer that was killed keeps its rank until its lease has expired, which ends the session. If the
trainer is restarted at once, joining waits for this end: the session is opened and joined again and
again. The rank chooses the member, the secret by which it joins. So it can leave a session even if
the answer to its join was lost.

**Detection.** The recovery starts with the first call for which the server answers that it does not
know the member. This can be a call of the loop, an announcement, or a renewal of the lease, so a
rank that computes recovers as well. The thread of this call opens the session again while other
threads wait. Then the calls of all threads are repeated with the new member. A call with the old
member has no effect at the new server.

**Retries.** Recovery may fail, for example because another server of a cluster is restarting. Then
it is retried with the same member. The member is closed only when there is no further attempt: for
a router over shards, a closed member is the end of the run, and the router forgets the steps that
the rank has sent.

**A trainer that was suspended** for longer than its lease recovers in the same way: its session has
ended, and the server knows the session's position (`LeaseExpiredError`). Other clients could write
to the session's tables meanwhile, as after a restart. So the trainer continues only if no other
client has changed a row of these tables (`SessionFacts.written`).

**Conditions.** A session that ended otherwise (a rank failed, another client closed it) is not
opened again; such an end is recognized by the unchanged process of the server. A session is also
not opened again if the store is in another epoch, because commands were lost: a rank that did not
receive the answer to a finished step would repeat that step, while other ranks know it as finished.
If the steps of this rank cannot have led to the position, another trainer has continued the
session, and this rank does not open it again. If one of several ranks loses its lease, all ranks
fail (`RankFailedError`), since the other ranks cannot distinguish a suspended rank from a dead one.

**Several ranks.** Each rank detects the restart by itself, and joins at the new server; then the
ranks wait for one another as usual. Ranks whose step was not finished send it again, and the sums
are the same.
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
"""Maximum seconds for leaving a session whose server may not answer: the lease would end the
session, too."""


@dataclass(frozen=True)
class Opening:
    """The arguments with which a rank opens its session, each time."""

    name: str
    tables: tuple[str, ...]
    options: RunOptions

    def opened(self, sessions: Sessions) -> SessionFacts:
        """Open the session, if it is not open; return its facts."""
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
        """Seconds to wait until the rank and its tables are free: until the lease of a killed
        trainer has expired, or other ranks have left the previous session."""
        options = self.options
        if options.wait_s is not None:
            return options.wait_s
        patience_ms = 1.5 * options.lease_ms
        if options.world_size > 1:
            patience_ms = max(patience_ms, options.rank_timeout_ms)
        return patience_ms / 1000


class RankSession:
    """A rank's session from joining to leaving. Any thread can use it. Steps are finished one after
    the other or, with waits="none", concurrently."""

    def __init__(self, sessions: Sessions, opening: Opening) -> None:
        """Open the session and join it; wait until the rank and the tables are free.

        Raises
        ------
        TableHeldError : another trainer occupies the rank, or another session locks the tables.
        """
        self._sessions, self._opening = sessions, opening
        self._resuming = threading.Lock()  # Locked while the session is opened again.
        self._guard = threading.Lock()  # Guards the fields below, for short moments.
        self._member: str | None = None  # None after the rank has left.
        self._joining: str | None = token_hex(16)  # The member while it joins; None: it has joined.
        self._unfinished: dict[int, Mapping[str, Keys]] = {}  # Steps announced for this member.
        self._sent_step = 0  # The last step that was sent to be finished.
        self._has_ended = False  # Whether this rank has no more steps; other ranks may continue.
        self._lost: EmbstoreError | None = None  # Why the session cannot continue.
        self._t: dict[str, int] = {}  # t of each table after all acknowledged steps of this rank.
        self._lease: Lease | None = None
        self._serving = sessions.serving()
        self.facts: SessionFacts
        """The facts of the session when this rank last joined it."""
        self._place = 0  # The resume position when this rank last joined.
        self.last_step = 0
        """The last step known to be finished."""
        try:
            membership = self._join(self._joining)
            self._written = self.facts.written
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
        """Close the session for this rank, whether the run has succeeded or failed.

        After a failure, or if the server no longer answers, this takes at most a moment, because
        the lease will end the session.
        """
        with self._guard:
            members = self._member, self._joining  # The store may have accepted a join unanswered.
            self._member = self._joining = None
        try:
            if self._lease is not None:
                self._lease.stop()
        finally:
            with ExitStack() as closing:  # close each member, even if closing another one fails
                for member in filter(None, members):
                    closing.callback(self._close, member, failure)

    def _close(self, member: str, failure: BaseException | None) -> None:
        is_answered = self._lease is None or self._lease.is_answered
        timeout_s = None if failure is None and is_answered else _LEAVE_S
        try:
            forgets = self._opening.options.name is None  # without a name, a position is of no use
            self._sessions.close(member, forget=forgets, timeout_s=timeout_s)
        except EmbstoreError as exc:
            if failure is None:
                raise
            failure.add_note(f"closing session {self._opening.name!r} failed as well: {exc}")

    @property
    def member(self) -> str:
        """The present member for calls of this rank; InvalidArgumentError after the rank has
        left."""
        member = self._member
        if member is None:
            raise InvalidArgumentError("expected the run to be used inside its with block")
        return member

    # Calls

    def call(self, work: Callable[[str], T]) -> T:
        """Return the result of `work`, called with the member. If the session has to be opened
        again, `work` is called once more with the new member, so `work` must allow repetition.

        Raises
        ------
        SessionExpiredError : the session has ended for another reason, or its server has lost
            commands.
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
        """Announce consecutive steps, beginning with the next step."""

        def announced(member: str) -> str:
            self._sessions.announce(member, steps)
            return member

        while True:
            member = self.call(announced)
            with self._resuming, self._guard:
                if self._member in (member, None):
                    self._unfinished.update(steps)
                    return
            # The server that received the announcement has restarted since.

    def end_steps(self) -> None:
        """Declare that this rank has no more steps, and wait until no rank has more steps."""

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
        """Finish a step as "updated", "released" or "skipped", once, by a call with the present
        member.

        Returns
        -------
        The answer. If the step was executed and its answer was lost, the answer has the command
        number 0, and the tables' t.
        """

        def finished(member: str) -> AcknowledgedUpdate:
            if self._place >= number:
                return self._found_finished(verb)
            with self._guard:  # several steps may be sent concurrently
                self._sent_step = max(self._sent_step, number)
            try:
                return send(member)
            except LeaseExpiredError:  # this step and later ones were not executed
                with self._guard:
                    self._sent_step = min(self._sent_step, number - 1)
                raise

        done = self.call(finished)
        with self._guard:
            self._unfinished.pop(number, None)
            self.last_step = max(self.last_step, number)
        return done

    def _note(self, done: AcknowledgedUpdate) -> None:
        """Keep each table's largest t: answers of concurrent calls may arrive in any order."""
        with self._guard:
            for name, t in done.t.items():
                self._t[name] = max(t, self._t.get(name, t))

    def _found_finished(self, verb: str) -> AcknowledgedUpdate:
        """Return the answer for the step at the resume position, as far as it can be read from the
        tables."""
        t = self._sessions.t(self._opening.tables)
        is_unapplied = verb == "updated" and t == self._t
        return AcknowledgedUpdate(0, t, skipped=verb == "skipped" or is_unapplied)

    def _renew(self, timeout_s: float) -> None:
        self.call(lambda member: self._sessions.renew(member, timeout_s=timeout_s))

    # After a restart, or a lease that ran out

    def _go_on(self, member: str, ended: EmbstoreError) -> None:
        """Open the session again, if the server was restarted since `member` joined, or if the
        member's lease expired.

        Raises `ended` if neither is the case, and SessionExpiredError if the server has lost
        commands.
        """
        with self._resuming:
            if self._member != member:
                return  # Another thread has opened the session, or the rank has left.
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
        """Return whether a member's session has ended because its lease expired."""
        if isinstance(ended, OutcomeUnknownError):  # the error does not show how the session ended
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
            known = self.last_step  # Read before `place`: calls of the old member may still end.
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
                if self._lease is not None and self._lease.has_ended:  # the store had failed
                    self._lease = Lease(self._renew, self.facts.lease_ms)
        except BaseException as failure:
            if self._lost is not None or self._member is None:  # there is no further attempt
                self._close(member, failure)
            raise

    def _check_kept(self, known: int, place: int, serving: Serving) -> None:
        """Raise SessionExpiredError unless the server has exactly the finished steps of this rank:
        all steps that the rank knows to be finished, and no step that it has not sent."""
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
                "no acknowledged step of this rank is lost, but writes of other clients may be: "
                f"step {place} is the last one that the server has, and commands since the last "
                "commit may be gone. Read t of the tables, and"
            )
        elif self._was_written():
            what = (
                "other clients have written to its tables meanwhile, and this rank has older rows. "
                "To go on from the rows of the store,"
            )
        else:
            return
        self._end(f"{what} open the session again: it goes on after step {place}", serving)

    def _was_written(self) -> bool:
        """Return whether another client has changed rows of the tables since this rank joined. This
        is so if another client's command was executed after the session's last command, and this
        rank did not know that command yet when it joined."""
        if self._opening.options.shared:
            return False
        shards = zip(self.facts.written, self._written, strict=False)
        return any(now not in (0, then) for now, then in shards)

    def _end(self, why: str, serving: Serving) -> NoReturn:
        """Note why the session cannot continue, and raise this reason as an error."""
        is_other = serving.process != self._serving.process
        what = "the server was restarted" if is_other else "its lease had run out"
        self._lost = SessionExpiredError(f"session {self._opening.name!r}: {what}, and {why}")
        raise self._lost
