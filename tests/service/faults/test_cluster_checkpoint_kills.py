"""Checkpoints of a cluster beside writers, while clients and shards are killed and stopped.

Each writer writes all its rows by each command, so that one value tells which commands a
checkpoint contains. After a restore all rows of a writer are those of one command: of one that was
acknowledged before the checkpoint began, or of a later one. Only a command that was never
acknowledged may be on one shard alone.
"""

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from embstore import commands as c
from embstore.config import Constant, Sgd
from embstore.errors import OutcomeUnknownError
from embstore.handles.store import Store
from embstore.sharding import ShardMap
from tests.faults.forks import Child, Forks
from tests.service.faults.processes import ForkedServer
from tests.service.faults.served import until
from tests.service.faults.test_resumed_runs import connected

SEED, SHARDS, WRITERS, ROUNDS = 20_261_129, 2, 3, 10
ROWS, DIM, KEPT = 4_000, 4, 100
COMMANDS = 4


def keys_of(writer: int) -> Any:
    return np.arange(writer * ROWS, (writer + 1) * ROWS)


def value_after(number: int) -> int:
    """Return what all rows of a writer are after its command `number`."""
    return 0 if number % COMMANDS == COMMANDS - 1 else number


def halves_of(number: int) -> list[set[int]]:
    """Return the values of two shards of which one has executed command `number`, and the other
    one of the commands before it."""
    before = range(number - COMMANDS, number)
    return [{value_after(number), value_after(one)} for one in before]


def write(reports: Connection, address: str, writer: int, first: int) -> None:
    """Send commands from number `first` on; report when each begins, and whether it was
    acknowledged. Writer 0, which is killed, sends no update: after half of one no checkpoint can be
    made."""
    keys = keys_of(writer)
    with connected(address) as store:
        table, number = store.table("a"), first
        while True:
            reports.send((number, "begun"))
            rows = np.full((ROWS, DIM), number, np.float32)
            try:
                match number % COMMANDS:
                    case 1:
                        none = np.empty((ROWS, 0), np.float32)
                        store.executor.execute(
                            c.PutRows(c.TableKeys("a", None, keys), rows, none, 0)
                        )
                    case 2 if writer:  # from the value of the command before
                        table.update(keys, np.full((ROWS, DIM), -1, np.float32))
                    case 3:
                        table.delete(keys)
                    case _:
                        table.assign(keys, rows)
                reports.send((number, "done"))
                number += 1
            except OutcomeUnknownError:
                reports.send((number, "unknown"))
                number += COMMANDS - number % COMMANDS


class Writer:
    """A process that writes, and what it has reported."""

    def __init__(self, forks: Forks, address: str, number: int) -> None:
        self._forks, self._address, self.number = forks, address, number
        self._child: Child | None = None
        self.begun = self.done = -1
        self.unknown: list[int] = []
        """The commands that were not acknowledged."""
        self.start()

    def start(self) -> None:
        """Write from the next command on that sets all rows."""
        first = self.begun + COMMANDS - self.begun % COMMANDS if self.begun >= 0 else 0
        self._child = self._forks.start(write, self._address, self.number, first)

    def read(self) -> int:
        """Read all reports so far; return the last command that was acknowledged."""
        assert self._child is not None
        with suppress(EOFError):
            while self._child.reports.poll():
                self._note(*self._child.reports.recv())
        return self.done

    def _note(self, number: int, what: str) -> None:
        if what == "begun":
            self.begun = number
        elif what == "done":
            self.done = number
        else:
            self.unknown.append(number)

    def await_commands(self, count: int) -> None:
        """Wait until so many more commands were acknowledged."""
        last = self.read() + count
        until(lambda: self.read() >= last)

    def signal(self, which: signal.Signals) -> None:
        """Send the process a signal."""
        assert self._child is not None
        os.kill(self._child.pid, which)

    def kill(self) -> None:
        """End the process as by a crash."""
        assert self._child is not None
        assert self._child.kill() == -signal.SIGKILL
        self.read()
        if self.begun > max(self.done, *self.unknown, -1):
            self.unknown.append(self.begun)

    def check(self, rows: Any, since: int) -> None:
        """Check the rows of a restored checkpoint: before it began, command `since` was
        acknowledged."""
        found = {*rows.ravel().tolist()}
        if any(found == {value_after(number)} for number in range(since, self.begun + 1)):
            return
        assert any(found in halves_of(number) for number in self.unknown), (
            f"writer {self.number}: found {sorted(found)}, expected one value since {since}; of "
            f"unknown outcome are {self.unknown}"
        )


@contextmanager
def beside(action: Any, *args: Any) -> Iterator[None]:
    """Run a function on a thread of its own, until the block ends."""
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(action, *args)
        yield
        running.result()


def checkpoint(store: Store, label: str, since: dict[str, list[int]], writers: Any) -> None:
    """Make a checkpoint. None is made while a stopped client has half executed an update."""
    acknowledged = [writer.read() for writer in writers]
    with suppress(OutcomeUnknownError):
        store.checkpoint(label)
        since[label] = acknowledged


def test_each_checkpoint_contains_whole_commands(forks, quick_path, soak):
    sys.stdout.write(f"seed {SEED + soak}\n")
    rng = np.random.default_rng(SEED + soak)
    options: dict[str, Any] = {"durability": "commands", "checkpoints_keep": KEPT}
    shard_map = quick_path / "map.json"
    servers = [
        ForkedServer(forks, quick_path / f"shard-{n}", **options, shard_map=shard_map, shard=n)
        for n in range(SHARDS)
    ]
    shard_map.write_text(ShardMap.even("ads", [one.address for one in servers]).to_json())
    for server in servers:
        server.start()
    address, since = servers[0].address, dict[str, list[int]]()
    with ExitStack() as stack:
        store = stack.enter_context(connected(address))
        rows = WRITERS * ROWS
        kinds: dict[str, Any] = {"optimizer": Sgd(1.0), "initializer": Constant(0.0)}
        store.create_table("a", dim=DIM, rows=rows, **kinds)
        writers = [Writer(forks, address, number) for number in range(WRITERS)]
        for number in range(ROUNDS):
            writer, server = writers[rng.integers(WRITERS)], servers[rng.integers(SHARDS)]
            for one in writers:
                one.await_commands(1 + int(rng.integers(COMMANDS)))
            label = f"round-{number}"
            match number % 5:
                case 0:
                    writer.signal(signal.SIGSTOP)
                    checkpoint(store, label, since, writers)
                    server.kill()
                    server.start()
                    writer.signal(signal.SIGCONT)
                case 1:
                    with beside(checkpoint, store, label, since, writers):
                        server.kill()
                        server.start()
                case 2:
                    with beside(checkpoint, store, label, since, writers):
                        server.pause(0.1 * rng.random())
                case 3:
                    writer.signal(signal.SIGSTOP)
                    checkpoint(store, label, since, writers)
                    writer.signal(signal.SIGCONT)
                case 4:
                    with beside(checkpoint, store, label, since, writers):
                        writers[0].kill()
                    writers[0].start()
        for writer in writers:
            writer.kill()
        assert since
        for label, acknowledged in reversed(since.items()):  # a restore drops later labels
            store.restore(label)
            found = store.table("a").lookup(np.arange(rows)).reshape(WRITERS, ROWS, DIM)
            for writer, own, last in zip(writers, found, acknowledged, strict=True):
                writer.check(own, last)
    for server in servers:
        server.stop()
