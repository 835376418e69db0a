"""Many clients in a few processes that are killed and stalled, and what each may say of its table.

A client has one table, which nobody else writes, and its updates have numbers: update n of a table
is a pure function of both, whether it comes by itself or as a step of a session. So the table is
known by its t alone. A client that begins, in place of one that was killed, reads t first, and goes
on from there: at most one update can have been out.

Between updates a client does whatever clients do: it looks up rows, its own and those of others,
trains a few steps in a session, asks for stats, digests and checkpoints, and scrapes REST. It
reports every acknowledged update, and every error that it was told: only that the server was
overloaded is none.
"""

import json
import signal
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from embstore.config import Adam, Constant, RowWiseAdagrad, Sgd, Uniform
from embstore.errors import CheckpointExistsError, OverloadedError, SessionExpiredError
from embstore.handles.store import Store
from embstore_client.connecting import connect
from tests.service.faults.served import PATIENCE_S

PROCESSES, CLIENTS = 8, 8
"""Clients of each process."""
ROWS, KEYS, STEPS = 200, 8, 5
LEASE_MS = 600_000
DIMS = 3, 8, 16, 33
OPTIMIZERS = Sgd(0.1), Adam(0.01), RowWiseAdagrad(0.1)
PATHS = "/metrics", "/api/v1/stats", "/api/v1/server", "/api/v1/sessions"


def name_of(client: int) -> str:
    """Return the name of a client's table."""
    return f"client/{client}"


def make_table(store: Any, client: int) -> Any:
    """Make a client's table, or find it."""
    return store.create_table(
        name_of(client),
        dim=DIMS[client % len(DIMS)],
        rows=ROWS,
        optimizer=OPTIMIZERS[client % len(OPTIMIZERS)],
        initializer=Uniform(-1.0, 1.0) if client % 2 else Constant(0.5),
    )


def gradients(client: int, n: int) -> tuple[Any, Any]:
    """Return what update n of a client's table brings."""
    rng = np.random.default_rng([client, n])
    keys = np.sort(rng.choice(ROWS, KEYS, replace=False)).astype(np.int64)
    return keys, rng.standard_normal((KEYS, DIMS[client % len(DIMS)]), np.float32)


def replay(store: Any, client: int, t: int) -> str:
    """Return the digest of a client's table after so many updates; `store` has none of it."""
    table = make_table(store, client)
    for n in range(1, t + 1):
        table.update(*gradients(client, n))
    digest: str = table.digest()
    return digest


class _Client:
    """One client: a connection of its own, on a thread of its own."""

    def __init__(self, crowd: "_Crowd", client: int, seed: int) -> None:
        self._crowd = crowd
        self._client = client
        self._rng = np.random.default_rng([seed, client])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            patience = {"timeout_s": PATIENCE_S, "connect_timeout_s": PATIENCE_S}
            with connect(self._crowd.address, **patience) as store:
                self._begin(store)
                while not self._crowd.over.is_set():
                    try:
                        self._call(store)
                    except OverloadedError:
                        self._crowd.report("overloaded", self._client)
        except BaseException as exc:
            self._crowd.report("error", self._client, repr(exc))

    def _begin(self, store: Store) -> None:
        self._table = make_table(store, self._client)
        with suppress(SessionExpiredError):
            store.sessions.end(name_of(self._client))  # that of the client that was killed
        self._t = self._table.t
        self._crowd.report("begun", self._client, self._t)

    def _call(self, store: Store) -> None:
        """Do one of the things that clients do; each updates beside."""
        others = {name_of(int(n)): self._rng.integers(0, ROWS, 40) for n in self._some(3)}
        match int(self._rng.integers(24)):
            case 0:
                self._train(store)
            case 1:
                store.stats() if self._rng.random() < 0.5 else self._table.stats()
            case 2:
                self._table.digest()
            case 3 if self._client % 16 == 0:
                self._keep(store)
            case 4:
                self._scrape(PATHS[int(self._rng.integers(len(PATHS)))])
            case 5:
                store.lookup(others)
            case 6:
                self._table.read_rows(np.arange(5))
            case 7:
                self._table.lookup_pooled(np.arange(10), np.array([0, 3, 10]))
            case kind if kind < 14:
                self._table.lookup(self._rng.integers(0, ROWS, 40))
            case _:
                self._acknowledged(self._table.update(*gradients(self._client, self._t + 1)).t)

    def _some(self, count: int) -> Any:
        return self._rng.choice(PROCESSES * CLIENTS, count, replace=False)

    def _acknowledged(self, t: int) -> None:
        self._t += 1
        assert t == self._t
        self._crowd.report("acknowledged", self._client, t)

    def _scrape(self, path: str) -> None:
        try:
            with urllib.request.urlopen(
                f"http://{self._crowd.admin}{path}", None, PATIENCE_S
            ) as got:
                assert got.read()
        except urllib.error.HTTPError as exc:
            with exc:
                if json.load(exc)["error"] != OverloadedError.__name__:
                    raise
                raise OverloadedError from exc

    def _keep(self, store: Store) -> None:
        with suppress(CheckpointExistsError):  # nothing was updated since
            store.checkpoint(f"{self._client}-{self._t}")

    def _train(self, store: Store) -> None:
        """Do a few updates as the steps of a session."""
        name = name_of(self._client)
        with store.session(
            [name], name=name, lookahead=3, lease_ms=LEASE_MS, wait_s=PATIENCE_S
        ) as run:
            numbers = range(self._t + 1, self._t + 1 + STEPS)
            for step in run.steps(numbers, keys=lambda n: {name: gradients(self._client, n)[0]}):
                step.lookup()
                told = step.update({name: gradients(self._client, step.batch)[1]})
                self._acknowledged(told.t[name])


class _Crowd:
    """The clients of one process, and its reports."""

    def __init__(self, reports: Connection, address: str, admin: str) -> None:
        self.address, self.admin = address, admin
        self.over = threading.Event()
        self._reports, self._lock = reports, threading.Lock()

    def report(self, *what: Any) -> None:
        """Tell the test."""
        with self._lock:
            self._reports.send(what)


def run(reports: Connection, address: str, admin: str, first: int, seed: int) -> None:
    """The child: be CLIENTS clients, from number `first` on, until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # of all threads: it is waited for
    crowd = _Crowd(reports, address, admin)
    clients = [_Client(crowd, client, seed) for client in range(first, first + CLIENTS)]
    signal.sigwait([signal.SIGTERM])
    crowd.over.set()
    for client in clients:
        client.join()
