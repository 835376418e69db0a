"""Two clients of one server: what one knows of a table, and the other changes or holds."""

from typing import Any

import numpy as np
import pytest

import embstore
from embstore.config import Constant, Sgd
from embstore.errors import InvalidArgumentError, TableHeldError, TableNotFoundError
from embstore.handles.store import Store
from tests.serving import Server, patient

ROWS = 1000


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
    server: Server, client: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        executor._tables.forget("ads")
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
