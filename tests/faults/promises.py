"""What a store promises to be at a commit, and whether it is.

A promise is made from the dense reference: for every table its digest, t, number of rows and
learning rate; the number of the last command; the kept labels. So digests are judged by a model
that shares no code with the engine.
"""

import pickle
from dataclasses import dataclass
from typing import Any

from tests.faults.training import DenseStore, labels_of


@dataclass(frozen=True)
class Promise:
    """A store as of one commit."""

    command: int
    tables: dict[str, tuple[str, int, int, float]]  # digest, t, rows, learning rate
    labels: list[str]


def content_of(store: Any) -> Promise:
    """Return what a store is now, the engine's or the reference's."""
    tables = {}
    for name in store.tables():
        table = store.table(name)
        tables[name] = (table.digest(), table.t, table.rows, table.learning_rate)
    return Promise(store.command, tables, labels_of(store))


NOTHING = content_of(DenseStore())
"""What a store is before its first commit."""


def check_content(store: Any, *promises: Promise) -> Promise:
    """Check that an open store is as one of `promises`, and sound; return which."""
    store.check_integrity()
    found = content_of(store)
    store.check_integrity()
    assert found in promises, f"found {found}, promised was one of {promises}"
    return found


def commands_promised(reports: list[tuple[str, int]], before: int) -> set[int]:
    """Return at which commands a killed store may be: of its last commit, or of one begun since.

    reports : ("begins" | "done", command) as `training.train` announces them, all of one process
    before : the command of the last commit before it
    """
    done = [before] + [n for word, n in reports if word == "done"]
    begun = [n for word, n in reports[-1:] if word == "begins"]
    return {done[-1], *begun}


def saved(dense: DenseStore) -> bytes:
    """Return a reference as it is now, to go on from later with `resumed`."""
    return pickle.dumps(dense)


def resumed(content: bytes) -> DenseStore:
    """Return a reference as it was saved."""
    dense = pickle.loads(content)
    assert isinstance(dense, DenseStore)
    return dense
