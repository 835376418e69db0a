"""Simulates recorded calls against caches of keys, to find how many accesses would have been hits.

A trace contains the accesses to a random part of the keys, the share `rate` of all keys. Apart from
chance, a cache of `slots * rate` slots that gets only these accesses behaves like a cache of
`slots` slots that gets all accesses (SHARDS: Waldspurger et al., FAST 2015; "miniature simulation":
USENIX ATC 2017).

**LRU** is simulated for all sizes at once, by stack distances (Mattson et al., 1970). A cache of
any size contains the rows that were used last. Therefore an access to a key is a hit if the number
of rows used since the key's last use is less than the number of slots. The rows of one call are
equal in the order of use, and the store's slot numbers decide which of them are evicted. So if only
some of the rows of one call fit in a cache, each of these rows is in the cache with the same
probability.

**LFU** and **rank** are simulated call by call, at each size, with the scores of the store
(embstore/cache/policies.py, scores.py). LFU's counts age, and a new row takes over the count of the
next victim. The rank policy has levels of profiled counts.

**Weights.** By chance the sample has too many or too few hot keys, and too large or too small a
share of each table. The profile has counts of all keys, so it shows the deviation of the sample. A
**stratum** contains the keys of one table with about the same count. Each sampled key represents
(all keys / sampled keys) keys of its stratum, both in the slots that it takes and in its hits. Its
accesses represent the accesses of the whole stratum (post-stratification). If a fifth of 80,000
keys is recorded, this reduces errors of up to 3.5 points to 0.5 at most. A stratum has at least
`_STRATUM_KEYS` sampled keys. A key that is in no profile represents 1 / rate keys.

A row counts as missed at its first use, unless a warm-up has loaded it. So if the recorded cache
had long been warm, the simulation finds too few hits: it lacks the first uses of rows that were
resident when the recording began.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.cache.policies import Policy
from embstore.profiles.profile import (
    Profile,
    TableProfile,
    Trace,
    exact_sum,
    spatial_hash,
    spatial_limit,
)
from embstore_server.sizing.simulate_kernels import simulate_scores, stack_depths

_STRATUM_KEYS = 8
_WARM_PIECE = 16
_ONE = 1 << 12
"""The integer that represents the weight of one key, or of one access."""
_SCATTER = np.uint64(0x9E3779B97F4A7C15)

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]
Hits = tuple[Floats, Floats]
"""For each size, the hits by access and the hits by unique key, estimated for all keys."""


@dataclass(frozen=True, eq=False)
class Recording:
    """The events of a trace, by call. Ids stand for the keys of the events and of a warm-up."""

    bounds: Int64s
    """(calls + 1,) the bounds of each call's events."""
    ids: Int64s
    """(e,) the id of each event, in [0, k), ascending in a call."""
    accesses: Int64s
    """(e,) the accesses that each event represents, in units of 1 / _ONE."""
    weights: Int64s
    """(k,) the number of keys that each id represents, in units of 1 / _ONE."""
    counts: Floats
    """(k,) the profiled accesses of each id, 0 for keys that are in no profile; partial counts are
    scaled up."""
    counted: float
    """Profiled accesses of all keys, including keys outside the sample."""
    warm_order: Int64s
    """Ids of the profiled keys of the sample, by descending count; empty without a warm-up."""

    @property
    def calls(self) -> int:
        """Number of calls of the trace, including calls without an event."""
        return len(self.bounds) - 1

    @property
    def access_sum(self) -> float:
        """Estimated number of accesses of the trace."""
        return float(self.accesses.sum()) / _ONE

    @property
    def unique_sum(self) -> float:
        """Estimated number of unique keys, summed over all calls."""
        return float(self.weights[self.ids].sum()) / _ONE

    def warmed(self, slots: float) -> Int64s:
        """Return the ids that fill `slots` slots before the first call, in the order of
        `warm_order`."""
        ends = np.cumsum(self.weights[self.warm_order])
        return self.warm_order[: np.searchsorted(ends, slots * _ONE, side="right")]


class _Sampled(NamedTuple):
    """Profiled keys that a trace of some rate contains, ascending, with their weights."""

    keys: Keys
    counts: Int64s
    key_weights: Floats
    access_weights: Floats


def _sampled(table: TableProfile, rate: float) -> _Sampled:
    """Return the sampled profiled keys of one table."""
    limit = spatial_limit(rate)
    is_in = np.zeros(len(table.keys), np.bool_)
    if limit >= 0:
        is_in = spatial_hash(table.name, table.keys) <= np.uint64(limit)
    values, places = np.unique(table.counts, return_inverse=True)
    strata = _strata(np.bincount(places[is_in], minlength=len(values)))[places]
    counts, of_key = table.counts[is_in], strata[is_in]
    weights = [
        (np.bincount(strata, of_all) / np.maximum(np.bincount(of_key, of_sample), 1))[of_key]
        for of_all, of_sample in ((None, None), (table.counts, counts))
    ]
    return _Sampled(table.keys[is_in], counts, *weights)


def _strata(sampled: Int64s) -> Int64s:
    """Return the stratum of each value that a count has, (v,). Neighbouring values share a stratum,
    so that each stratum has enough sampled keys.

    sampled : (v,) the number of sampled keys whose count has each value
    """
    strata = np.zeros(len(sampled), np.int64)
    stratum, found = 0, 0
    for value in range(len(sampled) - 1, -1, -1):
        if found >= _STRATUM_KEYS:
            stratum, found = stratum + 1, 0
        strata[value] = stratum
        found += int(sampled[value])
    if found < _STRATUM_KEYS:  # The smallest values join the stratum before them.
        strata[strata == stratum] = max(stratum - 1, 0)
    return strata


def _row_numbers(places: Int64s, keys: Keys) -> Int64s:
    """Return a number for each row, (n,), from the index of its table and its key, ascending by
    both. One integer made of both would not do: sparse keys leave no bits in it for a table."""
    order = np.lexsort((keys, places))
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (np.diff(keys[order]) != 0) | (np.diff(places[order]) != 0)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_new)
    return numbers


def recording(
    profile: Profile, trace: Trace, tables: Sequence[str], *, with_warm_order: bool
) -> Recording:
    """Return the events of `tables`. Ids are numbered in the order of a hash of the keys. If ids
    followed the order of the keys, hot rows would be evicted too early: of equal scores, the lower
    id is evicted first, and lower keys are often hotter."""
    wanted = [tables.index(name) if name in tables else -1 for name in trace.tables]
    place = np.array(wanted, np.int64)[trace.table]
    is_in = place >= 0
    events = int(np.count_nonzero(is_in))
    known = [(i, profile.tables[name]) for i, name in enumerate(tables) if name in profile.tables]
    each = np.full(1, 1 / trace.rate)
    unknown = _Sampled(np.zeros(1, np.int64), np.zeros(1, np.int64), each, each)
    parts = [*(_sampled(table, trace.rate) for _, table in known), unknown]
    of_parts = np.repeat([*(i for i, _ in known), len(tables)], [len(part.keys) for part in parts])
    sampled = _Sampled(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    numbers = _row_numbers(
        np.concatenate([place[is_in], of_parts]),
        np.concatenate([trace.keys[is_in], sampled.keys]),
    )
    rows, sampled_rows = numbers[:events], numbers[events:]  # the last row stands for unknown keys
    warm = rows[:0]
    if with_warm_order:
        warm = sampled_rows[np.argsort(-sampled.counts[:-1], kind="stable")]
    all_rows = np.concatenate([rows, warm])
    _, first, ids = np.unique(
        all_rows.astype(np.uint64) * _SCATTER, return_index=True, return_inverse=True
    )
    found = np.searchsorted(sampled_rows, all_rows[first])
    found[sampled_rows[found] != all_rows[first]] = -1
    _, counts, weights, access_weights = (column[found] for column in sampled)
    call = trace.call[is_in].astype(np.int64)
    order = np.argsort(call << 32 | ids[:events])
    in_order = ids[:events][order]
    accesses = trace.counts[is_in][order] * access_weights[in_order]
    return Recording(
        bounds=np.searchsorted(call, np.arange(trace.calls + 1)),
        ids=in_order,
        accesses=np.rint(accesses * _ONE).astype(np.int64),
        weights=np.rint(weights * _ONE).astype(np.int64),
        counts=counts / profile.rate,
        counted=sum(exact_sum(table.counts) for _, table in known) / profile.rate,
        warm_order=ids[events:],
    )


def lru_hits(recorded: Recording, slots: Int64s, warm_up: float) -> Hits:
    """Return the hits of LRU caches of `slots`, (s,)."""
    weights = recorded.weights[recorded.ids]
    first, ahead, width = _lru_places(recorded, weights)
    warm_ends = np.full(len(recorded.weights), np.iinfo(np.int64).max)
    warm_ends[recorded.warm_order] = np.cumsum(recorded.weights[recorded.warm_order])
    first_ends = warm_ends[recorded.ids[first]]
    ends = np.concatenate([[0], np.cumsum(weights)])[recorded.bounds]
    call_sums = np.repeat(
        np.diff(ends), np.diff(recorded.bounds)
    )  # per event: its whole call's weight
    by_access, by_unique = np.zeros(len(slots)), np.zeros(len(slots))
    for i, size in enumerate(slots.tolist()):
        chances = np.clip((size * _ONE - ahead) / width, 0, 1)
        chances[first[first_ends > warm_up * size * _ONE]] = 0
        # A call larger than the cache is executed in parts; only its first part finds the rows that
        # were resident.
        chances *= np.minimum(1, size * _ONE / call_sums)
        by_access[i], by_unique[i] = chances @ recorded.accesses, chances @ weights
    return by_access / _ONE, by_unique / _ONE


def _lru_places(recorded: Recording, weights: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return three arrays: the events that are the first use of their key; for each event, the
    weight of the keys that were certainly used after the event's key; and the weight of the keys
    among which the position of the event's key is random.

    A warm-up loads rows by ascending count before the first call. Therefore the warm-ups of all
    sizes are one sequence of loads, which begins later for a smaller size. The whole sequence is
    put before the first call, and the rows that do not fit are then determined for each size.
    """
    warm = recorded.warm_order[::-1]
    pieces = np.arange(0, len(warm), _WARM_PIECE)
    bounds = np.concatenate([pieces, recorded.bounds + len(warm)])
    ids = np.concatenate([warm, recorded.ids])
    above, since = np.empty_like(ids), np.empty_like(ids)
    last = np.full(len(recorded.weights), -1, np.int64)
    stack_depths(bounds, ids, recorded.weights, last, above, since)
    _, first = np.unique(recorded.ids, return_index=True)
    ahead, tied = above[len(warm) :], since[len(warm) :]
    return first, ahead, np.maximum(tied - weights, 0) + _ONE  # other keys, and the key itself


def scored_hits(recorded: Recording, slots: Int64s, policy: Policy, warm_up: float) -> Hits:
    """Return the hits of caches of `slots`, (s,), under a policy that has counts."""
    by_access, by_unique = np.zeros(len(slots)), np.zeros(len(slots))
    keys = np.empty((len(recorded.weights), 4), np.int64)
    result = np.empty(2, np.int64)
    for i, size in enumerate(slots.tolist()):
        simulate_scores(
            recorded.bounds,
            recorded.ids,
            recorded.accesses,
            recorded.weights,
            policy.first_counts(recorded.counts, recorded.counted, size),
            np.ascontiguousarray(recorded.warmed(warm_up * size)[::-1]),
            size * _ONE,
            policy.counting,
            policy.ageing_touches * size * _ONE,
            keys,
            result,
        )
        by_access[i], by_unique[i] = result
    return by_access / _ONE, by_unique / _ONE


def working_sets(recorded: Recording) -> Floats:
    """Return the average number of keys that 1, 2, ... consecutive calls use together, (calls,).

    The average is exact, over all windows: r consecutive calls without a key contain r - n + 1
    windows of n calls that lack the key (Xiang et al., "Linear-time modeling of program working
    set", PACT 2011).
    """
    calls = recorded.calls
    order = np.argsort(recorded.ids, kind="stable")
    ids = recorded.ids[order]
    call = np.repeat(np.arange(calls), np.diff(recorded.bounds))[order]
    is_first = np.diff(ids, prepend=-1) > 0
    is_last = np.diff(ids, append=len(recorded.weights)) > 0
    before = np.where(is_first, -1, np.roll(call, 1))
    weights = recorded.weights[ids]
    without = np.concatenate([call - before - 1, calls - 1 - call[is_last]])
    of_runs = np.concatenate([weights, weights[is_last]])
    runs = np.bincount(without, of_runs, minlength=calls + 1)[::-1]
    lacking = np.cumsum(np.cumsum(runs))[::-1][1 : calls + 1]
    windows = calls - np.arange(calls)
    keys: Floats = (weights[is_first].sum() - lacking / windows) / _ONE
    return keys
