"""What the tests of cache, storage and digest share: small stores, and a look inside them."""

import sys

import numpy as np

import embstore
from embstore import Constant, Sgd
from embstore.arrays import KEY_MASK
from embstore.config import Limits
from tests.conformance.backends import UnsyncedFiles


def show(text):
    """Print a figure or a seed: pytest shows it beside a failure, and with -s."""
    sys.stdout.write(f"{text}\n")


def generator(seed):
    show(f"seed {seed}")
    return np.random.default_rng(seed)


def small_limits(**given):
    """Limits that make storage seal, fold and compact after a few hundred rows."""
    usual = {"segment_bytes": 16 << 10, "fold_bytes": 24 << 10, "fold_segments": 4}
    return Limits(**usual | given)


def opened(path, **options):
    """Open a store on one thread and without waiting, so that a test's time is its own."""
    usual = {"device": "cpu", "threads": 1, "files": UnsyncedFiles(path)}
    return embstore.open(path, **usual | options)


def make_table(store, name="t", **given):
    usual = {"dim": 4, "rows": 100_000, "optimizer": Sgd(1.0), "initializer": Constant(0.5)}
    return store.create_table(name, **usual | given)


def rows_of(keys, dim=4, version=0):
    """Return rows that tell whose they are: every element is made of key and version."""
    keys = np.asarray(keys)
    return np.repeat((keys + version / 8).astype(np.float32)[:, None], dim, axis=1)


def pool_of(table):
    return table._executor.tables.find(table.name, table.table_id).pool


def storage_of(store):
    return store.executor.storage


def settle(store):
    """Do every fold and compaction that is due, and check that none failed."""
    with store.executor.tables.frame.turn():  # a commit goes on behind calls
        storage_of(store).merges.finish()
    assert storage_of(store).merges.failures == 0, storage_of(store).merges.error


def resident_keys(table):
    """Return the caller's keys of the rows that are in the cache (of a store with one table)."""
    keys = pool_of(table).slots.keys
    return set((keys[keys >= 0] & KEY_MASK).tolist())


def pool_figures(store, place=0):
    return store.stats()["cache"]["pools"][place]
