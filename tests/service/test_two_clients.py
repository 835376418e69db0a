"""Several clients at once: what the store becomes is what the commands make of it one by one, in
the order of the numbers that they were acknowledged with.

Two clients, each used by two threads, send every verb that takes a number, small and of more than a
MiB, so that unary calls and streams meet. Then a reference model is told the same, serially.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pytest

import embstore
from embstore.config import Adagrad, Adam, Constant, Normal, RowWiseAdagrad, Sgd, Uniform
from embstore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    OutcomeUnknownError,
    TableExistsError,
    TableNotFoundError,
)
from embstore_client import connect
from embstore_client.transport import UNARY_BYTES
from tests.conformance.traces import cut_into_bags, values, zipf_keys
from tests.conformance.twin import digests
from tests.reference import ReferenceStore
from tests.serving import Server

CLIENTS, THREADS, COMMANDS = 2, 2, 50
ROWS = 1000
WIDE = 1024
"""Some hundred rows of it are a stream."""

TABLES = {
    "narrow/sgd": {"dim": 3, "optimizer": Sgd(0.1), "initializer": Normal(0.0, 1.0)},
    "narrow/adam": {"dim": 8, "optimizer": Adam(0.01), "initializer": Uniform(-0.1, 0.1)},
    "wide": {"dim": WIDE, "optimizer": RowWiseAdagrad(0.1), "initializer": Uniform(-1.0, 1.0)},
}
PASSING = {"optimizer": Adagrad(0.1), "initializer": Uniform(-0.1, 0.1), "rows": ROWS}
"""Of the table that comes and goes, with one dim or another."""
PASSING_ERRORS = (TableNotFoundError, TableExistsError, InvalidArgumentError)
NOT_KNOWN = (OutcomeUnknownError,)
"""Another client restored, and this one did not know. Nothing was done, or a number would lack."""


class Command(NamedTuple):
    """What is done to a store, to the reference in the same words, and how it may be refused."""

    do: Callable[[Any], Any]
    refusals: tuple[type[Exception], ...] = ()


class Clients:
    """Connections that note, thread by thread, the command number that came with the last reply."""

    def __init__(self, address: str) -> None:
        self.stores = [connect(address, label=f"client {i}") for i in range(CLIENTS)]
        self._last = threading.local()
        for store in self.stores:
            self._listen(store._calls.transport._origins)

    def _listen(self, origins: Any) -> None:
        knows = origins.knows

        def noting(context: Any) -> None:
            self._last.command = context.command
            knows(context)

        origins.knows = noting

    @property
    def last_command(self) -> int:
        """Of this thread."""
        number: int = self._last.command
        return number

    def close(self) -> None:
        for store in self.stores:
            store.close()


class Draws:
    """Random commands."""

    def __init__(self, seed: int, place: int) -> None:
        self._rng = np.random.default_rng([seed, place])

    def command(self) -> Command:
        makers = (
            *(self.update, self.pooled, self.several, self.ranks, self.assign, self.put_rows),
            *(self.grow, self.rate, self.create, self.drop, self.update_passing),
        )
        return makers[self._rng.integers(len(makers))]()

    def _table(self) -> tuple[str, dict[str, Any], Any]:
        name = str(self._rng.choice(list(TABLES)))
        most = 900 if name == "wide" and self._rng.random() < 0.4 else 60
        return name, TABLES[name], zipf_keys(self._rng, ROWS, int(self._rng.integers(most)))

    def _share(self) -> tuple[str, tuple[Any, Any]]:
        name, table, keys = self._table()
        if name == "wide" and self._rng.random() < 0.3:  # few of a Zipf's keys are left when unique
            keys = self._rng.permutation(ROWS)[:700]
        return name, (keys, values(self._rng, len(keys), table["dim"]))

    def update(self) -> Command:
        name, share = self._share()
        rate = float(self._rng.random())
        return on(name, "update", *share, learning_rate=rate, gradient_scale=0.5)

    def pooled(self) -> Command:
        name, table, keys = self._table()
        offsets = cut_into_bags(self._rng, len(keys))
        grads = values(self._rng, len(offsets) - 1, table["dim"])
        return on(name, "update_pooled", keys, offsets, grads, "mean")

    def several(self) -> Command:
        shares = dict(self._share() for _ in range(3))
        return Command(lambda store: store.update(shares))

    def ranks(self) -> Command:
        ranks = [dict([self._share()]) for _ in range(3)]
        return Command(lambda store: store.update_ranks(ranks))

    def assign(self) -> Command:
        name, share = self._share()
        return on(name, "assign", *share)

    def put_rows(self) -> Command:
        name, (keys, rows) = self._share()
        width = TABLES[name]["optimizer"].state_dim(TABLES[name]["dim"])
        return on(name, "put_rows", keys, rows, abs(values(self._rng, len(keys), width)), 2)

    def grow(self) -> Command:
        name, rows = self._table()[0], ROWS + int(self._rng.integers(100))
        return on(name, "grow", rows, refusals=(InvalidArgumentError,))

    def rate(self) -> Command:
        name, rate = self._table()[0], float(self._rng.random())
        return Command(lambda store: setattr(store.table(name), "learning_rate", rate))

    def create(self) -> Command:
        dim = self._dim()
        return Command(
            lambda store: store.create_table("passing", dim=dim, **PASSING), PASSING_ERRORS
        )

    def drop(self) -> Command:
        return Command(lambda store: store.drop_table("passing"), PASSING_ERRORS)

    def update_passing(self) -> Command:
        keys = zipf_keys(self._rng, ROWS, 40)
        shares = {"passing": (keys, values(self._rng, 40, self._dim()))}
        return Command(lambda store: store.update(shares), PASSING_ERRORS)

    def _dim(self) -> int:
        return int(self._rng.integers(4, 6))


def on(name: str, verb: str, *args: Any, refusals: Any = (), **options: Any) -> Command:
    """Return a command of one table."""
    return Command(lambda store: getattr(store.table(name), verb)(*args, **options), refusals)


def creations() -> list[Command]:
    return [
        Command(lambda s, n=name, c=table: s.create_table(n, rows=ROWS, **c))
        for name, table in TABLES.items()
    ]


class Run:
    """Commands on a served store, with what each was acknowledged as."""

    def __init__(self, clients: Clients, seed: int) -> None:
        self.clients = clients
        self.seed = seed
        self.done: list[tuple[int, Command]] = []  # appended to by every thread
        self.labels: list[tuple[int, str]] = []
        """Checkpoints, with the command number that each holds."""

    def do(self, store: Any, command: Command) -> None:
        try:
            acknowledged = command.do(store)
        except (*command.refusals, *NOT_KNOWN):
            return
        number = self.clients.last_command
        self.done.append((number, command))
        assert getattr(acknowledged, "command", number) == number

    def work(self, place: int) -> None:
        draws, store = Draws(self.seed, place), self.clients.stores[place % CLIENTS]
        for step in range(COMMANDS):
            self.do(store, draws.command())
            assert store.lookup({"wide": np.arange(step, 600)})["wide"].shape[1] == WIDE
            if step % 20 == 5 * place:
                self.checkpoint_or_restore(store, f"{place}-{step}")

    def checkpoint_or_restore(self, store: Any, label: str) -> None:
        kept = store.checkpoints()
        if len(kept) > 1:
            self.do(store, Command(Restore(kept[0].label), (CheckpointNotFoundError,)))
            return
        with suppress(*NOT_KNOWN):
            self.labels.append((store.checkpoint(label).state.command, label))

    def replay(self) -> ReferenceStore:
        """Return a reference that was told all that was acknowledged, one after the other."""
        reference, snapshots = ReferenceStore(), {}
        for number, command in sorted(self.done, key=lambda d: d[0]):
            assert reference.command_number == number - 1, "numbers are dense, and given once"
            if isinstance(command.do, Restore):
                reference.restore(snapshots[command.do.label])
            else:
                command.do(reference)
            for label in [label for at, label in self.labels if at == number]:
                snapshots[label] = reference.snapshot()
        return reference


class Restore(NamedTuple):
    """To a label, of which the reference has a snapshot instead."""

    label: str

    def __call__(self, store: Any) -> int:
        number: int = store.restore(self.label)
        return number


SERVERS = {
    "as it is": {},
    "that is busy": {"queue_calls_max": 1, "inflight_bytes_max": UNARY_BYTES * 4},
}
"""The second refuses whatever finds another call waiting: clients send it again."""


@pytest.mark.parametrize("settings", SERVERS.values(), ids=SERVERS)
def test_clients_at_once_do_what_their_commands_do_one_by_one(tmp_path, settings):
    def open_store() -> embstore.Store:
        return embstore.open(tmp_path, cache_bytes=4 << 20, checkpoints_keep=5)

    with Server(open_store, tmp_path, **settings) as server:
        clients = Clients(server.address)
        run = Run(clients, seed=len(settings))
        for command in creations():
            run.do(clients.stores[0], command)
        with ThreadPoolExecutor(CLIENTS * THREADS) as pool:
            list(pool.map(run.work, range(CLIENTS * THREADS)))
        reference, store = run.replay(), clients.stores[1]
        assert any(isinstance(command.do, Restore) for _, command in run.done)
        assert reference.command_number == store.command > COMMANDS
        assert store.tables() == reference.tables()
        assert digests(store) == digests(reference)
        store.check_integrity()
        clients.close()
    with open_store() as store:
        assert digests(store) == digests(reference)


def test_a_table_that_another_client_made_anew_is_seen_as_it_is(tmp_path):
    """A client remembers what a table is, and must notice that the name means another now."""

    def made(store: Any, dim: int) -> None:
        store.create_table("a", dim=dim, rows=ROWS, optimizer=Sgd(0.1), initializer=Constant(0.0))

    with Server(lambda: embstore.open(tmp_path, cache_bytes=16 << 20), tmp_path) as server:
        with connect(server.address) as first, connect(server.address) as second:
            made(first, 1)
            handle = first.table("a")
            second.drop_table("a")
            made(second, 4096)
            rows, out = {"a": np.arange(ROWS)}, np.empty((ROWS, 4096), np.float32)
            assert first.lookup(rows)["a"].shape == out.shape  # a stream, though it looked small
            first.lookup(rows, out={"a": out})
            with pytest.raises(InvalidArgumentError, match="out"):
                first.lookup(rows, out={"a": out[:, :1].copy()})
            assert first.update({"a": ([1], out[:1])}).t == {"a": 1}
            with pytest.raises(InvalidArgumentError, match="gradients"):
                first.update({"a": ([1], out[:1, :1])})
            with pytest.raises(TableNotFoundError, match="'a'"):
                handle.lookup([1])
