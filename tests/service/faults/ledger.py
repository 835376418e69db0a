"""What was sent and what became of it, so that a store can be held to its word.

Every update of a test has a number n and touches two tables in one call:

- "marks": row n goes down by 1, so that it says how many times update n was applied
- "rows": a few of them change by Adam, whose result depends on the order of all updates

An acknowledged update must be applied once, a refused one never, one of unknown outcome once or
never. The digest of both tables must be that of a store that got the applied ones alone, in the
order of their command numbers; one of unknown outcome has the number that nobody was told.
"""

import tempfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import embstore
from embstore.config import Adam, Constant, Sgd, Uniform

ROWS, DIM, MARKS = 64, 4, 4096
TABLES: dict[str, dict[str, Any]] = {
    "marks": {"dim": 1, "rows": MARKS, "optimizer": Sgd(1.0), "initializer": Constant(0.0)},
    "rows": {"dim": DIM, "rows": ROWS, "optimizer": Adam(0.01), "initializer": Uniform(-0.1, 0.1)},
}


def make_tables(store: Any) -> None:
    """Make both tables: the first two commands."""
    for name, config in TABLES.items():
        store.create_table(name, **config)


def gradients(n: int) -> dict[str, tuple[Any, Any]]:
    """Return what update n brings."""
    rng = np.random.default_rng(n)
    keys = rng.choice(ROWS, 6, replace=False).astype(np.int64)
    return {
        "marks": (np.array([n]), np.ones((1, 1), np.float32)),
        "rows": (keys, rng.standard_normal((6, DIM), np.float32)),
    }


def digests(store: Any) -> dict[str, str]:
    """Return the digest of both tables."""
    return {name: store.table(name).digest() for name in TABLES}


def applied_counts(store: Any) -> list[int]:
    """Return how many times each update was applied."""
    marks = store.table("marks").lookup(np.arange(MARKS), admit=False)[:, 0]
    return [int(-mark) for mark in marks]


@dataclass
class Ledger:
    """The updates of one test. `acknowledged` maps an update to its command number."""

    acknowledged: dict[int, int] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    first_command: int = len(TABLES) + 1

    def check(self, store: Any) -> None:
        """Check a store, embedded or a client's, that got these updates and no others."""
        counts = applied_counts(store)
        wrong = {n: counts[n] for n in range(MARKS) if counts[n] not in self._allowed(n)}
        assert not wrong, f"update: times applied {wrong}"
        order = self._order([n for n in sorted(self.unknown) if counts[n]])
        assert digests(store) == replayed(order)

    def _allowed(self, n: int) -> tuple[int, ...]:
        if n in self.acknowledged:
            return (1,)
        return (0, 1) if n in self.unknown else (0,)

    def _order(self, unknown: list[int]) -> list[int]:
        """Return the applied updates in order; unknown ones have the numbers that are missing."""
        by_command = {command: n for n, command in self.acknowledged.items()}
        assert len(by_command) == len(self.acknowledged), "one number was given twice"
        numbers = range(self.first_command, self.first_command + len(by_command) + len(unknown))
        missing = [number for number in numbers if number not in by_command]
        by_command |= dict(zip(missing, unknown, strict=True))
        return [by_command[number] for number in numbers]


def replayed(order: list[int]) -> dict[str, str]:
    """Return the digests of a store that got these updates in this order."""
    with (
        tempfile.TemporaryDirectory() as directory,
        embstore.open(directory, cache_bytes=1 << 22, threads=1) as store,
    ):
        make_tables(store)
        for n in order:
            store.update(gradients(n))
        return digests(store)
