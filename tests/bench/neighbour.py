"""What a quiet caller notices of a greedy one, which has a token of its own and does its worst.

The quiet one trains on a small batch, and looks one key up, again and again. Beside it a process of
the greedy one's attacks one limit at a time (`ATTACKS`): it goes on whatever it is answered. How
much longer the quiet one's calls take, at the median and at 99 %, is the figure. A row of another
quiet caller, who does the same as the first, tells what two on this machine are to each other.

The greedy one's process gives way to all others (`nice`): what is measured is what it takes of the
server, and not of the processors, which two jobs on two hosts do not share. Its token has
limits for a call and for tables, as an operator would bound it.
"""

import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from embstore_client import connect
from embstore_server.access.tokens import Entry, new_secret, right_named, write
from embstore_server.launch import ServerProcess
from tests.bench.greedy import ATTACKS, BATCH_KEYS, CALL_BYTES_MAX, TABLES_MAX
from tests.bench.scale import Scale
from tests.bench.stores import create_table, small_grads, update_all
from tests.bench.turns import seconds_of

NAMES = ("quiet", "greedy")


def beside(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Time the quiet one's calls alone, and beside each attack."""
    tokens = _tokens(folder / "tokens.json")
    cache_bytes = scale.cache_bytes(scale.stall_rows, scale.dim)
    options = ("--device", "cpu", "--cache-bytes", str(cache_bytes), "--tokens")
    with ServerProcess(folder / "store", *options, str(folder / "tokens.json")) as server:
        with connect(server.address, token=tokens["operator"], transport="grpc") as store:
            for name in NAMES:
                table = create_table(store, f"{name}/t", scale.stall_rows // 2, scale.dim)
                order = np.random.default_rng(scale.seed).permutation(scale.stall_rows // 2)
                update_all(table, order, small_grads(scale.dim))
        found = {}
        for name in ("nothing", *ATTACKS):
            with (
                _attacked(name, server.address, tokens["greedy"], scale.dim),
                connect(server.address, token=tokens["quiet"], transport="grpc") as store,
            ):
                found[name] = _quiet(store.table("quiet/t"), scale)
    for one in found.values():
        for kind in ("step", "key"):
            alone = found["nothing"][f"{kind}_p99_ms"]
            one[f"{kind}_ratio"] = one[f"{kind}_p99_ms"] / alone
    return found


def _tokens(path: pathlib.Path) -> dict[str, str]:
    """Write the file of tokens, and return them; the operator's fills the tables."""
    right = right_named("write")
    limits = {"greedy": {"call_bytes": CALL_BYTES_MAX, "tables": TABLES_MAX}}
    patterns = {"operator": "*"} | {name: f"{name}/*" for name in NAMES}
    secrets = {name: new_secret() for name in patterns}
    entries = {
        name: Entry(name, secrets[name][1], {pattern: right}, limits.get(name, {}))
        for name, pattern in patterns.items()
    }
    write(path, entries)
    return {name: f"{name}.{secret}" for name, (secret, _) in secrets.items()}


def _quiet(table: Any, scale: Scale) -> dict[str, float]:
    rng = np.random.default_rng(scale.seed)
    keys = rng.integers(0, table.rows, (16, BATCH_KEYS))
    gradients = np.full((BATCH_KEYS, scale.dim), 0.01, np.float32)
    key = np.array([7])

    def step(index: int) -> None:
        batch = keys[index % len(keys)]
        table.lookup(batch)
        table.update(batch, gradients)

    for index in range(3):
        step(index)
    steps, single = [], []
    for index in range(scale.quiet_steps):
        steps.append(seconds_of(step, index))
        single.append(seconds_of(table.lookup, key))
    found = {}
    for kind, spent in (("step", steps), ("key", single)):
        found[f"{kind}_ms"] = 1e3 * statistics.median(spent)
        found[f"{kind}_p99_ms"] = 1e3 * float(np.quantile(spent, 0.99))
    return found


@contextlib.contextmanager
def _attacked(name: str, address: str, token: str, dim: int) -> Iterator[None]:
    """Attack inside, by a process that has begun."""
    if name not in ATTACKS:
        yield
        return
    process = subprocess.Popen(
        ["nice", "-n", "19", sys.executable, "-m", "tests.bench.greedy", name, address, str(dim)],
        stdout=subprocess.PIPE,
        env=os.environ | {"EMBSTORE_TOKEN": token},
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"{name} has ended before it had begun")
        yield
    finally:
        process.kill()
        process.wait()
