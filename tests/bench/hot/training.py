"""The contestants' training: what is counted before, all blocks, and the figures afterwards."""

import contextlib
from collections.abc import Callable
from typing import Any

from embstore.profiles.hotset import choose_hot_set, hot_coverage
from tests.bench.hot.blocks import summaries, take_blocks
from tests.bench.hot.contestants import Known, kinds, make
from tests.bench.hot.scale import Scale
from tests.bench.hot.stores import Written
from tests.bench.hot.trace import Trace, offline_rate

Progress = Callable[[str], None]


def count(trace: Trace, scale: Scale) -> Known:
    """Count the trace, whole and sampled, and choose the hot set."""
    whole = trace.profile()
    budget = int(scale.cached_share * sum(scale.rows) * scale.row_bytes)
    hot_set = choose_hot_set(whole, budget, dict.fromkeys(trace.tables, scale.row_bytes))
    return Known({"whole": whole, "sampled": trace.profile(scale.sample_rate)}, hot_set)


def measure(
    written: Written, trace: Trace, known: Known, scale: Scale, progress: Progress
) -> dict[str, Any]:
    """Return the figures of all contestants, and of the trace that they were trained on."""
    with contextlib.ExitStack() as stack:
        contestants = {}
        for name, kind in kinds(scale).items():
            progress(f"{name} opens its store")
            contestants[name] = make(name, kind, written, trace, scale, known)
            stack.callback(contestants[name].close)
        blocks = take_blocks(contestants, scale.rounds, scale.round_steps, progress)
        found = summaries(blocks)
        for name, contestant in contestants.items():
            found[name] |= contestant.end()
        progress("held-out samples")
        for name, contestant in contestants.items():
            found[name]["auc"] = contestant.trainer.held_out_auc(contestant.store)
    return {"trace": _trace_figures(known, scale, found["lru"]["slots"]), "contestants": found}


def _trace_figures(known: Known, scale: Scale, slots: int) -> dict[str, Any]:
    profile, hot_set = known.profiles["whole"], known.hot_set
    coverage = hot_coverage(hot_set, profile)
    return {
        "samples": scale.samples,
        "accesses": sum(table.accesses for table in profile.tables.values()),
        "distinct": sum(len(table.keys) for table in profile.tables.values()),
        "rows": sum(scale.rows),
        "slots": slots,
        "slots_share": slots / sum(scale.rows),
        "offline_rate": offline_rate(profile, slots),
        "hot_set": {
            "rows": hot_set.row_count,
            "bytes": hot_set.bytes,
            "threshold": hot_set.threshold,
            "accesses": coverage.accesses,
        },
    }
