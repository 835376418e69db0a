"""One token takes what is its share, and no more: each limit is attacked, beside a quiet caller."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore import Constant, Sgd
from embstore import commands as c
from embstore.config import TableConfig
from embstore.engine.engine import Engine
from embstore.errors import (
    CapacityError,
    EmbstoreError,
    InvalidArgumentError,
    OverloadedError,
    SessionExpiredError,
)
from embstore_proto.status import error_of
from embstore_server.access.shares import SHARE
from embstore_server.access.tokens import read, write
from embstore_server.transports.rest.stats import process_stats
from tests.service.access.samples import DIM, KEYS, config
from tests.service.access.tenants import Caller, serving, token_of, update_of
from tests.service.faults.served import Served, on_loop_call, until
from tests.serving import on_loop

QUEUE = 8
LOOKUP = c.Lookup((c.TableKeys("a/t", None, KEYS),))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, queue_calls_max=QUEUE) as server:
        yield server


def limit(server: Served, path: Path, name: str, **limits: int) -> None:
    """Give a token other limits."""
    entries = read(path)
    entry = entries[name]
    entries[name] = type(entry)(entry.name, entry.secret, entry.rights, limits)
    write(path, entries)
    on_loop_call(server.service.reload)


def caller_of(server: Served, name: str) -> Caller:
    """Return another connection of a token's."""
    return Caller(server.address, token_of(name))


def outcome(call: Any) -> Any:
    """Return the error that a call ended with; None: it was done."""
    error = call.exception()
    if error is None:
        return None
    return error_of(call.code(), call.details(), call.trailing_metadata())


def waiting(server: Served, count: int) -> None:
    """Wait until so many calls are in the queue."""
    assert until(lambda: server.service.worker.waiting_calls >= count)


def test_a_full_lane_leaves_the_queue_to_others(server):
    """Whatever the number of connections: half of the queue is the greedy one's, and no more."""
    share = int(QUEUE * SHARE)
    with server.held():
        calls = []
        for n in range(share):
            calls.append(caller_of(server, "writer").begin(LOOKUP))
            waiting(server, n + 1)
        beyond = [caller_of(server, "writer").begin(LOOKUP) for _ in range(QUEUE - share)]
        refused = [outcome(call) for call in beyond]
        assert {type(error) for error in refused} == {OverloadedError}
        assert "queue_calls" in str(refused[0]) and "'writer'" in str(refused[0])
        quiet = caller_of(server, "dashboard").begin(LOOKUP)
        waiting(server, share + 1)
    assert outcome(quiet) is None
    assert [outcome(call) for call in calls] == [None] * share


def test_beside_another_token_one_call_at_a_time_is_taken_apart(server):
    """So its many connections do not have the interpreter to themselves; and none is lost. They
    wait in one queue: queues take turns (test_limits.py)."""
    with server.held():
        calls = [caller_of(server, "dashboard").begin(LOOKUP)]
        waiting(server, 1)
        for n in range(3):
            calls.append(caller_of(server, "writer").begin(LOOKUP))
            waiting(server, n + 2)
        waiting_calls = {n: len(queue) for n, queue in server.service.worker._queues.items()}
        assert waiting_calls == {"dashboard": 1, "writer": 1}
        assert server.service.worker.client_calls("writer") == 3
    assert [outcome(call) for call in calls] == [None] * 4


def test_what_takes_long_leaves_threads_to_others(server, monkeypatch):
    """Of the sixteen threads of a verb one token has eight; of the rest, its share waits."""
    begin, gate, begun = Engine.begin, threading.Event(), []

    def slowly(engine: Engine, command: c.Command[Any], **how: Any) -> Any:
        if isinstance(command, c.GetDigest):
            begun.append(command)
            assert gate.wait(300)
        return begin(engine, command, **how)

    monkeypatch.setattr(Engine, "begin", slowly)
    digest, share = c.GetDigest("a/t", None), int(QUEUE * SHARE)
    greedy, quiet = caller_of(server, "writer"), caller_of(server, "dashboard")
    calls = [greedy.begin(digest) for _ in range(8 + share)]
    assert until(lambda: server.service.long_jobs.waiting_calls("writer") == share)
    refused = outcome(greedy.begin(digest))
    assert type(refused) is OverloadedError and "queue_calls" in str(refused)
    calls += [quiet.begin(digest) for _ in range(8)]
    assert until(lambda: len(begun) == 16)
    gate.set()
    assert [outcome(call) for call in calls] == [None] * len(calls)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_call_has_a_bound_of_its_own(server, tmp_path, streamed):
    """Too large a call is refused before it has the engine; one that is just as large is done."""
    limit(server, tmp_path / "tokens.json", "writer", call_bytes=len(KEYS) * (8 + 4 * DIM))
    more = np.append(KEYS, KEYS)
    with Caller(server.address, token_of("writer")) as writer:
        writer.execute(LOOKUP, streamed=streamed)
        with pytest.raises(InvalidArgumentError, match="at most"):
            writer.execute(c.Lookup((c.TableKeys("a/t", None, more),)), streamed=streamed)
    with Caller(server.address, token_of("dashboard")) as other:
        other.execute(c.Lookup((c.TableKeys("a/t", None, more),)), streamed=streamed)


def test_a_reply_that_nobody_reads_counts_as_its_callers(server, tmp_path):
    limit(server, tmp_path / "tokens.json", "writer", inflight_bytes=1)
    with Caller(server.address, token_of("writer")) as greedy:
        greedy.execute(LOOKUP)  # one always fits
        with server.held():
            held = caller_of(server, "writer").begin(LOOKUP)
            waiting(server, 1)
            with pytest.raises(OverloadedError, match="inflight_bytes"):
                greedy.execute(LOOKUP)
            quiet = caller_of(server, "dashboard").begin(LOOKUP)
            waiting(server, 2)
    assert outcome(held) is None and outcome(quiet) is None


def test_sessions_tables_rows_and_disk_have_bounds(server, tmp_path):
    path = tmp_path / "tokens.json"
    with (
        Caller(server.address, token_of("writer")) as writer,
        Caller(server.address, token_of("operator")) as operator,
    ):

        def refused(command: c.Command[Any], what: str) -> None:
            before = server.store.tables(), server.store.executor.tables.frame.command_number
            with pytest.raises(CapacityError, match=rf"'writer' has .* {what}, .* its limit"):
                writer.execute(command)
            after = server.store.tables(), server.store.executor.tables.frame.command_number
            assert before == after

        limit(server, path, "writer", sessions=1, tables=3)
        writer.execute(c.OpenSession("one", ("a/t",)))
        writer.execute(c.OpenSession("one", ("a/t",)))  # it is open: found again
        refused(c.OpenSession("two", ("a/u",)), "sessions")
        writer.execute(c.EndSession("one"))
        writer.execute(c.OpenSession("two", ("a/u",)))
        writer.execute(c.EndSession("two"))

        writer.execute(c.CreateTable(config("a/3")))
        writer.execute(c.CreateTable(config("a/3")))
        refused(c.CreateTable(config("a/4")), "tables")
        operator.execute(c.CreateTable(config("b/4")))
        operator.execute(c.DropTable("a/3"))
        writer.execute(c.CreateTable(config("a/4")))

        rows = 3 * config("a/t").rows
        limit(server, path, "writer", rows=rows + 10)
        writer.execute(c.GrowTable("a/t", None, config("a/t").rows + 10))
        refused(c.GrowTable("a/t", None, config("a/t").rows + 11), "rows")
        limit(server, path, "writer", disk_bytes=(rows + 11) * config("a/t").layout.record_bytes)
        writer.execute(c.GrowTable("a/t", None, config("a/t").rows + 11))
        refused(c.GrowTable("a/t", None, config("a/t").rows + 12), "disk bytes")


def test_announced_keys_have_a_bound_of_each(server, tmp_path):
    """Of all sessions of a token; the bytes of others are not its, nor its theirs."""
    rows = np.arange(10, dtype=np.int64)

    def member_of(caller: Caller, name: str) -> str:
        return f"the member of {name} {id(caller)}"

    def announced(caller: Caller, name: str, table: str, *steps: int) -> None:
        member = member_of(caller, name)
        caller.execute(c.OpenSession(name, (table,), lookahead_steps_max=8, shared=True))
        caller.execute(c.JoinSession(name, 0, member))
        caller.execute(c.Announce(member, tuple(_step(n, table, rows) for n in steps)))

    limit(server, tmp_path / "tokens.json", "writer", announced_bytes=3 * rows.nbytes)
    with (
        Caller(server.address, token_of("writer")) as writer,
        Caller(server.address, token_of("owner")) as owner,
        Caller(server.address, token_of("operator")) as operator,
    ):
        announced(writer, "one", "a/t", 1, 2)
        with pytest.raises(CapacityError, match=r"'writer' has room for 80 of 240 \(announced"):
            announced(writer, "two", "a/u", 1, 2)
        announced(writer, "two", "a/u", 1)
        announced(writer, "one", "a/t", 1, 2)  # sent again: nothing is new
        with pytest.raises(CapacityError, match="announced_bytes"):
            announced(writer, "one", "a/t", 3)
        announced(owner, "one", "a/t", 1, 2, 3, 4)
        announced(operator, "writer:three", "a/u")
        with pytest.raises(CapacityError, match="'writer' has room for 0"):
            announced(operator, "writer:three", "a/u", 1)
        announced(operator, "own", "a/u", 1)
        writer.execute(c.EndSession("one"))
        announced(writer, "two", "a/u", 2, 3)

    async def bounds() -> Any:
        most = server.service.engine.tables.limits.announced_bytes_max
        one_half = server.service.engine.sessions.announcing.owner_bytes_max
        assert most // 2 == one_half("owner") == one_half("") == one_half("nobody's")
        return process_stats(server.service, None)["owners"]

    owners = on_loop(bounds())
    assert owners["writer"]["announced_bytes"] == owners["writer"]["announced_bytes_max"] == 240
    assert owners["owner"]["announced_bytes"] == 320 and owners["operator"]["announced_bytes"] == 80


def test_open_scans_have_a_bound_of_each(server, tmp_path):
    """One caller had all 64, and nobody else could scan, export or move a table."""

    def scan(caller: Caller, number: int) -> None:
        caller.execute(c.OpenScan(f"scan of the number {number}", "a/t"))

    with (
        Caller(server.address, token_of("reader")) as reader,
        Caller(server.address, token_of("dashboard")) as quiet,
    ):
        for number in range(32):
            scan(reader, number)
        with pytest.raises(CapacityError, match=r"'reader' has 32 scans open.*\(scans\): close"):
            scan(reader, 32)
        scan(reader, 0)  # opened again, in place of the one before
        scan(quiet, 0)
        reader.execute(c.CloseScan("scan of the number 1", "a/t"))
        scan(reader, 32)
        limit(server, tmp_path / "tokens.json", "reader", scans=3)
        with pytest.raises(CapacityError, match="its limit of 3"):
            scan(reader, 33)

    async def reported() -> Any:
        return process_stats(server.service, None)["owners"]

    owners = on_loop(reported())
    assert (owners["reader"]["scans"], owners["reader"]["scans_max"]) == (32, 3)
    assert (owners["dashboard"]["scans"], owners["dashboard"]["scans_max"]) == (1, 32)


def test_the_bytes_of_scans_have_a_bound_of_each(server, tmp_path):
    """The first one of a caller is let through, however much it holds."""
    limit(server, tmp_path / "tokens.json", "reader", scan_bytes=48 * len(KEYS) + 1)
    with (
        Caller(server.address, token_of("operator")) as operator,
        Caller(server.address, token_of("reader")) as reader,
    ):
        operator.execute(update_of("a/t"))
        reader.execute(c.OpenScan("a scan of the table", "a/t"))
        with pytest.raises(CapacityError, match=r"scan_bytes of 'reader' \(97\): close one"):
            reader.execute(c.OpenScan("another one of the table", "a/t"))
        operator.execute(c.OpenScan("another one of the table", "a/t"))
        reader.execute(c.CloseScan("a scan of the table", "a/t"))
        reader.execute(c.OpenScan("another one of the table", "a/t"))


def test_a_scan_is_its_openers_alone(server):
    """Also for who knows its name, and may read its table."""
    with (
        Caller(server.address, token_of("operator")) as operator,
        Caller(server.address, token_of("reader")) as reader,
    ):
        reader.execute(c.OpenScan("a scan of the table", "a/t"))
        read = c.ReadScan("a scan of the table", "a/t", 0, 10)
        with pytest.raises(SessionExpiredError, match="expected an open scan"):
            operator.execute(read)
        operator.execute(c.CloseScan("a scan of the table", "a/t"))
        reader.execute(read)


@pytest.mark.parametrize("key_space", ["sparse", "dense"])
def test_pools_of_one_token_leave_half_of_the_cache(server, tmp_path, key_space):
    """61 wide sparse tables of one writer had all of 4 MiB, and nobody made a table any more."""

    def wide(name: str, number: int) -> c.CreateTable:
        how = {"optimizer": Sgd(0.1), "initializer": Constant(0.0), "key_space": key_space}
        rows = {"rows": 10} if key_space == "dense" else {}
        dim = 4096 - number  # dense tables of one width share a pool
        return c.CreateTable(TableConfig.checked(f"{name}/{number}", dim=dim, **rows, **how))

    def made(caller: Caller, name: str) -> tuple[int, CapacityError]:
        for number in range(100):
            try:
                caller.execute(wide(name, number))
            except CapacityError as exc:
                return number, exc
        raise AssertionError("all were made")

    with (
        Caller(server.address, token_of("writer")) as writer,
        Caller(server.address, token_of("operator")) as operator,
    ):
        count, refused = made(writer, "a")
        assert count > 0
        most = server.store.executor.tables.arena.budget_bytes // 2
        assert f"its limit of {most} (cache_bytes): drop tables" in str(refused)
        writer.execute(wide("a", count - 1))  # it is there
        writer.execute(c.CreateTable(config("a/as-a/t")))
        limit(server, tmp_path / "tokens.json", "writer", cache_bytes=2 * most)
        writer.execute(wide("a", count))
        others, refused = made(operator, "b")
        assert others > 0 and "larger cache_bytes" in str(refused)

    async def reported() -> Any:
        return process_stats(server.service, None)["owners"]

    owners = on_loop(reported())
    assert most < owners["writer"]["cache_bytes"] < owners["writer"]["cache_bytes_max"]
    assert owners["operator"]["cache_bytes_max"] is None


def _step(number: int, table: str, keys: Any) -> c.StepKeys:
    return c.StepKeys(number, (c.StepTable(table, keys),))


def test_tables_of_who_has_no_limits_are_not_looked_at(tmp_path, server, monkeypatch):
    """All were, for each table that was made: of 1,200 tables the last took 38 ms."""

    def looked(*what: Any) -> Any:
        raise AssertionError("tables were looked at")

    monkeypatch.setattr("embstore_server.access.shares._of_tables", looked)
    with Caller(server.address, token_of("operator")) as operator:
        operator.execute(c.CreateTable(config("a/9")))
        operator.execute(c.GrowTable("a/9", None, 2 * config("a/9").rows))
    limit(server, tmp_path / "tokens.json", "operator", tables=9)
    with Caller(server.address, token_of("operator")) as operator, pytest.raises(EmbstoreError):
        operator.execute(c.CreateTable(config("a/10")))


def test_limits_and_what_is_taken_are_reported(server, tmp_path):
    limit(server, tmp_path / "tokens.json", "writer", tables=3)

    async def reported() -> Any:
        return process_stats(server.service, None)["owners"]

    owners = on_loop(reported())
    writer = owners["writer"]
    assert (writer["tables"], writer["tables_max"], writer["rows"]) == (2, 3, 200)
    assert writer["queue_calls_max"] == int(QUEUE * SHARE) and writer["rows_max"] is None
    assert writer["inflight_bytes_max"] == int(server.service.inflight.bytes_max * SHARE)
    assert owners["operator"]["tables"] == 4 and owners["reader"]["tables"] == 0


def test_a_limit_that_is_not_understood_is_refused(tmp_path, server):
    with pytest.raises(EmbstoreError, match="expected a limit of queue_calls"):
        limit(server, tmp_path / "tokens.json", "writer", cows=3)
        read(tmp_path / "tokens.json")
