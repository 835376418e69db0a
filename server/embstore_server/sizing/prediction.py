"""The hit rate of a cache at each size, predicted from a recording or from counts alone.

**Hits by access** count every occurrence of a key in a call. **Hits by unique key** count each key
of a call once. The store counts both (cache/counters.py). A cache must fetch the unique keys that
miss; a user usually counts accesses. A row's first use is a miss, unless the cache was warmed with
the row; this holds for predictions and for the store.

**Recorded**: if a profile has a trace, its calls are simulated (simulate.py). The simulation
includes drift, scans, and the effect of a call's size. The trace contains the total numbers of
accesses and of unique keys. The totals estimated from the sample of keys are a little higher or
lower, mostly because of a few very hot keys. These keys hit at any size, so the difference counts
as hits (SHARDS-adj: Waldspurger et al., FAST 2015). If a prediction is only for some of the tables,
the totals of these tables are not known, and there is no such correction.

The error was measured against stores (tests/conformance/test_miss_ratio.py). It is at most two
points at every size that has room for two calls or more. In a smaller cache the result depends on
the store's slot numbers and on the order of a call's keys, and the prediction may be five points
off. If calls loop over keys, the curve has a step at the size at which the loop begins to fit. A
sample of a seventh of the keys shifts this step by up to three percent of the slots.

**Counted**: without a trace, a key's n accesses are assumed to be anywhere among the N counted
accesses, independently of each other (the independent reference model). After a use, a row stays in
an LRU cache of C slots for a characteristic time T (Che, Tung and Wang, 2002), in which C keys are
used:

    C = sum over keys of 1 - (1 - T/N)^n        hits = sum of (n - 1) * (1 - (1 - T/N)^n)

because each of the n - 1 gaps between n random points of an interval is below T with that
probability. The form for a finite interval has two advantages over the usual form with e^(-nT/N):
it counts first uses as misses, and it does not expect a key that was seen once to be used again.
Caches with the policies LFU and rank are assumed to hold the C most accessed keys, from the first
use of each key on. No cache without knowledge of the future can do better, so real caches have
fewer hits.

Hits by unique key depend on the number of accesses per call, which counts do not include. The
caller can pass this number (`accesses_per_call`); otherwise these hit rates are NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.cache.policies import Policy, policy_of
from embstore.errors import InvalidArgumentError
from embstore.profiles.checks import check
from embstore.profiles.profile import Profile, Trace
from embstore_server.sizing.simulate import (
    Floats,
    Hits,
    Recording,
    lru_hits,
    recording,
    scored_hits,
    working_sets,
)

_BISECTIONS = 60
_LONGEST = 60.0  # -log(1 - T/N): all but 1e-26 of the interval


@dataclass(frozen=True, eq=False)
class HitRates:
    """The hit rates of a cache by its size."""

    slots: NDArray[np.int64]
    """(s,) the number of rows that the cache has room for."""
    by_access: Floats
    """(s,) the share of accesses that hit."""
    by_unique: Floats
    """(s,) the share of the unique keys of calls that hit; NaN if calls are not known."""
    method: str
    """"recorded": calls were simulated. "counted": estimated from counts alone."""

    def at(self, slots: NDArray[np.int64]) -> "HitRates":
        """Return the hit rates at `slots`, which are some of the sizes of this object. The sizes of
        this object must be ascending."""
        places = np.searchsorted(self.slots, slots)
        return HitRates(slots, self.by_access[places], self.by_unique[places], self.method)


@dataclass(frozen=True, eq=False)
class LookaheadTraffic:
    """The traffic of announced training steps; each call of the recording is a step."""

    slots: NDArray[np.int64]
    """(s,) the sizes of the cache."""
    unique_rows: float
    """Unique rows of a step, on average."""
    fetched_rows: Floats
    """(s,) the average number of a step's rows that are not in the cache when the step is
    planned."""
    working_sets: Floats
    """(calls,) the average number of rows that 1, 2, ... consecutive steps use together."""

    def working_set(self, steps: int) -> float:
        """Return the number of rows that `steps` consecutive steps use together. This is the number
        of slots that a cache for all these steps needs."""
        recorded = len(self.working_sets)
        check(1 <= steps <= recorded, f"steps from 1 to the {recorded} recorded", steps)
        return float(self.working_sets[steps - 1])


def hit_rates(
    profile: Profile,
    slots: ArrayLike,
    policy: str,
    warm_up: float = 0.0,
    tables: Sequence[str] | None = None,
    *,
    accesses_per_call: float | None = None,
) -> HitRates:
    """Predict the hit rates of caches of several sizes.

    Parameters
    ----------
    slots : (s,) integers >= 1, in any order
    policy : "lru", "lfu" or "rank"; ranks are by the counts of this profile
    warm_up : the share of slots that the most accessed rows fill before the first call
    tables : the tables that share the cache. None: all tables of the profile
    accesses_per_call : needed for hits by unique key if the profile has no trace

    Raises
    ------
    InvalidArgumentError : an argument is invalid; or no access was recorded or counted.
    """
    sizes = _checked_slots(slots)
    evicting = policy_of(policy)
    _check_number(warm_up, 0.0, 1.0, "warm_up to be a share from 0 to 1")
    names = _checked_tables(profile, tables)
    trace = profile.trace
    if trace is not None and len(trace.keys):
        method = "recorded"
        hits, totals = _recorded(profile, trace, names, sizes, evicting, warm_up)
    else:
        method, per_call = "counted", np.nan
        if accesses_per_call is not None:
            _check_number(accesses_per_call, 1.0, np.inf, "accesses_per_call of at least 1")
            per_call = float(accesses_per_call)
        predict = _top if evicting.has_counts else _che
        hits, totals = predict(_Counts.of(profile, names), sizes, warm_up, per_call)
    # The correction may have made the number of hits too large or too small, so shares are clipped.
    by_access, by_unique = (
        np.clip(found / total, 0.0, 1.0) if total else np.zeros(len(found))
        for found, total in zip(hits, totals, strict=True)
    )
    return HitRates(sizes, by_access, by_unique, method)


def lookahead_traffic(
    profile: Profile, slots: ArrayLike, policy: str, tables: Sequence[str] | None = None
) -> LookaheadTraffic:
    """For training with look-ahead, return how many rows the steps fetch, and for how many rows
    they need room.

    Every row of a step is in the cache when the step is trained, at any cache size; a larger cache
    only saves fetches. `policy` decides which rows to evict among those that no announced step
    uses.

    Raises
    ------
    InvalidArgumentError : as for `hit_rates`; or the profile has no trace.
    """
    trace = profile.trace
    if trace is None or not len(trace.keys):
        raise InvalidArgumentError("expected a profile with a trace of calls, found none in it")
    rates = hit_rates(profile, slots, policy, tables=tables)
    names = _checked_tables(profile, tables)
    recorded = recording(profile, trace, names, with_warm_order=False)
    _, unique_sum = _totals(trace, names, recorded)
    unique_rows = unique_sum / trace.calls
    # Rows that the sample lacks are assumed to be in every step, as in the hit rates.
    sets = np.maximum(working_sets(recorded) + unique_rows - recorded.unique_sum / trace.calls, 0.0)
    return LookaheadTraffic(rates.slots, unique_rows, (1 - rates.by_unique) * unique_rows, sets)


def _recorded(
    profile: Profile,
    trace: Trace,
    tables: Sequence[str],
    slots: NDArray[np.int64],
    policy: Policy,
    warm_up: float,
) -> tuple[Hits, tuple[float, float]]:
    """Return the hits, and the totals of accesses and unique keys by which hits are divided."""
    recorded = recording(profile, trace, tables, with_warm_order=warm_up > 0)
    if policy.has_counts:
        by_access, by_unique = scored_hits(recorded, slots, policy, warm_up)
    else:
        by_access, by_unique = lru_hits(recorded, slots, warm_up)
    access_total, unique_total = _totals(trace, tables, recorded)
    by_access += access_total - recorded.access_sum
    by_unique += unique_total - recorded.unique_sum
    return (by_access, by_unique), (access_total, unique_total)


def _totals(trace: Trace, tables: Sequence[str], recorded: Recording) -> tuple[float, float]:
    """Return the numbers of accesses and unique keys of the trace. If only some of the trace's
    tables are wanted, the numbers are estimates."""
    if set(trace.tables) <= set(tables):
        return float(trace.access_total), float(trace.unique_total)
    return recorded.access_sum, recorded.unique_sum


# From counts alone


@dataclass(frozen=True)
class _Counts:
    """Keys grouped by count, descending: `keys[i]` keys have `accesses[i]` accesses each."""

    accesses: Floats
    keys: Floats

    @classmethod
    def of(cls, profile: Profile, tables: Sequence[str]) -> "_Counts":
        named = [profile.tables[name].counts for name in tables if name in profile.tables]
        counts = np.concatenate([np.empty(0, np.int64), *named])
        check(len(counts) > 0, "a profile with accesses", "none in it")
        values, keys = np.unique(counts, return_counts=True)
        return cls(values[::-1].astype(np.float64), keys[::-1].astype(np.float64))

    @property
    def total(self) -> float:
        return float(self.accesses @ self.keys)

    def of_top(self, values: Floats, sizes: Floats) -> Floats:
        """Return, for each of `sizes`, the sum of a value over that many of the most accessed keys.

        values : the value of a key in each group
        """
        ends = np.cumsum(self.keys)
        sums = np.cumsum(values * self.keys)
        found: Floats = np.interp(sizes, np.append(0.0, ends), np.append(0.0, sums))
        return found

    def unique(self, per_call: float) -> Floats:
        """Return, for each group of keys, the number of calls that contain a key, if calls have
        `per_call` random accesses."""
        share = min(per_call / self.total, 1.0)
        return (1 - (1 - share) ** self.accesses) / share


def _top(
    counts: _Counts, slots: NDArray[np.int64], warm_up: float, per_call: float
) -> tuple[Hits, tuple[float, float]]:
    """Return the hits of caches of the most accessed keys, and the totals by which hits are
    divided."""
    unique, sizes = counts.unique(per_call), slots.astype(np.float64)
    warmed = counts.of_top(np.ones(len(unique)), warm_up * sizes)
    by_access = counts.of_top(counts.accesses - 1, sizes) + warmed
    by_unique = counts.of_top(unique - 1, sizes) + warmed
    return (by_access, by_unique), (counts.total, float(unique @ counts.keys))


def _che(
    counts: _Counts, slots: NDArray[np.int64], warm_up: float, per_call: float
) -> tuple[Hits, tuple[float, float]]:
    """Return the hits of LRU caches, and the totals by which hits are divided."""
    n, unique = counts.accesses, counts.unique(per_call)
    by_access, by_unique = np.zeros(len(slots)), np.zeros(len(slots))
    for i, size in enumerate(slots):
        length = _characteristic(counts, float(size))
        kept = -np.expm1(-n * length)
        warmed = counts.of_top(kept, np.array([warm_up * float(size)]))[0]
        by_access[i] = ((n - 1) * kept) @ counts.keys + warmed
        in_calls = _unique_hits(n, -np.expm1(-length), min(per_call / counts.total, 1.0))
        by_unique[i] = in_calls @ counts.keys + warmed
    return (by_access, by_unique), (counts.total, float(unique @ counts.keys))


def _characteristic(counts: _Counts, size: float) -> float:
    """Return -log(1 - T/N), by bisection: the number of keys used in a time T grows with T."""
    low, high = 0.0, _LONGEST
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        used = -np.expm1(-counts.accesses * middle) @ counts.keys
        low, high = (middle, high) if used < size else (low, middle)
    return high


def _unique_hits(n: Floats, window: float, call: float) -> Floats:
    """Return, for each key of n accesses, the expected number of hits. A call that contains the key
    is a hit if the key was also used in a window of time before the call.

    All lengths are shares of the whole trace; the first `window` / `call` calls begin too early for
    a whole window. The probability that a key is both in the call and in the window is 1 - (1 -
    call)^n - (1 - window)^n + (1 - call - window)^n. This function sums the probability over the
    calls.
    """

    def without(length: float, power: Floats = n) -> Floats:
        missing: Floats = max(1 - length, 0.0) ** power
        return missing

    window = min(window, 1 - call)
    whole = 1 - without(call) - without(window) + without(call + window)
    early = window * (1 - without(call)) - (1 - without(window, n + 1)) / (n + 1)
    early += (without(call, n + 1) - without(call + window, n + 1)) / (n + 1)
    return (early + (1 - call - window) * whole) / call + whole / 2


# Checks


def _check_number(value: float, low: float, high: float, expected: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    check(is_number and low <= value <= high, expected, repr(value))


def _checked_slots(slots: ArrayLike) -> NDArray[np.int64]:
    found = np.asarray(slots)
    expected = "slots of shape (s,), integers from 1 on"
    check(found.ndim == 1 and found.dtype.kind in "iu", expected, f"{found.dtype} {found.shape}")
    check(bool((found >= 1).all()), expected, found.min(initial=1))
    return found.astype(np.int64)


def _checked_tables(profile: Profile, tables: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of tables; if None is given, all tables of the profile and of its trace."""
    traced = profile.trace.tables if profile.trace is not None else ()
    known = dict.fromkeys([*profile.tables, *traced])
    unknown = sorted(set(tables or ()) - set(known))
    check(not unknown, f"tables among {list(known)}", unknown)
    return tuple(known) if tables is None else tuple(dict.fromkeys(tables))
