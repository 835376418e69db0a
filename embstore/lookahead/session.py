"""A session: a trainer's announced steps, in order, and the ranks that share them.

A **name** has a place, the number of its last finished step, which lives as long as the store's
commits. Opening the name makes it live: tables are held, ranks join, steps are announced, planned
and finished. Its end (a close, an expired lease, a failed rank) releases its pins and tables, and
keeps the place: a client that opens the name again resumes at the next step.

A *sync* session is the only writer of its tables. Then a row that no unfinished step before step n
has is final for step n, however early it is read. A *shared* session admits other writers; none of
its rows is read early, and a step gets its rows as of its turn.

Under the lock of the sessions.
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
"""Finished steps whose outcome is remembered."""

JOIN_S = 30.0
"""Seconds for which a session without a joined rank holds its tables, at most."""

_PAUSE_S = 2e-3
"""A trainer that takes longer from one step to the next has something else to wait for."""

_AHEAD_MAX = 4
"""Rows are read for as many steps at once, at most (planner.py)."""
_CALM_STEPS = 64

_PAST = {"update": "updated", "release": "released", "skip": "skipped"}


def same_error(error: EmbstoreError) -> EmbstoreError:
    """Return an error like this one, for another caller: a trace belongs to one."""
    return type(error)(*error.args)


@dataclass(frozen=True)
class Mode:
    """The mode of planning: steps together, and whether all announced steps are near."""

    group: int
    is_deep: bool

    @classmethod
    def of(cls, planner: str) -> "Mode":
        """Return the mode of a planner's name."""
        kind, group = check_planner(planner)
        return cls(group, is_deep=kind == "window")


@dataclass(eq=False)
class Rank:
    """One rank's place."""

    rank: int
    member: str
    deadline: float  # of the sessions' clock, when its lease runs out
    announced: int  # its last announced step
    is_closed: bool = False
    is_done: bool = False  # it announces no more
    calls: dict[int, int] = field(default_factory=dict)  # by process that made them; 0: unknown
    alone_since: float | None = (
        None  # of the sessions' clock; it is done, and waits for absent ranks
    )

    def has_given_all(self, last_step: int) -> bool:
        """Whether others need it no more: it announces none, and its steps are finished."""
        return self.is_done and self.announced <= last_step


@dataclass(eq=False)
class Session:
    """One opening of a name."""

    facts: SessionFacts
    tables: dict[str, TableState]
    mode: Mode
    last_step: int
    clock: Clock
    noted_step: int = 0  # the last step whose uses are known
    planned_step: int = 0  # the last of the steps that are planned without a gap
    steps: dict[int, Step] = field(default_factory=dict)  # announced by a rank, and not finished
    ranks: dict[int, Rank] = field(default_factory=dict)
    outcomes: OrderedDict[int, tuple[Verb, AcknowledgedUpdate]] = field(default_factory=OrderedDict)
    error: EmbstoreError | None = None  # why it ended
    uses: defaultdict[RowKeys, Uses] = field(default_factory=lambda: defaultdict(Uses))
    """The uses of row keys, for each kind of row keys apart: equal ones may name different rows."""
    uses_lock: threading.Lock = field(default_factory=threading.Lock)
    counts: SessionCounts = field(default_factory=SessionCounts)
    waited_s: float = 0.0  # in which planning waited for room, up to `waiting_since`
    waiting_since: float | None = None  # monotonic seconds; the next step waits for room
    waits_at: int = -1  # at which count of released pins it was tried in vain
    opened: float = field(init=False)  # of the sessions' clock
    turn_since: float = 0.0  # monotonic seconds, when the turn of the next step came
    step_ended: float = 0.0  # monotonic seconds; until the next step's rows are looked up
    is_forgotten: bool = False  # its place goes with it
    _asked_step: int = 0
    _stalled_step: int = 0
    _ahead: int = 1
    _calm_steps: int = 0  # finished since a lookup stalled, or since there was one step less ahead

    def __post_init__(self) -> None:
        self.noted_step = self.planned_step = self.last_step
        self.opened = self.clock.now()

    @property
    def near_step(self) -> int:
        """Steps up to this one are near enough to be planned: as few as bring rows in time, since a
        later choice knows more (foresight.py); but all whose rows have been requested."""
        ahead = self.facts.lookahead_steps_max if self.mode.is_deep else self._ahead
        return max(self.last_step + 1 + ahead, self._asked_step)

    def ask(self, number: int) -> None:
        """Note that a rank asks for the rows of a step that is not near."""
        self._asked_step = number

    def count_stall(self, number: int, seconds: float) -> None:
        """Count a lookup that has waited for a step's rows: plan a step more ahead, for a while."""
        self.counts.stall_s += seconds
        self.counts.stalls += 1
        if number > self._stalled_step:  # once for all ranks
            self._stalled_step = number
            self._ahead, self._calm_steps = min(self._ahead + 1, _AHEAD_MAX), 0

    @property
    def name(self) -> str:
        """Its name."""
        return self.facts.name

    @property
    def owner(self) -> str:
        """Its owner; "": none."""
        return owner_of(self.name)

    @property
    def lease_s(self) -> float:
        """Seconds that a rank may be silent."""
        return self.facts.lease_ms / 1000

    def ranks_of(self, number: int) -> list[int]:
        """Return the ranks that a step waits for: all but those whose last step was before."""
        done = {r.rank for r in self.ranks.values() if r.is_done and r.announced < number}
        return [rank for rank in range(self.facts.world_size) if rank not in done]

    @property
    def ranks_at_work(self) -> int:
        """Ranks that have not said that they announce no more."""
        return self.facts.world_size - sum(rank.is_done for rank in self.ranks.values())

    def left_alone(self, rank: Rank, now: float) -> EmbstoreError | None:
        """Return the error of a rank that is done and has waited too long for others that have
        never joined, or have left with steps to come."""
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
        """For how long the next lookup is still to be expected any moment."""
        return self.step_ended + _PAUSE_S - monotonic()

    @property
    def is_between_steps(self) -> bool:
        """Whether the trainer is about to look up the step whose turn has come."""
        step = self.steps.get(self.last_step + 1)
        return self.pause_s > 0 and step is not None and step.is_ready

    @property
    def rank_timeout_s(self) -> float:
        """For how long ranks wait for one another."""
        return self.facts.rank_timeout_ms / 1000

    @property
    def key_bytes(self) -> int:
        """Bytes of the keys that are announced and not finished."""
        return sum(8 * step.key_count for step in self.steps.values())

    @property
    def joined_ranks(self) -> list[Rank]:
        """Ranks that have joined and not closed."""
        return [rank for rank in self.ranks.values() if not rank.is_closed]

    @property
    def announced_step(self) -> int:
        """Steps up to this one are announced by every rank that has joined, and may announce."""
        at_work = [rank.announced for rank in self.joined_ranks if not rank.is_done]
        return min(at_work, default=max(self.steps, default=self.last_step))

    @property
    def held_back_s(self) -> float:
        """Seconds in which planning waited for room."""
        since = self.waiting_since
        return self.waited_s + (0.0 if since is None else monotonic() - since)

    def now(self) -> SessionFacts:
        """Return its facts, with the last finished step."""
        return replace(self.facts, last_step=self.last_step)

    def join(self, rank: int, member: str) -> Membership:
        """Make a client a rank; one that was this rank before resumes."""
        before = self.ranks.get(rank)
        announced = self.last_step if before is None else before.announced
        is_done = before is not None and before.is_done  # of the same member, see the registry
        chosen, deadline = member or token_hex(16), self.clock.now() + self.lease_s
        self.ranks[rank] = Rank(rank, chosen, deadline, announced, is_done=is_done)
        others_ms = self.facts.rank_timeout_ms if self.facts.world_size > 1 else 0
        return Membership(chosen, self.name, rank, self.last_step, others_ms)

    def finished(self, step: Step, verb: Verb, outcome: AcknowledgedUpdate, now: float) -> None:
        """Note that a step is done: it is the next one's turn."""
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
        """Return a table of the session, or raise InvalidArgumentError, which begins with
        `where`."""
        table = self.tables.get(name)
        if table is None:
            where = where or f"session {self.name!r}"
            raise InvalidArgumentError(
                f"{where}: expected tables of the session, {sorted(self.tables)}, found {name!r}"
            )
        return table

    def announced_by_all(self, number: int) -> bool:
        """Whether every rank has announced the step."""
        step = self.steps.get(number)
        return step is not None and step.shares.keys() >= set(self.ranks_of(number))

    def is_sent_by_all(self, step: Step) -> bool:
        """Whether every rank has sent its share."""
        return bool(step.sent) and step.sent.keys() >= set(self.ranks_of(step.number))

    def step(self, number: int, rank: Rank) -> Step:
        """Return a step that this rank announced and that is not finished.

        Raises
        ------
        InvalidArgumentError : it is finished.
        StepNotFoundError : it was never announced, or is long finished.
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
        """Return the outcome of a step that was finished so.

        Raises
        ------
        InvalidArgumentError : it was finished otherwise.
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
        """Raise why the session ended, if it has."""
        if self.error is not None:
            raise same_error(self.error)

    def check_may_put(self) -> None:
        """Raise unless a member may set rows: it is the only writer, and nothing was sent early."""
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
        """The times at which leases run out, by the clock: the ranks' leases, or the opener's."""
        if not self.ranks:
            return [self.opened + min(self.lease_s, JOIN_S)]
        return [rank.deadline for rank in self.joined_ranks]

    @property
    def silence_s(self) -> tuple[float, float]:
        """For how long its most silent rank was not heard of, and may still be."""
        lease_s = self.lease_s if self.ranks else min(self.lease_s, JOIN_S)
        left_s = max(min(self.deadlines, default=0.0) - self.clock.now(), 0.0)
        return max(lease_s - left_s, 0.0), left_s

    def expired(self, now: float) -> EmbstoreError | None:
        """Return the error of a lease that has run out, if one has."""
        if not self.ranks and min(self.deadlines) < now:
            return SessionExpiredError(f"session {self.name!r}: no rank has joined it in time")
        ranks = (r for r in self.ranks.values() if r.deadline < now and not r.is_closed)
        return next((self.lost(rank) for rank in ranks), None)

    def lost(self, rank: Rank, process: int = 0) -> EmbstoreError:
        """Return the session's error after the end of a rank's lease, or of its process."""
        silent = f"was silent for more than its lease of {self.facts.lease_ms} ms"
        message = (
            f"session {self.name!r}: rank {rank.rank} "
            f"{f'is lost: its process, {process}, has ended' if process else silent}; open the "
            f"session again, it goes on after step {self.last_step}"
        )
        kind = RankFailedError if self.facts.world_size > 1 else LeaseExpiredError
        return kind(message)

    def stalled(self, number: int, waiting: Rank, since: float, now: float) -> EmbstoreError | None:
        """Return the error if others have kept `waiting` from step `number` for too long."""
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
        """Return the other ranks that `waiting` waits for, to get step `number` or to finish it."""
        turn = self.steps.get(self.last_step + 1)
        done_here = turn is None or turn.number == number or waiting.rank in turn.sent
        if not done_here:
            return []  # the rank itself is at work on the step before
        wanted = self.steps.get(number)
        late = {r for r in self.ranks_of(number) if wanted is None or r not in wanted.shares}
        if turn is not None and turn.sent:
            late |= set(self.ranks_of(turn.number)) - turn.sent.keys()
        return sorted(late - {waiting.rank})
