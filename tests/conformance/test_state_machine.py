"""Random lives of a store beside the reference.

For a long run: pytest tests/conformance/test_state_machine.py --hypothesis-profile=long --timeout=0
"""

import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.gate import Gated
from tests.conformance.machine import OTHER_LAYOUT, StoreMachine
from tests.conformance.traces import TABLES, smallest_cache

STEPS = 100


@pytest.mark.slow
def test_a_store_follows_the_reference(tmp_path):
    smallest = smallest_cache(Gated(tmp_path), TABLES | {"c/otherwise": OTHER_LAYOUT})
    caches = (smallest, smallest + 8192, 2 * smallest, 1 << 20)
    numbers = itertools.count()
    run_state_machine_as_test(
        lambda: StoreMachine(Gated(tmp_path / str(next(numbers))), caches),
        settings=settings(
            deadline=None,
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
