"""The cost of durability: the same training at each durability level, beside plain appends to a
file that are synced.

One trainer, in the store's process and over gRPC, takes turns with the levels. At each level it
takes steps (a lookup and an update of a batch), and updates of one key. The yardstick is a file to
which records are appended and synced one after the other, each of the size of a logged command.
Another part opens a store that was killed, and compares two times: the time to execute the store's
commands again, and the time that they took at first.

The yardstick's file is written in full before the measurement, and then overwritten. The files of
the command log are overwritten in the same way, as soon as a commit was made. To write to a new
part of a file would take several times as long.
"""

import contextlib
import os
import pathlib
import shutil
import time
from typing import Any

import numpy as np

from embstore.choices import LEVELS
from tests.bench.scale import Scale
from tests.bench.serving import Server
from tests.bench.stores import create_table, open_store, trainer
from tests.bench.turns import Kind, medians_ms, take_turns
from tests.bench.workload import Workload

NEVER_S = 1e6
_BATCHES = 8


def served(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Time a trainer's steps and calls of one key over gRPC, at each level."""
    with contextlib.ExitStack() as stack:
        stores = {}
        for level in LEVELS:
            options = ("--durability", level, "--recovery-s", str(NEVER_S))
            server = Server(folder / level, scale.all_cached_bytes, *options)
            stores[level] = stack.enter_context(contextlib.closing(server)).store
        return _levels(scale, folder, stores)


def embedded(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """The same in this process."""
    with contextlib.ExitStack() as stack:
        stores = {
            level: stack.enter_context(_opened(scale, folder / level, level)) for level in LEVELS
        }
        return _levels(scale, folder, stores)


def replay(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Time opening a store that was killed, beside the training that it executes again."""
    killed = folder / "killed"
    with _opened(scale, folder / "store", "commands") as store:
        table = create_table(store, "ads", scale.rows, scale.dim)
        workload = Workload(scale, _BATCHES)
        step = trainer(table, workload.batches, workload.gradients)
        for _ in range(_BATCHES):
            step()
        store.checkpoint("warm")
        begin = time.perf_counter()
        for _ in range(scale.replay_steps):
            step()
        trained_s = time.perf_counter() - begin
        shutil.copytree(folder / "store", killed)
    with _opened(scale, killed, "commands") as again:
        found = again.stats()["command_log"]
    return {
        "steps": scale.replay_steps,
        "trained_s": trained_s,
        "replayed_commands": found["replayed_commands"],
        "replayed_s": found["replayed_s"],
        "ratio": trained_s / found["replayed_s"],
    }


def _opened(scale: Scale, path: pathlib.Path, level: str) -> Any:
    return open_store(path, scale.all_cached_bytes, durability=level, recovery_s=NEVER_S)


def _levels(scale: Scale, folder: pathlib.Path, stores: dict[str, Any]) -> dict[str, Any]:
    workload, kinds, keys, sizes = Workload(scale, _BATCHES), {}, {}, []
    gradient = np.full((1, scale.dim), 0.01, np.float32)
    for level, store in stores.items():
        table = create_table(store, "ads", scale.rows, scale.dim)
        step = trainer(table, workload.batches, workload.gradients)
        key = workload.batches[0][:1]
        # As when it has run for long: commits have left files to be written over.
        for label in ("first", "second"):
            for _ in range(scale.rounds * (scale.round_batches + 2)):
                step()
            store.checkpoint(label)
        before = store.stats()["command_log"]["bytes"]
        step()
        sizes.append(store.stats()["command_log"]["bytes"] - before)
        kinds[level] = Kind(step)
        keys[level] = Kind(lambda table=table, key=key: table.update(key, gradient))  # type: ignore[misc]
    with _Appending(folder / "plain") as plain:
        kinds["disk"], keys["disk"] = plain.kind(max(sizes)), plain.kind(512)
        steps = medians_ms(take_turns(kinds, scale.rounds, scale.round_batches))
        ones = medians_ms(take_turns(keys, scale.rounds, scale.one_key_calls))
    return {
        "command_bytes": max(sizes),
        "step_ms": steps,
        "throughput": {level: steps["checkpoint"] / steps[level] for level in LEVELS},
        "one_key_ms": ones,
    }


class _Appending:
    """A file to which is appended, and synced; written over from its begin when it is full."""

    _BYTES = 512 << 20

    def __init__(self, path: pathlib.Path) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
        for at in range(0, self._BYTES, 8 << 20):
            os.pwrite(self._descriptor, bytes(8 << 20), at)
        os.fsync(self._descriptor)
        self._end = 0

    def kind(self, size: int) -> Kind:
        """Return what appends and syncs so many bytes."""
        content = np.random.default_rng(size).bytes(size)

        def append() -> None:
            if self._end + size > self._BYTES:
                self._end = 0
            os.pwrite(self._descriptor, content, self._end)
            os.fdatasync(self._descriptor)
            self._end += size

        return Kind(append)

    def __enter__(self) -> "_Appending":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
