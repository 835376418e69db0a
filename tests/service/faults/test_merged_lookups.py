"""Lookups of several connections that come together: one turn of the engine, each its own answer.

They come together because nothing is read until all have been sent: they are sent on the event
loop. What cannot be answered at once, or is to be refused, is answered as if it had come alone.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import commands as c
from embstore.handles.store import Store
from embstore_proto import shared_memory as frames
from embstore_proto.received import Received
from embstore_proto.shared_memory import Kind
from embstore_proto.verbs import VERBS
from embstore_server.path import merged_lookups
from tests.service.faults.served import Served, on_loop_call
from tests.service.faults.sharing import DIM, RawSharer, Said, keys, make_wide

CLIENTS = 6
SEGMENT_BYTES = 1 << 20
LATE = 30
"""Answers that are more than a socket holds."""


@pytest.fixture
def shared(serve: Callable[..., Served]) -> Served:
    """A server with tables of wide rows, each with its number as its value, all in the cache."""
    made = serve()
    made.on_engine(_filled)
    return made


def _filled(store: Store) -> None:
    for table in ("a", "b"):
        make_wide(store, table)
        rows = np.repeat(np.arange(3000, dtype=np.float32)[:, None], DIM, 1)
        store.table(table).assign(keys(3000), rows + (10_000 if table == "b" else 0))


@pytest.fixture
def sharers(shared: Served) -> Iterator[list[RawSharer]]:
    with ExitStack() as opened:
        made = [opened.enter_context(RawSharer(shared.socket)) for _ in range(CLIENTS)]
        for sharer in made:
            sharer.ask_for(SEGMENT_BYTES)
        yield made


@pytest.fixture
def turns(shared: Served, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many lookups each turn had."""
    found: list[int] = []
    look_up = shared.service.look_up_at_once

    def noted(callers: Any, commands: Any, outs: Any) -> Any:
        answered = look_up(callers, commands, outs)
        if answered is not None:
            found.append(len(commands))
        return answered

    monkeypatch.setattr(shared.service, "look_up_at_once", noted)
    return found


def together(sharers: list[RawSharer], commands: list[c.Lookup]) -> list[Said]:
    def send() -> None:
        for sharer, command in zip(sharers, commands, strict=True):
            sharer.begin(command)

    on_loop_call(send)
    return [sharer.answer() for sharer in sharers]


def rows_of(sharer: RawSharer, said: Said) -> list[Any]:
    assert said.kind == Kind.RESULT, said.refusal
    answer = frames.answer_of(said.kind, said.body)
    payload = memoryview(bytearray(answer.inline))
    if answer.offset is not None:
        payload = sharer.segment[answer.offset : answer.offset + answer.size].data
    read = VERBS["Lookup"].answer(Received(answer.header, payload)).value
    return [table.rows for table in read.tables]


def asked(*parts: tuple[str, Any], admit: bool = True) -> c.Lookup:
    named = [c.TableKeys(table, None, np.asarray(own, np.int64)) for table, own in parts]
    return c.Lookup(tuple(named), admit)


def test_each_gets_its_own_rows_of_one_turn(sharers, turns):
    rng = np.random.default_rng(20_261_124)
    sizes = (1, 3, 900, 2000, 1, 40)
    own = [
        rng.integers(0, 3000, size) for size in sizes
    ]  # some for the socket, some for the segment
    said = together(sharers, [asked(("a", k)) for k in own])
    for sharer, one, k in zip(sharers, said, own, strict=True):
        (rows,) = rows_of(sharer, one)
        assert (rows == k[:, None]).all()
    assert turns == [CLIENTS]


def test_several_tables_and_lookups_that_leave_no_trace(shared, sharers, turns):
    before = shared.on_engine(lambda store: store.stats()["cache"]["pools"][0])
    k = keys(30)
    kinds = [(("a", k), ("b", k[:5])), (("b", k[7:]),), (("a", k[:0]), ("b", k))]
    commands = [asked(*kinds[i % 3], admit=i < 4) for i in range(CLIENTS)]
    said = together(sharers, commands)
    for i, (sharer, one) in enumerate(zip(sharers, said, strict=True)):
        found = rows_of(sharer, one)
        for (table, own), rows in zip(kinds[i % 3], found, strict=True):
            expected = own[:, None] + (10_000 if table == "b" else 0)
            assert rows.shape == (len(own), DIM)
            assert (rows == expected).all()
    assert sorted(turns) == [2, 4]
    after = shared.on_engine(lambda store: store.stats()["cache"]["pools"][0])
    counted = sum(len(own) for i in range(4) for _, own in kinds[i % 3])
    assert after["accesses"] - before["accesses"] == counted
    assert after["access_hits"] - before["access_hits"] == counted


def test_who_is_refused_is_alone_in_that(sharers, turns):
    commands = [asked(("a", [i])) for i in range(CLIENTS)]
    commands[1] = asked(("a", [1 << 30]))
    commands[2] = asked(("none", [1]))
    commands[4] = asked(("a", [1]), ("a", [2]))
    said = together(sharers, commands)
    wrong = {1: "InvalidArgumentError", 2: "TableNotFoundError", 4: "InvalidArgumentError"}
    for i, (sharer, one) in enumerate(zip(sharers, said, strict=True)):
        if i in wrong:
            assert one.refusal.name == wrong[i]
        else:
            assert (rows_of(sharer, one)[0] == i).all()
    assert turns.count(1) == 3  # the others need not wait for what is refused


def test_rows_that_are_not_in_the_cache_come_as_well(shared, sharers, turns):
    shared.on_engine(lambda store: make_wide(store, "initial", 7.0))
    commands = [asked(("initial", [i])) for i in range(CLIENTS)]
    for _ in range(2):
        for sharer, one in zip(sharers, together(sharers, commands), strict=True):
            assert (rows_of(sharer, one)[0] == 7.0).all()
    assert turns == [CLIENTS]  # the second time


def test_what_is_too_much_for_one_turn_takes_turns(sharers, turns, monkeypatch):
    """Else the event loop would stand still for all of it."""
    row_bytes = 4 * DIM
    monkeypatch.setattr(merged_lookups, "AT_ONCE_BYTES", 2500 * row_bytes)
    sizes = (1000, 1000, 1000, 200, 1, 2600)
    said = together(sharers, [asked(("a", keys(size))) for size in sizes])
    for sharer, one, size in zip(sharers, said, sizes, strict=True):
        (rows,) = rows_of(sharer, one)
        assert (rows == keys(size)[:, None]).all()
    assert turns == [4]


def test_while_the_engine_is_at_work_they_wait(shared, sharers, turns):
    with shared.held():
        for sharer in sharers:
            sharer.begin(asked(("a", [5])))
        shared.await_queue(CLIENTS)
    for sharer in sharers:
        assert (rows_of(sharer, sharer.answer())[0] == 5).all()
    assert turns == []


def test_a_client_that_reads_its_answers_late_gets_them_whole(shared, sharers, turns):
    """Its socket is full by then: what it does not hold waits, and nobody waits for that."""
    late, good = sharers[:2]
    count = 60  # an answer of 15 KiB, in the socket
    for n in range(LATE):
        late.begin(asked(("a", keys(count, n))))
        assert (rows_of(good, good.execute(asked(("a", [3]))))[0] == 3).all()
    assert len(turns) < 2 * LATE
    for n in range(LATE):
        assert (rows_of(late, late.answer())[0] == keys(count, n)[:, None]).all()


@pytest.mark.parametrize("durability", ["commands", "interval"])
def test_gradients_that_change_meanwhile_are_logged_as_they_were_applied(
    serve, quick_path, durability
):
    """They are read where the client can change them, once: what is logged is their sums."""
    path = quick_path / "logged"
    made = serve("logged", open_store=lambda: embstore.open(path, durability=durability))
    made.on_engine(make_wide)
    rng = np.random.default_rng(20_261_124)
    count = 2500
    with RawSharer(made.socket) as sharer:
        sharer.ask_for(count * (8 + 4 * DIM) * 2)
        for _ in range(20):
            values = np.full((count, DIM), 0.5, np.float32)
            own = rng.integers(0, 500, count)
            sharer.begin(c.Update((c.TableGradients("wide", None, own, values),)))
            segment = sharer.segment[: count * (8 + 4 * DIM)].view(np.uint8)
            while not sharer.has_answer:
                places = rng.integers(8 * count, len(segment) // 4 * 4, 64) // 4 * 4
                segment.view(np.float32)[places // 4] = rng.standard_normal(64)
            assert sharer.answer().kind == Kind.RESULT
    made.on_engine(lambda store: store.executor.log.files.sync())
    copy = quick_path / "copy"
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("socket"))
    digest = made.on_engine(lambda store: store.table("wide").digest())
    with embstore.open(copy) as again:
        assert again.executor.recovered_commands == 21
        assert again.table("wide").digest() == digest
