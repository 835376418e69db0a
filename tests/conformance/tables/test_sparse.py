"""Tables of sparse keys: any 64 bits, as int64 or uint64, beside tables of dense keys."""

import numpy as np
import pytest

from embstore.config import Normal, Uniform
from embstore.errors import InvalidArgumentError, TableExistsError
from tests.conformance.cases import (
    KINDS,
    assert_same,
    config,
    each,
    generator,
    normal,
    ones,
    refused,
)

pytestmark = pytest.mark.needs("plain_keys")

RESERVED = 2**64 - 1
EXTREMES = np.array(
    [0, 1, 255, 256, 2**40 - 1, 2**40, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 256, 2**64 - 2],
    np.uint64,
)


def sparse(**given):
    return {name: of for name, of in config(**given).items() if name != "rows"} | {
        "key_space": "sparse"
    }


def ids(rng, count, of=400):
    """Draw ids (count,) of `of` that are spread over 64 bits, many of them repeated."""
    pool = np.concatenate(
        [EXTREMES, np.random.default_rng(1).integers(0, 2**64 - 1, of, np.uint64)]
    )
    return pool[rng.integers(0, len(pool), count) // rng.choice([1, 1, 8], count)]


@KINDS
def test_updates_of_any_keys(open_twin, optimizer):
    twin = open_twin(a=sparse(optimizer=optimizer), cache_bytes=1 << 17)
    rng = generator(1)
    for count in each([1, 5, 300, 2000]):
        keys = ids(rng, count)
        assert_same(twin.store.table("a").lookup(keys), twin.reference.table("a").lookup(keys))
        twin.on("a", "update", keys, normal(rng, count, 4))


def test_the_bits_are_the_key(open_twin):
    """As int64 or as uint64; a list of Python's integers may have both."""
    twin = open_twin(a=sparse())
    table = twin.store.table("a")
    twin.on("a", "update", EXTREMES, ones(len(EXTREMES)))
    assert_same(table.lookup(EXTREMES.view(np.int64)), table.lookup(EXTREMES))
    assert_same(table.lookup([-2]), table.lookup(np.array([2**64 - 2], np.uint64)))
    assert_same(table.lookup([2**64 - 2, 1, -3]), table.lookup([-2, 1, 2**64 - 3]))


def test_initial_rows_are_those_of_the_64_bits(open_twin):
    for name, initializer in (("u", Uniform(-1.0, 1.0)), ("n", Normal(0.0, 1.0))):
        twin = open_twin(name, a=sparse(initializer=initializer))
        assert_same(
            twin.store.table("a").lookup(EXTREMES), twin.reference.table("a").lookup(EXTREMES)
        )


def test_one_value_is_no_key(open_twin):
    twin = open_twin(a=sparse())
    table = twin.store.table("a")
    for keys in ([1, -1], np.array([RESERVED], np.uint64)):
        with refused(twin.store, InvalidArgumentError, "18446744073709551615"):
            table.lookup(keys)
        with refused(twin.store, InvalidArgumentError, "18446744073709551615"):
            table.update(keys, ones(len(keys)))


def test_a_table_has_either_rows_or_sparse_keys(open_twin):
    twin = open_twin()
    store = twin.store
    with refused(store, InvalidArgumentError, "rows to be left out"):
        store.create_table("a", **sparse(), rows=10)
    with refused(store, InvalidArgumentError, "rows to be an integer"):
        store.create_table("a", **(sparse() | {"key_space": "dense"}))
    with refused(store, InvalidArgumentError, "key_space to be one of dense, sparse"):
        store.create_table("a", **(sparse() | {"key_space": "hashed"}))
    twin.create_table("a", **sparse())
    twin.create_table("a", **sparse())
    with refused(store, TableExistsError, "key_space"):
        store.create_table("a", **config())
    assert store.table("a").rows == RESERVED


@pytest.fixture
def several(open_twin):
    """Two tables of sparse keys and two of dense ones, all of one layout, and few slots."""
    of = {"a": sparse(), "b": sparse(seed=3), "c": config(), "d": config(seed=4)}
    return open_twin(**of, cache_bytes=1 << 18)


def share(rng, count=300):
    sizes = {name: ids(rng, count) for name in "ab"}
    sizes |= {name: rng.integers(0, 1000, count) for name in "cd"}
    return {name: (keys, normal(rng, count, 4)) for name, keys in sizes.items()}


def test_a_table_of_sparse_keys_need_not_grow(open_twin):
    twin = open_twin(a=sparse())
    with refused(twin.store, InvalidArgumentError, "it need not grow"):
        twin.store.table("a").grow(2**40)


def test_one_key_is_another_row_in_each_table(several):
    rng = generator(2)
    for _ in range(4):
        several.update(share(rng))
    several.update_ranks([share(rng), share(rng)])
    keys = np.arange(20)
    for name in "abcd":
        assert_same(
            several.store.table(name).lookup(keys), several.reference.table(name).lookup(keys)
        )
    several.check()


def test_commits_restores_and_crashes(several):
    rng = generator(3)
    several.update(share(rng))
    several.checkpoint("one")
    several.update(share(rng))
    several.reopen()
    several.update(share(rng))
    several.crash()
    several.update(share(rng))
    several.checkpoint("two")
    several.update(share(rng))
    several.restore("one")
    several.update(share(rng))
    several.reopen()


def test_a_table_that_is_dropped_and_made_again(several):
    rng = generator(4)
    several.update(share(rng))
    several.checkpoint("one")
    several.drop_table("a")
    several.create_table("a", **sparse())
    several.update(share(rng))
    several.restore("one")
    several.update(share(rng))
    several.reopen()


def test_rows_are_deleted(several):
    """Of the cache, of the log and of the base; what comes back is new."""
    rng = generator(5)
    for round_ in range(3):
        several.update(share(rng))
        several.checkpoint(f"before {round_}")
        several.update(share(rng))
        several.on("a", "delete", ids(rng, 150))
        several.on("c", "delete", rng.integers(0, 1000, 100))
        several.check()
        several.update(share(rng))
    several.settle()
    several.on("b", "clear")
    several.check()
    several.restore("before 1")
    several.update(share(rng))
    several.crash()


def test_scans_have_every_row_once(several):
    rng = generator(6)
    several.update(share(rng))
    several.checkpoint("one")
    for name in "ab":
        written = several.reference.table(name).written
        for rows in each([1, 7, 1000]):
            found = [keys for keys, _ in several.store.table(name).scan(batch_rows=rows)]
            assert max(map(len, found)) <= rows
            keys = np.concatenate(found).view(np.uint64)
            assert len(keys) == len(written) and set(keys.tolist()) == written
    keys, weights = several.store.table("a").scan(batch_rows=50).__next__()
    assert_same(weights, several.reference.table("a").lookup(keys))


def test_scans_since_a_label_have_what_changed_and_what_was_deleted(several):
    rng = generator(7)
    several.update(share(rng))
    several.checkpoint("one")
    before = several.reference.table("a").written
    changed, gone = ids(rng, 30), ids(rng, 30)
    several.on("a", "update", changed, normal(rng, 30, 4))
    several.on("a", "delete", gone)
    several.checkpoint("two")
    with several.store.table("a").scan(since="one") as scan:
        deleted = [int(k) for keys in scan.deleted(7) for k in keys.view(np.uint64)]
        rows = [int(k) for keys, _ in scan for k in keys.view(np.uint64)]
    assert sorted(rows) == sorted(set(changed.tolist()) - set(gone.tolist()))
    assert sorted(deleted) == sorted(set(gone.tolist()) & before)


@pytest.mark.parametrize("policy", ["lru", "lfu", "rank"])
def test_rows_leave_whatever_their_keys(open_twin, policy):
    """Of a cache whose keys are all negative as int64, by each policy."""
    twin = open_twin(a=sparse(), cache_bytes=1 << 17, policy=policy)
    rng = generator(8)
    for _ in range(6):
        keys = rng.integers(2**63, 2**64 - 1, 4000, np.uint64)
        assert_same(twin.store.table("a").lookup(keys), twin.reference.table("a").lookup(keys))
        twin.on("a", "update", keys[:500], normal(rng, 500, 4))
