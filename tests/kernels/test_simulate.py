"""The loops of cache simulations against plain Python: stack depths, and scores with ageing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.score import COUNT_KEEP, COUNT_MAX, COUNT_NONE, COUNT_UP
from embstore_server.sizing.simulate_kernels import simulate_scores, stack_depths

KEYS = 12
CALLS = st.lists(st.lists(st.integers(0, KEYS - 1), unique=True, max_size=6), max_size=25)
WEIGHTS = st.lists(st.integers(1, 3), min_size=KEYS, max_size=KEYS)


def events(calls):
    """Return bounds and ids of calls."""
    bounds = np.cumsum([0, *map(len, calls)])
    return bounds, np.array([key for call in calls for key in call], np.int64)


@settings(max_examples=300)
@given(CALLS, WEIGHTS)
def test_depths_are_those_of_sets(calls, weights):
    bounds, ids = events(calls)
    above, beside = np.empty_like(ids), np.empty_like(ids)
    last = np.full(KEYS, -1, np.int64)
    stack_depths(bounds, ids, np.array(weights), last, above, beside)
    expected, last_used = [], {}
    for number, call in enumerate(calls):
        for key in call:
            before = last_used.get(key)
            if before is None:
                expected.append((-1, sum(weights[k] for k in last_used)))
                continue
            since = {k for k, used in last_used.items() if used > before}
            tied = {k for k, used in last_used.items() if used == before}
            expected.append((sum(weights[k] for k in since), sum(weights[k] for k in tied)))
        last_used |= dict.fromkeys(call, number)
    assert list(zip(above.tolist(), beside.tolist(), strict=True)) == expected
    assert last.tolist() == [last_used.get(key, -1) for key in range(KEYS)]


class Model:
    """A cache of scores, as cache/scores.py describes it, over Python's own sorting."""

    def __init__(self, weights, first_counts, room, counting, ageing):
        self.weights, self.first_counts = weights, first_counts
        self.room, self.counting, self.ageing = room, counting, ageing
        self.scores = {}  # key: (count, clock, order of touch)
        self.touches = self.clock = self.order = 0
        self.is_full = False
        self.access_hits = self.event_hits = 0

    def weigh(self, keys):
        return sum(self.weights[key] for key in keys)

    def touch(self, key, count):
        self.order += 1
        self.scores[key] = (count, self.clock, self.order)

    def count_touches(self, touches):
        self.touches += touches
        if self.ageing and self.touches >= self.ageing:
            # Of two counts that become one, the lower goes first where clocks are equal.
            ranked = sorted(self.scores.items(), key=lambda item: (item[1][1], item[1]))
            self.scores = {
                key: (count // 2, clock, place)
                for place, (key, (count, clock, _)) in enumerate(ranked)
            }
            self.touches = 0

    def next_victim(self):
        ranked = [(score, key) for key, score in self.scores.items() if score[1] != self.clock]
        return min(ranked)[1] if ranked else None

    def part(self, keys, accesses):
        self.clock += 1
        missing = [key for key in keys if key not in self.scores]
        for key, number in zip(keys, accesses, strict=True):
            if key in self.scores:
                self.access_hits += number
                self.event_hits += self.weights[key]
                count = self.scores[key][0] + (self.counting == COUNT_UP)
                self.touch(key, min(count, COUNT_MAX))
        self.count_touches(self.weigh(keys) - self.weigh(missing))
        needed = self.weigh(missing)
        while missing and self.weigh(self.scores) + needed > self.room:
            victim = self.next_victim()
            if victim is None:
                break
            del self.scores[victim]
            self.is_full = True
        self.count_touches(needed)
        first = int(self.counting == COUNT_UP)
        victim = self.next_victim()
        if self.is_full and first and victim is not None:
            first = max(first, self.scores[victim][0])
        for key in missing:
            self.touch(key, self.first_counts[key] if self.counting == COUNT_KEEP else first)

    def call(self, keys, accesses):
        low = 0
        while low < len(keys):
            high = low + 1
            while high < len(keys) and self.weigh(keys[low : high + 1]) <= self.room:
                high += 1
            self.part(keys[low:high], accesses[low:high])
            low = high


@settings(max_examples=500)
@given(
    CALLS,
    WEIGHTS,
    st.lists(st.sampled_from([0, 1, 2, 5, COUNT_MAX]), min_size=KEYS, max_size=KEYS),
    st.lists(st.integers(0, KEYS - 1), unique=True, max_size=3),
    st.integers(4, 24),
    st.sampled_from([COUNT_NONE, COUNT_UP, COUNT_KEEP]),
    st.sampled_from([0, 7, 30]),
)
def test_hits_are_those_of_plain_scores(calls, weights, first_counts, warm, room, counting, ageing):
    if counting == COUNT_NONE:
        first_counts = [0] * KEYS
    model = Model(weights, first_counts, room, counting, ageing)
    warm = warm[: room // 3]
    for key in warm:
        model.touch(key, first_counts[key])
    model.touches = model.weigh(warm)
    bounds, ids = events(calls)
    accesses = 1 + np.arange(len(ids)) % 5
    for number, call in enumerate(calls):
        model.call(call, accesses[bounds[number] : bounds[number + 1]].tolist())
    result, keys = np.empty(2, np.int64), np.empty((KEYS, 4), np.int64)
    simulate_scores(
        bounds, ids, accesses, np.array(weights), np.array(first_counts), np.array(warm, np.int64),
        room, counting, ageing, keys, result,
    )  # fmt: skip
    assert result.tolist() == [model.access_hits, model.event_hits]
    counts = [model.scores[key][0] if key in model.scores else -1 for key in range(KEYS)]
    assert keys[:, 2].tolist() == counts


def test_a_key_heavier_than_the_cache_is_no_endless_loop():
    result, keys = np.empty(2, np.int64), np.empty((2, 4), np.int64)
    ones = np.ones(2, np.int64)
    simulate_scores(
        np.array([0, 1, 2, 4]), np.array([0, 0, 0, 1]), np.ones(4, np.int64), np.array([9, 1]),
        ones, ones[:0], 4, COUNT_UP, 0, keys, result,
    )  # fmt: skip
    assert result.tolist() == [2, 18]
