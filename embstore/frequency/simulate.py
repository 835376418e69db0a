"""Recorded calls, played against caches of keys: how often would they have hit?

A trace has the accesses to a random part of the keys, the share `rate` of them. A cache of
`slots * rate` slots that sees these alone does as the whole cache does with all keys, but for
chance (SHARDS: Waldspurger et al., FAST 2015; "miniature simulation": USENIX ATC 2017): where a key
finds itself in the order of victims, the other keys above it are there at that rate.

**LRU** is simulated for all sizes at once, by stack distances (Mattson et al., 1970): a cache of
any size holds the rows that were used last, so a key hits where fewer rows than there are slots
were used since. The rows of one call are equal in that order, and the store's slot numbers decide;
so a size that ends among them holds such a row with the probability of a fair draw.

**LFU** and **rank** are played call by call, at each size, with the scores of cache/policy.py:
counts that age, and that a new row takes over from the next victim; levels of profiled counts.

A row counts as missed at its first use, except where a warm-up has brought it. A recording of a
cache that has long been warm therefore understates its hits by the rows that were resident.

What chance does most is to take or leave a few very hot keys, which hit at any size. SHARDS-adj
knows how many accesses there were to all keys and counts those that are missing from the sample, or
are too many, as hits (`sizing.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, Keys
from embstore.frequency.levels import levels_of
from embstore.frequency.profile import Profile, Trace, spatial_hash, spatial_limit
from embstore.kernels.simulate import simulate_scores, stack_depths
from embstore.kernels.slots import COUNT_KEEP, COUNT_UP

AGEING_TOUCHES = 10
"""As in cache/policy.py, which is above this."""
_SCATTER = np.uint64(0x9E3779B97F4A7C15)

Floats = NDArray[np.float64]
Hits = tuple[Floats, Floats]
"""For each size, hits by access and by unique key, of the keys of the sample."""


@dataclass(frozen=True)
class Recording:
    """The events of a trace, by call; their keys, and those a warm-up might bring, are ids."""

    rate: float
    bounds: NDArray[np.int64]
    """(calls + 1,) of each call's events."""
    ids: NDArray[np.int64]
    """(e,), each in [0, key_count), ascending in a call."""
    accesses: NDArray[np.int64]
    """(e,)"""
    levels: NDArray[np.int64]
    """(key_count,) of the profiled counts of the keys."""
    warm_order: NDArray[np.int64]
    """Ids of the profiled keys of the sample, by descending count; empty if none is asked for."""

    @property
    def key_count(self) -> int:
        """Distinct keys, also those that no call has."""
        return len(self.levels)

    @property
    def calls(self) -> int:
        """Calls of the stretch, also those without an event."""
        return len(self.bounds) - 1


def recording(
    profile: Profile, trace: Trace, tables: Sequence[str], *, with_warm_order: bool
) -> Recording:
    """Return the events of `tables`. Ids are in the order of a hash: where scores are equal, the
    lower ids leave first, and the lower keys are as a rule the hotter ones."""
    of_table = np.isin(trace.table, [i for i, name in enumerate(trace.tables) if name in tables])
    places = np.array([list(tables).index(n) if n in tables else -1 for n in trace.tables])
    row_keys = places[trace.table[of_table]] << KEY_BITS | trace.keys[of_table]
    events = len(row_keys)
    warm = _sampled_keys(profile, trace.rate, tables) if with_warm_order else row_keys[:0]
    scattered = np.concatenate([row_keys, warm]).astype(np.uint64) * _SCATTER
    _, first, ids = np.unique(scattered, return_index=True, return_inverse=True)
    distinct = np.concatenate([row_keys, warm])[first]
    call = trace.call[of_table].astype(np.int64)
    order = np.argsort(call << 32 | ids[:events])
    return Recording(
        rate=trace.rate,
        bounds=np.searchsorted(call, np.arange(trace.calls + 1)),
        ids=ids[:events][order],
        accesses=trace.counts[of_table][order],
        levels=levels_of(_profiled_counts(profile, tables, distinct) / profile.rate),
        warm_order=ids[events:],
    )


def _sampled_keys(profile: Profile, rate: float, tables: Sequence[str]) -> Keys:
    """Return the profiled row keys that a trace of this rate would have, most accessed first."""
    limit = spatial_limit(rate)
    row_keys, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for place, name in enumerate(tables):
        if limit < 0 or name not in profile.tables:
            continue
        table = profile.tables[name]
        is_in = spatial_hash(name, table.keys) <= np.uint64(limit)
        row_keys.append(place << KEY_BITS | table.keys[is_in])
        counts.append(table.counts[is_in])
    return np.concatenate(row_keys)[np.argsort(-np.concatenate(counts), kind="stable")]


def _profiled_counts(profile: Profile, tables: Sequence[str], row_keys: Keys) -> NDArray[np.int64]:
    """Return the counts of row keys, (n,), 0 of those that the profile does not name."""
    counts = np.zeros(len(row_keys), np.int64)
    of_tables = row_keys >> KEY_BITS
    for place, name in enumerate(tables):
        table = profile.tables.get(name)
        if table is None or not len(table.keys):
            continue
        here = np.flatnonzero(of_tables == place)
        keys = row_keys[here] - (place << KEY_BITS)
        found = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
        counts[here] = np.where(table.keys[found] == keys, table.counts[found], 0)
    return counts


def lru_hits(recorded: Recording, slots: NDArray[np.int64], warm_up: float) -> Hits:
    """Return what LRU caches of `slots`, (s,), would have hit."""
    above, beside = np.empty_like(recorded.ids), np.empty_like(recorded.ids)
    last = np.full(recorded.key_count, -1, np.int64)
    stack_depths(recorded.bounds, recorded.ids, last, above, beside)
    per_call = np.diff(recorded.bounds)
    call_keys = np.repeat(per_call, per_call)
    again = np.flatnonzero(above >= 0)
    ahead = above[again]
    width = beside[again] - 1 + recorded.rate  # the key itself is one, in a sample or not
    by_access, by_unique = np.zeros(len(slots)), np.zeros(len(slots))
    first = _FirstUses.of(recorded, beside, np.flatnonzero(above < 0))
    for i, size in enumerate(slots * recorded.rate):
        chances = np.zeros(len(above))
        chances[again] = np.clip((size - ahead) / width, 0, 1)
        chances[first.events] = first.chances(size, int(warm_up * size))
        if size < per_call.max(initial=0):  # Done in parts: only the first finds what was there.
            chances *= np.minimum(1, size / call_keys)
        by_access[i], by_unique[i] = chances @ recorded.accesses, chances.sum()
    return by_access, by_unique


@dataclass(frozen=True)
class _FirstUses:
    """The events that are the first of their key, which hit only what a warm-up has brought."""

    events: NDArray[np.int64]
    warm_ranks: NDArray[np.int64]
    """Of each one's key in the order of warming up; 2**62: not in it."""
    used: NDArray[np.int64]
    """How many keys the calls before had used; as many of these events come before its call."""

    @classmethod
    def of(
        cls, recorded: Recording, used: NDArray[np.int64], events: NDArray[np.int64]
    ) -> "_FirstUses":
        ranks = np.full(recorded.key_count, 1 << 62)
        ranks[recorded.warm_order] = np.arange(len(recorded.warm_order))
        return cls(events, ranks[recorded.ids[events]], used[events])

    def chances(self, size: float, warmed: int) -> Floats:
        """Return the chance of each to hit in a cache of `size` that begins with `warmed` keys."""
        is_warm = self.warm_ranks < warmed
        touched = np.concatenate([[0], np.cumsum(is_warm)])[self.used]
        untouched = np.maximum(warmed - touched, 1)
        kept: Floats = np.clip((size - self.used) / untouched, 0, 1)
        return np.where(is_warm, kept, 0.0)


def scored_hits(
    recorded: Recording, slots: NDArray[np.int64], warm_up: float, *, is_rank: bool
) -> Hits:
    """Return what LFU or rank caches of `slots`, (s,), would have hit."""
    by_access, by_unique = np.zeros(len(slots)), np.zeros(len(slots))
    keys = np.empty((recorded.key_count, 4), np.int64)
    result = np.empty(2, np.int64)
    first_counts = recorded.levels if is_rank else np.ones(recorded.key_count, np.int64)
    for i, whole in enumerate(slots):
        size = max(1, round(float(whole) * recorded.rate))
        simulate_scores(
            recorded.bounds,
            recorded.ids,
            recorded.accesses,
            first_counts,
            recorded.warm_order[: int(warm_up * size)],
            size,
            COUNT_KEEP if is_rank else COUNT_UP,
            0 if is_rank else AGEING_TOUCHES * size,
            keys,
            result,
        )
        by_access[i], by_unique[i] = result
    return by_access, by_unique


def working_sets(recorded: Recording) -> Floats:
    """Return how many keys of the sample a window of 1, 2, ... consecutive calls uses, on average.

    Exact over all windows: in r calls on end without a key there are r - n + 1 windows of n calls
    that lack it (Xiang et al., "Linear-time modeling of program working set", PACT 2011).
    """
    calls, per_call = recorded.calls, np.diff(recorded.bounds)
    call = np.repeat(np.arange(calls), per_call)
    order = np.argsort(recorded.ids, kind="stable")
    ids, call = recorded.ids[order], call[order]
    is_first = np.concatenate([[True], ids[1:] != ids[:-1]])[: len(ids)]
    before = np.where(is_first, -1, np.concatenate([[-1], call[:-1]])[: len(ids)])
    is_last = np.concatenate([ids[1:] != ids[:-1], [True]])[: len(ids)]
    without = np.concatenate([call - before - 1, calls - 1 - call[is_last]])
    runs = np.bincount(without, minlength=calls + 1)[::-1]
    lacking = np.cumsum(np.cumsum(runs))[::-1][1 : calls + 1]  # for windows of 1, 2, ... calls
    windows = calls - np.arange(calls)
    keys: Floats = np.count_nonzero(is_first) - lacking / windows
    return keys
