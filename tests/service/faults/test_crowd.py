"""A crowd of clients, of which some are killed, some stalled, and others never read or never speak.

Those that live see no error but that the server was overloaded. In the end each table is what its
client's updates make of it, one after the other, up to its t; and t is what was acknowledged, with
at most the one update that was out when a client was killed.

What happens next is decided by how many updates have been acknowledged, not by the clock. `make
soak` goes on for minutes, and then the server's memory has to be level, too.
"""

import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

import embstore
from embstore import commands as c
from embstore.config import Constant, Sgd
from embstore.handles.store import Store
from embstore_client.connecting import connect
from tests.faults.forks import Child, Forks
from tests.service.faults import crowd
from tests.service.faults.logged import LoggedServer
from tests.service.faults.served import PATIENCE_S
from tests.service.faults.wire import Sender, Wire, lookup, update

SEED = 20_261_215
UPDATES, APART = 800, 60
"""Acknowledged in a short run, and between two things that are done to the clients."""
SOAK_S, WARM_S, LOOK_S = 600.0, 180.0, 2.0
SLOPE_BYTES_A_MINUTE = 1 << 20
GONE = 4096
"""Clients, and as many ended sessions, that a server remembers of those that have gone."""
WIDE_ROWS, WIDE_DIM = 2000, 1024
OPEN_AT_ONCE = 12
HALF = b"PRI * HTTP/2.0\r\n\r\nSM", b"GET /metrics HTTP/1.1\r\nHo", b"", b"\x16\x03\x01\x02"


class Crowd:
    """The processes, and what their clients have reported."""

    def __init__(self, forks: Forks, server: LoggedServer, rng: np.random.Generator) -> None:
        self._forks, self._server, self._rng = forks, server, rng
        self._children: dict[int, Child] = {}
        self._stopped: Child | None = None
        self._open: deque[Callable[[], None]] = deque()
        self._wire = Wire(server.address)
        self.acknowledged = dict.fromkeys(range(crowd.PROCESSES * crowd.CLIENTS), 0)
        self.updates = self.overloaded = self.kills = self.stalls = self.left_open = (
            self._things
        ) = 0
        self._beginning: set[int] = set()
        for place in range(crowd.PROCESSES):
            self._start(place)

    def _start(self, place: int) -> None:
        seed, first = int(self._rng.integers(1 << 30)), place * crowd.CLIENTS
        server = self._server
        self._beginning |= set(range(first, first + crowd.CLIENTS))
        self._children[place] = self._forks.start(
            crowd.run, server.address, server.admin, first, seed
        )

    def listen(self) -> None:
        """Take the next reports."""
        by_reports = {child.reports: child for child in self._children.values()}
        ready: Any = wait(list(by_reports), PATIENCE_S)
        assert ready, "nobody is answered any more"
        for reports in ready:
            self._note(reports.recv())

    def _note(self, report: tuple[Any, ...]) -> None:
        match report:
            case "acknowledged", client, t:
                assert t == self.acknowledged[client] + 1
                self.acknowledged[client] = t
                self.updates += 1
            case "begun", client, t:
                assert 0 <= t - self.acknowledged[client] <= 1, "one update at most was out"
                self.acknowledged[client] = t
                self._beginning.discard(client)
            case "overloaded", _:
                self.overloaded += 1
            case _:
                raise AssertionError(report, self._server.complaints())

    # What is done to them

    def disturb(self) -> None:
        """Do the next thing to a client or to the server."""
        self._go_on()
        things = self._kill, self._stall, self._connect_halfway, self._read_nothing
        things[self._things % len(things)]()
        self._things += 1
        while len(self._open) > OPEN_AT_ONCE:
            self._open.popleft()()

    def _kill(self) -> None:
        place = int(self._rng.integers(crowd.PROCESSES))
        child = self._children[place]
        assert child.kill() == -signal.SIGKILL
        for report in child.remaining():
            self._note(report)
        child.reports.close()
        self.kills += 1
        self._start(place)

    def _stall(self) -> None:
        """Have a process stand still, until the next thing happens to another one."""
        self._stopped = self._children[int(self._rng.integers(crowd.PROCESSES))]
        os.kill(self._stopped.pid, signal.SIGSTOP)
        self.stalls += 1

    def _go_on(self) -> None:
        if self._stopped is not None:
            os.kill(self._stopped.pid, signal.SIGCONT)
        self._stopped = None

    def _connect_halfway(self) -> None:
        ports = (self._server.address, self._server.admin)
        host, _, port = ports[int(self._rng.integers(2))].rpartition(":")
        half = socket.create_connection((host, int(port)))
        half.sendall(HALF[int(self._rng.integers(len(HALF)))])
        self._open.append(half.close)
        self.left_open += 1

    def _read_nothing(self) -> None:
        message = lookup({"wide": np.arange(WIDE_ROWS)})
        call = self._wire.begin_stream("Lookup", list(message.chunks()), timeout=None)
        self._open.append(call.cancel)
        self.left_open += 1

    def __str__(self) -> str:
        return (
            f"{self.updates} updates, {self.overloaded} times overloaded, {self.kills} kills, "
            f"{self.stalls} stalls, {self.left_open} left open"
        )

    # The end

    def stop(self) -> None:
        """Let all clients finish what they do; none is asked that has not begun."""
        self._go_on()
        while self._beginning:
            self.listen()
        for child in self._children.values():
            os.kill(child.pid, signal.SIGTERM)
        for child in self._children.values():
            while child.reports.poll(PATIENCE_S):
                try:
                    self._note(child.reports.recv())
                except EOFError:
                    break
            assert child.wait() == 0
            child.reports.close()
        self._children.clear()

    def close(self) -> None:
        """End what is left of them: all, after a failure."""
        for child in self._children.values():
            child.kill()
        while self._open:
            self._open.popleft()()
        self._wire.close()

    def check(self, store: Any, path: Path) -> None:
        """Compare every table with what its client's updates make of it."""
        with embstore.open(path, cache_bytes=1 << 24, threads=1) as replayed:
            for client, t in self.acknowledged.items():
                table = store.table(crowd.name_of(client))
                assert table.t == t
                assert table.digest() == crowd.replay(replayed, client, t), client


@pytest.fixture
def server(quick_path: Path) -> Iterator[LoggedServer]:
    options = ("--queue-calls-max", "4", "--read-timeout-s", "5", "--connections-max", "200")
    with LoggedServer(quick_path / "store", *options) as server:
        yield server


def fill_memory(server: LoggedServer, store: Store) -> None:
    """Have a server remember as many clients and ended sessions as it ever does."""
    with Wire(server.address) as wire:
        sender = Sender(wire)
        nothing = np.zeros((1, WIDE_DIM), np.float32)
        for _ in range(GONE):
            sender.client_id = uuid4().hex
            wire.stream("Update", list(update({"wide": ([0], nothing)}, sender.origin()).chunks()))
    for _ in range(GONE):
        member = uuid4().hex
        store.executor.execute(c.OpenSession("gone", ("wide",)))
        store.executor.execute(c.JoinSession("gone", 0, member))
        store.executor.execute(c.CloseSession(member))


class Memory:
    """What a server uses, looked at every so often."""

    def __init__(self, server: LoggedServer) -> None:
        self._server = server
        self._began = monotonic()
        self._samples: list[tuple[float, int]] = []

    @property
    def seconds(self) -> float:
        """How long ago it began."""
        return monotonic() - self._began

    def look(self) -> None:
        """Take a sample, if it is time for one."""
        if not self._samples or self.seconds - self._samples[-1][0] > LOOK_S:
            self._samples.append((self.seconds, self._server.resident_bytes()))

    def slope(self) -> float:
        """Return the bytes a minute by which it grows once warm, by least squares."""
        seconds, used = np.array([s for s in self._samples if s[0] > WARM_S], np.float64).T
        return float(60.0 * np.polyfit(seconds, used, 1)[0])

    def __str__(self) -> str:
        return " ".join(f"{seconds:.0f}s:{used >> 20}" for seconds, used in self._samples)


@pytest.fixture
def store(server: LoggedServer) -> Iterator[Store]:
    """A client of the test's own, and a table for each of the others."""
    with connect(server.address, timeout_s=PATIENCE_S) as store:
        for client in range(crowd.PROCESSES * crowd.CLIENTS):
            crowd.make_table(store, client)
        store.create_table(
            "wide", dim=WIDE_DIM, rows=WIDE_ROWS, optimizer=Sgd(1.0), initializer=Constant(1.0)
        )
        yield store


def test_a_crowd_is_served_whatever_becomes_of_some_of_it(
    forks, server, store, quick_path, pytestconfig
):
    sys.stdout.write(f"seed {SEED}\n")
    is_soak = pytestconfig.getoption("soak") > 1
    if is_soak:
        fill_memory(server, store)
    with closing(Crowd(forks, server, np.random.default_rng(SEED))) as everybody:
        memory, next_at = Memory(server), APART
        while memory.seconds < SOAK_S if is_soak else everybody.updates < UPDATES:
            everybody.listen()
            memory.look()
            if everybody.updates >= next_at:
                everybody.disturb()
                next_at += APART
        everybody.stop()
    sys.stdout.write(f"{everybody}\nMiB of the server: {memory}\n")
    everybody.check(store, quick_path / "replayed")
    store.check_integrity()
    assert everybody.kills > 2 and everybody.stalls > 2 and everybody.left_open > 4
    assert not server.complaints()
    if is_soak:
        sys.stdout.write(f"bytes a minute once warm: {memory.slope():.0f}\n")
        assert memory.slope() < SLOPE_BYTES_A_MINUTE
