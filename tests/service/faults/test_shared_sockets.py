"""The socket of shared memory: whose it is, who may connect, and what clients do when it is gone.

Its end comes by a kill as well as in order, of the server as of its clients.
"""

import os
import signal
import socket
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count, islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore.errors import (
    DeadlineError,
    EmbstoreError,
    InvalidArgumentError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from embstore.handles.store import Store
from embstore_client import connect
from tests.service.access.tenants import serving, token_of, update_of
from tests.service.faults.ledger import Ledger, gradients, make_tables
from tests.service.faults.processes import ForkedServer
from tests.service.faults.served import PATIENCE_S, Served, until
from tests.service.faults.sharing import (
    TRANSPORT,
    Owned,
    RawSharer,
    await_owned,
    call_forever,
    connect_as_nobody,
    keys,
    lookup,
    make_wide,
    use_what_was_inherited,
)
from tests.serving import patient

SEED = 20_261_302
KILLS, SOAKED = 20, 1000
TICKS = 500
"""Of a signal, in ten seconds."""
COUNT = 2500


# Clients that are killed


def has_call_waiting(served: Served, reports: Connection) -> bool:
    """Take what a client has reported: with a full pipe it would make no other call."""
    while reports.poll():
        reports.recv()
    return bool(served.worker.waiting_calls)


def test_killed_clients_leave_nothing(forks, served, ledger, pytestconfig):
    """In the middle of their calls: some while the engine works, some while they wait for it."""
    sys.stdout.write(f"seed {SEED}\n")
    rng = np.random.default_rng(SEED)
    served.on_engine(make_wide)
    before = Owned.of(served)
    rounds = KILLS if pytestconfig.getoption("soak") == 1 else SOAKED
    for n in range(rounds):
        client = forks.start(call_forever, served.socket, COUNT)
        for _ in range(int(rng.integers(1, 6))):
            assert client.reports.poll(PATIENCE_S)
            client.reports.recv()
        if n % 4:
            assert client.kill() == -signal.SIGKILL
        else:
            with served.held():
                until(partial(has_call_waiting, served, client.reports))
                assert client.kill() == -signal.SIGKILL
                until(lambda: not served.service.traffic[TRANSPORT].connections)
        client.reports.close()
        await_owned(served, before)
        served.assert_free()
    ledger.first_command = served.store.command + 1
    with patient(f"unix:{served.socket}") as store:
        assert not store.lookup({"wide": keys(COUNT)})["wide"].any()
        ledger.acknowledged[0] = store.update(gradients(0)).command


def test_a_fork_of_a_client_cannot_harm_its_connections(forks, served):
    """Whatever the child does with what it has inherited: close it, call with it, or drop it."""
    served.on_engine(make_wide)
    client = forks.start(use_what_was_inherited, served.socket, COUNT)
    assert client.wait() == 0
    assert client.remaining() == ["StoreClosedError", True, True]
    until(lambda: Owned.of(served).connections == 0)


# Servers that are killed


def share_memory(store: Store, wire: Any) -> None:
    """Look for the server's shared memory until it is found."""
    while not wire.shares_memory:
        wire._is_lost, wire._looked = True, float("-inf")  # as if a second had passed
        store.tables()


def test_a_killed_server_is_waited_for_and_its_successor_shares_memory_again(forks, quick_path):
    """What was out at the kill is sent again, by the other way, and applied once."""
    ledger = Ledger()
    server = ForkedServer(forks, quick_path / "store", durability="commands")
    server.start()
    with connect(server.address, timeout_s=PATIENCE_S) as store:
        wire: Any = store.executor.transport.wire  # type: ignore[attr-defined]
        make_tables(store)
        numbers = count()
        share_memory(store, wire)  # on a busy machine the first look may come too early
        for n in islice(numbers, 3):
            ledger.acknowledged[n] = store.update(gradients(n)).command
            across = next(numbers)
            with ThreadPoolExecutor(1) as background:
                call = background.submit(store.update, gradients(across))
                server.kill()
                server.start()
                ledger.acknowledged[across] = call.result(PATIENCE_S).command
            after = next(numbers)
            ledger.acknowledged[after] = store.update(gradients(after)).command
            share_memory(store, wire)
        ledger.check(store)
        store.check_integrity()
    server.stop()


def test_a_client_of_a_socket_alone_finds_the_server_that_replaced_a_killed_one(forks, quick_path):
    ledger, path = Ledger(), quick_path / "store" / "socket"
    server = ForkedServer(forks, quick_path / "store", durability="commands")
    server.start()
    until(path.exists)
    with patient(f"unix:{path}") as store:
        make_tables(store)
        for n in range(6):
            ledger.acknowledged[n] = store.update(gradients(n)).command
            server.kill()
            assert stat.S_ISSOCK(path.lstat().st_mode)
            with pytest.raises(EmbstoreError):
                connect(f"unix:{path}", connect_timeout_s=0.1)
            server.start()
        ledger.check(store)
    server.stop()
    assert not path.exists()


# The file


def test_its_file_is_its_users_alone_and_gone_after_the_end(serve):
    served = serve()
    path = Path(served.socket)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    served.stop()
    assert not path.exists()


def test_a_file_that_is_no_socket_is_left_alone(quick_path):
    path = quick_path / "file"
    path.write_text("content")
    with pytest.raises(InvalidArgumentError, match="another kind of file"):
        Served(quick_path / "store", socket=str(path))
    assert path.read_text() == "content"


def test_a_name_that_is_too_long_for_a_socket_is_refused(quick_path):
    with pytest.raises(InvalidArgumentError, match="path too long; give another --socket"):
        Served(quick_path / "store", socket=str(quick_path / ("s" * 200)))


def test_a_socket_that_is_served_is_left_alone(served, quick_path):
    with pytest.raises(InvalidArgumentError, match="another server"):
        Served(quick_path / "other", socket=served.socket)
    with RawSharer(served.socket) as sharer:
        assert sharer.process == served.service.process


def test_a_socket_that_a_killed_server_left_is_replaced(serve, quick_path):
    path = quick_path / "left"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    assert path.exists()
    served = serve(socket=str(path))
    with RawSharer(path) as sharer:
        assert sharer.process == served.service.process


def test_a_socket_that_another_server_made_meanwhile_is_left_to_it(serve, quick_path):
    path = quick_path / "socket"
    first = serve("first", socket=str(path))
    path.unlink()
    second = serve("second", socket=str(path))
    first.stop()
    with RawSharer(path) as sharer:
        assert sharer.process == second.service.process


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_is_turned_away_whatever_the_files_mode(forks, served, quick_path):
    path = Path(served.socket)
    for open_to_all in (quick_path, path.parent, path):
        os.chmod(open_to_all, 0o777)
    before = Owned.of(served)
    child = forks.start(connect_as_nobody, served.socket)
    assert child.wait() == 0
    assert child.remaining() == ["connected", "ended"]
    await_owned(served, before)
    with RawSharer(path) as sharer:
        assert sharer.process == served.service.process


# Tokens


@pytest.mark.parametrize("token", ["", "nobody.x", "reader.wrong"])
def test_who_is_not_known_is_refused(token, tmp_path):
    with serving(tmp_path) as server:
        with pytest.raises(UnauthenticatedError):
            patient(f"unix:{server.socket}", token=token)
        authorization = f"Bearer {token}" if token else ""
        with RawSharer(server.socket, authorization) as sharer:
            assert sharer.ask_for(1 << 20).refusal.name == "UnauthenticatedError"
            assert sharer.execute(lookup(4, "a/t")).refusal.name == "UnauthenticatedError"
        assert server.service.traffic[TRANSPORT].segment_bytes == 0


def test_rights_are_those_of_the_token(tmp_path):
    with serving(tmp_path) as server, patient(server.address, token=token_of("operator")) as all_:
        address = f"unix:{server.socket}"
        digests = {name: all_.table(name).digest() for name in all_.tables()}
        with patient(address, token=token_of("reader")) as reader:
            assert reader.lookup({"a/t": keys(5)})["a/t"].shape[0] == 5
            with pytest.raises(PermissionDeniedError):
                reader.executor.execute(update_of("a/t"))
            with pytest.raises(PermissionDeniedError):
                reader.executor.execute(c.Lookup((c.TableKeys("b/t", None, keys(5)),)))
        assert {name: all_.table(name).digest() for name in all_.tables()} == digests
        with patient(address, token=token_of("writer")) as writer:
            assert writer.executor.execute(update_of("a/t")).t == {"a/t": 1}
            with pytest.raises(PermissionDeniedError):
                writer.executor.execute(update_of("b/t"))
        assert all_.table("b/t").digest() == digests["b/t"]


# Deadlines


def test_a_deadline_passes_however_often_signals_interrupt(served):
    """Each has the system begin to wait anew."""
    ticks = []

    def tick(*_: object) -> None:
        ticks.append(1)
        if len(ticks) >= TICKS:
            signal.setitimer(signal.ITIMER_REAL, 0)

    with connect(f"unix:{served.socket}", timeout_s=PATIENCE_S) as store, ExitStack() as held:
        store.lookup({"marks": [1]})
        held.enter_context(served.held())
        before = signal.signal(signal.SIGALRM, tick)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
            with pytest.raises(DeadlineError):
                store.executor.execute(lookup(10, "marks"), timeout_s=0.5)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert 0 < len(ticks) < TICKS
