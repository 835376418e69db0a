"""Wrong use of look-ahead sessions: each is answered with its own error, and changes nothing.

What is announced is planned before a refusal is expected: the planner alone goes on by itself.
"""

from itertools import product

import numpy as np
import pytest

from embstore.config import Ftrl
from embstore.errors import (
    InvalidArgumentError,
    SessionExpiredError,
    StepNotFoundError,
    TableHeldError,
    TableNotFoundError,
)
from embstore.handles.sessions import SomeGradients
from tests.conformance.cases import assert_same, config, each, generator, grow, ones, raising
from tests.conformance.sessions.training import (
    PATIENCE_S,
    Plan,
    apply_step,
    await_planned,
    facts_of,
    finish,
    refused_step,
    standing_still,
    step_of,
)

TABLES = {"a": config(), "b": config(dim=7, optimizer=Ftrl(0.1))}
KEYS = {"a": [5, 1, 9], "b": [2, 8]}
WINDOW = 4


class Trainer:
    """A twin with a session of one rank on tables "a" and "b", beside a table "free"."""

    def __init__(self, twin, **plan):
        for name, given in TABLES.items():
            twin.create_table(name, **given)
        twin.create_table("free", **config())
        self.twin, self.store, self.sessions = twin, twin.store, twin.store.sessions
        self.plan = Plan(("a", "b"), lookahead=WINDOW, **plan)
        self.facts = self.plan.open(self.store)
        self.member = self.sessions.join("run", 0).member
        self.rng = generator(400)
        self.steps = {}

    def announce(self, *numbers):
        """Announce steps of KEYS, and wait until they are planned."""
        for n in numbers:
            self.steps[n] = step_of(self.rng, n, [KEYS], TABLES)
        self.sessions.announce(self.member, dict.fromkeys(numbers, KEYS))
        await_planned(self.store, max(numbers))

    def update(self, number):
        """Do an announced step on both."""
        done = finish(self.store, self.member, self.steps[number])
        apply_step(self.twin.reference, self.steps[number])
        return done

    def counted(self):
        """Count a step that changed no row."""
        self.twin.reference.command_number += 1


def gradients(**given):
    """Return gradients that fit KEYS, or others."""
    usual = {n: ones(len(k), TABLES[n]["dim"]) for n, k in KEYS.items()}
    return {name: value for name, value in (usual | given).items() if value is not None}


@pytest.fixture
def trainer(open_twin):
    return Trainer(open_twin())


# Steps


CALLS = {
    "announce": lambda s, m, n: s.announce(m, {n: KEYS}),
    "look up": lambda s, m, n: s.lookup_step(m, n, timeout_s=PATIENCE_S),
    "update": lambda s, m, n: s.update_step(m, n, gradients(), timeout_s=PATIENCE_S),
    "release": lambda s, m, n: s.release_step(m, n, timeout_s=PATIENCE_S),
    "skip": lambda s, m, n: s.skip_step(m, n, timeout_s=PATIENCE_S),
    "renew": lambda s, m, n: s.renew(m),
}
"""Every call of a member: sessions, member, number of a step."""
OF_STEPS = {verb: CALLS[verb] for verb in ("look up", "update", "release", "skip")}


def test_step_never_announced(trainer):
    trainer.announce(1, 2)
    with standing_still(trainer.store):
        for number, call in product((3, 1000), OF_STEPS.values()):
            with raising(StepNotFoundError, str(number)):
                call(trainer.sessions, trainer.member, number)
    assert trainer.update(1).t == {"a": 1, "b": 1}


def test_number_of_a_step_is_an_integer(trainer):
    trainer.announce(1)
    calls = [CALLS["announce"], *OF_STEPS.values()]
    with standing_still(trainer.store):
        for number, call in each(product([1.0, True, "1", None, np.float64(1)], calls)):
            with raising(InvalidArgumentError, "number of a step"):
                call(trainer.sessions, trainer.member, number)


def test_numpy_integers_are_step_numbers(trainer):
    for number in each([np.int64(1), np.uint8(2)]):
        CALLS["announce"](trainer.sessions, trainer.member, number)
        rows = CALLS["look up"](trainer.sessions, trainer.member, number)
        assert_same(rows["a"], trainer.twin.reference.table("a").lookup(KEYS["a"]))
        CALLS["release"](trainer.sessions, trainer.member, number)
        trainer.counted()


def test_out_that_is_no_mapping(trainer):
    trainer.announce(1)
    for out in each([ones(3), [("a", ones(3))], "a", 1]):
        with refused_step(trainer.store, InvalidArgumentError, "out", "mapping"):
            trainer.sessions.lookup_step(trainer.member, 1, out=out, timeout_s=PATIENCE_S)


VERBS = {"update": "updated", "release": "released", "skip": "skipped"}


def test_finished_step_is_answered_as_before_and_takes_no_other_verb(trainer):
    store, member = trainer.store, trainer.member
    for number, first in zip((1, 3, 5), VERBS, strict=True):
        trainer.announce(number, number + 1)
        done, *others = (
            step_of(trainer.rng, number, [KEYS], TABLES, verb=verb)
            for verb in (first, *(VERBS.keys() - {first}))
        )
        answer = finish(store, member, done)
        apply_step(trainer.twin.reference, done)
        assert (facts_of(store)["last_step"], store.command) == (number, answer.command)
        for other in others:
            with refused_step(store, InvalidArgumentError, f"step {number}", VERBS[first]):
                finish(store, member, other)
        with refused_step(store, InvalidArgumentError, f"step {number}"):
            CALLS["look up"](trainer.sessions, member, number)
        for _ in range(3):
            assert finish(store, member, done) == answer
        trainer.update(number + 1)
        assert finish(store, member, done) == answer


def test_forgotten_step(trainer):
    """The last 1,024 steps are remembered."""
    for n in range(1, 1030):
        trainer.sessions.announce(trainer.member, {n: {}})
        CALLS["release"](trainer.sessions, trainer.member, n)
        trainer.counted()
    with refused_step(trainer.store, StepNotFoundError, "2"):
        CALLS["release"](trainer.sessions, trainer.member, 2)
    last = CALLS["release"](trainer.sessions, trainer.member, 1000)
    assert last.command == trainer.store.command - 29


# Updates


def row_1_of_a(value):
    """Return gradients of table "a", one of which is a value in the row of key 1."""
    rows = ones(3)
    rows[1, 2] = value
    return {"a": rows}


BAD_UPDATES = {
    "a row too few": ({"a": ones(2)}, {}, ["'a'"]),
    "a row too many": ({"a": ones(4)}, {}, ["'a'"]),
    "another dim": ({"b": ones(2, 8)}, {}, ["'b'"]),
    "one dimension": ({"a": ones(1)[0]}, {}, ["'a'"]),
    "no numbers": ({"a": np.full((3, 4), "x")}, {}, ["'a'"]),
    "a table too many": ({"free": ones(1)}, {}, ["'free'"]),
    "no such table": ({"zebra": ones(1)}, {}, ["'zebra'"]),
    "a position beyond": ({"a": SomeGradients([1, 3], ones(2))}, {}, ["'a'", "below 3"]),
    "a position below": ({"a": SomeGradients([-1, 1], ones(2))}, {}, ["'a'", "-1"]),
    "positions that fall": ({"a": SomeGradients([1, 0], ones(2))}, {}, ["'a'", "ascending"]),
    "a position twice": ({"a": SomeGradients([1, 1], ones(2))}, {}, ["'a'", "ascending"]),
    "a position too few": ({"a": SomeGradients([1], ones(2))}, {}, ["'a'", "each of 2"]),
    "positions of two dimensions": ({"a": SomeGradients([[1]], ones(1))}, {}, ["'a'"]),
    "inf at a position": ({"a": SomeGradients([2], ones(1, 4, np.inf))}, {}, ["'a'", "key 9"]),
    "negative rate": ({}, {"learning_rate": -1.0}, ["learning_rate"]),
    "rate that ftrl divides by": ({}, {"learning_rate": 0.0}, ["learning_rate"]),
    "infinite scale": ({}, {"gradient_scale": np.inf}, ["gradient_scale"]),
    "scale that is none": ({}, {"gradient_scale": "1"}, ["gradient_scale"]),
    "unknown word": ({}, {"on_nonfinite": "clip"}, ["on_nonfinite"]),
    "inf": (row_1_of_a(np.inf), {}, ["table 'a'", "key 1"]),
    "-inf": (row_1_of_a(-np.inf), {}, ["table 'a'", "key 1"]),
    "nan": (row_1_of_a(np.nan), {}, ["table 'a'", "key 1"]),
    "scale overflows": ({"b": ones(2, 7, 1e30)}, {"gradient_scale": 1e10}, ["'b'", "key 2"]),
}


def test_update_that_is_refused_leaves_the_step_open(trainer):
    trainer.announce(1)
    with standing_still(trainer.store):
        for given, options, parts in each(BAD_UPDATES.values()):
            with raising(InvalidArgumentError, *parts):
                trainer.sessions.update_step(
                    trainer.member, 1, gradients(**given), **options, timeout_s=PATIENCE_S
                )
    trainer.update(1)


# Announcing


BAD_KEYS = {
    "repeated": ({"a": [1, 2, 1]}, ["'a'", "1"]),
    "too large": ({"a": [1], "b": [1000]}, ["'b'", "1000"]),
    "negative": ({"a": [-1]}, ["'a'", "-1"]),
    "fractions": ({"a": [0.5]}, ["'a'"]),
    "two dimensions": ({"a": [[1, 2]]}, ["'a'"]),
    "a table of others": ({"free": [1]}, ["'free'"]),
    "no such table": ({"zebra": [1]}, ["'zebra'"]),
}


@pytest.mark.needs("plain_keys")
def test_keys_that_cannot_be_announced(trainer):
    trainer.announce(1)
    with standing_still(trainer.store):
        for keys, parts in each(BAD_KEYS.values()):
            for told in ({2: keys}, {2: KEYS, 3: keys}):
                with raising(InvalidArgumentError, *parts):
                    trainer.sessions.announce(trainer.member, told)
    trainer.announce(2)


def test_announcing_out_of_order(trainer):
    trainer.announce(1)
    with standing_still(trainer.store):
        for numbers in each([[3], [3, 2], [2, 4], [0], [-1], [4], [1, 3]]):
            with raising(InvalidArgumentError, "step"):
                trainer.sessions.announce(trainer.member, dict.fromkeys(numbers, KEYS))
    trainer.announce(2)


def test_announcing_beyond_the_window(trainer):
    trainer.announce(1, 2, 3)
    with refused_step(trainer.store, InvalidArgumentError, "4"):
        trainer.sessions.announce(trainer.member, {4: KEYS, 5: KEYS})
    trainer.announce(4)
    with refused_step(trainer.store, InvalidArgumentError, "5"):
        trainer.sessions.announce(trainer.member, {5: KEYS})
    trainer.update(1)
    trainer.announce(5)


def test_announcing_again(trainer):
    """The same keys are passed over; others, or another order, would be another step."""
    trainer.announce(1, 2)
    again = trainer.sessions.announce(trainer.member, {1: KEYS, 2: KEYS})
    assert again.announced_step == 2
    for other in ({"a": [5, 1, 9]}, KEYS | {"a": [5, 9, 1]}, KEYS | {"a": [5, 1]}, {}):
        with refused_step(trainer.store, InvalidArgumentError, "step 2"):
            trainer.sessions.announce(trainer.member, {2: other, 3: KEYS})
    assert trainer.sessions.announce(trainer.member, {}).announced_step == 2
    trainer.sessions.announce(trainer.member, {2: KEYS, 3: KEYS})
    assert await_planned(trainer.store, 3)["announced_step"] == 3


def test_array_that_changes_after_it_was_announced(trainer):
    keys = np.array([5, 1, 9])
    trainer.sessions.announce(trainer.member, {1: {"a": keys}})
    keys[:] = 0
    rows = trainer.sessions.lookup_step(trainer.member, 1, timeout_s=PATIENCE_S)
    assert_same(rows["a"], trainer.twin.reference.table("a").lookup([5, 1, 9]))


# Members and sessions


def test_unknown_member(trainer):
    trainer.announce(1)
    with standing_still(trainer.store):
        for member, call in product(("", "run", "0" * 32), CALLS.values()):
            with raising(SessionExpiredError):
                call(trainer.sessions, member, 1)


def test_closed_member(trainer):
    trainer.announce(1, 2)
    trainer.update(1)
    for _ in range(2):
        trainer.sessions.close(trainer.member)
    for call in CALLS.values():
        with refused_step(trainer.store, SessionExpiredError):
            call(trainer.sessions, trainer.member, 2)
    with refused_step(trainer.store, SessionExpiredError):
        trainer.sessions.join("run", 0)
    assert trainer.plan.open(trainer.store).last_step == 1


def test_place_of_another(trainer):
    trainer.announce(1)
    with refused_step(trainer.store, TableHeldError, "rank 0", "'run'"):
        trainer.sessions.join("run", 0)
    for rank in (1, -1, "0"):
        with refused_step(trainer.store, InvalidArgumentError, "rank"):
            trainer.sessions.join("run", rank)
    with refused_step(trainer.store, SessionExpiredError, "'walk'"):
        trainer.sessions.join("walk", 0)
    trainer.update(1)


def test_open_session_opened_with_other_options(trainer):
    trainer.announce(1)
    assert trainer.plan.open(trainer.store) == trainer.facts
    for other in (
        Plan(("a",), lookahead=WINDOW),
        Plan(("a", "b"), lookahead=WINDOW + 1),
        Plan(("a", "b"), lookahead=WINDOW, ranks=2),
        Plan(("a", "b"), lookahead=WINDOW, planner="window"),
        Plan(("a", "b"), lookahead=WINDOW, shared=True),
    ):
        with refused_step(trainer.store, TableHeldError, "'run'"):
            other.open(trainer.store)


def test_tables_of_another_session(trainer):
    for shared in (False, True):
        with refused_step(trainer.store, TableHeldError, "'b'", "'run'"):
            Plan(("free", "b"), name="other", shared=shared).open(trainer.store)
    with refused_step(trainer.store, TableNotFoundError, "'zebra'"):
        Plan(("free", "zebra"), name="other").open(trainer.store)
    Plan(("free",), name="other").open(trainer.store)


BAD_PLANS = {
    "no tables": {"tables": ()},
    "a table twice": {"tables": ("free", "free")},
    "no name": {"name": ""},
    "no window": {"lookahead": 0},
    "half a step": {"lookahead": 1.5},
    "no rank": {"ranks": 0},
    "unknown planner": {"planner": "random"},
    "group of none": {"planner": "group:0"},
    "group without a number": {"planner": "group"},
    "group beyond all windows": {"planner": "group:1025"},
    "group to count through": {"planner": f"group:{10**12}"},
    "group of no integer": {"planner": "group:" + "9" * 5000},
}


def test_options_of_a_session_out_of_range(trainer):
    """Review: the planner counted through a group's steps, or its digits were no integer."""
    leases = {"lease_ms": 0}, {"lease_ms": 600_001}, {"rank_timeout_ms": 0}, {"lease_ms": "soon"}
    with standing_still(trainer.store):
        for bad in each(BAD_PLANS.values()):
            plan = Plan(**({"tables": ("free",), "name": "other"} | bad))
            with raising(InvalidArgumentError):
                plan.open(trainer.store)
        for options in each(leases):
            with raising(InvalidArgumentError, *options):
                Plan(("free",), name="other").open(trainer.store, **options)


# What others may do meanwhile


WRITES = {
    "update": lambda store: store.table("a").update([1], ones(1)),
    "update_pooled": lambda store: store.table("a").update_pooled([1], [0, 1], ones(1), "sum"),
    "update_ranks": lambda store: store.table("a").update_ranks([([1], ones(1))]),
    "assign": lambda store: store.table("a").assign([1], ones(1)),
    "put_rows": lambda store: store.table("a").put_rows([1], ones(1), np.empty((1, 0), "f4"), 1),
    "several": lambda store: store.update({"free": ([1], ones(1)), "a": ([1], ones(1))}),
    "ranks": lambda store: store.update_ranks([{"free": ([1], ones(1))}, {"a": ([1], ones(1))}]),
    "no key": lambda store: store.table("a").update([], np.empty((0, 4), np.float32)),
}


def test_write_to_a_held_table(trainer):
    trainer.announce(1, 2)
    for _ in range(2):  # before a step is finished, and between two
        with standing_still(trainer.store):
            for write in each(WRITES.values()):
                with raising(TableHeldError, "'a'", "'run'"):
                    write(trainer.store)
        if trainer.store.sessions.stats()[0]["last_step"] == 0:
            trainer.update(1)
    trainer.sessions.close(trainer.member)
    for write in each(WRITES.values()):
        write(trainer.store)
        write_reference(trainer.twin.reference, write)


@pytest.mark.parametrize("shared", [False, True])
def test_what_moves_rows_or_undoes_them(open_twin, shared):
    twin = open_twin()
    twin.checkpoint("empty")
    trainer = Trainer(twin, shared=shared)
    twin.checkpoint("before")
    trainer.announce(1, 2)
    store = trainer.store
    with refused_step(store, TableHeldError, "'a'", "'run'"):
        store.drop_table("a")
    for label in ("before", "empty"):
        with refused_step(store, TableHeldError, "'run'"):
            store.restore(label)
    for cache_bytes in (1 << 19, 1 << 22):
        with refused_step(store, TableHeldError, "'run'"):
            store.resize_cache(cache_bytes)
    trainer.update(1)
    trainer.sessions.close(trainer.member)
    store.resize_cache(1 << 19)
    twin.drop_table("b")
    twin.restore("before")


def test_what_goes_on_beside_a_session(trainer):
    twin, store = trainer.twin, trainer.store
    trainer.announce(1, 2, 3)
    store.flush()
    trainer.update(1)
    store.flush()
    twin.checkpoint("kept")
    grow(twin, "a", 2000)
    trainer.update(2)
    twin.on("free", "update", [1, 2], ones(2))
    twin.update({"free": ([1], ones(1))})
    twin.create_table("more", **config())
    twin.drop_table("free")
    assert_same(store.table("a").lookup([5, 7]), twin.reference.table("a").lookup([5, 7]))
    twin.check()
    trainer.update(3)
    keys = {"a": [1999, 5]}
    trainer.sessions.announce(trainer.member, {4: keys})
    rows = trainer.sessions.lookup_step(trainer.member, 4, timeout_s=PATIENCE_S)
    assert_same(rows["a"], twin.reference.table("a").lookup([1999, 5]))


def test_shared_session_admits_other_writers(open_twin):
    trainer = Trainer(open_twin(), shared=True)
    trainer.announce(1, 2)
    for write in WRITES.values():
        write(trainer.store)
        write_reference(trainer.twin.reference, write)
    trainer.update(1)
    rows = trainer.sessions.lookup_step(trainer.member, 2, timeout_s=PATIENCE_S)
    assert_same(rows["a"], trainer.twin.reference.table("a").lookup(KEYS["a"]))
    trainer.update(2)


def write_reference(reference, write):
    """Do a write of WRITES on the reference, which knows ranks of several tables alone."""
    if write is WRITES["update_ranks"]:
        reference.update_ranks([{"a": ([1], ones(1))}])
    else:
        write(reference)
