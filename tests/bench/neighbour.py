"""The effect on a quiet caller of a greedy caller, which has a token of its own and exhausts one
limit of the server at a time.

The quiet caller trains on a small batch and looks up one key, again and again. Meanwhile a process
of the greedy caller attacks one limit (`ATTACKS`), and continues whatever the server answers. The
figure is how much longer the quiet caller's calls take, at the median and at the 99th percentile.
For comparison, one row of the results has a second quiet caller in place of the greedy caller: it
shows how two callers on this machine affect each other without an attack.

The greedy process has a lower priority than all others (`nice`), because the benchmark measures
what it takes from the server. What it takes from the processors is not of interest: two jobs on two
hosts do not share processors. The token of the greedy caller has limits for a call and for tables,
as an operator would set them.

`python -m tests.bench.neighbour ATTACK ADDRESS DIM` is the greedy process, with its token in
EMBSTORE_TOKEN. It prints a line when the attack has begun, and continues until it is killed.
"""

import contextlib
import itertools
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from embstore import commands as c
from embstore.errors import EmbstoreError
from embstore_client import connect
from embstore_proto.verbs import VERBS
from embstore_server.access.tokens import Entry, new_secret, right_named, write
from embstore_server.setup.launch import ServerProcess
from tests.bench.scale import Scale
from tests.bench.stores import create_table, small_grads, trainer, update_all
from tests.bench.turns import seconds_of

TABLE = "greedy/t"
BATCH_KEYS = 2_048
_CALLERS = 16
"""Connections, or calls under way."""
CALL_BYTES_MAX = 4 << 20
"""Of keys and rows, in one call."""
TABLES_MAX = 50
_TOO_MANY_KEYS = 200_000


def _keys_max(dim: int) -> int:
    return CALL_BYTES_MAX // (8 + 4 * dim)


def _again(work: Callable[[int], Any]) -> None:
    """Do work for ever, whatever it is answered; say so after the first time."""
    for index in itertools.count():
        with contextlib.suppress(EmbstoreError, grpc.RpcError):
            work(index)
        if not index:
            print("begun", flush=True)


def _stepping(table: Any, seed: int, dim: int) -> Callable[[], None]:
    keys = np.random.default_rng(seed).integers(0, table.rows, (16, BATCH_KEYS))
    return trainer(table, keys, [np.full((BATCH_KEYS, dim), 0.01, np.float32)])


def _train(store: Any, address: str, dim: int) -> None:
    """As the quiet one."""
    step = _stepping(store.table(TABLE), 1, dim)
    _again(lambda _: step())


def _many(store: Any, address: str, dim: int) -> None:
    """Calls of a batch from many connections at once."""
    keys = np.random.default_rng(1).integers(0, store.table(TABLE).rows, BATCH_KEYS)

    def one(_: int) -> None:
        with connect(address, transport="grpc") as own:
            table = own.table(TABLE)
            _again(lambda _: table.lookup(keys))

    with ThreadPoolExecutor(_CALLERS) as threads:
        list(threads.map(one, range(_CALLERS)))


def _large(store: Any, address: str, dim: int) -> None:
    """One call after the other, each of as many keys as may be, or more."""
    table = store.table(TABLE)
    keys = np.random.default_rng(1).integers(0, table.rows, _TOO_MANY_KEYS)
    most = _keys_max(dim)
    _again(lambda index: table.lookup(keys if index % 8 == 7 else keys[:most]))


def _unread(store: Any, address: str, dim: int) -> None:
    """Large replies that nobody reads."""
    keys = np.random.default_rng(1).integers(0, store.table(TABLE).rows, _keys_max(dim))
    outgoing = VERBS["Lookup"].outgoing(c.Lookup((c.TableKeys(TABLE, None, keys),)))
    assert outgoing.message is not None
    chunks = list(outgoing.message.framed(outgoing.serialised(None)).chunks())
    channel = grpc.insecure_channel(address)
    method = channel.stream_stream("/embstore.v1.Embstore/LookupStream")
    token = os.environ["EMBSTORE_TOKEN"]
    told = {"metadata": (("authorization", f"Bearer {token}"),), "timeout": 3600.0}
    held: list[Any] = []

    def send(index: int) -> None:
        held.append(method(iter(chunks), **told))
        next(held[-1], None)  # the first piece, and no other
        del held[:-_CALLERS]

    _again(send)


def _sessions(store: Any, address: str, dim: int) -> None:
    """As many sessions as there may be, and steps announced as far ahead as may be."""
    table = store.table(TABLE)
    execute = store.executor.execute

    def one(index: int) -> None:
        name = f"s{index % 1000}"
        execute(c.OpenSession(name, (TABLE,), 1024, shared=True))
        member = execute(c.JoinSession(name, 0)).member
        rng = np.random.default_rng(index)
        for step in range(1, 65):
            keys = np.unique(rng.integers(0, table.rows, 20_000))
            execute(c.Announce(member, (c.StepKeys(step, (c.StepTable(TABLE, keys),)),)))

    _again(one)


def _digests(store: Any, address: str, dim: int) -> None:
    """Digests of a table that changes all over in between."""
    table = store.table(TABLE)
    keys = np.arange(0, table.rows, 64)
    gradients = np.full((len(keys), dim), 0.01, np.float32)

    def one(_: int) -> None:
        table.update(keys, gradients)
        table.digest()

    _again(one)


def _tables(store: Any, address: str, dim: int) -> None:
    """Tables, as many as may be and more, checkpoints and stats."""

    def one(index: int) -> None:
        create_table(store, f"greedy/{index}", 1_000, dim)
        store.table(TABLE).stats()
        if index % 10 == 0:
            store.checkpoint(f"greedy/{index}")

    _again(one)


ATTACKS: dict[str, Callable[..., None]] = {
    "another quiet one": _train,
    "many connections": _many,
    "large calls": _large,
    "unread replies": _unread,
    "sessions": _sessions,
    "digests": _digests,
    "tables": _tables,
}
"""By the name of the row; each goes on until it is killed."""


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
    step, key = _stepping(table, scale.seed, scale.dim), np.array([7])
    for _ in range(3):
        step()
    steps, single = [], []
    for _ in range(scale.quiet_steps):
        steps.append(seconds_of(step))
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
        [
            "nice",
            "-n",
            "19",
            sys.executable,
            "-m",
            "tests.bench.neighbour",
            name,
            address,
            str(dim),
        ],
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


if __name__ == "__main__":
    with connect(sys.argv[2], transport="grpc") as connected:
        ATTACKS[sys.argv[1]](connected, sys.argv[2], int(sys.argv[3]))
