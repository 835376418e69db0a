"""Memory that runs out, anywhere: a call is refused whole, or the store fails as a whole.

What only reads is refused, and the store goes on; so is a command that has not begun to change
anything. Only what is half changed by then fails the store, which opens at what was acknowledged.
"""

import resource
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.config import Normal, Sgd
from embstore.errors import CapacityError
from tests.faults.promises import check_content, content_of
from tests.faults.refusing import Step, script
from tests.faults.starving import Starving
from tests.faults.training import LOGGED, generator, open_store

SEED = 20_261_123
COMMANDS = 45
FAR = 4_000
"""Instructions of the longest calls."""
STARVED_TIMES = 3


@pytest.mark.parametrize("options", [{}, LOGGED], ids=["checkpoint", "commands"])
@pytest.mark.parametrize("turn", range(6))
def test_memory_may_end_at_any_instruction(quick_path, turn, options):
    path, steps = quick_path / "store", script(SEED, COMMANDS)
    rng = generator(SEED + turn)
    store = open_store(path, **options)
    committed = steps[0].before
    for step in steps:
        is_kept = step.commits or bool(options)
        nths = np.rint(FAR ** rng.random(STARVED_TIMES)).astype(int).tolist()
        while not _taken(store, step, nths):
            store = _reopened(store, path, options)
            found = check_content(store, committed, *([step.after] if is_kept else []))
            if found == step.after:
                break
            if not options:
                store.close()
                return  # commands that no commit has are gone, and the script is over
        committed = step.after if is_kept else committed
    store.close()


def _taken(store: Any, step: Step, nths: list[int]) -> bool:
    """Take a step, which finds no memory a few times; return False if the store has failed."""
    while True:
        try:
            with Starving(nths.pop() if nths else 1 << 60) as starving:
                step.take(store, SEED)
            return True
        except (CapacityError, MemoryError) as exc:
            assert starving.where, f"refused for nothing: {exc!r}"
            failure = store.executor.failure
            if failure is not None:
                assert step.kind != "stir" or "cut off" not in str(failure), "it only read"
                return False
            is_outside = isinstance(exc, MemoryError)  # of the call, before or after it
            if check_content(store, step.before, *[step.after] * is_outside) != step.before:
                return True


def _reopened(store: Any, path: Path, options: dict[str, Any]) -> Any:
    store.close()
    return open_store(path, **options)


KEYS, DIM, WRITTEN = 1 << 16, 64, 1 << 10
PIECE_BYTES = 1 << 20


def read_without_memory(reports: Any, path: str, cache_bytes: int) -> None:
    """A child: have less address space than a call takes, and a little more each time."""
    store = open_store(path, cache_bytes=cache_bytes)
    store.warm_up()  # a compiler without memory ends the process
    table = store.create_table(
        "large", dim=DIM, rows=1 << 20, optimizer=Sgd(0.1), initializer=Normal(0.0, 1.0)
    )
    table.assign(np.arange(WRITTEN), np.ones((WRITTEN, DIM), np.float32))
    before = content_of(store)
    keys = np.random.default_rng(SEED).permutation(1 << 20)[:KEYS]
    gradients = np.full((KEYS, DIM), np.nan, np.float32)
    calls = {
        "update": lambda: table.update(keys, gradients),
        "lookup": lambda: table.lookup(keys),
        "read_rows": lambda: table.read_rows(keys),
        "digest": table.digest,
        "stats": store.stats,
    }
    refused = dict.fromkeys(calls, 0)
    for name, call in calls.items():
        for n in count():
            try:
                _limit(_address_space() + n * PIECE_BYTES)
                call()
                break
            except (CapacityError, MemoryError) as exc:
                refused[name] += isinstance(exc, CapacityError)
                del exc
            except ValueError:
                break  # the update has come to its sums, which are not finite
            finally:
                _limit(resource.RLIM_INFINITY)
            check_content(store, before)
    rows = table.lookup(keys)
    assert np.array_equal(rows, table.read_rows(keys)[0])
    store.close()
    reports.send(refused)


def _limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("cache_bytes", [90_000, 32 << 20], ids=["parts", "fits"])
def test_calls_that_find_no_memory_are_refused_and_the_store_goes_on(
    quick_path, forks, cache_bytes
):
    path = quick_path / "store"
    child = forks.start(read_without_memory, str(path), cache_bytes)
    assert child.wait() == 0
    refused = child.remaining()[0]
    assert refused["lookup"] and refused["read_rows"], refused
    with open_store(path) as store:
        assert store.tables() == ["large"]
