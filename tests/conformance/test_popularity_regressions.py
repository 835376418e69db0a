"""Findings of reviews of what a store knows of frequencies.

Profiles that meet each other, a restore or the end of the store; counts of tables that are gone.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embstore import popularity
from embstore.arrays import KEY_BITS, KEY_MASK
from embstore.cache import pool as pool_module
from embstore.errors import EmbstoreError, InvalidArgumentError, StoreClosedError
from embstore.frequency.hotset import choose_hot_set
from embstore.frequency.levels import levels_of
from embstore.frequency.profile import Profile, TableProfile
from embstore.kernels.slots import CLOCK_BITS, COUNT_MAX
from tests.conformance.cases import config, generator, normal, refused
from tests.conformance.twin import Twin

Open = Callable[..., Twin]


def profile(name: str, keys: Any, count: int, rows: int = 0) -> Profile:
    """Return the profile of a table each of whose keys was accessed `count` times."""
    keys = np.asarray(keys, np.int64)
    counts = np.full(len(keys), count)
    return Profile({name: TableProfile(name, rows, keys, counts, int(counts.sum()))})


def level_of_key_0(store: Any) -> int:
    """Return the level that the pool of table "a" goes by, -1 without any."""
    table = store._engine.find("a")
    levels = table.pool.ranks.tables.get(table.table_id)
    return -1 if levels is None else int(levels.of(np.array([0]))[0])


def resident(store: Any) -> tuple[Any, Any]:
    """Return the row keys in the pool of table "a", and the counts in their slots."""
    here = store._engine.find("a").pool.contents()
    keys, counts = here.keys[here.keys >= 0], here.scores[here.keys >= 0] >> CLOCK_BITS
    return keys, counts & COUNT_MAX


def accesses(store: Any) -> dict[str, int]:
    return {name: table.accesses for name, table in store.export_profile().tables.items()}


# Imports beside other calls


@pytest.mark.needs("process")
def test_of_two_imports_at_once_one_is_ranked_and_kept(open_twin: Open) -> None:
    """Both wrote to one name beside the lock: errors, or one kept and the other ranked."""
    twin = open_twin(policy="rank")
    store = twin.store
    twin.create_table("a", **config(rows=100_000))
    given = [profile("a", np.arange(50_000) + shift, 7) for shift in (0, 5)]
    errors: list[EmbstoreError] = []

    def bring(one: Profile, both: threading.Barrier) -> None:
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


@pytest.mark.needs("process")
@pytest.mark.parametrize("policy", ["rank", "lfu"])
def test_an_import_beside_a_restore_ranks_the_tables_of_now(open_twin: Open, policy: str) -> None:
    """It ranked the pool that the restore had closed: no levels, or memory that was given back."""
    twin, rng = open_twin(policy=policy), generator(701)
    store = twin.store
    twin.create_table("a", **config(rows=1000))
    twin.on("a", "update", np.arange(100), normal(rng, 100, 4))
    twin.checkpoint("c")
    kept = store._engine.frequencies.kept
    keep = kept.keep

    def keep_after_restore(*given: Any) -> None:
        twin.restore("c")
        store.lookup({"a": np.arange(50)})
        keep(*given)

    kept.keep = keep_after_restore
    store.import_profile(profile("a", np.arange(100), 50))
    kept.keep = keep
    assert level_of_key_0(store) == (50 if policy == "rank" else -1)
    assert (resident(store)[1] >= 50).all()
    assert store.failure is None


@pytest.mark.needs("process")
def test_an_import_of_a_store_that_is_closed_meanwhile_writes_nothing(open_twin: Open) -> None:
    """It wrote to a directory that was another store's by then."""
    twin = open_twin()
    twin.create_table("a", **config())
    closed = twin.store
    kept = closed._engine.frequencies.kept
    keep = kept.keep

    def keep_after_close(*given: Any) -> None:
        twin.reopen()
        twin.store.import_profile(profile("a", [7], 7))
        keep(*given)

    kept.keep = keep_after_close
    with pytest.raises(StoreClosedError):
        closed.import_profile(profile("a", [1], 1))
    assert twin.store.export_profile(source="imported").tables["a"].keys.tolist() == [7]


@pytest.mark.needs("process")
@pytest.mark.parametrize("policy", ["rank", "lfu"])
def test_an_import_ranks_the_resident_rows_of_all_its_tables_piece_by_piece(
    open_twin: Open, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All slots were sorted in one call, 300 ms of four million, that every other waited for."""
    monkeypatch.setattr(popularity, "PIECE_SLOTS", 192)
    monkeypatch.setattr(pool_module, "_RANKED_SLOTS", 64)
    twin, rng = open_twin(policy=policy, cache_bytes=64 << 10), generator(702)
    store = twin.store
    for name in ("a", "b", "c"):
        twin.create_table(name, **config(rows=2000))
    for _ in range(10):
        store.lookup({name: rng.integers(0, 2000, 50) for name in ("a", "b", "c")})
    counts = {0: rng.integers(1, 3000, 2000), 1: rng.integers(1, 3000, 2000)}
    store.import_profile(
        Profile(
            {
                name: TableProfile(name, 2000, np.arange(2000), counts[i], int(counts[i].sum()))
                for i, name in enumerate("ab")
            }
        )
    )
    keys, found = resident(store)
    assert len(keys) > 400
    for table_id, given in counts.items():
        of_table = keys >> KEY_BITS == table_id
        mine = given[keys[of_table] & KEY_MASK]
        if policy == "rank":
            assert found[of_table].tolist() == levels_of(mine).tolist()
        else:
            order = np.argsort(mine)
            assert (np.diff(found[of_table][order]) >= 0).all() and found[of_table].max() > 15
    others = found[keys >> KEY_BITS == 2]
    assert len(others) and (others <= 10).all()


@pytest.mark.needs("process")
@pytest.mark.parametrize("rename", [["a"], 5, "a", {"a": 5}, {"a": ["b"]}, {5: "a", "a": "a"}])
def test_rename_of_another_type_is_refused(open_twin: Open, rename: Any) -> None:
    """It came out as ValueError or TypeError."""
    twin = open_twin()
    twin.create_table("a", **config())
    with refused(twin.store, InvalidArgumentError, "rename"):
        twin.store.import_profile(profile("a", [1], 1), rename=rename)


# Counts, and what becomes of their tables


def test_counts_that_were_cleared_do_not_come_back(open_twin: Open) -> None:
    """With nothing counted since, the files of before stayed and were resumed."""
    twin = open_twin(count_rate=1.0)
    twin.create_table("a", **config())
    twin.create_table("b", **config())
    twin.store.lookup({"a": [1, 2, 3], "b": [1]})
    twin.reopen()
    assert accesses(twin.store) == {"a": 3, "b": 1}
    twin.store.clear_counts()
    twin.reopen()
    assert accesses(twin.store) == {"a": 0, "b": 0}
    twin.store.lookup({"a": [1]})
    twin.reopen()
    assert accesses(twin.store) == {"a": 1, "b": 0}


def test_counts_of_another_rate_are_resumed_in_proportion(open_twin: Open) -> None:
    """Counts of a tenth of the lookups weighed as much as counts of all."""
    twin = open_twin(count_rate=0.25)
    twin.create_table("a", **config())
    for _ in range(64):
        twin.store.lookup({"a": [1]})
    counted = accesses(twin.store)["a"]
    assert 8 < counted < 32
    twin.reopen(count_rate=1.0)
    twin.store.lookup({"a": [2]})
    found = twin.store.export_profile()
    assert found.rate == 1.0
    assert found.tables["a"].counts.tolist() == [4 * counted, 1]
    assert found.tables["a"].accesses == 4 * counted + 1


def test_a_restore_forgets_counts_of_tables_that_are_gone(open_twin: Open) -> None:
    """Their counters and their trace stayed, more with each restore."""
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
def test_a_store_takes_its_own_profile_after_a_restore_to_fewer_rows(
    open_twin: Open, how: str
) -> None:
    """It had keys beyond the table's rows, and was refused."""
    twin = open_twin(count_rate=1.0)
    twin.create_table("a", **config(rows=1000))
    twin.checkpoint("c")
    twin.store.table("a").grow(5000)
    twin.reference.table("a").grow(5000)
    twin.store.import_profile(profile("a", [1, 4000], 3, rows=5000))
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


def test_a_table_has_no_trace_of_the_one_before_it(open_twin: Open) -> None:
    """The recording went by name: a table of ten rows had a trace with key 400."""
    twin = open_twin(count_rate=1.0)
    twin.create_table("a", **config(rows=1000))
    twin.store.lookup({"a": [400, 401]})
    twin.drop_table("a")
    twin.create_table("a", **config(rows=10))
    twin.store.lookup({"a": [3]})
    trace = twin.store.export_profile().trace
    assert (trace.tables, trace.keys.tolist()) == (("a",), [3])
    assert (trace.calls, trace.unique_total, trace.access_total) == (2, 1, 1)


@pytest.mark.needs("directory")
def test_an_unreadable_file_is_named_once_until_there_is_a_good_one(
    open_twin: Open, backend: Any
) -> None:
    """Each reading named it again, and a good import did not take the name away."""
    twin = open_twin()
    twin.create_table("a", **config())
    twin.store.import_profile(profile("a", [1], 1))
    twin.store.close()
    (backend.path(twin.name) / "frequency" / "0.imported").write_bytes(b"damaged")
    twin.reopen()
    for _ in range(3):
        assert not len(twin.store.export_profile(source="imported").tables["a"].keys)
    assert twin.store.stats()["frequency"]["unreadable"] == ["frequency/0.imported"]
    twin.store.import_profile(profile("a", [1], 1))
    assert twin.store.stats()["frequency"]["unreadable"] == []


@pytest.mark.needs("directory")
def test_closing_writes_the_counts_of_counted_tables_alone(open_twin: Open, backend: Any) -> None:
    """Each of 400 tables got a synced file for one lookup of one of them: two seconds."""
    twin = open_twin(count_rate=1.0)
    for i in range(5):
        twin.create_table(f"t{i}", **config())
    twin.store.lookup({"t1": [1], "t3": [1, 1]})
    twin.store.close()
    names = [path.name for path in (backend.path(twin.name) / "frequency").iterdir()]
    assert sorted(names) == ["1.counted", "3.counted"]
    twin.reopen()
    assert accesses(twin.store) == {"t0": 0, "t1": 1, "t2": 0, "t3": 2, "t4": 0}
