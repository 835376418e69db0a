"""Tables of sparse keys are counted, ranked, warmed and pinned as dense ones are, and hot rows of
them are trained beside the store: whatever the 64 bits of a key."""

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError
from embstore.profiles.hotset import HotSet, choose_hot_set
from embstore.profiles.profile import Profile, TableProfile
from embstore_training.hotcold.run import HotColdRun
from tests.conformance.cases import assert_same, config, generator, hits, normal, refused, total
from tests.conformance.hotness.hotcold import Trainer, hotcold_twin, replay, train_ranks
from tests.conformance.tables.test_sparse import EXTREMES, sparse

pytestmark = pytest.mark.needs("plain_keys")

OF = 3000
CACHE_BYTES = 1 << 18
POLICIES = pytest.mark.parametrize("policy", ["lru", "lfu", "rank"])
ONE_STORE = pytest.mark.needs("one_store")


def ids_of(seed: int, count: int = OF):
    """Return distinct ids (count,) as int64, in any order, those at the ends of 64 bits first."""
    drawn = np.random.default_rng(seed).integers(0, 2**64 - 1, count, np.uint64)
    return np.concatenate([EXTREMES, drawn])[:count].view(np.int64)


IDS, OTHERS = ids_of(1), ids_of(2)


def profile(**tables):
    """Return the profile of tables whose keys, given in any order, were accessed so often."""
    made = {}
    for name, (keys, counts) in tables.items():
        order = np.argsort(keys)
        counts = np.asarray(counts, np.int64)[order]
        made[name] = TableProfile(name, 0, keys[order], counts, int(counts.sum()))
    return Profile(made)


def train(twin, rng, calls=10):
    """Update random ids of a and b, and keys of the dense table c."""
    for _ in range(calls):
        keys = {"a": rng.choice(IDS, 100), "b": rng.choice(OTHERS, 100)}
        keys["c"] = rng.integers(0, 1000, 100)
        twin.update({name: (of, normal(rng, len(of), 4)) for name, of in keys.items()})


@pytest.fixture
def several(open_twin):
    def make(**options):
        tables = {"a": sparse(), "b": sparse(seed=3), "c": config()}
        return open_twin(**({"cache_bytes": CACHE_BYTES} | options), **tables)

    return make


def test_accesses_of_any_keys_are_counted(several):
    twin, rng = several(count_rate=1.0), generator(1)
    wanted = {name: np.zeros(len(of), np.int64) for name, of in (("a", IDS), ("b", OTHERS))}
    for _ in range(5):
        for name, of in (("a", IDS), ("b", OTHERS)):
            places = rng.zipf(1.3, 200) % len(of)
            twin.store.table(name).lookup(of[places].view(np.uint64))
            np.add.at(wanted[name], places, 1)
    for again in (False, True):
        if again:
            twin.reopen()
        found = twin.store.export_profile()
        for name, of in (("a", IDS), ("b", OTHERS)):
            table = found.tables[name]
            order = np.argsort(of)
            seen = order[wanted[name][order] > 0]
            assert table.rows == 0
            assert table.keys.tolist() == of[seen].tolist()
            assert table.counts.tolist() == wanted[name][seen].tolist()
        assert Profile.from_bytes(found.to_bytes()) == found


@ONE_STORE
def test_a_recording_has_the_events_of_any_keys(several):
    twin = several(count_rate=1.0)
    for keys in (EXTREMES, EXTREMES[:3], EXTREMES[-3:]):
        twin.store.lookup({"a": keys, "c": [5]})
    trace = twin.store.export_profile().trace
    of_a = trace.keys[trace.table == trace.tables.index("a")].view(np.uint64)
    assert of_a.tolist() == [*EXTREMES.tolist(), *EXTREMES[:3].tolist(), *EXTREMES[-3:].tolist()]


@POLICIES
@ONE_STORE
def test_the_most_frequent_ids_are_warm(several, policy):
    twin, rng = several(policy=policy), generator(2)
    train(twin, rng)
    counts = rng.permutation(OF) + 1
    twin.store.import_profile(profile(a=(IDS, counts), c=(np.arange(1000), np.full(1000, 5))))
    imported = twin.store.export_profile(source="imported").tables["a"]
    assert imported.keys.tolist() == np.sort(IDS).tolist()
    for again in (False, True):
        if again:
            twin.reopen()
        twin.store.warm_cache(0.5)
        slots = total(twin.store, "slots")
        best = IDS[np.argsort(-counts)][: min(OF, slots // 16)]
        assert hits(twin.store, lambda k=best: twin.store.lookup({"a": k})) == len(best)
        train(twin, rng)
    twin.check()


@ONE_STORE
def test_rank_keeps_the_most_frequent_ids(open_twin):
    twin = open_twin(cache_bytes=64 << 10, policy="rank", a=sparse())
    few = IDS[:100]
    twin.store.import_profile(profile(a=(few, np.full(len(few), 9))))
    twin.store.lookup({"a": few})
    for low in range(100, OF, 100):
        twin.store.lookup({"a": IDS[low : low + 100]})
    assert hits(twin.store, lambda: twin.store.lookup({"a": few})) == len(few)
    twin.store.set_policy("lru")
    twin.store.set_policy("lfu")
    twin.store.set_policy("rank")
    twin.store.lookup({"a": few})
    for low in range(100, OF, 100):
        twin.store.lookup({"a": IDS[low : low + 100]})
    assert hits(twin.store, lambda: twin.store.lookup({"a": few})) == len(few)
    twin.store.check_integrity()


def test_a_profile_of_ids_is_refused_by_a_table_that_has_not_so_many_rows(several):
    twin = several()
    with refused(twin.store, InvalidArgumentError, "table 'c' has 1000 rows"):
        twin.store.import_profile(profile(c=(IDS, np.ones(OF))))
    with refused(twin.store, InvalidArgumentError, "hot set: table 'c'", "keys in [0, 1000)"):
        twin.store.pin_hot_set({"c": IDS[:20]})
    with pytest.raises(InvalidArgumentError, match="which is no key"):
        twin.store.pin_hot_set({"a": [-1]})


def test_hot_ids_are_pinned_through_scans_swaps_and_openings(several):
    twin, rng = several(), generator(3)
    train(twin, rng)
    one = HotSet.of({"a": np.concatenate([EXTREMES, IDS[20:200].view(np.uint64)]), "c": [0, 999]})
    two = HotSet.of({"a": IDS[100:300], "b": OTHERS[:50]})
    two = HotSet(two.tables, version=2)
    for hot in (one, two):
        facts = twin.store.pin_hot_set(hot)
        assert facts.pinned_rows == facts.rows == hot.row_count
        train(twin, rng, calls=20)
        assert twin.store.hot_set().tables.keys() == hot.tables.keys()
        for name, keys in hot.tables.items():
            assert twin.store.hot_set().tables[name].tolist() == keys.tolist()
            assert hits(twin.store, lambda n=name, k=keys: twin.store.lookup({n: k})) == len(keys)
    twin.checkpoint("one")
    train(twin, rng)
    twin.restore("one")
    twin.drop_table("b")
    assert twin.store.hot_set().tables["a"].tolist() == two.tables["a"].tolist()
    twin.reopen()
    assert twin.store.hot_set().tables["a"].tolist() == two.tables["a"].tolist()
    twin.check()


def test_a_budget_takes_the_hottest_ids(several):
    """A table of sparse keys is not small, however few of its rows were seen."""
    twin, rng = several(count_rate=1.0), generator(4)
    for _ in range(4):
        twin.store.lookup({"a": IDS[rng.zipf(1.5, 400) % OF], "c": rng.integers(0, 1000, 400)})
    counted = twin.store.export_profile()
    chosen = choose_hot_set(counted, 16 * 600, dict.fromkeys("abc", 16))
    table = counted.tables["a"]
    hot = table.keys[table.counts >= chosen.threshold]
    assert chosen.tables["a"].tolist() == hot.tolist() and len(hot)
    assert twin.store.pin_hot_set(chosen).pinned_rows == chosen.row_count


# Hot and cold

COLUMNS = {"one": "a", "two": "a", "three": "c"}
HOT = {"a": np.concatenate([EXTREMES, IDS[20:60].view(np.uint64)]), "c": np.arange(50)}


def chunks(rng, samples, dtype=np.int64):
    """Return chunks of numbered samples, about half of which are hot."""
    is_hot = rng.random(samples) < 0.5
    columns = {"number": np.arange(samples)}
    for column, table in COLUMNS.items():
        every = IDS if table == "a" else np.arange(1000)
        ids = rng.choice(every, samples)
        ids[is_hot] = rng.choice(HOT[table].view(np.int64), int(is_hot.sum()))
        columns[column] = ids.view(dtype) if table == "a" else ids
    return [
        {n: part[low : low + 70] for n, part in columns.items()} for low in range(0, samples, 70)
    ]


def run_of(store, **options):
    return HotColdRun(store, HOT, COLUMNS, batch_size=20, **options)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_hot_ids_train_as_plain_updates(open_twin, dtype):
    twin = hotcold_twin(open_twin, a=sparse(), c=config(), cache_bytes=CACHE_BYTES)
    trainer = Trainer(twin.reference)
    with run_of(twin.store) as run:
        trainer.train_all(run.steps(chunks(generator(5), 600, dtype)))
        stats = run.stats()
    assert sorted(trainer.numbers) == [*range(600)]
    assert stats["hot_batches"] > 3 and stats["mixed_batches"] > 3
    twin.check()


def test_ranks_train_hot_ids_together(open_twin):
    twin = hotcold_twin(open_twin, a=sparse(), c=config(), cache_bytes=CACHE_BYTES)
    trainers = [Trainer(seed=rank) for rank in range(2)]

    def work(rank, run):
        trainers[rank].train_all(run.steps(chunks(generator(6 + rank), 400)))

    train_ranks(twin.store, work, make=run_of)
    replay(twin.reference, trainers)
    twin.check()


def test_an_id_that_is_no_key_is_refused_in_a_cold_sample(open_twin):
    twin = hotcold_twin(open_twin, a=sparse(), c=config())
    wrong = chunks(generator(7), 40)
    wrong[0]["two"][3] = -1
    with run_of(twin.store) as run, pytest.raises(InvalidArgumentError, match="found -1"):
        for _ in run.steps(wrong):
            pytest.fail("no sample is trained")


def test_rows_of_ids_are_as_the_reference_has_them(several):
    twin, rng = several(policy="lfu", count_rate=0.5), generator(8)
    train(twin, rng)
    for name, of in (("a", IDS), ("b", OTHERS)):
        assert_same(twin.store.table(name).lookup(of), twin.reference.table(name).lookup(of))
