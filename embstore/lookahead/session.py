"""A session: a trainer's announced steps, in order, and the ranks that share them.

The **name** of a session has a resume position, the number of its last finished step, which is part
of the store's commits. Opening the name creates a live session: it occupies its tables, ranks join
it, and steps are announced, planned and finished. The end of the session (by a close, an expired
lease, a failed rank) releases its pins and tables, and keeps the resume position: a client that
opens the name again resumes at the next step.

A *sync* session is the only writer of its tables. Therefore a row that no unfinished step before
step n uses is final for step n, however early it is read. A *shared* session admits other writers;
its rows are not read early, and a step gets the rows as they are at its turn.

Everything here is used under the lock of the sessions.
"""

import threading
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field, replace
from secrets import token_hex
from time import monotonic

from embstore.checks.sessions import check_planner
from embstore.errors import (
    EmbstoreError,
    InvalidArgumentError,
    LeaseExpiredError,
    RankFailedError,
    SessionExpiredError,
    StepNotFoundError,
)
from embstore.lookahead.clock import Clock
from embstore.lookahead.stats import SessionCounts
from embstore.lookahead.step import Step, Verb
from embstore.lookahead.uses import Uses
from embstore.results import AcknowledgedUpdate, Membership, SessionFacts
from embstore.row_keys import RowKeys
from embstore.tables.owners import owner_of
from embstore.tables.state import TableState

OUTCOMES_MAX = 1024
"""The most finished steps whose outcomes are remembered."""

JOIN_S = 30.0
"""The most seconds for which a session that no rank has joined occupies its tables."""

_PAUSE_S = 2e-3
"""A trainer that takes longer than this between two steps does other work, and does not merely wait
for the store."""

_AHEAD_MAX = 4
"""The most steps for which rows are read at the same time (planner.py)."""
_CALM_STEPS = 64

_PAST = {"update": "updated", "release": "released", "skip": "skipped"}


def same_error(error: EmbstoreError) -> EmbstoreError:
    """Return a copy of an error for another caller, because a traceback belongs to one caller."""
    return type(error)(*error.args)


@dataclass(frozen=True)
class Mode:
    """The mode of planning: the number of steps that are planned as a group, and whether every
    announced step is near enough to be planned."""

    group: int
    is_deep: bool

    @classmethod
    def of(cls, planner: str) -> "Mode":
        """Return the mode for the name of a planner, such as "group:2"."""
        kind, group = check_planner(planner)
        return cls(group, is_deep=kind == "window")


@dataclass(eq=False)
class Rank:
    """One rank of a session."""

    rank: int
    member: str
    deadline: float  # the end of its lease, by the sessions' clock
    announced: int  # its last announced step
    is_closed: bool = False
    is_done: bool = False  # it announces no more steps
    calls: dict[int, int] = field(default_factory=dict)  # number of calls by process; 0: unknown
    alone_since: float | None = (
        None  # by the sessions' clock: since when it is done and waits for absent ranks
    )

    def has_given_all(self, last_step: int) -> bool:
        """Return whether the other ranks no longer need this rank: all its steps are finished, and
        it announces no more steps."""
        return self.is_done and self.announced <= last_step


@dataclass(eq=False)
class Session:
    """A live session: each opening of a session's name makes another object."""

    facts: SessionFacts
    tables: dict[str, TableState]
    mode: Mode
    last_step: int
    clock: Clock
    noted_step: int = 0  # the last step whose uses are known
    planned_step: int = 0  # all steps up to this step are planned
    steps: dict[int, Step] = field(default_factory=dict)  # announced by a rank, and not finished
    ranks: dict[int, Rank] = field(default_factory=dict)
    outcomes: OrderedDict[int, tuple[Verb, AcknowledgedUpdate]] = field(default_factory=OrderedDict)
    error: EmbstoreError | None = None  # why the session ended; None: it is live
    uses: defaultdict[RowKeys, Uses] = field(default_factory=lambda: defaultdict(Uses))
    """The uses of row keys, by kind of row key. Equal row keys of two kinds mean different rows."""
    uses_lock: threading.Lock = field(default_factory=threading.Lock)
    counts: SessionCounts = field(default_factory=SessionCounts)
    waited_s: float = 0.0  # seconds that planning waited for room, until `waiting_since`
    waiting_since: float | None = None  # monotonic seconds; the next step waits for room
    waits_at: int = -1  # `Pinning.releases` when planning last failed for lack of room
    opened: float = field(init=False)  # by the sessions' clock
    turn_since: float = 0.0  # monotonic seconds, when the turn of the next step came
    step_ended: float = 0.0  # monotonic seconds; until the next step's rows are looked up
    is_forgotten: bool = False  # its resume position is deleted at its end
    _asked_step: int = 0
    _stalled_step: int = 0
    _ahead: int = 1
    _calm_steps: int = 0  # steps finished since the last stall, or since `_ahead` was reduced

    def __post_init__(self) -> None:
        self.noted_step = self.planned_step = self.last_step
        self.opened = self.clock.now()

    @property
    def near_step(self) -> int:
        """The last step that may be planned now: just far enough ahead that its rows arrive in time
        (foresight.py); or the step whose rows were last requested, if that step is later."""
        ahead = self.facts.lookahead_steps_max if self.mode.is_deep else self._ahead
        return max(self.last_step + 1 + ahead, self._asked_step)

    def ask(self, number: int) -> None:
        """Note that a rank has requested the rows of a step that is not near."""
        self._asked_step = number

    def count_stall(self, number: int, seconds: float) -> None:
        """Count a lookup that waited for a step's rows; plan one more step ahead for a while."""
        self.counts.stall_s += seconds
        self.counts.stalls += 1
        if number > self._stalled_step:  # once for all ranks
            self._stalled_step = number
            self._ahead, self._calm_steps = min(self._ahead + 1, _AHEAD_MAX), 0

    @property
    def name(self) -> str:
        """The session's name."""
        return self.facts.name

    @property
    def owner(self) -> str:
        """The session's owner; "": the session has no owner."""
        return owner_of(self.name)

    @property
    def lease_s(self) -> float:
        """Seconds for which a rank can be silent."""
        return self.facts.lease_ms / 1000

    def ranks_of(self, number: int) -> list[int]:
        """Return the ranks for which a step waits: all except ranks whose last step was earlier."""
        done = {r.rank for r in self.ranks.values() if r.is_done and r.announced < number}
        return [rank for rank in range(self.facts.world_size) if rank not in done]

    @property
    def ranks_at_work(self) -> int:
        """The number of ranks that can still announce steps."""
        return self.facts.world_size - sum(rank.is_done for rank in self.ranks.values())

    def left_alone(self, rank: Rank, now: float) -> EmbstoreError | None:
        """Return an error if a rank without further steps has waited too long for ranks that never
        joined, or that left before their last step."""
        there = {r.rank for r in self.ranks.values() if r.is_done or not r.is_closed}
        missing = sorted(set(range(self.facts.world_size)) - there)
        if not missing:
            rank.alone_since = None
            return None
        rank.alone_since = now if rank.alone_since is None else rank.alone_since
        if now - rank.alone_since < self.rank_timeout_s:
            return None
        return RankFailedError(
            f"session {self.name!r}: rank {', '.join(map(str, missing))} is missing, and has not "
            "announced its last step; open the session again, it goes on after step "
            f"{self.last_step}"
        )

    @property
    def pause_s(self) -> float:
        """Seconds for which the trainer's next lookup can still be expected at any moment."""
        return self.step_ended + _PAUSE_S - monotonic()

    @property
    def is_between_steps(self) -> bool:
        """Whether the trainer is about to look up the step whose turn has come."""
        step = self.steps.get(self.last_step + 1)
        return self.pause_s > 0 and step is not None and step.is_ready

    @property
    def rank_timeout_s(self) -> float:
        """Seconds for which ranks wait for one another."""
        return self.facts.rank_timeout_ms / 1000

    @property
    def key_bytes(self) -> int:
        """Bytes of the keys of steps that are announced and not finished."""
        return sum(8 * step.key_count for step in self.steps.values())

    @property
    def joined_ranks(self) -> list[Rank]:
        """The ranks that have joined and not left."""
        return [rank for rank in self.ranks.values() if not rank.is_closed]

    @property
    def announced_step(self) -> int:
        """The last step announced by every joined rank that can still announce steps."""
        at_work = [rank.announced for rank in self.joined_ranks if not rank.is_done]
        return min(at_work, default=max(self.steps, default=self.last_step))

    @property
    def held_back_s(self) -> float:
        """Seconds for which planning waited for room."""
        since = self.waiting_since
        return self.waited_s + (0.0 if since is None else monotonic() - since)

    def now(self) -> SessionFacts:
        """Return the session's facts, with the last finished step."""
        return replace(self.facts, last_step=self.last_step)

    def join(self, rank: int, member: str) -> Membership:
        """Make a client a rank. A client that was this rank before resumes its announced steps."""
        before = self.ranks.get(rank)
        announced = self.last_step if before is None else before.announced
        is_done = before is not None and before.is_done  # the registry has checked the member
        chosen, deadline = member or token_hex(16), self.clock.now() + self.lease_s
        self.ranks[rank] = Rank(rank, chosen, deadline, announced, is_done=is_done)
        others_ms = self.facts.rank_timeout_ms if self.facts.world_size > 1 else 0
        return Membership(chosen, self.name, rank, self.last_step, others_ms)

    def finished(self, step: Step, verb: Verb, outcome: AcknowledgedUpdate, now: float) -> None:
        """Note that a step is finished, so that the turn of the next step has come."""
        self.last_step = step.number
        self.turn_since = self.step_ended = now
        self.noted_step = max(self.noted_step, step.number)
        self.planned_step = max(self.planned_step, step.number)
        self.counts.steps_finished += 1
        self._calm_steps += 1
        if self._calm_steps == _CALM_STEPS:
            self._ahead, self._calm_steps = max(self._ahead - 1, 1), 0
        self.steps.pop(step.number, None)
        self.outcomes[step.number] = verb, outcome
        while len(self.outcomes) > OUTCOMES_MAX:
            self.outcomes.popitem(last=False)

    def table(self, name: str, where: str = "") -> TableState:
        """Return a table of the session. Messages of InvalidArgumentError begin with `where`."""
        table = self.tables.get(name)
        if table is None:
            where = where or f"session {self.name!r}"
            raise InvalidArgumentError(
                f"{where}: expected tables of the session, {sorted(self.tables)}, found {name!r}"
            )
        return table

    def announced_by_all(self, number: int) -> bool:
        """Return whether every rank has announced a step."""
        step = self.steps.get(number)
        return step is not None and step.shares.keys() >= set(self.ranks_of(number))

    def is_sent_by_all(self, step: Step) -> bool:
        """Return whether every rank has sent its share to finish a step."""
        return bool(step.sent) and step.sent.keys() >= set(self.ranks_of(step.number))

    def step(self, number: int, rank: Rank) -> Step:
        """Return a step that this rank has announced and that is not finished.

        Raises
        ------
        InvalidArgumentError : the step is finished.
        StepNotFoundError : the step was never announced, or was finished long ago.
        """
        if number in self.outcomes:
            verb = self.outcomes[number][0]
            raise InvalidArgumentError(
                f"session {self.name!r}: step {number} was {_PAST[verb]}; the next is "
                f"{self.last_step + 1}"
            )
        step = self.steps.get(number)
        if step is None or rank.rank not in step.shares:
            known = f"rank {rank.rank} has announced steps up to {rank.announced}"
            raise StepNotFoundError(
                f"session {self.name!r}: expected an announced step that is not finished, found "
                f"{number}; {known}, {self.last_step} is finished"
            )
        return step

    def remembered(self, number: int, verb: Verb) -> AcknowledgedUpdate | None:
        """Return the outcome of a step that `verb` finished; None: the outcome is not remembered.

        Raises
        ------
        InvalidArgumentError : the step was finished by another verb.
        """
        outcome = self.outcomes.get(number)
        if outcome is None:
            return None
        if outcome[0] != verb:
            raise InvalidArgumentError(
                f"session {self.name!r}: step {number} was {_PAST[outcome[0]]}, it cannot be "
                f"{_PAST[verb]} any more"
            )
        return outcome[1]

    def check_live(self) -> None:
        """Raise the error with which the session ended, if it has ended."""
        if self.error is not None:
            raise same_error(self.error)

    def check_may_put(self) -> None:
        """Raise an error if members cannot set rows: the session is shared, or a step is open."""
        if self.facts.shared:
            raise InvalidArgumentError(
                f"session {self.name!r} is shared: write rows by Table.put_rows instead"
            )
        if self.steps:
            raise InvalidArgumentError(
                f"session {self.name!r}: {len(self.steps)} announced steps are not finished; "
                "update, release or skip them, then set rows"
            )

    @property
    def deadlines(self) -> list[float]:
        """The ends of the ranks' leases; before a rank joins, the time by which a rank must
        join."""
        if not self.ranks:
            return [self.opened + min(self.lease_s, JOIN_S)]
        return [rank.deadline for rank in self.joined_ranks]

    @property
    def silence_s(self) -> tuple[float, float]:
        """Seconds since the most silent rank's last call, and seconds until its lease runs out."""
        lease_s = self.lease_s if self.ranks else min(self.lease_s, JOIN_S)
        left_s = max(min(self.deadlines, default=0.0) - self.clock.now(), 0.0)
        return max(lease_s - left_s, 0.0), left_s

    def expired(self, now: float) -> EmbstoreError | None:
        """Return the error of a lease that has run out, None if no lease has run out."""
        if not self.ranks and min(self.deadlines) < now:
            return SessionExpiredError(f"session {self.name!r}: no rank has joined it in time")
        ranks = (r for r in self.ranks.values() if r.deadline < now and not r.is_closed)
        return next((self.lost(rank) for rank in ranks), None)

    def lost(self, rank: Rank, process: int = 0) -> EmbstoreError:
        """Return the session's error after the end of a rank's lease, or of a rank's process."""
        silent = f"was silent for more than its lease of {self.facts.lease_ms} ms"
        message = (
            f"session {self.name!r}: rank {rank.rank} "
            f"{f'is lost: its process, {process}, has ended' if process else silent}; open the "
            f"session again, it goes on after step {self.last_step}"
        )
        kind = RankFailedError if self.facts.world_size > 1 else LeaseExpiredError
        return kind(message)

    def stalled(self, number: int, waiting: Rank, since: float, now: float) -> EmbstoreError | None:
        """Return an error if other ranks have kept rank `waiting` from step `number` too long."""
        if now - since < self.rank_timeout_s:
            return None
        missing = self.missing(number, waiting)
        if not missing:
            return None
        left = [rank for rank in missing if rank in self.ranks and self.ranks[rank].is_closed]
        has_left = (
            f"; rank {', '.join(map(str, left))} has left it without run.join(), which announces "
            "that it has no more steps"
        )
        return RankFailedError(
            f"session {self.name!r}: rank {', '.join(map(str, missing))} kept step {number} "
            f"waiting for more than {self.rank_timeout_s:g} s{has_left if left else ''}; open the "
            f"session again, it goes on after step {self.last_step}"
        )

    def missing(self, number: int, waiting: Rank) -> list[int]:
        """Return the other ranks for which rank `waiting` waits to get or finish step `number`."""
        turn = self.steps.get(self.last_step + 1)
        done_here = turn is None or turn.number == number or waiting.rank in turn.sent
        if not done_here:
            return []  # the rank has not finished the step before
        wanted = self.steps.get(number)
        late = {r for r in self.ranks_of(number) if wanted is None or r not in wanted.shares}
        if turn is not None and turn.sent:
            late |= set(self.ranks_of(turn.number)) - turn.sent.keys()
        return sorted(late - {waiting.rank})
