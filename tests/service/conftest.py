"""What tests of the service share; `server` is what a module says, or one of "ads" and "users"."""

import asyncio
from collections.abc import Callable, Iterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import grpc
import pytest

from embstore.handles.store import Store
from embstore_client import connect
from embstore_proto.v1.embstore_pb2_grpc import EmbstoreStub
from tests.service.faults.served import Served
from tests.service.frequency_samples import PATIENCE_S, Serving, add
from tests.service.rest import Rest, filled
from tests.service.rest import serving as rest_of
from tests.service.shell import Shell
from tests.serving import Server


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a store with "ads" (1000 rows) and "ads/stats" (50)."""
    return filled(tmp_path / "store")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "rest(**settings): of the service behind the fixture rest")


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """An event loop; a test that is a coroutine, and has this fixture, runs on it."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def rest(data: Path, runner: asyncio.Runner, request: pytest.FixtureRequest) -> Iterator[Rest]:
    """A service behind REST."""
    mark = request.node.get_closest_marker("rest")
    service = rest_of(data, **(mark.kwargs if mark else {}))
    yield runner.run(service.__aenter__())
    runner.run(service.__aexit__(None, None, None))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    pyfuncitem.funcargs["runner"].run(test)
    return True


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    return Serving(tmp_path / "store")


@pytest.fixture
def server(serving: Serving) -> Iterator[Served]:
    with serving() as server:
        for name in ("ads", "users"):
            add(server.store, name)
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Store]:
    with connect(server.address, timeout_s=PATIENCE_S) as client:
        yield client


@pytest.fixture
def stub(server: Server) -> Iterator[Any]:
    """A client of generated code."""
    with grpc.insecure_channel(server.address) as channel:
        made: Callable[[Any], Any] = EmbstoreStub
        yield made(channel)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(capsys, monkeypatch)


@pytest.fixture
def typed(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """A shell whose commands go to the server."""
    return Shell(capsys, monkeypatch, ["--address", server.address])
