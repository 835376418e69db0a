"""The first minutes of a server: what it says while it starts, who waits for it, and what a start
costs."""

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from grpc import StatusCode

import embstore
from embstore.device.gpu import GpuDevice
from embstore.engine import opening
from embstore.errors import DeadlineError, StoreClosedError
from embstore_client import connect, transport
from embstore_client.wire import WireError
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_proto.verbs import VERBS, Outgoing
from embstore_server.host import app
from embstore_server.host.host import Host
from embstore_server.setup.settings import Settings
from embstore_server.telemetry.metrics import Metrics
from embstore_server.transports.rest.app import make_rest
from embstore_server.transports.rest.serving import DeferredApp
from tests.bench.start import start
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.service.faults.processes import free_port
from tests.service.faults.wire import Wire, refusal
from tests.style.sources import ROOT

WAIT_S = 300.0
PROGRESS = "compiling kernels: 23 of 57, once after an installation"
MODULES_MAX = 950
"""Of a server that is ready, with what Typer imports. Numba has 570, FastAPI and Starlette 70."""
FREE = "--listen 127.0.0.1:0 --admin 127.0.0.1:0".split()


class Starting:
    """A wire to a server that answers each call by the next of these, at last by the last."""

    def __init__(self, *errors: StoreClosedError | None) -> None:
        self.errors = list(errors)

    def send(self, *_: Any) -> bytes:
        error = self.errors.pop(0) if self.errors[1:] else self.errors[0]
        raise WireError(StatusCode.UNAVAILABLE, "nothing listens there", error)


def test_a_start_is_waited_for_as_long_as_it_gets_on(monkeypatch, caplog):
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 4.0

    monkeypatch.setattr(transport, "monotonic", lambda: now)
    monkeypatch.setattr(transport, "sleep", sleep)
    request = Outgoing(pb.GetServerInfoRequest(), None)
    steps = [StoreClosedError(f"compiling kernels: {done} of 57") for done in range(50)]

    def ended(match: str, *answers: StoreClosedError | None) -> float:
        nonlocal now
        now = 0.0
        wire: Any = Starting(*answers)
        way = transport.Transport(wire, "a:1", timeout_s=60.0)
        with pytest.raises(DeadlineError, match=match):
            way.send(VERBS["GetServerInfo"], request, timeout_s=10.0)
        return now

    absent, stuck = "within 10 s.*nothing listens there", "kernels: .* of 57.*see the server's log"
    assert ended(absent, None) == 12.0
    assert ended(stuck, steps[0]) == 60.0  # from its first answer on
    caplog.clear()
    assert ended(stuck, *steps) == 4.0 * 49 + 60.0  # from its last progress on
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "waiting for the server: compiling kernels: 2 of 57"
    assert len(said) == (4 * 49 + 60) // 8  # of answers 4 s apart, every 5 s
    assert ended(absent, steps[0], None) == 16.0  # from its end on


@contextmanager
def serving(data: Path, *options: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "embstore_server", "serve", "--data", str(data), *options]
    with subprocess.Popen(
        [*command, "--log-format", "json"],
        stderr=subprocess.PIPE, env=os.environ | environment, text=True, cwd=data.parent,
    ) as server:  # fmt: skip
        try:
            yield server
        finally:
            server.kill()


def entries(server: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    assert server.stderr is not None
    return map(json.loads, server.stderr)


def test_a_first_start_says_how_far_it_is_and_ends_at_once_at_sigterm(tmp_path):
    listen, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
    nothing = {"XDG_CACHE_HOME": str(tmp_path / "compiled"), "NUMBA_CPU_NAME": "x86-64-v2"}
    options = ["--listen", listen, "--admin", admin]
    with serving(tmp_path / "store", *options, **nothing) as server:
        log = entries(server)
        first = next(log)
        assert (first["event"], first["version"]) == ("starting", embstore.__version__)
        said = next(entry for entry in log if entry["event"] == "preparing kernels")
        done, _, of = said["kernels"].partition(" of ")
        assert (int(done), int(of) > 50) == (0, True)
        with Wire(listen) as wire:
            refused = refusal(lambda: wire.unary("GetServerInfo", b"")).text
        for text in (
            httpx.get(f"http://{admin}/readyz", trust_env=False, timeout=WAIT_S).text,
            refused,
        ):
            assert re.search(rf"compiling kernels: \d+ of {of}, once after an installation", text)
        server.send_signal(signal.SIGTERM)
        rest = list(log)
        assert server.wait(WAIT_S) == 0
    assert rest[-1]["note"] == "nothing was open"
    assert "kernels prepared" not in [entry["event"] for entry in rest]
    assert not (tmp_path / "store").exists()


def test_the_log_says_how_large_level_two_may_be_and_why(tmp_path, monkeypatch, caplog):
    gpu = GpuDevice(EmulatedRuntime(), 1)
    monkeypatch.setattr(opening, "open_device", lambda *_: gpu)
    monkeypatch.setattr(opening, "free_bytes", lambda: 1 << 30)
    caplog.set_level(logging.INFO, "embstore")
    app._open(Settings(data=tmp_path / "store", device="cuda")).close()
    (said,) = (vars(one) for one in caplog.records if one.getMessage() == "opened")
    assert said["embstore_fields"]["host_cache_bytes"] == 1 << 28
    assert said["embstore_fields"]["host_cache"].startswith("a quarter of the host's free memory")


def test_a_server_is_ready_without_what_only_compilers_and_rest_need():
    _, modules = start()
    assert not {"numba", "fastapi", "starlette"} & modules
    assert len(modules) <= MODULES_MAX


async def answer_of(app: Any, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    """Return how an application of ASGI answers."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        answer = await client.request(method, path, headers=headers)
        return answer.status_code, answer.content


def test_probes_are_answered_as_the_application_does_that_is_not_made_for_them(tmp_path):
    async def compared() -> None:
        service = Host(Settings(tmp_path / "store"), lambda: None, Metrics()).service  # type: ignore
        late, whole = DeferredApp(service), make_rest(service)
        for preparing in ("", PROGRESS):
            service.preparing = preparing
            for path in ("/healthz", "/readyz"):
                for method in ("GET", "HEAD"):
                    found = await answer_of(late, path, method)
                    assert found == await answer_of(whole, path, method)
        assert late._made is None
        found = await answer_of(late, "/healthz", host="evil.example")
        assert found[0] == 403
        assert late._made is not None
        assert await answer_of(late, "/healthz") == (200, b'{"status":"ok"}')
        assert (await answer_of(late, "/api/v1/server"))[0] == 503

    asyncio.run(compared())


def test_connect_at_once_works_at_the_first_try_after_an_installation(tmp_path):
    """Kernels of one folder are compiled: of all it takes a minute of processor time."""
    for part in ("embstore", "server", "client", "proto"):
        left_out = shutil.ignore_patterns("embstore.storage.*", "__pycache__")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=left_out)
    path = os.pathsep.join(str(tmp_path / part) for part in (".", "server", "client", "proto"))
    listen = f"127.0.0.1:{free_port()}"
    options = ["--listen", listen, "--admin", "127.0.0.1:0"]
    sources = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "none")}
    with serving(tmp_path / "store", *options, **sources) as server:
        with connect(listen, connect_timeout_s=WAIT_S) as store:  # the default of timeout_s
            assert store.tables() == []
        log = []
        for entry in entries(server):
            log.append(entry)
            if entry["event"] == "ready":
                break
    said = [entry["kernels"] for entry in log if entry["event"] == "preparing kernels"]
    kept, _, of = said[0].partition(" of ")
    assert int(kept) < int(of) - 9
    assert said[-1] == f"{of} of {of}"
    assert len(said) > 3
    assert len(list((tmp_path / "embstore/kernels/portable").glob("*.nbc"))) >= int(of)
