"""What durability costs: the same training at each level, beside the disk's own append and sync.

One trainer, in the same process and over gRPC, takes turns with the levels: a lookup and an update
of a batch, and updates of one key. The yardstick is a file to which as many bytes as a logged
command has are written one after the other, and synced. Then a store that was killed is
opened: how long executing its commands again takes, beside how long they took.

The yardstick's file has been written whole before it is written over, as the log's have once a
commit has been made: to write where nothing was takes several times as long.
"""

import contextlib
import os
import pathlib
import shutil
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import embstore
from embstore.durability import LEVELS
from tests.bench.engine import HEADROOM
from tests.bench.scale import Scale
from tests.bench.serving import Server
from tests.bench.stores import create_table
from tests.bench.turns import Kind, Spent, take_turns
from tests.bench.workload import Workload

NEVER_S = 1e6
_BATCHES = 8


class DurabilityContender:
    """One method for each part, each in a folder that it removes."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._workload = Workload(scale, _BATCHES)
        self._folder = pathlib.Path(scale.data_dir) / "durability"

    def served(self) -> dict[str, Any]:
        """Time a trainer's steps and calls of one key over gRPC, at each level."""
        with contextlib.ExitStack() as stack:
            stores = {}
            for level in LEVELS:
                folder = self._new(level)
                options = ("--durability", level, "--recovery-s", str(NEVER_S))
                server = Server(folder, self._cache_bytes, *options)
                stack.callback(server.close)
                stores[level] = server.store
            return self._levels(stores)

    def embedded(self) -> dict[str, Any]:
        """The same in this process."""
        with contextlib.ExitStack() as stack:
            stores = {level: self._opened(self._new(level), level) for level in LEVELS}
            for store in stores.values():
                stack.callback(store.close)
            return self._levels(stores)

    def replay(self) -> dict[str, Any]:
        """Time opening a store that was killed, beside the training that it executes again."""
        folder, killed = self._new("replay"), self._folder / "killed"
        store = self._opened(folder, "commands")
        step = self._step(store)
        for index in range(_BATCHES):
            step(index)
        store.checkpoint("warm")
        begin = time.perf_counter()
        for index in range(self._scale.replay_steps):
            step(index)
        trained_s = time.perf_counter() - begin
        shutil.rmtree(killed, ignore_errors=True)
        shutil.copytree(folder, killed)
        store.close()
        again = self._opened(killed, "commands")
        found = again.stats()["command_log"]
        again.close()
        return {
            "steps": self._scale.replay_steps,
            "trained_s": trained_s,
            "replayed_commands": found["replayed_commands"],
            "replayed_s": found["replayed_s"],
            "ratio": trained_s / found["replayed_s"],
        }

    def close(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _cache_bytes(self) -> int:
        return self._scale.cache_bytes(HEADROOM * self._scale.rows, self._scale.dim)

    def _new(self, name: str) -> pathlib.Path:
        shutil.rmtree(self._folder / name, ignore_errors=True)
        self._folder.mkdir(exist_ok=True)
        return self._folder / name

    def _opened(self, folder: pathlib.Path, level: str) -> Any:
        return embstore.open(
            folder,
            device="cpu",
            cache_bytes=self._cache_bytes,
            durability=level,  # type: ignore[arg-type]  # one of LEVELS
            recovery_s=NEVER_S,
        )

    def _step(self, store: Any) -> Callable[[int], None]:
        table = create_table(store, "ads", self._scale.rows, self._scale.dim)
        workload = self._workload

        def step(index: int) -> None:
            keys = workload.batches[index % _BATCHES]
            table.lookup(keys)
            table.update(keys, workload.gradients_of(index))

        return step

    def _levels(self, stores: dict[str, Any]) -> dict[str, Any]:
        kinds, keys, sizes = {}, {}, {}
        gradient = np.full((1, self._scale.dim), 0.01, np.float32)
        for level, store in stores.items():
            step = self._step(store)
            # As when it has run for long: commits have left files to be written over.
            for label in ("first", "second"):
                for index in range(self._scale.rounds * (self._scale.round_batches + 2)):
                    step(index)
                store.checkpoint(label)
            before = store.stats()["command_log"]["bytes"]
            step(0)
            sizes[level] = store.stats()["command_log"]["bytes"] - before
            table, key = store.table("ads"), self._workload.batches[0][:1]
            kinds[level] = _in_order(step)
            keys[level] = Kind(lambda table=table, key=key: table.update(key, gradient))  # type: ignore[misc]
        size = max(sizes.values())
        with _Appending(self._folder / "plain") as plain:
            kinds["disk"], keys["disk"] = plain.kind(size), plain.kind(512)
            rounds, calls = self._scale.rounds, self._scale.round_batches
            steps = take_turns(kinds, rounds, calls)
            ones = take_turns(keys, rounds, self._scale.one_key_calls)
        base = _median(steps["checkpoint"])
        return {
            "command_bytes": size,
            "step_ms": {name: 1e3 * _median(spent) for name, spent in steps.items()},
            "throughput": {level: base / _median(steps[level]) for level in LEVELS},
            "one_key_ms": {name: 1e3 * _median(spent) for name, spent in ones.items()},
        }


def _in_order(step: Callable[[int], None]) -> Kind:
    index = iter(range(1 << 40))
    return Kind(lambda: step(next(index)))


def _median(spent: Spent) -> float:
    return statistics.median(seconds for seconds, _ in spent)


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


start = DurabilityContender
"""A trace, and folders as they are needed."""
