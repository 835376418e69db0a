"""Which rows stay: by profiled counts under the rank policy, by counts of its own under LFU."""

from functools import partial

import numpy as np
import pytest

from embstore.arrays import KEY_BITS, KEY_MASK
from embstore.cache import residency
from embstore.cache.levels import levels_of
from embstore.hotness import ranking
from tests.conformance.cases import config, generator, hits, total
from tests.conformance.hotness.profiles import NARROW, ROWS, SMALL_BYTES, profile, resident, train
from tests.conformance.sessions.training import (
    PATIENCE_S,
    Plan,
    Rank,
    apply_step,
    facts_of,
    finish,
    step_of,
    until,
)

pytestmark = pytest.mark.needs("one_store")

FEW = 4000
CACHE_BYTES = 64 << 10


@pytest.mark.needs("plain_keys")  # which share a pool
def test_rank_keeps_the_most_frequent_rows_of_all_tables_of_a_pool(open_twin):
    """A table's coldest row may be hotter than another's hottest."""
    twin, rng = open_twin(cache_bytes=CACHE_BYTES, policy="rank"), generator(602)
    store = twin.store
    for name in "ab":
        twin.create_table(name, **config(rows=FEW))
    store.import_profile(profile(a=np.full(FEW, 3), b=np.full(FEW, 50)))
    train(twin, "a", rng, calls=60)
    kept = total(store, "slots") // 2
    store.lookup({"b": np.arange(kept)})
    for low in range(0, FEW, 250):
        store.lookup({"a": np.arange(low, low + 250)})
    assert hits(store, lambda: store.lookup({"b": np.arange(kept)})) == kept
    train(twin, "b", rng)


def test_rank_goes_by_the_last_use_among_rows_of_one_count(open_table):
    twin, table = open_table(cache_bytes=CACHE_BYTES, policy="rank", a=config(rows=FEW))
    twin.store.import_profile(profile(a=np.ones(FEW)))
    size = total(twin.store, "slots") // 3
    for low in range(0, 5 * size, size):
        table.lookup(np.arange(low, low + size))
    assert hits(twin.store, lambda: table.lookup(np.arange(4 * size, 5 * size))) == size


def test_lfu_has_new_rows_stay_beside_rows_that_were_used_often(open_table):
    """Source: CachedEmbedding, whose new row has count 0: two of them push each other out for
    ever."""
    twin, table = open_table(cache_bytes=CACHE_BYTES, policy="lfu", a=config(rows=FEW))
    for _ in range(2):
        full = total(twin.store, "slots")
        for _ in range(3):
            table.lookup(np.arange(full))
    new = np.arange(3000, 3010)
    for key in new:
        table.lookup([key])
    assert hits(twin.store, lambda: table.lookup(new)) == len(new)


@pytest.mark.needs("process")
@pytest.mark.parametrize("policy", ["rank", "lfu"])
@pytest.mark.needs("plain_keys")
def test_an_import_ranks_the_resident_rows_of_all_its_tables_piece_by_piece(
    open_twin, policy, monkeypatch
):
    """Review: All slots were sorted in one call, 300 ms of four million, that every other
    waited for."""
    monkeypatch.setattr(ranking, "PIECE_SLOTS", 192)
    monkeypatch.setattr(residency, "_RANKED_SLOTS", 64)
    twin, rng = open_twin(policy=policy, cache_bytes=3 * CACHE_BYTES // 2), generator(702)
    for name in "abc":
        twin.create_table(name, **config(rows=2000))
    for _ in range(10):
        twin.store.lookup({name: rng.integers(0, 2000, 50) for name in "abc"})
    counts = rng.integers(1, 3000, (2, 2000))
    twin.store.import_profile(profile(a=counts[0], b=counts[1]))
    keys, found = resident(twin.store)
    assert len(keys) > 400
    for table_id, given in enumerate(counts):
        of_table = keys >> KEY_BITS == table_id
        mine = given[keys[of_table] & KEY_MASK]
        if policy == "rank":
            assert found[of_table].tolist() == levels_of(mine).tolist()
        else:
            order = np.argsort(mine)
            assert (np.diff(found[of_table][order]) >= 0).all() and found[of_table].max() > 15
    others = found[keys >> KEY_BITS == 2]
    assert len(others) and (others <= 10).all()


def test_rows_used_by_others_beside_a_window_session_keep_their_levels(open_twin):
    """Review: Their rank by next use had taken the place of the level, and a use ended
    it: what had been among the hottest left before rows that no profile knew."""
    twin = open_twin(cache_bytes=SMALL_BYTES, policy="rank")
    store = twin.store
    table = twin.create_table("a", **NARROW)
    table.lookup(np.arange(ROWS))
    count, hot, used = total(store, "slots"), np.arange(200), np.arange(100)
    store.import_profile(profile(a=np.where(np.arange(ROWS) < len(hot), 1000, 0)))
    unpinned = count // 16
    many = np.arange(1000, 1000 + count - unpinned - len(hot) // 2)  # with the hot ones too many
    size = unpinned - len(hot) // 2 - 10
    steps = [
        step_of(generator(1002), n, [{"a": keys}], {"a": NARROW}, verb="release")
        for n, keys in enumerate((hot, many, hot), 1)
    ]
    rank = Rank(store, Plan(("a",), planner="window"), 0)
    rank.announce(steps)
    for step in steps:
        store.sessions.lookup_step(rank.member, step.number, timeout_s=PATIENCE_S)
        if step.number == 2:  # use rows, then many that no profile knows: the first are still there
            assert hits(store, lambda: table.lookup(used)) == len(used)
            for low in range(10_000, 10_000 + 10 * size, size):
                table.lookup(np.arange(low, low + size))
            assert hits(store, lambda: table.lookup(used)) == len(used)
        finish(store, rank.member, step)
        apply_step(twin.reference, step)
        until(partial(waits_for_room, store, step.number))
    rank.close()


def waits_for_room(store, finished):
    """Say whether step 2 is planned, and the one after it waits for room."""
    facts = facts_of(store)
    return finished != 1 or (facts["planned_step"] == 2 and facts["held_back"])
