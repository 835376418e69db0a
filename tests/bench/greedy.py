"""The greedy one of `tests.bench.neighbour`: `python -m tests.bench.greedy ATTACK ADDRESS DIM`.

Each attack goes on, whatever it is answered, until it is killed. It says when it has begun. Its
token is in EMBSTORE_TOKEN.
"""

import contextlib
import itertools
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from embstore import commands as c
from embstore.errors import EmbstoreError
from embstore_client import connect
from embstore_proto.verbs import VERBS
from tests.bench.stores import create_table

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


def _train(store: Any, address: str, dim: int) -> None:
    """As the quiet one."""
    table = store.table(TABLE)
    keys = np.random.default_rng(1).integers(0, table.rows, (16, BATCH_KEYS))
    gradients = np.full((BATCH_KEYS, dim), 0.01, np.float32)

    def step(index: int) -> None:
        table.lookup(keys[index % 16])
        table.update(keys[index % 16], gradients)

    _again(step)


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
    told = {
        "metadata": (("authorization", f"Bearer {token}"),),
        "timeout": 3600.0,
    }
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


if __name__ == "__main__":
    with connect(sys.argv[2], transport="grpc") as connected:
        ATTACKS[sys.argv[1]](connected, sys.argv[2], int(sys.argv[3]))
