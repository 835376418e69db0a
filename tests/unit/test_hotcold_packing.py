"""Samples told hot or cold, packed into batches of one kind, and the order these come in."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.errors import InvalidArgumentError
from embstore.profiles.hotset import HotSet
from embstore_training.hotcold import Classifier, LossRate, Packed, Packer, Ragged
from embstore_training.hotcold.classifier import HashedKeys
from embstore_training.hotcold.scheduler import FixedRate, batch_kinds


def hot_set(**tables):
    return HotSet({table: np.array(sorted(keys), np.int64) for table, keys in tables.items()})


def numbered(ids, begin=0):
    """A chunk of one column of ids, its samples numbered from `begin`."""
    ids = np.asarray(ids, np.int64)
    return {"ad": ids, "number": np.arange(begin, begin + len(ids))}


def cut(columns, lengths):
    """Cut the samples of `columns` into chunks of about these lengths, the last with the rest."""
    count = len(next(iter(columns.values())))
    bounds = np.minimum(np.cumsum([0, *lengths]), count).tolist()
    pairs = zip(bounds, [*bounds[1:], count], strict=True)
    return [{name: v[begin:end] for name, v in columns.items()} for begin, end in pairs]


def alike(one: list[Packed], other: list[Packed]) -> bool:
    return len(one) == len(other) and all(
        (a.is_hot, a.switch) == (b.is_hot, b.switch)
        and list(a.batch) == list(b.batch)
        and all(np.array_equal(a.batch[name], b.batch[name]) for name in a.batch)
        for a, b in zip(one, other, strict=True)
    )


EVEN = hot_set(ads=range(0, 100, 2))
"""Even keys are hot."""


def even_packer(batch_size=2, **options):
    return Packer(Classifier(EVEN, {"ad": "ads"}), batch_size, **options)


# Classifier


keys_of_a_table = st.sets(st.integers(0, 300), max_size=300)


@given(
    hot=st.tuples(keys_of_a_table, keys_of_a_table),
    count=st.integers(0, 60),
    width=st.integers(0, 4),
    dtype=st.sampled_from([np.int64, np.int32, np.uint16, ">i8"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_hot_is_what_looking_at_every_id_finds(hot, count, width, dtype, seed):
    random = np.random.default_rng(seed)
    chunk = {
        "ad": random.integers(0, 350, count).astype(dtype),
        "seen": random.integers(0, 350, (count, width)).astype(dtype),
        "user": random.integers(0, 350, 2 * count)[::2],  # Not contiguous.
    }
    classifier = Classifier(
        hot_set(ads=hot[0], users=hot[1]), {"ad": "ads", "seen": "ads", "user": "users"}
    )
    expected = [
        {int(ad), *map(int, seen)} <= hot[0] and int(user) in hot[1]
        for ad, seen, user in zip(*chunk.values(), strict=True)
    ]
    np.testing.assert_array_equal(classifier.hot(chunk), np.array(expected, np.bool_))


@pytest.mark.parametrize("count", [16_383, 16_384, 50_000])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_many_samples_are_told_as_few_are(count, share):
    random = np.random.default_rng(3)
    keys = np.flatnonzero(random.random(1000) < share)
    columns = {f"c{n}": random.integers(0, 1000, count) for n in range(4)}
    found = Classifier(hot_set(ads=keys), dict.fromkeys(columns, "ads")).hot(columns)
    expected = np.all([np.isin(ids, keys) for ids in columns.values()], axis=0)
    np.testing.assert_array_equal(found, expected)


def test_few_keys_far_apart_make_no_bitmap():
    """A bitmap up to the largest possible key would take 128 GiB."""
    classifier = Classifier(hot_set(ads={0, 2**40 - 1}), {"ad": "ads"})
    assert classifier.memory_bytes < 200
    found = classifier.hot({"ad": np.array([0, 1, 2**40 - 2, 2**40 - 1, 2**40, 2**62])})
    np.testing.assert_array_equal(found, [True, False, False, True, False, False])


@given(keys=st.sets(st.integers(0, 2**40 - 1), min_size=1, max_size=400), width=st.integers(1, 3))
def test_keys_by_their_hash_are_those_of_the_set(keys, width):
    near = [key + step for key in sorted(keys) for step in (-1, 0, 1) if key + step >= 0]
    ids = np.resize(np.array(near), (len(near), width))
    hot = np.array(sorted(keys), np.int64)
    np.testing.assert_array_equal(HashedKeys(hot).contain(ids), np.isin(ids, hot))


def test_many_keys_by_their_hash_take_forty_bytes_each_at_most():
    hot = np.unique(np.random.default_rng(5).integers(0, 2**40, 100_000))
    hashed = HashedKeys(hot)
    assert hashed.contain(hot).all()
    assert not hashed.contain(np.setdiff1d(hot + 1, hot)).any()
    assert hashed.memory_bytes <= 40 * len(hot) + 1000


@pytest.mark.parametrize("wrong", [-1, 100, 2**40])
def test_an_id_that_no_row_has_is_refused_even_in_a_cold_sample(wrong):
    classifier = Classifier(EVEN, {"cold": "ads", "ad": "ads"}, rows={"ads": 100})
    chunk = {"cold": np.full(4, 1), "ad": np.array([0, 2, wrong, 4])}
    with pytest.raises(
        InvalidArgumentError,
        match=rf"column 'ad' of table 'ads': expected ids >= 0 and < 100.*, found {wrong}$",
    ):
        classifier.hot(chunk)


@pytest.mark.parametrize(
    ("chunk", "said"),
    [
        ({"user": np.zeros(1, np.int64)}, r"not in the chunk, which has \['user'\]"),
        ({"ad": np.zeros(1)}, "expected ids .*found float64"),
        ({"ad": np.zeros((1, 1, 1), np.int64)}, r"found int64 \(1, 1, 1\)"),
        ({"ad": [1, 2]}, "found list"),
        (
            {"ad": np.zeros(2, np.int64), "user": np.zeros(3, np.int64)},
            "columns of one length, found 2 samples in 'ad' and 3 in 'user'",
        ),
    ],
)
def test_columns_that_are_no_ids_are_refused(chunk, said):
    columns = {"ad": "ads"} | ({"user": "ads"} if "user" in chunk and "ad" in chunk else {})
    with pytest.raises(InvalidArgumentError, match=said):
        Classifier(EVEN, columns).hot(chunk)


@pytest.mark.parametrize(
    ("columns", "rows", "said"),
    [
        ({}, None, "at least one column"),
        ({"ad": "users"}, None, r"one of \['ads'\], found 'users'"),
        ({"ad": "ads"}, {"ads": 98}, "hot keys < 98, the rows of the table, found 98"),
        ({"ad": "ads"}, {"ads": 1e9}, "expected rows >= 0, found 1000000000.0"),
    ],
)
def test_a_classifier_is_refused_that_could_not_work(columns, rows, said):
    with pytest.raises(InvalidArgumentError, match=said):
        Classifier(EVEN, columns, rows=rows)


# Packer


@st.composite
def streams(draw):
    """A stream's columns, its hot set, and how it is cut into chunks."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, width = draw(st.integers(0, 120)), draw(st.integers(1, 3))
    share = draw(st.sampled_from([0.0, 0.1, 0.5, 0.8, 0.95, 1.0]))
    base = draw(st.sampled_from([0, 2**24, 2**31]))
    hot = base + np.flatnonzero(random.random(50) < share)
    columns = {
        "ad": base + random.integers(0, 50, count),
        "seen": base + random.integers(0, 50, (count, width)),
        "number": np.arange(count),
        "dense": random.random((count, 2)).astype(np.float32),
        "text": np.array([f"sample {n}" for n in range(count)], dtype="<U12"),
    }
    lengths = draw(st.lists(st.integers(0, 60), max_size=8))
    return columns, hot_set(ads=hot), cut(columns, lengths)


settings_of_a_packer = {
    "batch_size": st.integers(1, 9),
    "window_batches": st.integers(1, 12),
    "rate": st.sampled_from([1, 7, 33, 50, 100]),
}
COLUMNS = {"ad": "ads", "seen": "ads"}


@settings(max_examples=300)
@given(stream=streams(), **settings_of_a_packer)
def test_no_sample_is_lost_or_repeated_and_each_kind_keeps_its_order(
    stream, batch_size, window_batches, rate
):
    columns, hot, chunks = stream
    packer = Packer(Classifier(hot, COLUMNS), batch_size, window_batches=window_batches, rate=rate)
    given_samples = received = 0
    bound = (window_batches + 2) * batch_size

    def feed() -> Iterator:
        nonlocal given_samples
        for chunk in chunks:
            # What was given and not received is held: the bound without a chunk, as it is gone.
            assert packer.kept_samples == given_samples - received <= bound
            given_samples += len(chunk["number"])
            yield chunk

    packed = []
    longest = max(len(chunk["number"]) for chunk in chunks)
    for one in packer.pack(feed()):
        received += len(one.batch["number"])
        assert packer.kept_samples == given_samples - received <= bound + longest
        packed.append(one)
    assert packer.stats.held_samples_max <= bound + longest
    assert packer.kept_samples == 0

    keys = set(hot.tables["ads"].tolist())
    is_hot = np.array(
        [
            {int(ad), *map(int, seen)} <= keys
            for ad, seen in zip(columns["ad"], columns["seen"], strict=True)
        ],
        np.bool_,
    )
    for kind in (True, False):
        batches = [one.batch for one in packed if one.is_hot == kind]
        assert all(len(batch["number"]) == batch_size for batch in batches[:-1])
        assert all(0 < len(batch["number"]) <= batch_size for batch in batches)
        for name, values in columns.items():
            found = np.concatenate([values[:0], *(batch[name] for batch in batches)])
            np.testing.assert_array_equal(found, values[is_hot == kind])
            assert found.dtype == values.dtype
    kinds = [False, *(one.is_hot for one in packed)]
    assert [one.switch for one in packed] == [a != b for a, b in pairwise(kinds)]
    stats = packer.stats
    assert (stats.hot_samples, stats.mixed_samples) == (is_hot.sum(), (~is_hot).sum())
    assert Counter(kinds[1:]) == Counter({True: stats.hot_batches, False: stats.mixed_batches})
    assert stats.switches == sum(one.switch for one in packed)


@given(stream=streams(), lengths=st.lists(st.integers(0, 60), max_size=8), **settings_of_a_packer)
def test_what_comes_out_does_not_depend_on_the_chunks(
    stream, lengths, batch_size, window_batches, rate
):
    columns, hot, chunks = stream

    def pack(chunks):
        classifier = Classifier(hot, COLUMNS)
        packer = Packer(classifier, batch_size, window_batches=window_batches, rate=rate)
        return list(packer.pack(chunks))

    assert alike(pack(chunks), pack(cut(columns, lengths)))


def test_batches_are_the_receivers_own():
    """Who reads into the same arrays again changes no batch that was emitted or is held."""
    buffer = numbered(np.zeros(3))

    def feed() -> Iterator:
        for n in range(4):
            buffer["number"][:] = [3 * n, 3 * n + 1, 3 * n + 2]
            yield buffer

    numbers = [p.batch["number"] for p in even_packer(batch_size=4, window_batches=1).pack(feed())]
    np.testing.assert_array_equal(np.concatenate(numbers), np.arange(12))


def test_a_packer_goes_on_with_the_kind_it_ended_with():
    packer = even_packer(batch_size=2)
    assert [p.switch for p in packer.pack([numbered([0, 0])])] == [True]
    assert [p.switch for p in packer.pack([numbered([0, 0, 1, 1])])] == [False, True]
    assert packer.stats.switches == 2
    assert (packer.stats.hot_samples, packer.stats.mixed_samples) == (4, 2)


def test_a_stream_left_early_holds_nothing_in_the_next_one():
    packer = even_packer(batch_size=2, window_batches=2)
    stream = packer.pack([numbered(np.zeros(20))])
    next(stream)
    stream.close()
    assert [len(p.batch["ad"]) for p in packer.pack([numbered([4, 4, 4])])] == [2, 1]
    assert packer.kept_samples == 0


@pytest.mark.parametrize(
    ("chunk", "said"),
    [
        ({}, "expected a chunk to have columns"),
        ({"ad": np.zeros(2, np.int64)}, r"first chunk, \['ad', 'number'\], found \['ad'\]"),
        (numbered([0]) | {"more": np.zeros(1)}, r"found \['ad', 'more', 'number'\]"),
        (numbered([0]) | {"number": np.zeros(1)}, "column 'number': expected int64"),
        (numbered([0]) | {"number": np.zeros((1, 2), np.int64)}, r"found int64 \(1, 2\)"),
        (numbered([0]) | {"number": np.zeros(2, np.int64)}, "columns of one length, found"),
        (numbered([0]) | {"number": [0]}, "column 'number': expected an array of samples"),
        (numbered([0]) | {"number": np.array(0)}, "column 'number': expected an array of samples"),
        (numbered([-1]), "column 'ad' of table 'ads': expected ids >= 0, found -1"),
    ],
)
def test_a_chunk_unlike_the_first_is_refused(chunk, said):
    packer = even_packer()
    with pytest.raises(InvalidArgumentError, match=said):
        list(packer.pack([numbered([0]), chunk]))
    assert packer.stats.hot_batches == 0


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": True},
        {"window_batches": 0},
        {"window_batches": 1.5},
        {"rate": 0},
        {"rate": 101},
        {"rate": 50.0},
        {"rate": "50"},
    ],
)
def test_a_packer_is_refused_that_could_not_work(options):
    with pytest.raises(InvalidArgumentError, match=next(iter(options)).split("_")[0]):
        even_packer(**options)


# Scheduler


def order(hot: int, mixed: int, rate: int, *, hot_first: bool = False) -> str:
    kinds = batch_kinds(hot, mixed, FixedRate(rate), hot_first=hot_first)
    return "".join("h" if is_hot else "m" for is_hot in kinds)


def test_phases_alternate_at_the_rate():
    assert order(4, 4, 100) == "mmmmhhhh"
    assert order(4, 4, 50) == "mmhhmmhh"
    assert order(4, 4, 25) == "mhmhmhmh"
    assert order(4, 4, 1) == "mhmhmhmh"
    assert order(4, 2, 50, hot_first=True) == "hhmhhm"
    assert order(0, 3, 50) == "mmm"
    assert order(3, 0, 1) == "hhh"


@given(
    hot=st.integers(0, 300),
    mixed=st.integers(0, 300),
    rate=st.integers(1, 100),
    hot_first=st.booleans(),
)
def test_a_window_is_ordered_completely_in_phases_no_longer_than_the_rate(
    hot, mixed, rate, hot_first
):
    kinds = order(hot, mixed, rate, hot_first=hot_first)
    assert (kinds.count("h"), kinds.count("m")) == (hot, mixed)
    phases = -(-100 // rate)
    assert kinds.count("hm") + kinds.count("mh") <= 2 * phases - 1
    for total, other in ((hot, "m"), (mixed, "h")):
        if min(hot, mixed) >= 100:  # No phase is empty.
            assert max(map(len, kinds.split(other))) <= -(-total * rate // 100)


def test_windows_meet_without_a_switch():
    ids = np.tile([0, 1], 40)  # Ten windows of two hot and two mixed batches.
    packer = even_packer(batch_size=2, window_batches=4, rate=100)
    kinds = "".join("h" if p.is_hot else "m" for p in packer.pack([numbered(ids)]))
    assert kinds == "mmhhhhmm" * 5
    assert packer.stats.switches == 10


def test_the_rate_is_read_as_each_phase_begins():
    class Rates:
        def __init__(self) -> None:
            self.rate = 50

    rates = Rates()
    kinds = batch_kinds(8, 8, rates, hot_first=False)
    first = [next(kinds) for _ in range(8)]
    rates.rate = 25
    assert [*first, *kinds] == [*[False] * 4, *[True] * 4] + [False, False, True, True] * 2
    rates.rate = 0
    with pytest.raises(InvalidArgumentError, match="found 0"):
        next(batch_kinds(8, 8, rates, hot_first=False))


def test_a_loss_that_got_worse_halves_the_rate_down_to_one():
    rate = LossRate()
    rate.report(0.5)
    found = []
    for loss in (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2):
        rate.report(loss)
        found.append(rate.rate)
    assert found == [25, 12, 6, 3, 1, 1, 1]


def test_several_good_evaluations_in_a_row_double_the_rate_up_to_the_whole():
    rate = LossRate(start=20, raise_after=2)
    found = []
    for loss in (0.9, 0.8, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.3, 0.2, 0.1):
        rate.report(loss)
        found.append(rate.rate)
    assert found == [20, 20, 40, 40, 80, 80, 100, 100, 100, 50, 50, 100]


def test_a_loss_that_is_no_number_is_worse_and_nothing_is_compared_with_it():
    rate = LossRate(raise_after=1)
    for loss, expected in ((float("nan"), 25), (0.5, 25), (float("inf"), 12), (0.4, 24)):
        rate.report(loss)
        assert rate.rate == expected


@pytest.mark.parametrize(("start", "raise_after"), [(0, 4), (101, 4), (50, 0), (50.0, 4)])
def test_a_loss_rate_is_refused_beyond_its_bounds(start, raise_after):
    with pytest.raises(InvalidArgumentError):
        LossRate(start, raise_after=raise_after)


# Ragged columns


def ragged(lists):
    """A column of these lists of ids."""
    values = np.array([id for ids in lists for id in ids], np.int64)
    return Ragged(values, np.cumsum([0, *map(len, lists)]))


def lists(column):
    """The ids of each sample of a ragged column."""
    return [ids.tolist() for ids in np.split(column.values, column.offsets[1:-1])][: len(column)]


some_lists = st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=40)


@given(
    samples=some_lists,
    lengths=st.lists(st.integers(0, 9), max_size=5),
    size=st.integers(1, 5),
    window=st.integers(1, 4),
)
def test_ragged_columns_are_packed_as_lists_are(samples, lengths, size, window):
    chunks = cut({"ad": ragged(samples), "number": np.arange(len(samples))}, lengths)
    packer = even_packer(size, window_batches=window)
    assert packer.empty_batch is None
    packed = [*packer.pack(chunks)]
    found = {}
    for one in packed:
        seen = lists(one.batch["ad"])
        found |= dict(zip(one.batch["number"].tolist(), seen, strict=True))
        assert len(seen) <= size
        assert all(one.is_hot is all(id % 2 == 0 for id in ids) for ids in seen) or not one.is_hot
        assert one.is_hot or all(any(id % 2 for id in ids) for ids in seen)
    assert found == dict(enumerate(samples))
    assert lists(packer.empty_batch["ad"]) == []


@given(some_lists, st.data())
def test_samples_of_a_ragged_column(samples, data):
    column, count = ragged(samples), len(samples)
    places = data.draw(st.lists(st.integers(0, max(count - 1, 0)), max_size=9 if count else 0))
    begin, end = data.draw(st.integers(0, count)), data.draw(st.integers(0, count))
    assert lists(column[np.array(places, np.int64)]) == [samples[place] for place in places]
    assert lists(column[begin:end]) == samples[begin:end]
    assert lists(Ragged.joined([column[:begin], column[begin:]])) == samples
    assert (len(column), column.size) == (count, sum(map(len, samples)))


@pytest.mark.parametrize(
    ("values", "offsets"),
    [
        ([1], np.array([0, 1])),
        (np.array([[1]]), np.array([0, 1])),
        (np.array([1]), [0, 1]),
        (np.array([1]), np.array([0, 1], np.int32)),
        (np.array([1]), np.array([0, 2])),
        (np.array([1]), np.array([1, 1])),
        (np.array([1]), np.array([0, 2, 1])),
        (np.array([1]), np.array([], np.int64)),
    ],
)
def test_what_is_no_ragged_column_is_refused(values, offsets):
    with pytest.raises(InvalidArgumentError):
        Ragged(values, offsets)


def test_ragged_columns_stay_so():
    with pytest.raises(InvalidArgumentError, match=r"'ad': expected int64 ragged .* int64 \(1,\)"):
        [*even_packer().pack([{"ad": ragged([[1]])}, {"ad": np.array([1])}])]
    with pytest.raises(InvalidArgumentError, match="found float64"):
        Classifier(EVEN, {"ad": "ads"}).hot({"ad": Ragged(np.ones(1), np.array([0, 1]))})
    with pytest.raises(InvalidArgumentError, match="expected ids >= 0, found -1"):
        Classifier(EVEN, {"ad": "ads"}).hot({"ad": ragged([[2], [-1]])})
