"""Several clients at once: what the store becomes is what the commands make of it one by one, in
the order of the numbers that they were acknowledged with.

Two clients, each used by two threads, send random commands that take a number, of which the larger
travel as streams. Then the model of tests/commands is told the same, serially.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import commands as c
from embstore.config import (
    Adagrad,
    Adam,
    Constant,
    Normal,
    RowWiseAdagrad,
    Sgd,
    TableConfig,
    Uniform,
)
from embstore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    OutcomeUnknownError,
    SessionExpiredError,
    TableExistsError,
    TableHeldError,
    TableNotFoundError,
)
from embstore.handles.store import Store
from tests.commands.lists import Author
from tests.commands.model import Model
from tests.conformance.twin import digests
from tests.serving import Server, patient

CLIENTS, THREADS, COMMANDS = 2, 2, 60
ROWS = 1000
TABLES = [
    ("a", 3, Sgd(0.1), Normal(0.0, 1.0)),
    ("b", 8, Adam(0.01), Uniform(-0.1, 0.1)),
    ("part/c", 33, RowWiseAdagrad(0.1), Uniform(-1.0, 1.0)),
    ("d", 8, Adagrad(0.1), Constant(0.25)),
]
KINDS = (
    *(c.Update, c.UpdatePooled, c.UpdateRanks, c.Assign, c.PutRows, c.DeleteRows),
    *(c.GrowTable, c.SetLearningRate, c.CreateTable, c.DropTable, c.Lookup),
)
REFUSED = (
    *(TableNotFoundError, TableExistsError, InvalidArgumentError, CheckpointNotFoundError),
    SessionExpiredError,  # rows are deleted by a member of none
)
NOT_KNOWN = (OutcomeUnknownError,)
"""Another client restored, and this one did not know. Nothing was done, or a number would lack."""


class Run:
    """Clients of a server, and what their commands were acknowledged as."""

    def __init__(self, address: str, seed: int) -> None:
        self.stores = [patient(address, label=f"client {i}") for i in range(CLIENTS)]
        self.done: list[tuple[int, int, Any, Any]] = []  # appended to by every thread
        self._seed = seed
        self._last = threading.local()  # the number that came with the last answer
        for store in self.stores:
            self._listen(store.executor.transport._origins)  # type: ignore[attr-defined]
        model = Model()
        for name, dim, optimizer, initializer in TABLES:
            config = TableConfig.checked(
                name, dim=dim, rows=ROWS, optimizer=optimizer, initializer=initializer
            )
            model.follow(c.CreateTable(config), self.do(self.stores[0], c.CreateTable(config)))
        self._created = model

    def _listen(self, origins: Any) -> None:
        knows = origins.knows

        def noting(context: Any) -> None:
            self._last.number = context.command
            knows(context)

        origins.knows = noting

    def do(self, store: Store, command: c.Command[Any]) -> Any:
        """Have a client execute a command; note it, if it took a number or is a checkpoint."""
        try:
            result = store.executor.execute(command)
        except (*REFUSED, *NOT_KNOWN):
            return None
        if not isinstance(command, c.Lookup):
            # A checkpoint has the number of the command before it.
            order = isinstance(command, c.Checkpoint)
            self.done.append((self._last.number, order, command, result))
        return result

    def work(self, place: int) -> None:
        """Do what one thread does."""
        author, store = Author([self._seed, place], self._created), self.stores[place % CLIENTS]
        for step in range(COMMANDS):
            while not isinstance(command := author.next(), KINDS):
                pass
            self.do(store, command)
            if step % 20 == 5 * place:
                kept = store.checkpoints()
                label = f"{place}-{step}"
                again = c.Restore(kept[0].label) if len(kept) > 1 else c.Checkpoint(label, {})
                self.do(store, again)

    def replayed(self) -> Model:
        """Return a model that was told all that was acknowledged, one after the other."""
        model = Model()
        for number, is_checkpoint, command, result in sorted(self.done, key=lambda d: d[:2]):
            before = model.store.command_number
            assert before == number - (not is_checkpoint), "numbers are dense, and given once"
            model.follow(command, result)
        return model


@pytest.mark.parametrize("settings", [{}, {"queue_calls_max": 1}], ids=["as it is", "that is busy"])
def test_clients_at_once_do_what_their_commands_do_one_by_one(tmp_path, settings, monkeypatch):
    """The busy server refuses what finds another call waiting: clients send it again."""
    monkeypatch.setattr("embstore_client.grpc_wire.UNARY_BYTES", 500)
    monkeypatch.setattr("embstore_proto.frame.CHUNK_BYTES", 199)

    def open_store() -> Store:
        return embstore.open(tmp_path, cache_bytes=4 << 20, checkpoints_keep=5)

    with Server(open_store, tmp_path, **settings) as server:
        run = Run(server.address, seed=len(settings))
        with ThreadPoolExecutor(CLIENTS * THREADS) as pool:
            list(pool.map(run.work, range(CLIENTS * THREADS)))
        model = run.replayed()
        assert any(isinstance(command, c.Restore) for _, _, command, _ in run.done)
        with patient(server.address) as store:  # the others may not know of the last restore yet
            assert model.store.command_number == store.command > COMMANDS
            assert digests(store) == model.digests()
            store.check_integrity()
        for store in run.stores:
            store.close()
    with open_store() as reopened:
        assert digests(reopened) == model.digests()


def test_a_table_that_another_client_made_anew_is_seen_as_it_is(tmp_path):
    """A client remembers what a table is, and must notice that the name means another now."""

    def made(store: Any, dim: int) -> None:
        store.create_table("a", dim=dim, rows=ROWS, optimizer=Sgd(0.1), initializer=Constant(0.0))

    with Server(lambda: embstore.open(tmp_path, cache_bytes=16 << 20), tmp_path) as server:
        with patient(server.address) as first, patient(server.address) as second:
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


@pytest.mark.parametrize("verb", ["lookup", "update", "lookup_pooled", "update_pooled"])
def test_calls_of_several_tables_find_one_that_was_made_anew(tmp_path, verb):
    keys, offsets, gradients = [1, 2], [0, 2], np.ones((2, 4), np.float32)
    arguments: dict[str, Any] = {
        "lookup": [{"t": keys}],
        "update": [{"t": (keys, gradients)}],
        "lookup_pooled": [{"t": (keys, offsets)}],
        "update_pooled": [{"t": (keys, offsets)}, {"t": gradients[:1]}],
    }
    path = tmp_path / "store"
    how: dict[str, Any] = {"dim": 4, "rows": 9, "optimizer": Sgd(0.1), "initializer": Constant(1)}
    with (
        Server(lambda: embstore.open(path, device="cpu", cache_bytes=1 << 20), path) as server,
        patient(server.address) as mine,
        patient(server.address) as others,
    ):
        others.create_table("t", **how)
        for _ in range(2):
            getattr(mine, verb)(*arguments[verb])
            others.drop_table("t")
            others.create_table("t", **how)
        getattr(mine, verb)(*arguments[verb])


def test_a_table_that_was_made_anew_is_found_whichever_thread_forgot_the_old_one(
    server, client, monkeypatch
):
    """Both threads had its old id; one forgot it while the other's call was on its way."""
    before = client.lookup({"ads": [1]})
    config = server.store.table("ads").config
    server.store.drop_table("ads")
    server.store.create_table(
        "ads",
        dim=config.dim,
        rows=config.rows,
        optimizer=config.optimizer,
        initializer=config.initializer,
        seed=config.seed,
    )
    executor: Any = client.executor
    send = executor.transport.send

    def forgetting(*args: Any, **options: Any) -> Any:
        executor.tables.forget("ads")
        return send(*args, **options)

    monkeypatch.setattr(executor.transport, "send", forgetting)
    assert client.lookup({"ads": [1]})["ads"].shape == before["ads"].shape


@pytest.mark.parametrize("shared", [False, True])
def test_a_session_holds_rate_and_size_of_its_tables_as_it_holds_their_rows(tmp_path, shared):
    """Its own client's scheduler changes them in the middle of it; another client does not, unless
    the session is shared, or has ended. Nothing of it is in the log of commands."""
    data = tmp_path / "store"
    durable = {"cache_bytes": 1 << 20, "threads": 1, "durability": "commands"}
    with (
        Server(lambda: embstore.open(data, **durable), data, durability="commands") as server,
        patient(server.address) as own,
        patient(server.address) as other,
    ):
        table = own.create_table("a", dim=2, rows=10, optimizer=Sgd(0.5), initializer=Constant(0.0))
        seen = other.table("a")
        own.sessions.open("run", ["a"], shared=shared)
        member = own.sessions.join("run", 0).member
        table.learning_rate = 0.25
        table.grow(20)
        if not shared:
            with pytest.raises(TableHeldError, match="'run'"):
                seen.learning_rate = 1000.0
            with pytest.raises(TableHeldError, match="'run'"):
                seen.grow(30)
            assert (table.learning_rate, table.rows) == (0.25, 20)
            own.sessions.close(member)
        seen.learning_rate = 0.125
        seen.grow(30)
        assert (table.learning_rate, table.rows) == (0.125, 30)
    files = [path for path in data.rglob("*") if path.is_file()]
    assert files and all(member.encode() not in path.read_bytes() for path in files)
    with embstore.open(data) as store:
        assert (store.table("a").learning_rate, store.table("a").rows) == (0.125, 30)
