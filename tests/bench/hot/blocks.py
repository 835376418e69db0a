"""Blocks of steps: contestants take the same samples, one after the other.

In every round each contestant has one block with the same number of steps. The order rotates, so a
slow moment of the machine affects all contestants equally. Hot/cold training has a few steps more,
with the samples that are left over at the end; they belong to its last block. The pace of a block
is its number of samples, divided by the sum of the times of its parts:

    feed     the next step, from the iterator; this includes exchanging hot rows and packing samples
    lookup   the step's rows
    model    the gradients
    update   of the step's rows
    settle   the work of a session that continues after the last step

The samples/s of a contestant are the median over blocks, and its ratio to the bound is the median
over rounds. In the first round, the caches that begin empty fill, and hot rows are pulled to the
trainer.

`count` returns the counts that are taken before training; `measure` has all blocks, and the figures
afterwards.
"""

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from embstore.profiles.hotset import choose_hot_set, hot_coverage
from tests.bench.hot.contestants import BOUND, Contestant, Known, kinds, make
from tests.bench.hot.scale import Scale
from tests.bench.hot.stores import Written
from tests.bench.hot.trace import LABELS, Trace, offline_rate
from tests.bench.turns import in_turns

PARTS = ("feed", "lookup", "model", "update", "settle")


@dataclass
class Block:
    """What one block took."""

    steps: int = 0
    samples: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @property
    def samples_per_s(self) -> float:
        return self.samples / sum(self.seconds.values())

    def add(self, part: str, begin: float) -> float:
        """Add the time since `begin` to a part, and return the moment."""
        now = time.perf_counter()
        self.seconds[part] += now - begin
        return now


def take_block(contestant: Contestant, steps: int | None) -> Block:
    """Take so many steps, or all that are left."""
    block = Block()
    for _ in itertools.count() if steps is None else range(steps):
        moment = time.perf_counter()
        step = next(contestant.steps, None)
        moment = block.add("feed", moment)
        if step is None:
            break
        rows = step.lookup()
        moment = block.add("lookup", moment)
        gradients = contestant.trainer.gradients(step.batch, rows)
        moment = block.add("model", moment)
        step.update(gradients)
        block.add("update", moment)
        block.steps += 1
        block.samples += len(step.batch[LABELS])
        contestant.note_step(step)
    moment = time.perf_counter()
    contestant.settle()
    block.add("settle", moment)
    return block


def take_blocks(
    contestants: dict[str, Contestant], rounds: int, round_steps: int, progress: Any
) -> dict[str, list[Block]]:
    """Return the blocks of each contestant, which then has no step left."""
    blocks: dict[str, list[Block]] = {name: [] for name in contestants}
    for index, name in in_turns(list(contestants), rounds, progress):
        steps = round_steps if index < rounds - 1 else None
        blocks[name].append(take_block(contestants[name], steps))
    return blocks


def summary(blocks: list[Block], bound: list[Block]) -> dict[str, Any]:
    """Return a contestant's pace, its ratio to the bound's, and the milliseconds of a step."""
    steps = sum(block.steps for block in blocks)
    return {
        "steps": steps,
        "samples": sum(block.samples for block in blocks),
        "samples_per_s": statistics.median(block.samples_per_s for block in blocks),
        "ratio": statistics.median(
            one.samples_per_s / other.samples_per_s
            for one, other in zip(blocks, bound, strict=True)
        ),
        "samples_per_s_rounds": [block.samples_per_s for block in blocks],
        "step_ms": {
            part: statistics.median(1e3 * block.seconds[part] / block.steps for block in blocks)
            for part in PARTS
        },
        "seconds": {part: sum(block.seconds[part] for block in blocks) for part in PARTS},
    }


def summaries(blocks: dict[str, list[Block]]) -> dict[str, dict[str, Any]]:
    return {name: summary(found, blocks[BOUND]) for name, found in blocks.items()}


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
