"""Whole samples that a profile keeps: which they are where lists are long, however it is cut."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.frequency.hotset import HotSet, hot_coverage
from embstore.frequency.profile import Profile
from embstore_server.profiling import count
from embstore_server.profiling.count import Counting, SampleCounter
from embstore_server.profiling.readers import Chunk, Column

Lists = Sequence[Sequence[int]]


def column_of(lists: Lists) -> Column:
    offsets = np.cumsum([0, *map(len, lists)])
    return Column(np.array([i for ids in lists for i in ids], np.int64), offsets)


def profile_of(columns: Sequence[Column], cuts: Sequence[int] = ()) -> Profile:
    """Count columns "a", "b" and so on, cut into chunks at `cuts`."""
    counter = SampleCounter(Counting(tuple("abc"[: len(columns)])))
    for low, high in pairwise([0, *sorted(cuts), len(columns[0])]):
        counter.add(Chunk(tuple(column.part(low, high) for column in columns), "memory"))
    return counter.profile()


def by_hash(samples: int) -> list[int]:
    """Return the samples by the hash that decides which are kept."""
    found: list[int] = np.argsort(count.sample_hashes(0, count._KEPT, 0, samples)).tolist()
    return found


def test_kept_lists_are_as_long_as_they_are() -> None:
    lists = [[1, 2, 3], [], [4], [4, 4]]
    profile = profile_of([column_of(lists), Column(np.arange(4))])
    assert profile.samples is not None
    assert profile.samples.tables == ("a", "b")
    assert profile.samples.lengths.tolist() == [[3, 1], [0, 1], [1, 1], [2, 1]]
    assert profile.samples.ids.tolist() == [1, 2, 3, 4, 4, 4, 0, 1, 2, 3]


def test_long_lists_are_kept_of_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count, "SAMPLE_IDS_MAX", 1000)
    lists = [[i] * 50 for i in range(200)]
    for cuts in ([], [50], range(1, 200)):
        profile = profile_of([column_of(lists)], cuts)
        assert profile.samples is not None
        assert profile.samples.lengths.tolist() == [[50]] * 20
        assert profile.samples.ids.tolist() == np.repeat(sorted(by_hash(200)[:20]), 50).tolist()


@pytest.mark.parametrize("place", [0, 1, 500, 4999])
def test_one_long_list_leaves_the_other_samples(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All were kept as wide as the longest list: with one of 4 million ids, one sample was left."""
    monkeypatch.setattr(count, "SAMPLE_IDS_MAX", 20_000)
    lists = [[i % 7] * 3 for i in range(5000)]
    at = by_hash(5000)[place]
    lists[at] = list(range(4000))
    profile = profile_of([column_of(lists)], [at, at + 1])
    assert profile.samples is not None
    assert len(profile.samples) == 5000
    hot_set = HotSet({"a": np.arange(7)})
    assert hot_coverage(hot_set, profile).samples == pytest.approx(1, abs=1e-3)


@given(
    lists=st.lists(st.lists(st.just(1), max_size=30), max_size=60),
    data=st.data(),
)
@settings(deadline=None)
def test_kept_lists_are_those_of_the_smallest_hashes(lists: Lists, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(lists)), max_size=6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(count, "SAMPLES_MAX", 10)
        patch.setattr(count, "SAMPLE_IDS_MAX", 60)
        profile = profile_of([column_of(lists)], cuts)
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
