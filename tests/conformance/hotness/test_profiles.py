"""Profiles: what is counted, imported, kept and forgotten, beside other calls."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest

from embstore.config import RowWiseAdagrad
from embstore.errors import EmbstoreError, StoreClosedError
from embstore.profiles.hotset import HotSet, choose_hot_set
from tests.conformance.cases import config, engine_of, generator, normal, total
from tests.conformance.hotness.profiles import (
    falling,
    first_count,
    is_pinned,
    level_of_key_0,
    profile,
    resident,
    train,
)
from tests.conformance.sessions.training import until

pytestmark = pytest.mark.needs("one_store")


def accesses(store):
    return {name: table.accesses for name, table in store.export_profile().tables.items()}


def test_profile_and_hot_set_outlive_a_restart(open_twin):
    twin, rng = open_twin(cache_bytes=64 << 10, policy="rank"), generator(603)
    twin.create_table("a", **config(rows=4000, optimizer=RowWiseAdagrad(0.1)))
    train(twin, "a", rng)
    given = profile(a=falling(4000))
    twin.store.import_profile(given)
    hot = HotSet({"a": np.arange(5, 105)}, version=3, threshold=2, bytes=100 * 32)
    assert twin.store.pin_hot_set(hot).pinned_rows == 100
    twin.reopen(policy="rank", warm_up=0.5)
    found = twin.store.export_profile(source="imported").tables["a"]
    assert found.keys.tolist() == given.tables["a"].keys.tolist()
    assert found.counts.tolist() == given.tables["a"].counts.tolist()
    again = twin.store.hot_set()
    assert (again.version, again.threshold, again.bytes) == (3, 2, 3200)
    assert again.tables["a"].tolist() == hot.tables["a"].tolist()
    until(lambda: is_pinned(twin.store, 3, 100))
    warming = until(lambda: (w := twin.store.stats()["frequency"]["warming"])["of"] and w)
    until(lambda: not twin.store.stats()["frequency"]["warming"]["running"])
    assert warming["of"] > total(twin.store, "slots") // 3
    train(twin, "a", rng)


# Imports beside other calls


@pytest.mark.needs("process")
def test_of_two_imports_at_once_one_is_ranked_and_kept(open_twin):
    """Review: Both wrote to one name beside the lock: errors, or one kept and the other ranked."""
    twin = open_twin(policy="rank")
    store = twin.store
    twin.create_table("a", **config(rows=100_000))
    given = [profile(a=dict.fromkeys(range(low, low + 50_000), 7)) for low in (0, 5)]
    errors = []

    def bring(one, both):
        both.wait()
        try:
            store.import_profile(one)
        except EmbstoreError as exc:
            errors.append(exc)

    for _ in range(8):
        both = threading.Barrier(2)
        threads = [threading.Thread(target=bring, args=(one, both)) for one in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kept = store.export_profile(source="imported").tables["a"].keys[0]
        assert level_of_key_0(store) == (0 if kept else 7)
    assert not errors


@contextmanager
def before_keeping(store, act):
    """Do something in the middle of an import: it is ranked, and not kept yet."""
    kept = engine_of(store).frequencies.kept
    keep = kept.keep

    def act_and_keep(*given):
        act()
        keep(*given)

    kept.keep = act_and_keep
    yield
    kept.keep = keep


@pytest.mark.needs("process")
@pytest.mark.parametrize("policy", ["rank", "lfu"])
def test_an_import_beside_a_restore_ranks_the_tables_of_now(open_twin, policy):
    """Review: It ranked the pool that the restore had closed: no levels, or memory that
    was given back."""
    twin, rng = open_twin(policy=policy, cache_bytes=2 << 20), generator(701)
    store = twin.store
    twin.create_table("a", **config(rows=1000))
    twin.on("a", "update", np.arange(100), normal(rng, 100, 4))
    twin.checkpoint("c")

    def restore():
        twin.restore("c")
        store.lookup({"a": np.arange(50)})

    with before_keeping(store, restore):
        store.import_profile(profile(a=dict.fromkeys(range(100), 50)))
    assert level_of_key_0(store) == (50 if policy == "rank" else -1)
    assert (resident(store)[1] >= first_count(store, 50, accesses=5_000)).all()
    assert store.executor.failure is None


@pytest.mark.needs("process")
def test_an_import_of_a_store_that_is_closed_meanwhile_writes_nothing(open_twin):
    """Review: It wrote to a directory that was another store's by then."""
    twin = open_twin(a=config())
    closed = twin.store

    def reopen():
        twin.reopen()
        twin.store.import_profile(profile(a={7: 7}))

    with pytest.raises(StoreClosedError), before_keeping(closed, reopen):
        closed.import_profile(profile(a={1: 1}))
    assert twin.store.export_profile(source="imported").tables["a"].keys.tolist() == [7]


# Counts, and what becomes of their tables


def test_what_is_counted_is_what_was_looked_up(open_twin):
    twin, rng, rows = open_twin(count_rate=1.0), generator(607), 4000
    store = twin.store
    for name in "ab":
        twin.create_table(name, **config(rows=rows))
    wanted = {name: np.zeros(rows, np.int64) for name in "ab"}
    for _ in range(20):
        keys = {name: rng.zipf(1.3, 200) % rows for name in "ab"}
        store.lookup(keys)
        store.lookup(keys, admit=False)
        for name in keys:
            np.add.at(wanted[name], keys[name], 1)
    found = store.export_profile()
    for name, counts in wanted.items():
        table = found.tables[name]
        is_sparse = twin.reference.table(name).config.key_space == "sparse"
        assert table.keys.tolist() == np.flatnonzero(counts).tolist()
        assert table.counts.tolist() == counts[table.keys].tolist()
        assert (table.accesses, table.error) == (20 * 200, 0)
        assert table.rows == (0 if is_sparse else rows)
    assert found.trace.calls == 20 and found.store_id == store.store_id
    twin.reopen(count_rate=1.0)
    again = twin.store.export_profile().tables["a"]
    assert again.counts.tolist() == found.tables["a"].counts.tolist()


def test_counts_that_were_cleared_do_not_come_back(open_twin):
    """Review: With nothing counted since, the files of before stayed and were resumed."""
    twin = open_twin(count_rate=1.0, **dict.fromkeys("ab", config()))
    twin.store.lookup({"a": [1, 2, 3], "b": [1]})
    twin.reopen()
    assert accesses(twin.store) == {"a": 3, "b": 1}
    twin.store.clear_counts()
    assert accesses(twin.store) == {"a": 0, "b": 0}
    twin.reopen()
    assert accesses(twin.store) == {"a": 0, "b": 0}
    twin.store.lookup({"a": [1]})
    twin.reopen()
    assert accesses(twin.store) == {"a": 1, "b": 0}


def test_counts_of_another_rate_are_resumed_in_proportion(open_table):
    """Review: Counts of a tenth of the lookups weighed as much as counts of all."""
    twin, table = open_table(count_rate=0.25)
    for _ in range(64):
        table.lookup([1])
    counted = accesses(twin.store)["a"]
    assert 8 < counted < 32
    twin.reopen(count_rate=1.0)
    twin.store.lookup({"a": [2]})
    found = twin.store.export_profile()
    assert found.rate == 1.0
    assert found.tables["a"].counts.tolist() == [4 * counted, 1]
    assert found.tables["a"].accesses == 4 * counted + 1


def test_a_restore_forgets_counts_of_tables_that_are_gone(open_twin):
    """Review: Their counters and their trace stayed, more with each restore."""
    twin = open_twin(count_rate=1.0)
    store = twin.store
    twin.create_table("a", **config())
    store.lookup({"a": [1]})
    twin.checkpoint("c")
    for i in range(3):
        twin.create_table(f"x{i}", **config())
        store.lookup({f"x{i}": [1, 2], "a": [3]})
        twin.restore("c")
    found = store.export_profile()
    assert store.stats()["frequency"]["counted_accesses"] == accesses(store)["a"] == 4
    assert (found.trace.tables, found.trace.access_total) == (("a",), 4)


@pytest.mark.parametrize("how", ["restored", "reopened"])
@pytest.mark.needs("plain_keys")
def test_a_store_takes_its_own_profile_after_a_restore_to_fewer_rows(open_twin, how):
    """Review: It had keys beyond the table's rows, and was refused."""
    twin = open_twin(count_rate=1.0, a=config(rows=1000))
    twin.checkpoint("c")
    twin.on("a", "grow", 5000)
    twin.store.import_profile(profile(a=np.isin(np.arange(5000), [1, 4000]) * 3))
    twin.store.lookup({"a": [1, 4000, 4000]})
    if how == "reopened":
        twin.reopen(count_rate=0.0)
    twin.restore("c")
    if how == "reopened":
        twin.reopen(count_rate=1.0)
    twin.store.lookup({"a": [2]})
    imported = twin.store.export_profile(source="imported")
    assert imported.tables["a"].keys.tolist() == [1]
    found = twin.store.export_profile()
    assert (found.tables["a"].keys.tolist(), found.tables["a"].accesses) == ([1, 2], 2)
    assert found.trace.keys.tolist() == [2]
    choose_hot_set(found, 1 << 20, {"a": 16})
    twin.store.import_profile(found)
    twin.store.import_profile(imported)


def test_a_table_has_no_trace_of_the_one_before_it(open_twin):
    """Review: The recording went by name: a table of ten rows had a trace with key 400."""
    twin = open_twin(count_rate=1.0, a=config(rows=1000))
    twin.store.lookup({"a": [400, 401]})
    twin.drop_table("a")
    twin.create_table("a", **config(rows=10))
    twin.store.lookup({"a": [3]})
    trace = twin.store.export_profile().trace
    assert (trace.tables, trace.keys.tolist()) == (("a",), [3])
    assert (trace.calls, trace.unique_total, trace.access_total) == (2, 1, 1)


def test_an_unreadable_file_is_named_once_until_there_is_a_good_one(open_twin, backend):
    """Review: Each reading named it again, and a good import did not take the name away."""
    twin = open_twin(a=config())
    twin.store.import_profile(profile(a={1: 1}))
    twin.store.close()
    (backend.path(twin.name) / "frequency" / "0.imported").write_bytes(b"damaged")
    twin.reopen()
    for _ in range(3):
        assert not len(twin.store.export_profile(source="imported").tables["a"].keys)
    assert twin.store.stats()["frequency"]["unreadable"] == ["frequency/0.imported"]
    twin.store.import_profile(profile(a={1: 1}))
    assert twin.store.stats()["frequency"]["unreadable"] == []


def test_closing_writes_the_counts_of_counted_tables_alone(open_twin, backend):
    """Review: Each of 400 tables got a synced file for one lookup of one of them: two seconds."""
    twin = open_twin(count_rate=1.0)
    for i in range(5):
        twin.create_table(f"t{i}", **config())
    twin.store.lookup({"t1": [1], "t3": [1, 1]})
    twin.store.close()
    names = [path.name for path in (backend.path(twin.name) / "frequency").iterdir()]
    assert sorted(names) == ["1.counted", "3.counted"]
    twin.reopen()
    assert accesses(twin.store) == {"t0": 0, "t1": 1, "t2": 0, "t3": 2, "t4": 0}
