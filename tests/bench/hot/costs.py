"""The cost of frequencies: counting, classifying, packing, a sampled profile, and online counting.

Counting and classifying use one core, and data in memory. The best of several repeats is taken,
because another process may use the core during any of them.
"""

import contextlib
import itertools
import statistics
from collections.abc import Callable
from typing import Any

from embstore.hotness.counter import KeyCounter
from embstore_training.hotcold import Classifier, Packer
from tests.bench.hot.contestants import Known
from tests.bench.hot.scale import Scale
from tests.bench.hot.stores import Written
from tests.bench.hot.trace import Trace, recall
from tests.bench.turns import Kind, seconds_of, take_turns


def measure(
    written: Written, trace: Trace, known: Known, scale: Scale, progress: Callable[[str], None]
) -> dict[str, Any]:
    progress("counting")
    found = {"counter": _counter(trace, scale), "sample": _sample(known, scale)}
    progress("classifying and packing")
    columns = {table: table for table in trace.tables}
    classifier = Classifier(known.hot_set, columns, rows=trace.rows)
    found["classifier"] = _classifier(classifier, trace, scale)
    found["packer"] = _packer(classifier, trace, scale)
    progress("lookups that are counted")
    found["count_rate"] = _count_rates(written, trace, scale)
    return found


def _best_of(repeats: int, call: Callable[[], Any]) -> float:
    return min(seconds_of(call) for _ in range(repeats))


def _counter(trace: Trace, scale: Scale) -> dict[str, Any]:
    """Count each column by a counter of its own, over and over."""
    keys = list(trace.keys_of(trace.columns).values())
    counters = [KeyCounter() for _ in keys]
    for counter, column in zip(counters, keys, strict=True):
        counter.add(column)
    memory = {
        "memory_bytes": sum(counter.memory_bytes for counter in counters),
        "memory_bytes_max": sum(counter.memory_bytes_max for counter in counters),
        "is_exact": all(counter.is_exact for counter in counters),
    }

    def count_all() -> None:
        for column in keys:
            KeyCounter().add(column)

    ids = sum(map(len, keys))
    seconds = _best_of(scale.cost_repeats, count_all)
    return {"ids": ids, "ids_per_s": ids / seconds} | memory


def _sample(known: Known, scale: Scale) -> dict[str, Any]:
    sampled, whole = known.profiles["sampled"], known.profiles["whole"]
    return {"rate": scale.sample_rate, "recall": recall(sampled, whole, scale.slots)}


def _classifier(classifier: Classifier, trace: Trace, scale: Scale) -> dict[str, Any]:
    chunks = list(trace.chunks())
    seconds = _best_of(scale.cost_repeats, lambda: [classifier.hot(chunk) for chunk in chunks])
    ids = scale.samples * len(trace.tables)
    return {"ids_per_s": ids / seconds, "memory_bytes": classifier.memory_bytes}


def _packer(classifier: Classifier, trace: Trace, scale: Scale) -> dict[str, Any]:
    def pack() -> None:
        packer = Packer(classifier, scale.batch_samples, window_batches=scale.round_steps)
        for _ in packer.pack(trace.chunks()):
            pass

    seconds = _best_of(scale.cost_repeats, pack)
    return {"samples_per_s": scale.samples / seconds}


def _count_rates(written: Written, trace: Trace, scale: Scale) -> dict[str, Any]:
    """Look batches of resident rows up, by stores that count none, some and all of the calls."""
    batches = [
        trace.keys_of(batch) for batch in itertools.islice(trace.batches(), scale.count_batches)
    ]
    calls = scale.count_calls
    with contextlib.ExitStack() as stack:
        turns = {}
        for rate in scale.count_rates:
            store = written.open(f"counting-{rate:g}", scale.slots, count_rate=rate)
            stack.callback(store.close)
            for batch in batches:
                store.lookup(batch)
            turns[f"{rate:g}"] = Kind(_looker(store, batches))
        spent = take_turns(turns, scale.count_rounds, calls)
    means = {
        rate: [
            statistics.fmean(seconds for seconds, _ in of_rate[low : low + calls])
            for low in range(0, len(of_rate), calls)
        ]
        for rate, of_rate in spent.items()
    }
    return {
        rate: {
            "lookup_ms": 1e3 * statistics.median(of_rate),
            "ratio": statistics.median(a / b for a, b in zip(of_rate, means["0"], strict=True)),
        }
        for rate, of_rate in means.items()
    }


def _looker(store: Any, batches: list[Any]) -> Callable[[], Any]:
    following = itertools.cycle(batches)
    return lambda: store.lookup(next(following))
