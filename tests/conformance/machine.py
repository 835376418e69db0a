"""A random life of a store, command by command beside the reference, merges held between them.

Where a merge stands is part of the state: it moves when a rule says so, and is let through where
the store waits for it. So a failure is found again, and shrinks.

Source: "erase then insert on a full table", HKV#78: tables come again in full caches.
"""

import shutil
import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from embstore.config import Adam, Limits, Uniform
from embstore.errors import (
    CapacityError,
    CheckpointExistsError,
    InvalidArgumentError,
    TableExistsError,
)
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile, TableProfile
from tests.conformance.backends import TINY
from tests.conformance.gate import Gated
from tests.conformance.spread import spread
from tests.conformance.traces import TABLES as DENSE
from tests.conformance.traces import any_values, cut_into_bags, near_keys, values, zipf_keys
from tests.conformance.twin import Twin, bits
from tests.reference import ReferenceTable

LIMITS = (
    TINY,
    replace(TINY, fold_bytes=1 << 30),
    replace(TINY, fold_bytes=1 << 30, fold_segments=9),
)
"""Merges as soon as may be; less folding, more compaction; compaction of worn segments mostly."""
SPANS = (1, 8, 64, 1 << 40)
OTHER_LAYOUT = {**DENSE["c"], "rows": 90, "dim": 9}
"""What "c" may be after it was dropped."""
TABLES = DENSE | {
    "s": {name: of for name, of in DENSE["b"].items() if name != "rows"} | {"key_space": "sparse"},
    "part/s": {
        "dim": 5,
        "optimizer": Adam(0.01),
        "initializer": Uniform(-1.0, 1.0),
        "key_space": "sparse",
    },
}
"""With tables of sparse keys, one of them in a layout that dense ones have, too."""
IDS = 250


class Draw(NamedTuple):
    """Keys and what goes with them, drawn from a seed."""

    seed: int
    count: int
    span: int

    def keys(self, table: ReferenceTable) -> tuple[Any, np.random.Generator]:
        """Return keys of a table, and the generator to draw the rest from."""
        rng, rows = np.random.default_rng(self.seed), rows_of(table)
        if self.span:
            keys = near_keys(rng, rows, self.count, self.span)
        else:
            keys = zipf_keys(rng, rows, self.count)
        return keys_of(table, keys), rng


def rows_of(table: ReferenceTable) -> int:
    """Return how many keys a table is given: of sparse ones so many at most."""
    return IDS if table.config.key_space == "sparse" else table.rows


def keys_of(table: ReferenceTable, numbers: Any) -> Any:
    """Return the keys of a table by their numbers, in [0, rows): sparse ones are far apart."""
    return spread(numbers) if table.config.key_space == "sparse" else numbers


DRAWS = st.builds(Draw, st.integers(0, 1 << 32), st.integers(0, 150), st.sampled_from((*SPANS, 0)))
PLACES = st.integers(0, 9)
"""Which of the tables there are, by place, counted around."""
RATES = st.sampled_from((None, None, 0.0, 1e-3, 0.25))
SCALES = st.sampled_from((1.0, 1.0, 0.0, 1 / 3))
OPTIONS = st.fixed_dictionaries({"learning_rate": RATES, "gradient_scale": SCALES})


def with_tables(made: Any) -> Any:
    """Have a rule run only when there is a table."""
    return precondition(lambda self: self.names)(made)


class Compared(RuleBasedStateMachine):
    """A store and its reference, compared at the end, and the tables and keys that draws choose."""

    def __init__(self, backend: Gated, caches: tuple[int, ...]) -> None:
        super().__init__()
        self._backend = backend
        self._caches = caches
        self._labels = 0

    @initialize(
        cache=PLACES,
        keep=st.integers(1, 3),
        limits=st.sampled_from(LIMITS),
        names=st.sets(st.sampled_from(sorted(TABLES)), min_size=1),
    )
    def open(self, cache: int, keep: int, limits: Limits, names: set[str]) -> None:
        self.twin = Twin(
            self._backend,
            limits=limits,
            threads=1,
            cache_bytes=self._cache(cache),
            checkpoints_keep=keep,
        )
        for name in sorted(names):
            self.create(name)

    def teardown(self) -> None:
        try:
            if hasattr(self, "twin"):
                self._compare_everything()
        finally:
            self._backend.close()
            shutil.rmtree(self._backend.path(""))

    def _compare_everything(self) -> None:
        """Compare what there is, also after all merges, and what a kill and a restore bring
        back."""
        twin = self.twin
        twin.check()
        twin.settle()
        twin.check()
        assert twin.store.stats()["storage"]["merge_error"] is None
        twin.check_recovery()

    @property
    def names(self) -> list[str]:
        """The tables there are."""
        return self.twin.reference.tables() if hasattr(self, "twin") else []

    def _cache(self, place: int) -> int:
        return self._caches[place % len(self._caches)]

    def _name(self, place: int) -> str:
        return self.names[place % len(self.names)]

    def _draw(self, place: int, draw: Draw) -> tuple[str, Any, int, np.random.Generator]:
        """Return a table's name, keys of it, its dim, and the generator."""
        name = self._name(place)
        table = self.twin.reference.table(name)
        keys, rng = draw.keys(table)
        return name, keys, table.config.dim, rng


class StoreMachine(Compared):
    """Commands on a store and its reference, with invariants after each."""

    # Tables

    @rule(name=st.sampled_from(sorted(TABLES)))
    def create(self, name: str) -> None:
        self._create(name, TABLES[name])

    @rule()
    def create_otherwise(self) -> None:
        self._create("c", OTHER_LAYOUT)

    def _create(self, name: str, config: dict[str, Any]) -> None:
        if name in self.names:
            here = self.twin.reference.table(name)
            if (here.rows, here.config.dim) != (config.get("rows", here.rows), config["dim"]):
                with pytest.raises(TableExistsError):
                    self.twin.store.create_table(name, **config)
                return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its rate may be another one by now
            self.twin.create_table(name, **config)

    @with_tables
    @rule(place=PLACES)
    def drop(self, place: int) -> None:
        self.twin.drop_table(self._name(place))

    @with_tables
    @rule(place=PLACES, more=st.integers(0, 200))
    def grow(self, place: int, more: int) -> None:
        name = self._name(place)
        table = self.twin.reference.table(name)
        if table.config.key_space == "sparse":
            with pytest.raises(InvalidArgumentError):
                self.twin.store.table(name).grow(more)
        else:
            self.twin.on(name, "grow", table.rows + more)

    @with_tables
    @rule(place=PLACES, rate=st.floats(0, 1, width=32))
    def learning_rate(self, place: int, rate: float) -> None:
        for store in (self.twin.store, self.twin.reference):
            store.table(self._name(place)).learning_rate = rate

    # Reading

    @with_tables
    @rule(place=PLACES, draw=DRAWS, admit=st.booleans())
    def lookup(self, place: int, draw: Draw, admit: bool) -> None:
        name, keys, _, _ = self._draw(place, draw)
        found = self.twin.store.table(name).lookup(keys, admit=admit)
        assert bits(found) == bits(self.twin.reference.table(name).lookup(keys))

    @with_tables
    @rule(draws=st.lists(DRAWS, max_size=6), admit=st.booleans())
    def lookup_several(self, draws: list[Draw], admit: bool) -> None:
        keys = {self._name(i): self._draw(i, draw)[1] for i, draw in enumerate(draws)}
        found = self.twin.store.lookup(keys, admit=admit)
        wanted = self.twin.reference.lookup(keys)
        assert {n: bits(r) for n, r in found.items()} == {n: bits(r) for n, r in wanted.items()}

    @with_tables
    @rule(
        place=PLACES,
        draw=DRAWS,
        mode=st.sampled_from(("sum", "mean", "weighted")),
        admit=st.booleans(),
    )
    def pooled(self, place: int, draw: Draw, mode: str, admit: bool) -> None:
        name, keys, _, rng = self._draw(place, draw)
        bags = (keys, cut_into_bags(rng, len(keys)), *pooling(rng, mode, len(keys)))
        found = self.twin.store.table(name).lookup_pooled(*bags, admit=admit)
        assert bits(found) == bits(self.twin.reference.table(name).lookup_pooled(*bags))

    # Writing

    @with_tables
    @rule(place=PLACES, draw=DRAWS, options=OPTIONS, special=st.booleans())
    def update(self, place: int, draw: Draw, options: dict[str, Any], special: bool) -> None:
        name, keys, dim, rng = self._draw(place, draw)
        if special and rng.random() < 0.2:
            grads = any_values(rng, len(keys), dim)
        else:
            grads = values(rng, len(keys), dim, special=special)
        self.twin.on(name, "update", keys, grads, **options, on_nonfinite="skip")

    @with_tables
    @rule(draws=st.lists(DRAWS, max_size=6), options=OPTIONS)
    def update_several(self, draws: list[Draw], options: dict[str, Any]) -> None:
        self.twin.update(self._shares(draws), **options)

    @with_tables
    @rule(ranks=st.lists(st.lists(DRAWS, max_size=3), max_size=4), options=OPTIONS)
    def update_ranks(self, ranks: list[list[Draw]], options: dict[str, Any]) -> None:
        self.twin.update_ranks([self._shares(draws) for draws in ranks], **options)

    def _shares(self, draws: list[Draw]) -> dict[str, tuple[Any, Any]]:
        shares = {}
        for place, draw in enumerate(draws):
            name, keys, dim, rng = self._draw(place, draw)
            shares[name] = (keys, values(rng, len(keys), dim))
        return shares

    @with_tables
    @rule(place=PLACES, draw=DRAWS, mode=st.sampled_from(("sum", "mean", "weighted")))
    def update_pooled(self, place: int, draw: Draw, mode: str) -> None:
        name, keys, dim, rng = self._draw(place, draw)
        offsets = cut_into_bags(rng, len(keys))
        grads = values(rng, len(offsets) - 1, dim)
        how = pooling(rng, mode, len(keys))
        self.twin.on(name, "update_pooled", keys, offsets, grads, *how)

    @with_tables
    @rule(place=PLACES, draw=DRAWS)
    def assign(self, place: int, draw: Draw) -> None:
        name, keys, dim, rng = self._draw(place, draw)
        self.twin.on(name, "assign", keys, any_values(rng, len(keys), dim))

    @with_tables
    @rule(place=PLACES, draw=DRAWS, add_t=st.integers(0, 3))
    def put_rows(self, place: int, draw: Draw, add_t: int) -> None:
        name, keys, dim, rng = self._draw(place, draw)
        state = abs(values(rng, len(keys), self.twin.reference.table(name).config.state_dim))
        self.twin.on(name, "put_rows", keys, values(rng, len(keys), dim), state, add_t)

    @with_tables
    @rule(place=PLACES, draw=DRAWS)
    def delete(self, place: int, draw: Draw) -> None:
        name, keys, _, _ = self._draw(place, draw)
        written = self.twin.reference.table(name).written
        done = self.twin.on(name, "delete", keys)
        assert done.rows == len(written & set(keys.view(np.uint64).tolist()))

    @with_tables
    @rule(place=PLACES)
    def clear(self, place: int) -> None:
        written = self.twin.reference.table(self._name(place)).written
        assert self.twin.on(self._name(place), "clear").rows == len(written)

    @with_tables
    @rule(place=PLACES, rounds=st.integers(1, 6), seed=st.integers(0, 1 << 32))
    def wear(self, place: int, rounds: int, seed: int) -> None:
        """Write the same rows again and again, each time to the log: older segments are worn."""
        name, rng = self._name(place), np.random.default_rng(seed)
        table = self.twin.reference.table(name)
        keys, dim = keys_of(table, np.arange(min(rows_of(table), 90))), table.config.dim
        for _ in range(rounds):
            self.twin.on(name, "assign", keys, values(rng, len(keys), dim))
            self.twin.store.flush()
            keys = keys[rng.random(len(keys)) < 0.9]

    # Durability

    @rule(label_taken=st.booleans())
    def checkpoint(self, label_taken: bool) -> None:
        kept = self.twin.store.checkpoints()
        if label_taken and kept:
            label = kept[-1].label
            with pytest.raises(CheckpointExistsError):
                self.twin.store.checkpoint(label)
            return
        self._labels += 1
        self.twin.checkpoint(f"label {self._labels}", {"step": self._labels})

    @precondition(lambda self: self.twin.store.checkpoints())
    @rule(place=PLACES)
    def restore(self, place: int) -> None:
        kept = self.twin.store.checkpoints()
        self.twin.restore(kept[place % len(kept)].label)
        self.twin.check()

    @with_tables
    @rule(place=PLACES, all_tables=st.booleans())
    def flush(self, place: int, all_tables: bool) -> None:
        (self.twin.store if all_tables else self.twin.store.table(self._name(place))).flush()

    @rule(cache=PLACES)
    def resize_cache(self, cache: int) -> None:
        cache_bytes = self._cache(cache)
        self.twin.store.resize_cache(cache_bytes)
        assert self.twin.store.stats()["cache"]["memory_bytes"] <= cache_bytes

    @with_tables
    @rule(place=PLACES, seed=st.integers(0, 1 << 32))
    def rank_rows(self, place: int, seed: int) -> None:
        name, rng = self._name(place), np.random.default_rng(seed)
        table = self.twin.reference.table(name)
        keys = np.unique(keys_of(table, rng.integers(0, rows_of(table), 60)))
        counts = rng.integers(1, 9, len(keys))
        counted = TableProfile(name, 0, keys, counts, int(counts.sum()))
        self.twin.store.import_profile(Profile({name: counted}))

    @rule(share=st.sampled_from((0.1, 0.7, 1.0)))
    def warm(self, share: float) -> None:
        self.twin.store.warm_cache(share)

    @with_tables
    @rule(draws=st.lists(DRAWS, min_size=1, max_size=3))
    def pin_hot_rows(self, draws: list[Draw]) -> None:
        store, tables = self.twin.store, {}
        for place, draw in enumerate(draws):
            name = self._name(place)
            tables[name] = np.unique(draw.keys(self.twin.reference.table(name))[0])
        version = 1 + (store.hot_set().version if store.hot_set() else 0)
        with suppress(CapacityError):  # of the smallest caches
            assert store.pin_hot_set(HotSet(tables, version)).version == version

    @rule()
    def unpin_hot_rows(self) -> None:
        assert self.twin.store.pin_hot_set(None).pinned_rows == 0

    @rule(
        cache=PLACES,
        policy=st.sampled_from(("lru", "lfu", "rank")),
        threads=st.integers(1, 2),
        limits=st.sampled_from(LIMITS),
    )
    def reopen(self, cache: int, policy: str, threads: int, limits: Limits) -> None:
        cache_bytes = self._cache(cache)
        self.twin.reopen(cache_bytes=cache_bytes, policy=policy, threads=threads, limits=limits)
        self.twin.check()

    @rule(cache=PLACES)
    def kill(self, cache: int) -> None:
        self.twin.kill(cache_bytes=self._cache(cache))
        self.twin.check()

    @rule(cache=PLACES, point=st.sampled_from(("commit:synced", "commit:renamed")))
    def kill_in_a_checkpoint(self, cache: int, point: str) -> None:
        twin, before = self.twin, self.twin.commits
        copy = self._backend.copy_during(
            twin.store, twin.name, point, lambda: self.checkpoint(False)
        )
        if point == "commit:synced":
            twin.commits = before
        twin.kill(copy, cache_bytes=self._cache(cache))
        twin.check()

    # Merges

    @rule(points=st.integers(1, 9))
    def advance(self, points: int) -> None:
        self._backend.advance(self.twin.store, points)

    @rule()
    def settle(self) -> None:
        self.twin.settle()

    # Comparing

    @with_tables
    @rule(place=PLACES)
    def compare(self, place: int) -> None:
        self.twin.check_table(self._name(place))

    @rule()
    def recover(self) -> None:
        """See what a kill would bring back, and go on."""
        self.twin.check_recovery()

    @invariant()
    def merge_stands(self) -> None:
        if hasattr(self, "twin"):
            self._backend.advance(self.twin.store)

    @invariant()
    def integrity(self) -> None:
        if hasattr(self, "twin"):
            self.twin.store.check_integrity()
            assert self.twin.store.command == self.twin.reference.command_number


def pooling(rng: np.random.Generator, mode: str, count: int) -> tuple[str, Any]:
    """Return mode and weights."""
    return ("sum", values(rng, count)) if mode == "weighted" else (mode, None)
