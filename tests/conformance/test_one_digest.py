"""One digest in every configuration: the same commands, in stores whose lives have nothing else in
common.

Only commands count (contract.md, first sentence). The stores differ in cache, policy, threads and
limits, and change all of it whenever they are opened again; in when rows are looked up, flushed,
committed, merged; and in when they are killed, which takes them back to an earlier command, from
which they go on. Merges run as they please beside the commands, and may forget nothing that a kept
label has: in the end each is restored (the state machine restores, and holds merges, in between).
"""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import settings

from embstore.config import Limits
from tests.conformance.backends import TINY
from tests.conformance.cases import generator
from tests.conformance.replay import across, creations, expect, on, random_reads, random_writes
from tests.conformance.traces import TABLES, smallest_cache
from tests.conformance.twin import digests

LIMITS = (TINY, replace(TINY, fold_bytes=1 << 30), replace(TINY, segment_bytes=1 << 16), Limits())
SEEDS = range(max(1, settings().max_examples // 100))
STORES = 6


def trace_of(rng, grows):
    """Return commands that each take one number: tables made, written, tuned, grown, dropped."""
    commands = creations(TABLES)
    for round_ in range(3):
        commands += random_writes(rng, TABLES)
        commands += [
            *([on("a", "grow", 200 + 100 * round_)] if grows else []),
            lambda store: setattr(store.table("b"), "learning_rate", 0.3),
            across("drop_table", "part/f"),
            across("create_table", "part/f", **TABLES["part/f"]),
        ]
    return commands


class Life:
    """What happens to one store between commands."""

    def __init__(self, backend, rng, name, smallest):
        self.backend = backend
        self.rng = rng
        self.name = name
        self.smallest = smallest
        self.restarts = 0
        self.labels = {}
        self.merges = 0
        self.store = self.opened()

    def opened(self):
        return self.backend.open_store(
            self.name,
            cache_bytes=int(self.smallest * self.rng.choice([1.0, 1.2, 2.0, 100.0])),
            policy=str(self.rng.choice(["lru", "lfu", "rank"])),
            threads=int(self.rng.integers(1, 3)),
            limits=LIMITS[self.rng.integers(len(LIMITS))],
            checkpoints_keep=int(self.rng.integers(1, 4)),
        )

    def do_something(self):
        keep_leaves = partial(digests, self.store)
        acts = (lambda: None, self.read, self.store.flush, self.settle, self.commit, keep_leaves)
        acts[self.rng.integers(len(acts))]()
        if self.rng.random() < 0.1:
            self.restart()

    def read(self):
        reads = random_reads(self.rng, {n: TABLES[n] for n in self.store.tables()})
        reads[self.rng.integers(len(reads))](self.store)

    def settle(self):
        self.backend.settle(self.store)

    def commit(self):
        label = f"{len(self.labels)}"
        self.labels[label] = digests(self.store)
        self.store.checkpoint(label)

    def restart(self):
        self.restarts += 1
        self.count_merges()
        if self.rng.random() < 0.5:
            self.store.close()
        else:
            self.settle()
            self.name = self.backend.copy(self.name)
            self.store.close()
        self.store = self.opened()

    def count_merges(self):
        stats = self.store.stats()["storage"]
        self.merges += stats["folds"] + stats["compactions"]
        assert not stats["merge_failures"], stats["merge_error"]

    def restore_every_label(self):
        for kept in reversed(self.store.checkpoints()):
            self.store.restore(kept.label)
            assert digests(self.store) == self.labels[kept.label], f"{kept.label} has changed"
            self.settle()
            self.restart()


@pytest.mark.parametrize("seed", SEEDS)
def test_one_digest_whatever_happens_between_commands(backend, seed):
    rng = generator(seed)
    commands = trace_of(rng, grows=backend.key_space == "dense")
    _, wanted = expect(commands, backend.reference())
    smallest = smallest_cache(backend, TABLES)
    restarts = merges = 0
    for number in range(STORES):
        life = Life(backend, rng, f"store-{number}", smallest)
        while life.store.command < len(commands):
            commands[life.store.command](life.store)
            life.do_something()
        life.store.check_integrity()
        assert digests(life.store) == wanted
        life.commit()
        life.restore_every_label()
        restarts += life.restarts
        merges += life.merges
    assert restarts and merges
