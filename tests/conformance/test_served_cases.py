"""Which cases open stores by themselves, and so embedded ones only: a new one is a decision.

A case that takes a backend runs on each, unless its mark `needs` what that one does not offer. A
case, or a fixture, that takes `tmp_path` runs on none of them, and is written down here.
"""

import ast
from collections import Counter
from pathlib import Path

EMBEDDED_ONLY = {
    "a process of its own, or its signals and forks, is the case": {
        "test_interrupts": 3,
        "test_process": 1,
    },
    "options and paths of embstore.open, which a server has settings for": {
        "test_bad_options": 3,
        "test_directories": 1,
        "test_process": 2,
    },
    "merges are held at their points; over the wire the state machine does that": {
        "test_merges": 1,
    },
    "pools are looked into as their shares of the cache change": {
        "test_cache_split": 5,
        "test_cache_split_safety": 7,
    },
    "the planner's stages are held, slowed or looked at from within the process": {
        "test_hits": 1,
        "test_manners": 1,
        "test_owners": 2,
        "test_pairs": 1,
        "test_planning": 1,
        "test_races": 1,
        "test_reads": 2,
    },
    "the state machine: one test for each backend": {"test_state_machine": 2},
}
"""How many cases, or fixtures, of a file have that reason."""


def embedded_only(path):
    """Return how many cases and fixtures of a file take `tmp_path`."""
    functions = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)]
    return sum("tmp_path" in {a.arg for a in node.args.args} for node in functions)


def test_every_case_that_opens_its_own_stores_has_its_reason():
    paths = Path(__file__).parent.rglob("test_*.py")
    found = Counter({path.stem: embedded_only(path) for path in paths})
    assert +found == sum(map(Counter, EMBEDDED_ONLY.values()), Counter())
