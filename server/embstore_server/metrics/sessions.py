"""The facts of live look-ahead sessions, and of their planning, as metric families.

They are read when they are asked for, not by the engine thread: while that is at work is when one
wants to see who waits. The label is the session's name, so there are as many series as there are
live sessions: one that ends is told no more. A name that is opened again counts from 0, which
Prometheus takes for a restart, as it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_GAUGES = (
    ("world_size", "ranks", "Ranks that a step waits for."),
    ("ranks_joined", "ranks_joined", "Ranks that have joined and not closed."),
    ("last_step", "last_step", "Last finished step."),
    ("planned_step", "planned_step", "Steps up to this one are planned."),
    ("announced_step", "announced_step", "Steps up to this one are announced by every rank."),
    ("ready_steps", "ready_steps", "Steps whose rows are in the cache, and stay there."),
    ("held_back", "held_back", "1 while planning waits for room in the cache."),
    ("oldest_lease_s", "oldest_lease_seconds", "Since the most silent rank was heard of."),
)
_COUNTERS = (
    ("steps_finished", "steps_finished", "Steps updated, released or skipped."),
    ("steps_in_parts", "steps_in_parts", "Steps whose rows did not fit the cache."),
    ("steps_planned_again", "steps_planned_again", "Steps that lost their place to a nearer one."),
    ("lookup_keys", "lookup_keys", "Keys that lookups had."),
    ("lookup_hits", "lookup_hits", "Of these, those whose rows were in the cache by then."),
    ("early_bytes", "early_bytes", "Bytes of rows sent before their step was ready."),
    ("late_bytes", "late_bytes", "Bytes of rows sent when it was."),
    ("stall_s", "stall_seconds", "Time that lookups waited while it was their step's turn."),
    ("stalls", "stalls", "How often lookups waited while it was their step's turn."),
    ("held_back_s", "held_back_seconds", "Time that planning waited for room."),
)
_PLANNING_GAUGES = (
    ("pinned_rows", "pinned_rows", "Rows that stay in the cache for announced steps."),
    ("collecting", "collections", "Collections of rows under way."),
    ("inserting", "arriving_collections", "Collections whose rows are not in the cache yet."),
)
_PLANNING_COUNTERS = (
    ("planned_keys", "planned_keys", "Keys of planned steps."),
    ("collected_rows", "collected_rows", "Rows that were brought in ahead."),
)


class SessionFacts(Protocol):
    """What `embstore.Store.sessions` tells. Any thread."""

    def facts(self) -> list[dict[str, Any]]:
        """Return what every live session is, and did."""

    def planning(self) -> dict[str, Any]:
        """Return what planning costs, and how much is under way."""


def session_families(sessions: SessionFacts) -> Iterator[Metric]:
    """Yield the metrics of all live sessions."""
    yield from _by_session(sessions.facts())
    yield from _planning(sessions.planning())


def _planning(planning: Mapping[str, Any]) -> Iterator[Metric]:
    for key, name, text in _PLANNING_GAUGES:
        yield GaugeMetricFamily(f"embstore_lookahead_{name}", text, planning[key])
    for key, name, text in _PLANNING_COUNTERS:
        yield CounterMetricFamily(f"embstore_lookahead_{name}", text, planning[key])
    spent = CounterMetricFamily(
        "embstore_lookahead_stage_seconds", "Time that look-ahead spent.", labels=["stage"]
    )
    for stage, seconds in planning["stage_seconds"].items():
        spent.add_metric([stage], seconds)
    yield spent


def _by_session(sessions: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    yield GaugeMetricFamily("embstore_sessions", "Live look-ahead sessions.", len(sessions))
    for make, figures in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for key, name, text in figures:
            family = make(f"embstore_session_{name}", text, labels=["session"])
            for facts in sessions:
                family.add_metric([facts["name"]], float(facts[key]))
            yield family
