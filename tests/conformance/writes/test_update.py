"""update, of one table and of several: its options, duplicates, and what it acknowledges."""

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError, TableNotFoundError
from tests.conformance.cases import (
    KINDS,
    OPTIMIZERS,
    assert_same,
    batch,
    config,
    each,
    generator,
    normal,
    of_each_kind,
    ones,
    pool_stats,
    refused,
)


@pytest.fixture
def twin(open_twin):
    """A table of each optimizer."""
    return open_twin(**of_each_kind(dim=7))


def test_learning_rate_of_one_call(twin):
    for kind in each(OPTIMIZERS):
        for rate in each([1e-45, 1e-40, 0.3, 1, np.float32(0.1), np.float64(3e38)]):
            rng = generator(33)
            twin.on(kind, "update", *batch(rng, 20, dim=7), learning_rate=rate)
            twin.on(kind, "update", *batch(rng, 20, dim=7))


def test_gradient_scale(twin):
    for kind in each(OPTIMIZERS):
        for scale in each([0, -0.0, 1, 1 / 3, 1e-50, 1e-42, 1e6, np.float32(0.25)]):
            twin.on(kind, "update", *batch(generator(34), 50, dim=7), gradient_scale=scale)


def test_float16_gradients_are_widened(twin):
    for kind in each(OPTIMIZERS):
        keys, grads = batch(generator(35), 50, dim=7)
        twin.on(kind, "update", keys, grads.astype(np.float16))


def test_skipped_update_is_acknowledged_and_changes_nothing(twin):
    for kind in each(OPTIMIZERS):
        keys, grads = batch(generator(36), 50, dim=7)
        twin.on(kind, "update", keys, grads)
        before = twin.store.table(kind).digest()
        done = twin.on(kind, "update", [1, 2], ones(2, 7, np.inf), on_nonfinite="skip")
        assert (done.skipped, done.t, done.command) == (True, 1, twin.store.command)
        assert twin.store.table(kind).digest() == before
        done = twin.on(kind, "update", keys, grads, on_nonfinite="skip")
        assert (done.skipped, done.t) == (False, 2)


@pytest.fixture
def several(open_twin):
    """Two tables of one layout and two of others."""
    twin = open_twin()
    for name, kind in (("a", "sgd"), ("b", "sgd"), ("c", "adam"), ("d", "adagrad")):
        dim = 7 if name == "c" else 4
        twin.create_table(name, **config(dim=dim, optimizer=OPTIMIZERS[kind]))
    return twin


def share(rng, names="abcd"):
    return {n: batch(rng, 60, dim=7 if n == "c" else 4) for n in names}


def test_learning_rates_are_given_by_table(several):
    """Those that are not named have their own; of a table that is not updated it says nothing."""
    rng, rates = generator(38), {"a": 0.25, "c": 0.0, "d": 3.0}
    several.update(share(rng), learning_rate=rates)
    several.update(share(rng, "cb"), learning_rate=rates)
    several.update_ranks([share(rng), share(rng, "db")], learning_rate=rates)
    several.update(share(rng))


def test_a_learning_rate_of_no_table_is_refused(several):
    rng = generator(39)
    with refused(several.store, TableNotFoundError, "no table 'e'"):
        several.store.update(share(rng, "a"), learning_rate={"a": 0.1, "e": 0.1})
    for value in each([-1.0, None, "fast", float("nan")]):
        with refused(several.store, InvalidArgumentError, "table 'a': learning_rate", repr(value)):
            several.store.update(share(rng, "ab"), learning_rate={"a": value})


def test_several_tables_are_one_command(several):
    rng = generator(37)
    several.update(share(rng))
    done = several.update(share(rng, "ca"), learning_rate=0.25, gradient_scale=0.5)
    assert (done.command, done.t, done.skipped) == (6, {"c": 2, "a": 2}, False)


def test_one_bad_table_skips_all_of_them(several):
    before = {n: several.store.table(n).digest() for n in "abcd"}
    grads = {"a": ([1], ones(1)), "b": ([2], ones(1, 4, np.inf)), "c": ([3], ones(1, 7))}
    done = several.update(grads, on_nonfinite="skip")
    assert done.skipped
    assert {n: several.store.table(n).digest() for n in "abcd"} == before


def test_gradients_are_not_changed_nor_kept(twin):
    for kind in each(OPTIMIZERS):
        keys, grads = batch(generator(40), 50, dim=7)
        given = keys.copy(), grads.copy()
        twin.on(kind, "update", keys, grads, gradient_scale=3.0)
        assert np.array_equal(keys, given[0])
        assert np.array_equal(grads, given[1])
        keys[:], grads[:] = 0, 0.0
        twin.check()


@KINDS
def test_duplicates_in_one_batch(open_twin, optimizer):
    """Source: "duplicate keys inside one batch (lookup, insert, gradient)": HKV#141, torchrec#4525,
    DynamicEmb's LFU count fix. With more unique keys than slots, and under LFU."""
    twin, rng = open_twin(cache_bytes=48 << 10, policy="lfu"), generator(211)
    table = twin.create_table("a", **config(dim=24, rows=900, optimizer=optimizer))
    slots = pool_stats(twin.store)["slots"]
    keys = np.concatenate([np.repeat(rng.permutation(900)[: slots + 50], 3), [7] * 300])
    keys = rng.permutation(keys)
    twin.on("a", "update", keys, normal(rng, len(keys), 24))
    twin.on("a", "assign", keys[::2], normal(rng, len(keys[::2]), 24))
    assert_same(table.lookup(keys), twin.reference.table("a").lookup(keys))


@KINDS
def test_batch_from_one_key_to_far_more_than_the_cache(open_twin, optimizer):
    """Source: "empty batch, single key, batch larger than the cache": recsys-examples PRs 271, 342,
    349; Colossal's assert. cDLRM, "updates to overflow rows lost; no final flush". BagPipe,
    "fetched values never stored: miss value equals backing row"."""
    twin, rng = open_twin(cache_bytes=48 << 10), generator(212)
    table = twin.create_table("a", **config(dim=12, rows=5000, optimizer=optimizer))
    for count in each([1, 2, 600, 5000]):
        keys = rng.permutation(5000)[:count]
        for _ in range(2):
            assert_same(table.lookup(keys), twin.reference.table("a").lookup(keys))
            twin.on("a", "update", keys, normal(rng, count, 12))
            # around the cache, and through it
            assert_same(table.read_rows(keys)[0], table.lookup(keys))
    assert pool_stats(twin.store)["calls_in_parts"] > 3
    twin.store.flush()
    twin.check()
    twin.reopen()  # closing is the final flush
