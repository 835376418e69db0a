"""delete: rows are as if they had never been written (rule 7)."""

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError, TableHeldError, TableNotFoundError
from embstore.profiles.hotset import HotSet
from tests.conformance.cases import (
    OPTIMIZERS,
    assert_same,
    batch,
    config,
    each,
    generator,
    of_each_kind,
    ones,
    refused,
)

SMALL = {"cache_bytes": 60_000}
"""Most rows of a thousand are on the disk."""


@pytest.fixture
def twin(open_twin):
    """A table of each optimizer, with some of its rows trained."""
    twin = open_twin(**of_each_kind(dim=5))
    for kind in OPTIMIZERS:
        twin.on(kind, "update", *batch(generator(161), 300, dim=5))
    return twin


def delete(twin, kind, keys):
    """Delete rows of both, and compare what is answered, and what there is then."""
    before = twin.reference.table(kind).written
    done = twin.on(kind, "delete", keys)
    assert done.rows == len(before & set(np.asarray(keys).tolist()))
    return done.rows


def test_deleted_rows_are_initial_and_leave_the_digest(twin):
    for kind in each(OPTIMIZERS):
        table, reference = twin.store.table(kind), twin.reference.table(kind)
        written = sorted(reference.written)
        assert delete(twin, kind, [*written[:60], *written[:10], 999]) == 60
        for found, wanted in zip(
            table.read_rows(range(1000)), reference.read_rows(np.arange(1000)), strict=True
        ):
            assert_same(found, wanted)
        assert_same(table.lookup(written), reference.lookup(written))
    twin.check()


def test_a_table_whose_rows_are_all_deleted_is_one_that_never_had_any(twin, open_twin):
    other = open_twin("other", **of_each_kind(dim=5))
    for kind in each(OPTIMIZERS):
        delete(twin, kind, np.arange(1000))
        nothing = np.empty(0, np.int64), np.empty((0, 5), np.float32)
        other.on(kind, "update", *nothing)  # so that t is the same
        assert twin.store.table(kind).digest() == other.store.table(kind).digest()


def test_a_deleted_row_that_is_written_begins_anew(twin):
    for kind in each(OPTIMIZERS):
        keys = sorted(twin.reference.table(kind).written)[:50]
        delete(twin, kind, keys)
        twin.on(kind, "update", keys[:25], ones(25, 5))
        twin.on(kind, "assign", keys[20:30], ones(10, 5))
        delete(twin, kind, keys[22:28])
        twin.on(kind, "update", keys[24:26], ones(2, 5))
    twin.check()


def test_a_row_that_was_not_written_may_be_deleted(twin):
    for kind in each(OPTIMIZERS):
        fresh = [k for k in range(1000) if k not in twin.reference.table(kind).written]
        twin.store.table(kind).lookup(fresh[:10])  # some have slots
        digest = twin.store.table(kind).digest()
        assert delete(twin, kind, fresh[5:15]) == 0
        assert delete(twin, kind, []) == 0
        assert twin.store.table(kind).digest() == digest


def test_a_digest_of_blocks_that_have_no_row_any_more(open_twin):
    twin = open_twin(a=config())
    twin.on("a", "update", [5, 700], ones(2))
    twin.check()
    twin.on("a", "delete", [5])
    twin.check()
    twin.on("a", "delete", [700])
    twin.check()


def test_wherever_rows_are(open_twin):
    """In the cache, dirty and clean, in the log, and in the base, with checkpoints between."""
    twin = open_twin(a=config(optimizer=OPTIMIZERS["adam"], rows=4000, dim=9), **SMALL)
    rng = generator(162)
    for turn in each(range(12)):
        keys = rng.integers(0, 4000, 500)
        twin.on("a", "update", keys, ones(500, 9))
        if turn % 3 == 0:
            twin.checkpoint(f"{turn}")
            twin.settle()
        if turn % 4 == 1:
            twin.store.flush()
        twin.store.table("a").lookup(rng.integers(0, 4000, 300))
        delete(twin, "a", rng.integers(0, 4000, 700))
        twin.check()
    twin.check_recovery()
    twin.settle()
    twin.reopen()
    twin.check()
    twin.restore("9")
    twin.check()
    twin.restore("6")
    twin.check()


def test_all_rows_of_a_table(open_twin):
    """Wherever they are; those of another table of its layout stay, and so do checkpoints."""
    twin = open_twin(a=config(rows=4000, dim=9), b=config(rows=4000, dim=9, seed=3), **SMALL)
    for name in ("a", "b"):
        twin.on(name, "update", np.arange(0, 3000, 2), ones(1500, 9))
    twin.checkpoint("first")
    twin.settle()
    twin.on("a", "update", np.arange(1000), ones(1000, 9))
    twin.on("a", "delete", np.arange(100))
    assert twin.on("a", "clear").rows == 900 + 1000
    twin.check()
    assert twin.on("a", "clear").rows == 0
    scan = twin.store.table("a").scan(since="first")
    assert (scan.rows, scan.deleted_rows) == (0, 1500)
    scan.close()
    twin.on("a", "update", np.arange(10), ones(10, 9))
    twin.checkpoint("second")
    twin.settle()
    twin.check()
    twin.restore("first")
    twin.check()


def test_more_rows_than_the_cache_takes(open_twin):
    twin = open_twin(a=config(rows=20_000, dim=9), **SMALL)
    for low in range(0, 20_000, 4_000):
        twin.on("a", "update", np.arange(low, low + 4_000), ones(4_000, 9))
    assert delete(twin, "a", np.arange(1_000, 19_000)) == 18_000
    twin.check()


def test_tables_of_one_layout_keep_their_rows(open_twin):
    twin = open_twin(a=config(), b=config(seed=3))
    for name in ("a", "b"):
        twin.on(name, "update", np.arange(100), ones(100))
    twin.on("a", "delete", np.arange(50))
    twin.check()


def test_a_kill_loses_no_logged_deletion(open_twin):
    twin = open_twin(a=config(), durability="commands")
    twin.on("a", "update", np.arange(100), ones(100))
    twin.checkpoint("first")
    twin.on("a", "delete", np.arange(50))
    twin.on("a", "update", np.arange(40, 60), ones(20))
    twin.kill()
    twin.check()


def test_a_kill_takes_back_a_deletion_that_was_not_committed(open_twin):
    twin = open_twin(a=config(), durability="checkpoint")
    twin.on("a", "update", np.arange(100), ones(100))
    twin.checkpoint("first")
    twin.on("a", "delete", np.arange(50))
    twin.kill()
    twin.check()
    assert delete(twin, "a", np.arange(50)) == 50


@pytest.mark.needs("plain_keys")
def test_what_cannot_be_deleted(open_twin):
    twin = open_twin(a=config(), b=config())
    twin.on("a", "update", np.arange(100), ones(100))
    table, gone = twin.store.table("a"), twin.store.table("b")
    for keys in each(([1000], [-1], [1, 2, 1000])):
        with refused(twin.store, InvalidArgumentError, "'a'", "keys in [0, 1000)"):
            table.delete(keys)
    with refused(twin.store, InvalidArgumentError, "int64"):
        table.delete([0.5])
    twin.drop_table("b")
    with refused(twin.store, TableNotFoundError, "'b'"):
        gone.delete([1])


def test_a_table_that_a_session_holds_is_not_deleted_from(open_twin):
    twin = open_twin(a=config())
    twin.on("a", "update", np.arange(100), ones(100))
    with (
        twin.store.session(["a"], name="s"),
        refused(twin.store, TableHeldError, "'a'", "'s'", "shared=True"),
    ):
        twin.store.table("a").delete([1])
    with (
        twin.store.session(["a"], name="s"),
        refused(twin.store, TableHeldError, "'a'", "'s'", "shared=True"),
    ):
        twin.store.table("a").clear()
    delete(twin, "a", [1])
    twin.check()


@pytest.mark.needs("one_store")
def test_a_pinned_row_stays_where_it_is(open_twin):
    """What has pinned a row finds it, and what was pinned is unpinned."""
    twin = open_twin(a=config(), b=config())
    for name in ("a", "b"):
        twin.on(name, "update", np.arange(100), ones(100))
    twin.store.pin_hot_set(HotSet({"a": np.arange(60), "b": np.arange(10)}, version=1))
    delete(twin, "a", np.arange(0, 100, 2))
    twin.on("a", "update", np.arange(0, 100, 4), ones(25))
    twin.check()
    assert twin.store.pin_hot_set(None).pinned_rows == 0
    twin.check()
