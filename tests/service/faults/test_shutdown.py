"""How a server begins and ends: drained, committed, status 0; and why it would not begin."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

import embstore
from embstore.config import Constant, Sgd
from embstore.errors import StoreClosedError
from embstore_client import connect
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.setup.launch import ServerProcess
from tests.service.faults.ledger import Ledger, gradients, make_tables
from tests.service.faults.processes import free_port
from tests.service.faults.served import PATIENCE_S, until
from tests.service.faults.wire import Sender, Wire, acknowledged, lookup, refusal, update

ANY: Any = {"optimizer": Sgd(0.1), "initializer": Constant(0.0)}
FAR_S = 3600.0
"""Longer than any test waits."""


# The end


def test_calls_in_the_queue_are_finished(serve, served, wire):
    ledger, calls = Ledger(), {}
    with served.held():
        for n in range(8):
            calls[n] = wire.begin("Update", update(gradients(n)).joined())
        served.await_queue(8)
        stopping = threading.Thread(target=served.stop)
        stopping.start()
        until(lambda: served.service.stopping)
        late = wire.begin("Update", update(gradients(8)).joined())
    stopping.join()
    ledger.acknowledged = {n: acknowledged(c.result()).context.command for n, c in calls.items()}
    # By the server's own answer, or by gRPC's as it ends: a client sends both again.
    assert late.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    with serve().connect() as store:
        ledger.check(store)


def test_calls_beyond_the_drain_time_are_cut_off(serve):
    served = serve(drain_s=0.05)
    served.on_engine(make_tables)
    with Wire(served.address) as wire:
        with served.held():
            call = wire.begin("Update", update(gradients(1)).joined())
            served.await_queue(1)
            stopping = threading.Thread(target=served.stop)
            stopping.start()
            assert refusal(call.result).code == "UNAVAILABLE"
            served.await_queue(0)
        stopping.join()
    with serve().connect() as store:
        Ledger().check(store)


@pytest.mark.parametrize("opened", ["nothing", "connection", "health", "reflection"])
def test_nobody_who_only_listens_delays_the_end(opened, serve):
    served = serve(drain_s=FAR_S)
    channel = grpc.insecure_channel(served.address)
    calls: list[Any] = []
    if opened == "connection":
        grpc.channel_ready_future(channel).result(PATIENCE_S)
    if opened == "health":
        calls.append(health_pb2_grpc.HealthStub(channel).Watch(HealthCheckRequest()))
        assert next(calls[0]).status == HealthCheckResponse.SERVING
    if opened == "reflection":
        name = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        over = threading.Event()
        calls.append(channel.stream_stream(name)(iter(over.wait, True)))
        until(lambda: calls[0].initial_metadata is not None)
    served.stop()
    if opened == "health":
        with pytest.raises(grpc.RpcError):
            while True:
                assert next(calls[0]).status == HealthCheckResponse.NOT_SERVING
    channel.close()


def test_client_of_a_stopping_server_tries_the_next(serve, quick_path):
    """What the first server refused it has surely not done: the second one takes it."""
    served = serve()
    served.on_engine(make_tables)
    with served.connect() as store:
        ledger = Ledger({0: store.update(gradients(0)).command})
        served.service.stopping = True
        done: list[int] = []
        waiting = threading.Thread(target=lambda: done.append(store.update(gradients(1)).command))
        waiting.start()
        until(lambda: served.answered("Update", "UNAVAILABLE") >= 1)
        served.service.instance = served.service.replay._instance = "another"  # as after a restart
        served.service.stopping = False
        waiting.join()
        ledger.acknowledged[1] = done[0]
        ledger.check(store)


# The beginning


def test_calls_before_the_store_is_open_may_be_sent_again(serve):
    served = serve()
    served.on_engine(make_tables)
    engine, served.service._engine = served.service._engine, None
    with Wire(served.address) as wire:
        origin = pb.Origin(client_id="a", sequence=1)
        message = update(gradients(1), origin)
        for name, request in {"GetServerInfo": b"", "Update": message.joined()}.items():
            found = refusal(lambda n=name, r=request: wire.unary(n, r))
            assert (found.code, found.error) == ("UNAVAILABLE", "StoreClosedError")
            assert "starting" in found.text
        assert refusal(lambda: wire.stream("Update", message.chunks())).error == "StoreClosedError"
        served.service._engine = engine
        assert acknowledged(wire.unary("Update", message.joined())).context.command == 3
        assert Sender(wire).context.command == 3


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from embstore_server.host import app
from embstore_server.telemetry import logs
from embstore_server.setup.settings import Settings

opening = app._open

def interrupted(settings):
    os.kill(os.getpid(), signal.SIGTERM)
    return opening(settings)

app._open = interrupted
settings = Settings(data=Path(sys.argv[1]), listen="127.0.0.1:0", admin="127.0.0.1:0")
logs.configure(settings)
sys.exit(app.serve(settings))
"""


def test_signal_while_the_store_is_opened_ends_the_process_in_order(quick_path):
    command = [sys.executable, "-c", INTERRUPTED, str(quick_path / "store")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=FAR_S)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert " stopped " in ended.stderr and " ready " not in ended.stderr
    with embstore.open(quick_path / "store") as store:
        assert store.tables() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_signal_as_soon_as_it_says_anything(number, quick_path):
    options = ["--data", str(quick_path / "store"), "--listen", "127.0.0.1:0", "--admin", "off"]
    command = [sys.executable, "-m", "embstore_server", "serve", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(FAR_S) == 0, first + rest
    assert " starting " in first
    assert "Traceback" not in rest


# A process and what it is given


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    path = tmp_path_factory.mktemp("running") / "store"
    with ServerProcess(path, "--cache-bytes", "4MiB") as server:
        yield server, path


def test_directory_in_use_is_said(running):
    with pytest.raises(StoreClosedError, match="status 5") as caught:
        ServerProcess(running[1]).start()
    assert str(running[1]) in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("option", ["--listen", "--admin"])
def test_port_in_use_names_the_option(option, running, quick_path):
    address = running[0].address if option == "--listen" else running[0].admin
    with pytest.raises(StoreClosedError, match="status 2") as caught:
        ServerProcess(quick_path / "store", option, address).start()
    assert option in str(caught.value) and address in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert not (quick_path / "store").exists(), "nothing was opened"


def test_a_file_that_is_cut_short_under_a_server_ends_it_with_a_word(quick_path):
    """The map of the file has no pages there any more, so the system ends the process."""
    keys = np.arange(30_000)
    with ServerProcess(quick_path / "store", "--cache-bytes", "1MiB") as server:
        with connect(server.address, timeout_s=PATIENCE_S) as store:
            table = store.create_table("a", dim=32, rows=len(keys), **ANY)
            table.update(keys, np.ones((len(keys), 32), np.float32))
            store.checkpoint("one")
            for file in (*quick_path.glob("store/log/*"), *quick_path.glob("store/base/*")):
                os.truncate(file, 4096)
        with Wire(server.address) as wire:
            found = refusal(lambda: wire.unary("Lookup", lookup({"a": keys}).joined()))
        assert found.code == "UNAVAILABLE"
        assert server.stop() == -signal.SIGBUS
    assert any("Bus error" in line for line in server.log)


def test_a_server_without_standard_error_serves(quick_path):
    """It says nothing then; its port is known from its flags."""
    address = f"127.0.0.1:{free_port()}"
    command = f"exec {sys.executable} -m embstore_server serve --data {quick_path / 'store'}"
    command += f" --listen {address} --admin off --cache-bytes 4MiB 2>&-"
    with subprocess.Popen(["sh", "-c", command]) as process:
        with connect(address, timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S) as store:
            assert store.tables() == []
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
