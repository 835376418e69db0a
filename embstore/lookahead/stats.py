# ruff: noqa: RUF009 - the calls declare fields
"""The stats of look-ahead sessions and of their planning. Under the lock of the sessions."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from embstore.stats import counter, flag, gauge, inline, label, part, ratio, share, text, texts

if TYPE_CHECKING:
    from embstore.cache.pool import Pool
    from embstore.cache.prefetch import Work
    from embstore.lookahead.session import Session


@dataclass
class SessionCounts:
    """The counters of one opening of a session."""

    steps_finished: int = counter("Steps updated, released or skipped.")
    steps_in_parts: int = counter("Steps whose rows did not fit the cache.")
    steps_planned_again: int = counter("Steps that lost their pins to a nearer one.")
    lookup_keys: int = counter("Keys of lookups.")
    lookup_hits: int = counter("Keys of lookups that found their row resident.")
    prefetched_keys: int = counter("Keys of lookups that were planned, and pinned when read.")
    early_rows: int = counter("Rows sent before their step was ready.")
    late_rows: int = counter("Rows sent when their step was ready.")
    early_bytes: int = counter("Size of the early rows.")
    late_bytes: int = counter("Size of the late rows.")
    stall_s: float = counter("Time that lookups waited while it was their step's turn.")
    stalls: int = counter("Lookups that waited while it was their step's turn.")
    hit_rate: float = ratio(
        "Keys that hit; 1 before the first.", lambda c: share(c.lookup_hits, c.lookup_keys, 1.0)
    )
    prefetch_coverage: float = ratio(
        "Keys that were prefetched; 1 before the first.",
        lambda c: share(c.prefetched_keys, c.lookup_keys, 1.0),
    )
    early_share: float = ratio(
        "Rows that were early.", lambda c: share(c.early_rows, c.early_rows + c.late_rows, 0.0)
    )


@dataclass
class SessionStats:
    """The stats of one live session. Counts start when it is opened."""

    name: str = label("Name of the session.", label="session")
    tables: list[str] = texts("Tables that it may name.", lambda s: list(s.facts.tables))
    planner: str = text("per_step, group:N or window.", lambda s: s.facts.planner)
    shared: bool = flag("Others may write its tables too.", lambda s: s.facts.shared)
    world_size: int = gauge("Ranks of a step.", lambda s: s.facts.world_size, metric="ranks")
    ranks_joined: int = gauge("Ranks that have joined, not closed.", lambda s: len(s.joined_ranks))
    lookahead_steps_max: int = gauge(
        "Steps that may be announced ahead.", lambda s: s.facts.lookahead_steps_max
    )
    may_come_early: bool = flag(
        "Rows may come before their step's turn: more than one step is announced, none is shared.",
        lambda s: s.facts.lookahead_steps_max > 1 and not s.facts.shared,
    )
    last_step: int = gauge("Last finished step; 0 before the first.")
    planned_step: int = gauge("Steps up to this one are planned.")
    announced_step: int = gauge("Steps up to this one are announced by every rank.")
    announced_bytes: int = gauge("Size of the keys of announced steps.", lambda s: s.key_bytes)
    ready_steps: int = gauge(
        "Steps whose rows are resident and pinned.",
        lambda s: sum(step.is_ready for step in s.steps.values()),
    )
    counts: SessionCounts = inline(lambda s: s.counts)
    held_back: bool = flag("Planning waits for room.", lambda s: s.waiting_since is not None)
    held_back_s: float = counter("Time that planning waited for room in the cache.")
    oldest_lease_s: float = gauge(
        "Time since the most silent rank renewed its lease.",
        lambda s: max(
            (s.clock.now() - r.deadline + s.lease_s for r in s.joined_ranks), default=0.0
        ),
    )


class Planning(NamedTuple):
    """The planner's running work, and the objects from which its stats are read."""

    work: "Work"
    collecting: int
    pools: list["Pool"]


@dataclass
class PlanningStats:
    """The stats of planning for all sessions. Counts start when the store is opened."""

    stage_seconds: dict[str, float] = counter(
        "Time that look-ahead spent.", lambda p: dict(p.work.seconds), label="stage"
    )
    planned_keys: int = counter("Keys of planned steps.", lambda p: p.work.planned_keys)
    collected_rows: int = counter("Rows brought in ahead.", lambda p: p.work.collected_rows)
    collecting: int = gauge("Collections of rows under way.", metric="collections")
    inserting: int = gauge(
        "Collections whose rows are not in the cache yet.",
        lambda p: sum(len(pool.finder.arriving) for pool in p.pools),
        metric="arriving_collections",
    )
    pinned_rows: int = gauge(
        "Rows pinned for announced steps.", lambda p: sum(pool.pins.known_count for pool in p.pools)
    )


class LiveSessions(NamedTuple):
    """All live sessions, and their planning."""

    sessions: list["Session"]
    planning: Planning


@dataclass
class SessionsStats:
    """The stats of look-ahead sessions."""

    open: list[SessionStats] = part(
        "Live sessions.", lambda live: live.sessions, metric="session", label="sessions"
    )
    planning: PlanningStats = part("Planning for all sessions.", metric="lookahead")
