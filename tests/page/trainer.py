"""A trainer for a server to be looked at: a session over two tables, and plain calls of a third.

    python -m tests.page.trainer HOST:PORT

It trains until its standard input is closed, a step every STEP_S, so that who looks has the machine
too. It prints a line when its first steps are done.
"""

import sys
import threading
from itertools import count

import numpy as np

from embstore import Adagrad, RowWiseAdagrad, Uniform
from embstore.handles.store import Store
from embstore_client import connect

STEP_S = 0.05
STEPS_AT_FIRST = 8
SESSION = "ctr"
PATIENCE_S = 300.0


def make_tables(store: Store) -> None:
    """Make tables of two layouts."""
    initializer = Uniform(-0.01, 0.01)
    rowwise = RowWiseAdagrad(learning_rate=0.05)
    store.create_table("items", dim=16, rows=200_000, optimizer=rowwise, initializer=initializer)
    store.create_table("shops", dim=16, rows=20_000, optimizer=rowwise, initializer=initializer)
    adagrad = Adagrad(learning_rate=0.05)
    store.create_table("users", dim=32, rows=100_000, optimizer=adagrad, initializer=initializer)


def train(store: Store, stop: threading.Event) -> None:
    """Train until `stop` is set."""
    rng = np.random.default_rng(1)

    def keys(_: int) -> dict[str, np.ndarray]:
        return {"items": rng.zipf(1.3, 4096) % 200_000, "shops": rng.zipf(1.5, 1024) % 20_000}

    users, own = store.table("users"), np.random.default_rng(2)
    with store.session(tables=["items", "shops"], name=SESSION, lookahead=8) as run:
        for step in run.steps(count(), keys):
            rows = step.lookup()
            step.update({name: 0.1 * found for name, found in rows.items()})
            ids = own.zipf(1.3, 2048) % 100_000
            users.update(ids, 0.1 * users.lookup(ids))
            if step.number == STEPS_AT_FIRST:
                sys.stdout.write("training\n")
                sys.stdout.flush()
            if stop.wait(STEP_S):
                return


def main(address: str) -> None:
    stop = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=watch, daemon=True).start()
    with connect(address, timeout_s=PATIENCE_S, label="trainer of the page") as store:
        make_tables(store)
        train(store, stop)


if __name__ == "__main__":
    main(sys.argv[1])
