"""The trainer of `image_test.sh` and `make test-installed`: trains against a server from outside,
beside an embedded twin.

The twin is an embedded store in a directory of its own, and is given the same commands. By the
first promise of the store, what an acknowledged command leaves depends on neither transport nor
restarts, so that rows and digests must be equal at every point: as found (after a restart: as
left), while training, and afterwards. The same call therefore serves before and after a restart.
"""

import os
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import embstore
from embstore import Adam, Normal, RowWiseAdagrad, Uniform

TABLES: dict[str, dict[str, Any]] = {
    "ads": {
        "dim": 64,
        "rows": 1_000_000,
        "optimizer": RowWiseAdagrad(learning_rate=0.05),
        "initializer": Uniform(-0.01, 0.01),
    },
    "users": {
        "dim": 16,
        "rows": 200_000,
        "optimizer": Adam(learning_rate=1e-3),
        "initializer": Normal(0.0, 0.02),
    },
}
BATCH_KEYS = 20_000  # With duplicates; two megabytes a table and call: more than one message each.
STEPS = 5

console = Console()


def digests(store: Any) -> dict[str, str]:
    """Return the digest of each table, by name."""
    return {name: store.table(name).digest() for name in TABLES}


def batch(step: int) -> dict[str, np.ndarray]:
    """Return the keys of a step, (BATCH_KEYS,) int64 for each table, squared towards low keys."""
    rng = np.random.default_rng(step)
    return {
        name: (rng.random(BATCH_KEYS) ** 2 * table["rows"]).astype(np.int64)
        for name, table in TABLES.items()
    }


def train(store: Any, step: int) -> dict[str, np.ndarray]:
    """Train one step, pulling the rows towards 1; return the rows that it looked up."""
    keys = batch(step)
    rows: dict[str, np.ndarray] = store.lookup(keys)
    store.update({name: (keys[name], rows[name] - np.float32(1)) for name in keys})
    return rows


def check_equal(what: str, served: dict[str, Any], embedded: dict[str, Any]) -> None:
    """End the test when the server and the twin differ in one bit."""
    for name in TABLES:
        if not np.array_equal(served[name], embedded[name]):
            raise SystemExit(f"{what}: {name} is {served[name]} served, {embedded[name]} embedded")


def check_admin(address: str) -> None:
    """End the test when the REST port does not say that the store is ready and how it fares."""
    token = {"Authorization": f"Bearer {os.environ.get('EMBSTORE_TOKEN', '')}"}
    for path, expected in (("/readyz", b""), ("/metrics", b"embstore_")):
        connection = HTTPConnection(address, timeout=10)
        connection.request("GET", path, headers=token)
        answer = connection.getresponse()
        if answer.status != 200 or expected not in answer.read():
            raise SystemExit(f"GET {path}: {answer.status}, expected 200 with {expected!r}")
        connection.close()


def check_refused(listen: str) -> None:
    """End the test when a client without a token is answered."""
    try:
        embstore.connect(listen, token="").close()
    except embstore.UnauthenticatedError:
        return
    raise SystemExit(f"{listen} answers a client without a token")


def main(
    listen: Annotated[str, typer.Argument(help="host:port of gRPC, or unix:PATH of the socket")],
    twin: Annotated[Path, typer.Argument(help="directory of the twin, made if need be")],
    admin: Annotated[str, typer.Option(help="host:port of the server's REST; else not asked")] = "",
) -> None:
    """Compare, train, compare again and make a checkpoint."""
    if "EMBSTORE_TOKEN" in os.environ:
        check_refused(listen)
    if admin:
        check_admin(admin)
    with embstore.connect(listen) as served, embstore.open(twin) as embedded:
        if not embedded.tables():
            for name, table in TABLES.items():
                served.create_table(name, **table)
                embedded.create_table(name, **table)
        check_equal("as found", digests(served), digests(embedded))
        first = embedded.table("ads").t
        for step in range(first, first + STEPS):
            check_equal(f"lookup of step {step}", train(served, step), train(embedded, step))
        found = digests(served)
        check_equal("after training", found, digests(embedded))
        served.checkpoint(f"step-{first + STEPS}", metadata={"step": first + STEPS})
    console.print(
        f"steps {first} to {first + STEPS - 1}: equal; ads {found['ads']}", soft_wrap=True
    )


if __name__ == "__main__":
    typer.run(main)
