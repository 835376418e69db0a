"""Stores that log their commands, and how they open after a kill."""

import os

import numpy as np

import embstore
from embstore import Adam, Normal, RowWiseAdagrad, Uniform
from tests.conformance.backends import UnsyncedFiles
from tests.copies import copy_of_open

LOGGED = {"durability": "commands", "cache_bytes": 1 << 20, "commit_every_s": 0.0}
DECAYED = (
    Adam(0.01, weight_decay=0.1, decoupled_weight_decay=True),
    RowWiseAdagrad(0.2, weight_decay=0.1),
)
TABLES = {
    "a": {"dim": 4, "rows": 500, "optimizer": RowWiseAdagrad(0.1), "initializer": Uniform(-1, 1)},
    "b": {"dim": 8, "rows": 300, "optimizer": DECAYED[0], "initializer": Normal(0, 0.1)},
    "c": {"dim": 4, "rows": 200, "optimizer": DECAYED[1], "initializer": Uniform(0, 1)},
}


def opened(path, **options):
    return embstore.open(path, files=UnsyncedFiles(path), **(LOGGED | options))


def made(path, **options):
    store = opened(path, **options)
    for name, config in TABLES.items():
        store.create_table(name, **config)
    return store


def share(rng, table, count=20):
    keys = rng.integers(0, table.rows, count)
    return keys, rng.standard_normal((count, table.dim)).astype(np.float32)


def state(store):
    tables = {}
    for name in store.tables():
        table = store.table(name)
        facts = (table.t, table.rows, table.learning_rate, table.digest())
        tables[name] = (store.executor.tables.find(name).table_id, *facts)
    return store.command, store.epoch, tables, dict(store.executor.tables.places)


def killed(store, path, **options):
    """Return the store as it opens after a kill at this moment.

    What the log's thread has begun to write is written first: of a file that is written to, a copy
    may have a later record without an earlier one, which no kill leaves.
    """
    if (log := store.executor.log) is not None:
        log.files.wait(log.files.appended, written=True)
    copy = path.with_name(f"{path.name}-{len(os.listdir(path.parent))}")
    copy_of_open(path, copy)
    return opened(copy, **options)


def check_kill(store, path, **options):
    with killed(store, path, **options) as again:
        assert state(again) == state(store)
        again.check_integrity()


def train(store, rng, rounds=3):
    a, b = store.table("a"), store.table("b")
    for _ in range(rounds):
        store.update({"a": share(rng, a), "b": share(rng, b)})
        a.update(*share(rng, a), learning_rate=0.5, gradient_scale=0.25)
