"""Hot sets against brute force: the threshold, small tables, coverage, files, wrong use."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.errors import InvalidArgumentError
from embstore.profiles.hotset import (
    ROW_BYTES_MAX,
    SMALL_TABLE_SHARE,
    HotSet,
    choose_hot_set,
    contained,
    hot_coverage,
)
from embstore.profiles.profile import Profile, Samples
from tests.unit.profile_samples import table_of

COUNTS = st.dictionaries(st.integers(0, 60), st.integers(1, 12), max_size=40)


def table(name, counts, rows=0, uncounted=0):
    """Return a table's profile of {key: count}; `uncounted` accesses a sketch let go."""
    return table_of(counts, name, rows, accesses=sum(counts.values()) + uncounted)


def profile(**counts):
    """Return a profile of tables by their {key: count}."""
    return Profile({name: table(name, of_keys) for name, of_keys in counts.items()})


@st.composite
def profiles(draw):
    """Return a profile of up to four tables, some with rows, and their row bytes."""
    names = ["a", "b", "c", "d"][: draw(st.integers(1, 4))]
    tables, costs = {}, {}
    for name in names:
        rows = draw(st.sampled_from([0, 61, 100]))
        tables[name] = table(name, draw(COUNTS), rows, draw(st.integers(0, 20)))
        costs[name] = draw(st.integers(1, 9))
    return Profile(tables), costs


def bytes_above(made, costs, threshold, names):
    return sum(costs[name] * int((made.tables[name].counts >= threshold).sum()) for name in names)


@settings(max_examples=300)
@given(profiles(), st.integers(10, 3_000))
def test_the_threshold_is_the_lowest_that_fits(made, budget):
    counted, costs = made
    hot = choose_hot_set(counted, budget, costs)
    # No budget here is so large that a table is small.
    names = list(counted.tables)
    assert hot.bytes == bytes_above(counted, costs, hot.threshold, names) <= budget
    lower = bytes_above(counted, costs, hot.threshold - 1, names)
    assert hot.threshold == 1 or lower > budget
    for name in names:
        of_table = counted.tables[name]
        expected = of_table.keys[of_table.counts >= hot.threshold]
        assert np.array_equal(hot.tables[name], expected)
        assert hot.tables[name].dtype == np.int64
    assert hot.row_count == sum(len(keys) for keys in hot.tables.values())


@settings(max_examples=200)
@given(st.lists(st.integers(1, 30), max_size=12), COUNTS, st.integers(2_000, 8_000))
def test_small_tables_are_whole_up_to_half_of_the_budget(sizes, counts, budget):
    small = {f"s{i}": table(f"s{i}", {}, rows) for i, rows in enumerate(sizes)}
    counted = Profile({**small, "large": table("large", counts, 10**6)})
    hot = choose_hot_set(counted, budget, dict.fromkeys(counted.tables, 1))
    expected, left = set(), budget // 2
    for rows, name in sorted((t.rows, name) for name, t in small.items()):
        if rows <= budget // SMALL_TABLE_SHARE and rows <= left:
            left -= rows
            expected.add(name)
    for name, of_table in small.items():
        whole = np.arange(of_table.rows if name in expected else 0)
        assert np.array_equal(hot.tables[name], whole)
    assert hot.bytes == hot.row_count <= budget


def test_a_table_of_unknown_rows_is_not_small():
    counted = Profile({"a": table("a", {0: 1}, 0), "b": table("b", {0: 9}, 2)})
    hot = choose_hot_set(counted, 1024, {"a": 512, "b": 1})
    assert hot.tables["b"].tolist() == [0, 1]
    assert hot.tables["a"].tolist() == [0]


def test_keys_beyond_float32_stay_apart():
    """Source: FAE, whose slot numbers are float32, exact up to 2**24 only."""
    keys = [2**24, 2**24 + 1, 2**31 + 1, 2**39 + 3]
    counted = profile(a={key: 1 + key % 2 for key in keys})
    hot = choose_hot_set(counted, 3, {"a": 1})
    read = HotSet.from_bytes(hot.to_bytes())
    assert read.tables["a"].tolist() == keys[1:]


# Coverage


@settings(max_examples=200)
@given(profiles(), st.integers(10, 800), st.integers(0, 2**32 - 1))
def test_coverage_is_that_of_brute_force(made, budget, seed):
    counted, costs = made
    rng = np.random.default_rng(seed)
    columns = tuple(rng.choice(["a", "b", "c", "d", "elsewhere"], 3))
    lengths = rng.integers(0, 4, (50, 3))
    samples = Samples(columns, lengths, rng.integers(0, 61, lengths.sum()))
    counted = Profile(counted.tables, rate=0.5, samples=samples)
    hot = choose_hot_set(counted, budget, costs)
    keys = {name: set(of_table.tolist()) for name, of_table in hot.tables.items()}
    hits = sum(
        int(count)
        for t in counted.tables.values()
        for key, count in zip(t.keys, t.counts, strict=True)
        if int(key) in keys[t.name]
    )
    all_hot = [True] * 50
    ids = iter(samples.ids.tolist())
    for name, of_column in zip(columns, lengths.T.tolist(), strict=True):
        for sample, length in enumerate(of_column):
            found_here = [next(ids) in keys.get(name, set()) for _ in range(length)]
            all_hot[sample] &= all(found_here)
    found = hot_coverage(hot, counted)
    accesses = sum(t.accesses for t in counted.tables.values())
    assert found.accesses == (hits / accesses if accesses else 0.0)
    assert found.samples == np.mean(all_hot)
    assert found.samples_counted


def test_without_samples_their_share_is_a_product():
    counted = profile(a={1: 3, 2: 1}, b={1: 4, 2: 4}, c={})
    hot = HotSet({"a": np.array([1]), "b": np.array([2, 7])})
    found = hot_coverage(hot, counted)
    assert (found.accesses, found.samples) == (7 / 12, 0.75 * 0.5)
    assert not found.samples_counted
    no_samples = Samples(("a",), np.empty((0, 1), np.int64), np.empty(0, np.int64))
    empty = Profile(counted.tables, samples=no_samples)
    assert hot_coverage(hot, empty) == found
    assert hot_coverage(HotSet({}), Profile({})).samples == 0.0


@given(st.sets(st.integers(0, 99)), st.lists(st.integers(0, 120)))
def test_contained_is_membership(keys, wanted):
    ascending = np.array(sorted(keys), np.int64)
    found = contained(ascending, np.array(wanted, np.int64))
    assert found.tolist() == [key in keys for key in wanted]


# Wrong use


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (np.array([1.0, 2.0]), "int64, found float64"),
        (np.array([1, 2], np.float32), "int64, found float32"),
        (np.array([[1]]), r"found int64 \(1, 1\)"),
        ([1, 2], "found list"),
        (np.array([2, 1]), "ascending order"),
        (np.array([1, 1]), "ascending order"),
        (np.array([-5, -1, 1]), "is no key"),
    ],
)
def test_keys_that_are_none(keys, message):
    with pytest.raises(InvalidArgumentError, match=f"'a'.*{message}"):
        HotSet({"a": keys})


@pytest.mark.parametrize(
    ("name", "value"),
    [("version", 0), ("version", 1.5), ("version", True), ("threshold", -1), ("bytes", "2")],
)
def test_facts_that_are_none(name, value):
    message = f"expected .*{name} to be an integer from . to 9223372036854775807, found {value!r}"
    with pytest.raises(InvalidArgumentError, match=message):
        HotSet({}, **{name: value})
    if name == "version":
        with pytest.raises(InvalidArgumentError, match=message):
            choose_hot_set(profile(a={1: 1}), 10, {"a": 1}, version=value)


def test_a_budget_smaller_than_a_row():
    with pytest.raises(InvalidArgumentError, match=r"at least one row \(32 bytes\), found 31"):
        choose_hot_set(profile(a={1: 1}, b={}), 31, {"a": 32, "b": 64})
    with pytest.raises(InvalidArgumentError, match="budget in bytes"):
        choose_hot_set(profile(a={1: 1}), 0, {"a": 32})


def test_row_bytes_of_every_table():
    with pytest.raises(InvalidArgumentError, match=r"row_bytes of every table.*\['b'\]"):
        choose_hot_set(profile(a={1: 1}, b={}), 100, {"a": 1, "c": 1})
    for wrong in (0, ROW_BYTES_MAX + 1, 1 << 62, 1.5):
        with pytest.raises(InvalidArgumentError, match="'a': row_bytes"):
            choose_hot_set(profile(a={1: 1}), 1 << 62, {"a": wrong})


def test_ids_beyond_the_table():
    beyond = Profile({"a": table("a", {7: 1}, rows=7)})
    with pytest.raises(InvalidArgumentError, match="'a': expected keys below its 7 rows, found 7"):
        choose_hot_set(beyond, 100, {"a": 1})


def test_coverage_of_another_profile():
    hot = choose_hot_set(profile(a={1: 1}), 100, {"a": 1})
    with pytest.raises(InvalidArgumentError, match=r"tables of the hot set.*\['a'\]"):
        hot_coverage(hot, profile(b={1: 1}))


def test_keys_by_table_are_a_hot_set():
    made = HotSet.of({"a": [5, 1, 5, 3], "b": (), "c": np.array([7, 2], np.int32)})
    assert {name: keys.tolist() for name, keys in made.tables.items()} == {
        "a": [1, 3, 5],
        "b": [],
        "c": [2, 7],
    }
    assert all(keys.dtype == np.int64 for keys in made.tables.values())
    assert made.version == 1
    assert HotSet.of(made) is made


@pytest.mark.parametrize("wrong", [[1, 2], None, {"a": [-1]}, {"a": [0.5]}, {"a": 7}, {"a": [[1]]}])
def test_what_is_no_hot_set_is_refused(wrong):
    with pytest.raises(InvalidArgumentError):
        HotSet.of(wrong)


def test_sparse_keys_come_back_from_a_file():
    ids = np.array([2**64 - 2, 0, 2**63, 2**63 - 1, 2**63, 5], np.uint64)
    hot_set = HotSet.of({"a": ids})
    assert hot_set.tables["a"].tolist() == [-(2**63), -2, 0, 5, 2**63 - 1]
    assert HotSet.from_bytes(hot_set.to_bytes()) == hot_set
