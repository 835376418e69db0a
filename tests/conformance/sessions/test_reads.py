"""Rows that are read for announced steps, beside plain simulators of schedules.

What the planner chooses depends on how far its threads have come; the bounds hold however far.
"""

import pytest

from tests.bench.lookahead.reads import SIZES, cache_bytes, levels_of, trained
from tests.schedules import rows_read, traces

SEED = 20_261_125
STEPS, DRAWS, KNOWN = 110, 400, 16
TRACES = traces(STEPS, DRAWS, SEED)


@pytest.mark.parametrize("policy", ["lru", "rank"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", TRACES)
def test_rows_read_are_nearly_those_of_belady_who_knows_the_same_steps(
    tmp_path, kind, size, policy
):
    """Rank guesses which unknown row is needed first, and a step ahead takes what can leave now."""
    steps = TRACES[kind]
    levels = None if policy == "lru" else levels_of(steps)
    read, slots = trained(tmp_path / "store", steps, cache_bytes(size, steps), KNOWN, levels)
    belady = rows_read(steps, slots, KNOWN, levels)
    alone = rows_read(steps, slots, 0, levels)
    assert rows_read(steps, slots, STEPS) <= read <= (1.05 if policy == "lru" else 1.07) * belady
    assert read <= alone * (1.0 if policy == "lru" else 1.03)


def test_a_planner_that_reads_early_reads_more_where_two_steps_hardly_fit(tmp_path):
    steps = TRACES["steady"]
    read = {
        planner: trained(
            tmp_path / planner, steps, cache_bytes("tight", steps), KNOWN, None, planner
        )
        for planner in ("per_step", "window")
    }
    assert read["window"].rows > 1.1 * read["per_step"].rows
