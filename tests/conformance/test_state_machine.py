"""Random lives of a store beside the reference, embedded and over the wire.

For a long run: pytest tests/conformance/test_state_machine.py --hypothesis-profile=long --timeout=0
"""

import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.gate import Gated, GatedServed
from tests.conformance.machine import OTHER_LAYOUT, TABLES, StoreMachine
from tests.conformance.served import small_pieces
from tests.conformance.traces import smallest_cache

STEPS = 100
PARTS = 6
"""Of the examples: cases, of which `make test-rest` runs some."""
SERVED_SHARE = 8
"""One example in so many is lived over the wire, where a command takes several times as long."""


def live(root, backend, examples):
    """Run the machine on so many random lives, each in a directory of its own."""
    smallest = smallest_cache(Gated(root), TABLES | {"c/otherwise": OTHER_LAYOUT})
    caches = (smallest, smallest + 8192, 2 * smallest, 1 << 20)
    numbers = itertools.count()
    run_state_machine_as_test(
        lambda: StoreMachine(backend(root / str(next(numbers))), caches),
        settings=settings(
            max_examples=examples,
            deadline=None,
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_a_store_follows_the_reference(tmp_path, part):
    live(tmp_path, Gated, settings().max_examples // PARTS)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_served_store_follows_the_reference(tmp_path, part):
    with small_pieces():
        live(tmp_path, GatedServed, max(1, settings().max_examples // SERVED_SHARE // PARTS))
