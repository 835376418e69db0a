"""Step numbers that are no integers, and rows to be put where no mapping is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError
from tests.conformance.cases import assert_same, config, ones
from tests.conformance.sessions import PATIENCE_S, Plan, await_planned, refused_step

KEYS = [5, 1, 9]
VERBS: dict[str, Callable[[Any, str, Any], Any]] = {
    "announce": lambda s, m, n: s.announce(m, {n: {"a": [2]}}),
    "look up": lambda s, m, n: s.lookup_step(m, n, timeout_s=PATIENCE_S),
    "update": lambda s, m, n: s.update_step(m, n, {"a": ones(3)}, timeout_s=PATIENCE_S),
    "release": lambda s, m, n: s.release_step(m, n, timeout_s=PATIENCE_S),
    "skip": lambda s, m, n: s.skip_step(m, n, timeout_s=PATIENCE_S),
}


@pytest.fixture
def twin(open_twin: Callable[..., Any]) -> Any:
    twin = open_twin()
    twin.create_table("a", **config())
    return twin


@pytest.fixture
def member(twin: Any) -> str:
    """Announce step 1 of KEYS, and wait until it is planned."""
    Plan(("a",)).open(twin.store)
    joined = twin.store.sessions.join("run", 0).member
    twin.store.sessions.announce(joined, {1: {"a": KEYS}})
    await_planned(twin.store, 1)
    return str(joined)


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@pytest.mark.parametrize("number", [1.0, True, "1", None, np.float64(1)], ids=repr)
def test_number_of_a_step_is_an_integer(twin: Any, member: str, verb: Any, number: Any) -> None:
    with refused_step(twin.store, InvalidArgumentError, "number of a step"):
        verb(twin.store.sessions, member, number)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_numpy_integers_are_step_numbers(twin: Any, member: str, dtype: Any) -> None:
    sessions = twin.store.sessions
    sessions.announce(member, {dtype(2): {"a": KEYS}})
    rows = sessions.lookup_step(member, dtype(1), timeout_s=PATIENCE_S)
    assert_same(rows["a"], twin.reference.table("a").lookup(KEYS))
    for number in (1, 2):
        sessions.release_step(member, dtype(number), timeout_s=PATIENCE_S)
        twin.reference.command_number += 1


@pytest.mark.parametrize(
    "out", [ones(3), [("a", ones(3))], "a", 1], ids=["rows", "pairs", "name", "1"]
)
def test_out_that_is_no_mapping(twin: Any, member: str, out: Any) -> None:
    with refused_step(twin.store, InvalidArgumentError, "out", "mapping"):
        twin.store.sessions.lookup_step(member, 1, out=out, timeout_s=PATIENCE_S)
