"""Counting samples, and those that a profile keeps, however a stream is cut."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError
from embstore.profiles.hotset import HotSet, hot_coverage
from embstore.profiles.profile import Profile
from embstore_tools.profiling import count, plots
from embstore_tools.profiling.count import Counting, SampleCounter
from embstore_tools.profiling.plots import coverage_plot, overall_coverage, table_facts
from embstore_tools.profiling.readers import Chunk, Column
from tests.unit.test_profiling import skewed

Ids = NDArray[np.int64]
Lists = Sequence[Sequence[int]]


def ragged(lists: Lists) -> Column:
    offsets = np.cumsum([0, *map(len, lists)])
    return Column(np.array([i for ids in lists for i in ids], np.int64), offsets)


def profiled(
    columns: Sequence[Column], counting: Counting, cuts: Sequence[int] = ()
) -> tuple[SampleCounter, Profile]:
    """Count columns cut into chunks at `cuts`."""
    counter = SampleCounter(counting)
    bounds = [0, *sorted(cuts), len(columns[0])]
    for low, high in pairwise(bounds):
        counter.add(Chunk(tuple(column.part(low, high) for column in columns), "memory"))
    return counter, counter.profile()


def test_counts_of_tables_with_several_columns():
    one, lists, other = skewed(500, 50), [[i % 7] * (i % 4) for i in range(500)], skewed(500, 9, 2)
    counting = Counting(("a", "a", "b"), rows={"b": 9})
    counter, profile = profiled([Column(one), ragged(lists), Column(other)], counting, [100, 101])
    true = Counter(one.tolist()) + Counter(i for ids in lists for i in ids)
    table = profile.tables["a"]
    assert dict(zip(table.keys.tolist(), table.counts.tolist(), strict=True)) == true
    assert (table.rows, table.accesses, table.error) == (0, true.total(), 0)
    assert (profile.tables["b"].rows, profile.tables["b"].accesses) == (9, 500)
    assert (counter.samples, counter.counted, profile.rate) == (500, 500, 1.0)


@settings(max_examples=40)
@given(st.data())
def test_a_profile_does_not_depend_on_how_the_stream_is_cut(data):
    samples = data.draw(st.integers(1, 300))
    lists = data.draw(
        st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=samples, max_size=samples)
    )
    columns = [Column(skewed(samples, 1000)), ragged(lists)]
    counting = Counting(
        ("a", "b"),
        rate=data.draw(st.sampled_from([1.0, 0.5, 0.05])),
        seed=data.draw(st.integers(-(2**63) + 1, 2**63 - 1)),
        batch=data.draw(st.integers(1, 400)),
        rows={"a": 1000},
    )
    cuts = data.draw(st.lists(st.integers(0, samples), max_size=6))
    _, whole = profiled(columns, counting)
    _, cut = profiled(columns, counting, cuts)
    assert cut.to_bytes() == whole.to_bytes()
    assert Profile.from_bytes(cut.to_bytes()).to_bytes() == cut.to_bytes()


def test_a_sample_is_counted_or_not_as_a_whole():
    ids = np.arange(20_000)
    counting = Counting(("a", "b"), rate=0.05, seed=3)
    counter, profile = profiled([Column(ids), Column(ids)], counting)
    kept = profile.tables["a"].keys
    assert np.array_equal(kept, profile.tables["b"].keys)
    assert counter.counted == len(kept)
    assert abs(len(kept) / 20_000 - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 20_000)
    _, again = profiled([Column(ids), Column(ids)], counting)
    _, other = profiled([Column(ids), Column(ids)], Counting(("a", "b"), rate=0.05, seed=4))
    assert np.array_equal(kept, again.tables["a"].keys)
    assert not np.array_equal(kept, other.tables["a"].keys)
    assert profile.trace is not None
    assert profile.trace.access_total == 40_000, "calls are recorded from all samples"


def test_a_higher_rate_counts_more_of_the_same_samples():
    ids = Column(np.arange(5000))
    counted = [
        set(profiled([ids], Counting(("a",), rate=rate))[1].tables["a"].keys.tolist())
        for rate in (0.1, 0.3, 1.0)
    ]
    assert counted[0] < counted[1] < counted[2] == set(range(5000))


def test_kept_samples_are_whole_and_uniform():
    ids = np.arange(200_000)
    counting = Counting(("a", "b"), rate=0.01)
    _, profile = profiled([Column(ids), Column(ids + 7)], counting, range(0, 200_000, 8192))
    assert profile.samples is not None
    first, second = profile.samples.ids.reshape(2, -1)
    assert profile.samples.tables == ("a", "b")
    assert (profile.samples.lengths == 1).all()
    assert len(first) == count.SAMPLES_MAX
    assert np.array_equal(first + 7, second)
    assert (np.diff(first) > 0).all(), "in the order of the stream"
    tenths = np.bincount(first // 20_000, minlength=10)
    assert np.abs(tenths - len(first) / 10).max() < 5 * np.sqrt(len(first) / 10)
    counted = np.isin(first, profile.tables["a"].keys).mean()
    assert abs(counted - 0.01) < 0.005, "which are kept says nothing of which are counted"


@pytest.mark.parametrize("lists", [[[], []], []])
def test_streams_without_an_id(lists):
    _, profile = profiled([ragged(lists)], Counting(("a",)))
    assert profile.samples is None
    assert profile.tables["a"].accesses == 0
    assert table_facts(profile.tables["a"])["top_1_percent"] == 0
    assert "0%" in plots.text(coverage_plot(profile, by_table=True))


def test_recorded_calls_are_batches_of_the_stream():
    a, b = skewed(1000, 40), [[i % 3] * (i % 3) for i in range(1000)]
    columns = [Column(a), ragged(b)]
    _, profile = profiled(columns, Counting(("a", "b"), batch=300), [10, 299, 301, 950])
    trace = profile.trace
    assert trace is not None and trace.rate == 1
    events = zip(
        trace.call.tolist(), trace.table.tolist(), trace.keys.tolist(), trace.counts.tolist(),
        strict=True,
    )  # fmt: skip
    found = {(call, trace.tables[table], key): times for call, table, key, times in events}
    true = Counter((i // 300, "a", int(key)) for i, key in enumerate(a))
    true += Counter((i // 300, "b", key) for i, keys in enumerate(b) for key in keys)
    assert found == true
    assert (trace.calls, trace.unique_total, trace.access_total) == (4, len(true), true.total())


@pytest.mark.parametrize(
    ("ids", "extra", "said"),
    [
        ([3, -2], {}, "table 'a': expected ids >= 0, found -2; --hash-rows takes any"),
        ([3, 2], {"rows": {"a": 3}}, "table 'a': expected ids below 3, found 3"),
        ([1 << 40], {}, "table 'a': expected ids below 1099511627776, found 1099511627776"),
    ],
)
def test_ids_that_are_no_keys(ids, extra, said):
    counter = SampleCounter(Counting(("b", "a"), **extra))
    columns = Column(np.zeros(len(ids), np.int64)), Column(np.array(ids))
    with pytest.raises(InvalidArgumentError, match=f"FILE, rows 0 to 1: {said}"):
        counter.add(Chunk(columns, "FILE, rows 0 to 1"))
    assert counter.samples == 0
    assert all(table.accesses == 0 for table in counter.profile().tables.values())


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"rate": 0.0}, "expected a rate above 0, at most 1, found 0.0"),
        ({"rate": 1.5}, "expected a rate"),
        ({"rate": float("nan")}, "expected a rate"),
        ({"seed": 2**63}, "seed to be an integer from -9223372036854775"),
        ({"seed": -(2**63)}, "seed to be an integer from -9223372036854775"),
        ({"batch": 0}, "expected a batch of at least 1"),
        ({"keys_max": 1}, "at least 2 keys"),
        ({"rows": {"b": 1}}, "one of the tables a, found 'b'"),
        ({"rows": {"a": 0}}, "table 'a': expected rows from 1"),
        ({"rows": {"a": 2**40 + 1}}, "table 'a': expected rows from 1 to 1099511627776"),
    ],
)
def test_countings_that_are_refused(extra, said):
    with pytest.raises(InvalidArgumentError, match=said):
        Counting(("a",), **extra)


def test_memory_is_bounded_when_a_sketch_counts():
    counter, profile = profiled(
        [Column(np.arange(400_000))], Counting(("a",), keys_max=1000), range(0, 400_000, 5000)
    )
    table = profile.tables["a"]
    assert len(table.keys) <= 1000
    assert table.error > 0 and table.accesses == 400_000
    assert counter.memory_bytes < 64 << 20


def test_coverage_over_all_tables():
    columns = [Column(np.repeat([0, 1], [90, 10])), Column(np.repeat([0, 1, 2], [50, 30, 20]))]
    _, profile = profiled(columns, Counting(("a", "b"), rows={"a": 7, "b": 3}))
    shares = np.array([0.0, 0.1, 0.2, 0.3, 1.0])
    assert overall_coverage(profile, shares) == pytest.approx([0, 0.45, 0.7, 0.85, 1])
    assert [curve.name for curve in coverage_plot(profile, by_table=True).curves] == [
        *("all tables", "a", "b")
    ]


# Kept samples


def kept_of(columns: Sequence[Column], cuts: Sequence[int] = ()) -> Profile:
    return profiled(columns, Counting(tuple("abc"[: len(columns)])), cuts)[1]


def by_hash(samples: int) -> list[int]:
    """Return the samples by the hash that decides which are kept."""
    found: list[int] = np.argsort(count.sample_hashes(0, count._KEPT, 0, samples)).tolist()
    return found


@pytest.mark.parametrize("place", [0, 1, 500, 4999])
def test_one_long_list_leaves_the_other_samples(place, monkeypatch):
    """All were kept as wide as the longest list: with one of 4 million ids, one sample was left."""
    monkeypatch.setattr(count, "SAMPLE_IDS_MAX", 20_000)
    lists = [[i % 7] * 3 for i in range(5000)]
    at = by_hash(5000)[place]
    lists[at] = list(range(4000))
    profile = kept_of([ragged(lists)], [at, at + 1])
    assert profile.samples is not None
    assert len(profile.samples) == 5000
    hot_set = HotSet({"a": np.arange(7)})
    assert hot_coverage(hot_set, profile).samples == pytest.approx(1, abs=1e-3)


@given(lists=st.lists(st.lists(st.just(1), max_size=30), max_size=60), data=st.data())
def test_kept_lists_are_those_of_the_smallest_hashes(lists, data):
    cuts = data.draw(st.lists(st.integers(0, len(lists)), max_size=6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(count, "SAMPLES_MAX", 10)
        patch.setattr(count, "SAMPLE_IDS_MAX", 60)
        profile = kept_of([ragged(lists)], cuts)
    expected: list[int] = []
    total = 0
    for sample in by_hash(len(lists))[:10]:
        total += len(lists[sample])
        if expected and total > 60:
            break
        expected.append(sample)
    lengths = [[len(lists[sample])] for sample in sorted(expected)]
    found = [] if profile.samples is None else profile.samples.lengths.tolist()
    assert found == lengths or (profile.samples is None and not any(map(any, lengths)))
