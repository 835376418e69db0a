"""Training through look-ahead sessions, and the same training on the dense reference.

A **trace** is a list of steps, each with what every rank announces and sends. `expect` plays it to
a reference and notes what every lookup must return and what t is after each step; `train` plays it
to a store, one thread a rank, and compares as it goes. How ranks meet is up to a seed: each waits
now and then before it announces, looks up or sends, announces a few steps at a time, and sometimes
says again what it has said.

A seed delays stages inside the store, too (delayed.py).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore import commands
from embstore.handles.sessions import StepBags
from tests.conformance.cases import (
    assert_same,
    engine_of,
    hits,
    normal,
    pool_stats,
    raising,
    unchanged,
)
from tests.conformance.traces import Config, cut_into_bags, values, zipf_keys
from tests.conformance.twin import Twin
from tests.reference import ReferenceStore
from tests.rules import pool_bag

PATIENCE_S = 300.0
"""How long a test waits for what must come; many times what it takes on a busy core."""
LEASE_MS = 600_000
_LOOK_S = 0.0005
DELAYS_S = (0.0, 0.0, 0.0, 0.0002, 0.001)
"""What a seed chooses from, wherever a thread may have to wait."""

Keys = NDArray[np.int64]
Rows = NDArray[np.float32]


def pause(seconds: float) -> None:
    """Let other threads go on for a while."""
    if seconds:
        threading.Event().wait(seconds)


def until(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds, and return what it returned."""
    deadline = monotonic() + PATIENCE_S
    while not (found := condition()):
        assert monotonic() < deadline, "waited in vain"
        pause(_LOOK_S)
    return found


# Traces


@dataclass(frozen=True)
class Step:
    """One step of a trace: what each rank announces, and how it is finished."""

    number: int
    keys: tuple[dict[str, Keys], ...]  # by rank: table -> (u,) unique, any order
    gradients: tuple[dict[str, Rows], ...]  # by rank: table -> (u, dim)
    verb: str = "update"  # or release, or skip
    options: dict[str, Any] = field(default_factory=dict)  # of the update

    @property
    def is_applied(self) -> bool:
        """Whether rows change."""
        finite = all(np.isfinite(g).all() for rank in self.gradients for g in rank.values())
        return self.verb == "update" and finite

    @property
    def is_skipped(self) -> bool:
        """Whether the acknowledgement says so."""
        return self.verb != "release" and not self.is_applied


def step_of(
    rng: np.random.Generator,
    number: int,
    ranks: Sequence[Mapping[str, Any]],
    tables: Mapping[str, Config],
    **given: Any,
) -> Step:
    """Return a step of these keys by rank, with random gradients."""
    keys = tuple({n: np.asarray(k, np.int64) for n, k in rank.items()} for rank in ranks)
    gradients = tuple(
        {n: values(rng, len(k), tables[n]["dim"]) for n, k in rank.items()} for rank in keys
    )
    return Step(number, keys, gradients, **given)


def steps_of(
    seed: int, tables: Mapping[str, Config], keys: Iterable[Any], **given: Any
) -> list[Step]:
    """Return steps of one rank, from 1 on: of keys by table, or of an array's keys of table "a"."""
    rng = np.random.default_rng(seed)
    named = (k if isinstance(k, Mapping) else {"a": k} for k in keys)
    return [step_of(rng, n, [by_table], tables, **given) for n, by_table in enumerate(named, 1)]


def written(twin: Twin, rng: np.random.Generator, *names: str) -> Twin:
    """Give every row of some tables random weights, more than a cache takes; return the twin."""
    for name in names:
        table = twin.reference.table(name)
        for part in np.array_split(np.arange(twin.rows[name]), 4):
            twin.on(name, "assign", part, normal(rng, len(part), table.config.dim))
    return twin


def random_trace(
    rng: np.random.Generator,
    tables: Mapping[str, Config],
    steps: int,
    *,
    ranks: int = 1,
    draws_max: int = 60,
    is_wide: bool = False,
) -> list[Step]:
    """Return steps of every kind; keys are Zipf-like, or `is_wide` ones without a hot set."""
    return [
        _random_step(rng, number, tables, ranks, draws_max, is_wide)
        for number in range(1, steps + 1)
    ]


def _random_step(
    rng: np.random.Generator,
    number: int,
    tables: Mapping[str, Config],
    ranks: int,
    draws_max: int,
    is_wide: bool,
) -> Step:
    keys = [
        {
            name: _unique_keys(rng, config["rows"], draws_max, is_wide)
            for name, config in tables.items()
            if rng.random() < 0.9
        }
        for _ in range(ranks)
    ]
    verb = str(rng.choice(["update", "release", "skip"], p=[0.84, 0.1, 0.06]))
    options: dict[str, Any] = {}
    if rng.random() < 0.4:
        options["learning_rate"] = float(rng.random() / 10)
    if rng.random() < 0.4:
        options["gradient_scale"] = float(rng.random() * 2)
    step = step_of(rng, number, keys, tables, verb=verb, options=options)
    if rng.random() < 0.1:
        _overflow(rng, step)
    return step


def _unique_keys(rng: np.random.Generator, rows: int, draws_max: int, is_wide: bool) -> Keys:
    draws = int(rng.integers(draws_max // 2, draws_max + 1)) if rng.random() < 0.95 else 0
    drawn = rng.integers(0, rows, draws) if is_wide else zipf_keys(rng, rows, draws)
    keys: Keys = rng.permutation(np.unique(drawn)).astype(np.int64)
    return keys


def _overflow(rng: np.random.Generator, step: Step) -> None:
    """Have one gradient of one rank overflow, as mixed-precision trainers do now and then."""
    step.options["on_nonfinite"] = "skip"
    rank = step.gradients[rng.integers(len(step.gradients))]
    for gradients in rank.values():
        if len(gradients):
            gradients[rng.integers(len(gradients)), 0] = np.inf
            return


# The reference


@dataclass(frozen=True)
class Answer:
    """What a step must be answered with."""

    rows: tuple[dict[str, Rows], ...]  # by rank, before the step
    t: dict[str, int]  # of every table, after it


def apply_step(reference: ReferenceStore, step: Step) -> None:
    """Do a step on the reference; it is one command, however it is finished (rule 5)."""
    if not step.is_applied:
        reference.command_number += 1
        return
    shares = [
        {name: (keys[name], gradients[name]) for name in keys}
        for keys, gradients in zip(step.keys, step.gradients, strict=True)
    ]
    options = {n: v for n, v in step.options.items() if n != "on_nonfinite"}
    reference.update_ranks(shares, **options)


def expect(reference: ReferenceStore, steps: Sequence[Step]) -> list[Answer]:
    """Play a trace to the reference; return the answers that a store must give."""
    answers = []
    for step in steps:
        rows = tuple(reference.lookup(keys) for keys in step.keys)
        apply_step(reference, step)
        answers.append(Answer(rows, {n: reference.table(n).t for n in reference.tables()}))
    return answers


# Sessions


@dataclass(frozen=True)
class Plan:
    """How a session is opened, and the seed of when its ranks come."""

    tables: tuple[str, ...]
    name: str = "run"
    planner: str = "per_step"
    lookahead: int = 8
    ranks: int = 1
    shared: bool = False
    seed: int = 0

    def open(self, store: Any, **more: Any) -> Any:
        """Open the session; every rank may. No lease runs out because a machine is slow."""
        return store.sessions.open(
            self.name,
            list(self.tables),
            lookahead_steps_max=self.lookahead,
            world_size=self.ranks,
            planner=self.planner,
            shared=self.shared,
            **({"lease_ms": LEASE_MS} | more),
        )


def lookup_of(store: Any, member: str, step: int, bags: Any = None) -> Any:
    """Return the handle of a step's rows, or of bags of them."""
    if bags is None:
        return engine_of(store).begin(commands.LookupStep(member, step))
    parts = tuple(
        commands.StepBags(name, b.inverse, commands.Bags(b.offsets, b.mode, b.weights))
        for name, b in bags.items()
    )
    return engine_of(store).begin(commands.LookupStepPooled(member, step, parts))


def send(
    store: Any, verb: str, member: str, step: int, gradients: Any = None, **options: Any
) -> Any:
    """Send a rank's share of a step; return the handle of what becomes of it."""
    if verb != "update":
        kind = {"release": commands.ReleaseStep, "skip": commands.SkipStep}[verb]
        return engine_of(store).begin(kind(member, step))
    parts = tuple(commands.StepGradients(name, rows) for name, rows in gradients.items())
    how = commands.UpdateOptions(**options)
    return engine_of(store).begin(commands.UpdateStep(member, step, parts, how))


def rows_of(lookup: Any, positions: Any = None) -> dict[str, Any]:
    """Read some positions' rows, or all."""

    def make(_: Any, shapes: Any, __: Any) -> Any:
        return [np.empty(shape, np.float32) for shape in shapes]

    return {table.table: table.rows for table in lookup.some(positions, make).tables}


def facts_of(store: Any, name: str = "run") -> dict[str, Any]:
    """Return the figures of one session."""
    (found,) = (facts for facts in store.sessions.stats() if facts["name"] == name)
    return dict(found)


def pinned_rows(store: Any) -> int:
    """Return how many rows sessions hold, those that have ended and not given back yet included."""
    tables = engine_of(store).tables
    with tables.frame._lock:  # also in the middle of a call of this thread
        return sum(pool.pins.count for pool in tables.pools.values())


def expire(store: Any, rank: int = 0, name: str = "run") -> None:
    """Have a rank's lease run out now, and wait until its session has ended."""
    sessions = engine_of(store).sessions
    with sessions._planner.changed:
        sessions._registry.sessions[name].ranks[rank].deadline = 0.0
        sessions._planner.notify()
    until(lambda: name not in sessions._registry.sessions)


def await_planned(store: Any, step: int, name: str = "run") -> dict[str, Any]:
    """Wait until a step is planned, if it is as near as that: one step is planned ahead of the one
    whose turn it is, and by "window" all; return the figures then."""

    def is_settled() -> dict[str, Any] | None:
        facts = facts_of(store, name)
        near = step if facts["planner"] == "window" else min(step, facts["last_step"] + 2)
        return facts if facts["planned_step"] >= near else None

    found: dict[str, Any] = until(is_settled)
    return found


_STILL = ("last_step", "steps_finished", "announced_step", "planned_step", "pinned_rows")


def still_facts(store: Any) -> list[dict[str, Any]]:
    """Return of every session what changes by steps alone, and not by time."""
    return [
        {name: facts[name] for name in _STILL if name in facts} for facts in store.sessions.stats()
    ]


@contextmanager
def standing_still(store: Any) -> Iterator[None]:
    """Expect calls, which are all refused, to change neither the store nor a session.

    What is announced must be planned already: the planner goes on by itself. Rows on their way
    are waited for, as they hold pins of their own.
    """
    until(lambda: not any(f["collecting"] or f["inserting"] for f in store.sessions.stats()))
    before = still_facts(store)
    with unchanged(store):
        yield
    assert still_facts(store) == before


@contextmanager
def refused_step(store: Any, error: type[Exception], *parts: str) -> Iterator[None]:
    """Expect exactly `error` from a call that changes neither the store nor a session."""
    with standing_still(store), raising(error, *parts):
        yield


class Rank:
    """One rank of a session: a trainer that knows what it must be told."""

    def __init__(self, store: Any, plan: Plan, rank: int) -> None:
        self._store, self._plan, self._rank = store, plan, rank
        self._rng = np.random.default_rng([plan.seed, rank])
        facts = plan.open(store)
        self.member = store.sessions.join(plan.name, rank).member
        self._announced = facts.last_step
        self.commands: list[int] = []

    def train(self, steps: Sequence[Step], answers: Sequence[Answer]) -> None:
        """Go through consecutive steps, and compare whatever the store says."""
        for place, (step, answer) in enumerate(zip(steps, answers, strict=True)):
            self._look_ahead(steps[place:])
            self._pause()
            self._look_up(step, answer)
            self._pause()
            self._finish(step, answer)

    def announce(self, steps: Sequence[Step]) -> Any:
        """Announce these steps at once; return the answer."""
        told = {step.number: step.keys[self._rank] for step in steps}
        done = self._store.sessions.announce(self.member, told)
        self._announced = steps[-1].number
        assert done.announced_step == self._announced
        assert done.planned_step <= self._announced
        return done

    def close(self) -> None:
        """Leave the session."""
        self._store.sessions.close(self.member)

    def _pause(self) -> None:
        pause(float(self._rng.choice(DELAYS_S)))

    def _look_ahead(self, ahead: Sequence[Step]) -> None:
        """Announce at least the next step, at most what the window takes, in a call or two."""
        first = ahead[0].number
        newest = int(self._rng.integers(first, first + self._plan.lookahead))
        while self._announced < min(newest, ahead[-1].number):
            low = self._announced + 1 - first
            count = int(self._rng.integers(1, newest - self._announced + 1))
            repeats = int(self._rng.random() < 0.2 and low > 0)
            self.announce(ahead[low - repeats : low + count])

    def _look_up(self, step: Step, answer: Answer) -> None:
        expected = answer.rows[self._rank]
        sessions, member = self._store.sessions, self.member
        rows = sessions.lookup_step(member, step.number, timeout_s=PATIENCE_S)
        assert list(rows) == list(expected), f"step {step.number}: other tables"
        for name, wanted in expected.items():
            assert_same(rows[name], wanted)
        if expected and self._rng.random() < 0.2:
            self._look_up_pooled(step, expected)

    def _look_up_pooled(self, step: Step, expected: Mapping[str, Rows]) -> None:
        bags, wanted = {}, {}
        for name, rows in expected.items():
            inverse = self._rng.integers(0, len(rows), 3 * len(rows)).astype(np.int32)
            offsets = cut_into_bags(self._rng, len(inverse))
            bags[name] = StepBags(inverse, offsets, "mean")
            parts = np.split(rows[inverse], offsets[1:-1])
            wanted[name] = np.stack([pool_bag(part, "mean", None) for part in parts])
        found = self._store.sessions.lookup_step_pooled(
            self.member, step.number, bags, timeout_s=PATIENCE_S
        )
        for name in bags:
            assert_same(found[name], wanted[name])

    def _finish(self, step: Step, answer: Answer) -> None:
        done = finish(self._store, self.member, step, self._rank)
        assert done.skipped == step.is_skipped
        assert set(step.keys[self._rank]) <= set(done.t) or step.verb != "update"
        assert done.t == {name: answer.t[name] for name in done.t}, f"step {step.number}"
        self.commands.append(done.command)


def finish(store: Any, member: str, step: Step, rank: int = 0) -> Any:
    """Finish a step as the trace says, for one rank; return the acknowledgement."""
    sessions = store.sessions
    if step.verb == "release":
        return sessions.release_step(member, step.number, timeout_s=PATIENCE_S)
    if step.verb == "skip":
        return sessions.skip_step(member, step.number, timeout_s=PATIENCE_S)
    gradients = step.gradients[rank]
    return sessions.update_step(
        member, step.number, gradients, **step.options, timeout_s=PATIENCE_S
    )


def train(
    store: Any, plan: Plan, steps: Sequence[Step], answers: Sequence[Answer]
) -> dict[str, Any]:
    """Go through a trace with a session of all its ranks; return its figures before the end."""
    plan.open(store)
    with ThreadPoolExecutor(plan.ranks) as pool:
        ranks = list(pool.map(lambda rank: Rank(store, plan, rank), range(plan.ranks)))
        list(pool.map(lambda rank: rank.train(steps, answers), ranks))
        facts = facts_of(store, plan.name)
        list(pool.map(Rank.close, ranks))
    for rank in ranks:
        assert rank.commands == ranks[0].commands, "ranks were told different numbers"
    assert facts["steps_finished"] == len(steps)
    return facts


def assert_always_hit(facts: Mapping[str, Any]) -> None:
    """Check that every key of every step was in the cache when it was looked up."""
    assert facts["steps_in_parts"] == 0
    assert facts["lookup_hits"] == facts["lookup_keys"] > 0


def assert_nothing_pinned(store: Any, name: str) -> None:
    """Check that a plain call may have every slot of a table's pool, as nothing holds any."""
    table = store.table(name)
    table.lookup(np.arange(min(2 * pool_stats(store)["slots"] + 1000, table.rows)))
    keys = np.arange(pool_stats(store)["slots"])
    table.lookup(keys)
    assert hits(store, lambda: table.lookup(keys)) == len(keys)
