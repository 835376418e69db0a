"""Recorded calls: a sample of keys with all of their events, in bounded memory, totals of all."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.hotness import recorder as recorder_module
from embstore.hotness.recorder import Recorder
from embstore.profiles.profile import spatial_hash, spatial_limit, table_seed

SEED = 71


def int64s(values):
    return np.array(values, np.int64)


def is_sampled(name, key, rate):
    return int(spatial_hash(name, int64s([key]))[0]) <= spatial_limit(rate)


def model(calls, rate):
    """Return the events of calls, and the totals over all keys, by dictionaries."""
    events, unique, accesses = {}, 0, 0
    for number, call in enumerate(calls):
        of_call = Counter()
        for name, keys, counts in call:
            for key, count in zip(keys, counts or [1] * len(keys), strict=True):
                of_call[name, key] += count
        unique += len(of_call)
        accesses += of_call.total()
        for (name, key), count in of_call.items():
            if is_sampled(name, key, rate):
                events[number, name, key] = count
    return events, unique, accesses


def test_any_id_is_recorded_once_a_call_even_that_of_the_seed():
    """A key with the hash 0, which is a free place, would never count as a unique one."""
    calls = [[("v", [key, key, 5], None)] for key in (-(2**63), -2, 0, 2**63 - 1, *SEEDS)]
    for rate in (1.0, 0.25):
        check(record_all(Recorder(rate=rate), calls), calls)


SEEDS = [s if s < 2**63 else s - 2**64 for s in (table_seed("v"), table_seed("v") | 1 << 63)]


def record_all(recorder, calls):
    for call in calls:
        recorder.record([(n, int64s(keys), counts and int64s(counts)) for n, keys, counts in call])
    return recorder.trace()


def events_of(trace):
    columns = trace.call, trace.table, trace.keys, trace.counts
    events = {
        (call, trace.tables[table], key): count
        for call, table, key, count in zip(*(c.tolist() for c in columns), strict=True)
    }
    assert len(events) == len(trace.keys)
    return events


def check(trace, calls):
    events, unique, accesses = model(calls, trace.rate)
    assert events_of(trace) == events
    assert (trace.calls, trace.unique_total, trace.access_total) == (len(calls), unique, accesses)
    assert set(trace.tables) == {name for call in calls for name, _, _ in call}


some_keys = st.lists(st.integers(0, 12) | st.integers(0, 2**63 - 1), max_size=30)
counted_keys = st.lists(
    st.tuples(st.integers(0, 12) | st.integers(0, 2**40), st.integers(1, 2**32)),
    min_size=1,
    max_size=20,
).map(lambda pairs: tuple(zip(*pairs, strict=True)))
part = st.one_of(
    st.tuples(st.sampled_from("vwx"), some_keys, st.none()),
    st.tuples(st.sampled_from("vwx"), counted_keys).map(lambda p: (p[0], *p[1])),
)
some_calls = st.lists(st.lists(part, max_size=5), max_size=8)


@given(some_calls, st.sampled_from([1.0, 0.5, 0.3, 0.01]))
def test_events_are_those_of_dictionaries(calls, rate):
    recorder = Recorder(rate=rate)
    check(record_all(recorder, calls), calls)
    assert recorder.rate == rate


@settings(max_examples=60)
@given(some_calls, st.integers(1, 30))
def test_the_rate_is_halved_until_the_events_fit(calls, events_max):
    recorder = Recorder(events_max)
    trace = record_all(recorder, calls)
    check(trace, calls)
    assert recorder.events == len(trace.keys) <= events_max
    assert (2.0**20 / trace.rate).is_integer()
    if trace.rate < 1:
        assert len(model(calls, 2 * trace.rate)[0]) > events_max


def random_calls(count, keys, rows, tables=("v", "w")):
    random = np.random.default_rng(SEED)
    return [
        [(name, (rows * random.random(keys) ** 4).astype(np.int64), None) for name in tables]
        for _ in range(count)
    ]


def test_tables_have_samples_of_their_own():
    keys = np.arange(10_000)
    recorder = Recorder(rate=0.1)
    recorder.record([("v", keys, None), ("w", keys, None)])
    trace = recorder.trace()
    first, second = (set(trace.keys[trace.table == t].tolist()) for t in (0, 1))
    assert first and second and len(first & second) < len(first) / 2


def test_memory_is_bounded_however_long_it_records():
    recorder = Recorder(1_000)
    calls = random_calls(200, 400, 10**6)
    recorder.record(calls[0])
    bound = recorder.memory_bytes
    for call in calls:
        recorder.record(call)
        assert recorder.events <= 1_000
        assert recorder.memory_bytes == bound
    assert bound < 24 * 1_000 + 64 * 800
    assert recorder.events > 200
    assert recorder.calls == 201


def test_a_trace_stays_as_it_was_when_recording_goes_on():
    recorder = Recorder(50)
    recorder.record([("v", np.arange(40), None)])
    trace = recorder.trace()
    before = events_of(trace)
    recorder.record([("v", np.arange(100, 160), None)])
    assert events_of(trace) == before


def test_clear_begins_again_with_the_first_rate():
    recorder = Recorder(10, rate=0.5)
    recorder.record([("v", np.arange(1000), None)])
    assert recorder.rate < 0.5
    recorder.clear()
    assert (recorder.rate, recorder.events, recorder.calls) == (0.5, 0, 0)
    check(record_all(recorder, [[("w", [1, 2, 1], None)]]), [[("w", [1, 2, 1], None)]])


def test_a_recording_ends_at_the_lowest_rate(monkeypatch):
    monkeypatch.setattr(recorder_module, "_RATE_MIN", 2.0**-8)
    recorder = Recorder(1)
    keys = np.arange(2_000)
    always = keys[spatial_hash("v", keys) <= np.uint64(spatial_limit(2.0**-8))][:2]
    recorder.record([("v", always[:1], None)])
    recorder.record([("v", always, None)])
    assert recorder.is_full
    recorder.record([("v", always[:1], None)])
    trace = recorder.trace()
    assert (trace.calls, trace.keys.tolist(), trace.access_total) == (1, always[:1].tolist(), 1)


def test_a_recording_ends_at_a_table_too_many(monkeypatch):
    monkeypatch.setattr(recorder_module, "_TABLES_MAX", 2)
    recorder = Recorder()
    recorder.record([("v", int64s([1]), None), ("w", int64s([1]), None)])
    recorder.record([("x", int64s([1]), None)])
    assert recorder.is_full
    assert (recorder.trace().tables, recorder.calls) == (("v", "w"), 1)
    recorder.clear()
    assert not recorder.is_full


def test_a_recording_ends_at_a_call_too_many(monkeypatch):
    monkeypatch.setattr(recorder_module, "_CALLS_MAX", 2)
    recorder = Recorder()
    for _ in range(3):
        recorder.record([("v", int64s([1]), None)])
    assert (recorder.is_full, recorder.calls) == (True, 2)
