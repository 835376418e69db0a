"""Real servers inside the test's process: engine thread, service and gRPC border, on loopback.

To start a process for every store would cost seconds each; here it is milliseconds, and what
happens on the engine thread can be looked into. What is left out is the life of the process: its
settings, signals, log and REST.

All servers share one event loop, on a thread that lives as long as the process: gRPC's asyncio
layer has one poller a process, and wakes every loop that ever used it.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

from embstore.handles.store import Store
from embstore_client import connect
from embstore_server.host.host import Host
from embstore_server.setup.settings import Settings
from embstore_server.telemetry.metrics import Metrics
from embstore_server.telemetry.tracing import Traces
from embstore_server.transports.grpc.port import GrpcServer
from embstore_server.transports.shared_memory.port import SharedMemoryPort

_TIMEOUT_S = 300.0


def patient(address: str, **options: Any) -> Store:
    """Connect as a user does, but for a machine that is busy, or compiles kernels first; over gRPC
    unless something else is asked for."""
    patience = {"timeout_s": _TIMEOUT_S, "connect_timeout_s": _TIMEOUT_S}
    transport = "auto" if address.startswith("unix:") else "grpc"
    return connect(address, **{"transport": transport} | patience | options)


def free_addresses(count: int) -> list[str]:
    """Return addresses of loopback that nobody listens at."""
    with ExitStack() as open_sockets:
        made = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in made:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in made]


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """Return the loop that all servers of this process run on, started when first asked for."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="event loop", daemon=True).start()
    return loop


def on_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on the event loop's thread, and return what it returns."""
    return asyncio.run_coroutine_threadsafe(coroutine, event_loop()).result(_TIMEOUT_S)


class Server:
    """A served store; a context manager. `open_store` is called on the engine thread.

    `address` is where gRPC listens. Errors of opening are raised as they are, and nothing is left
    running then. `settings` are more of embstore_server's; `traces` is where calls go as spans.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        data: Path,
        traces: Traces | None = None,
        **settings: Any,
    ) -> None:
        self._settings = Settings(data, **({"listen": "127.0.0.1:0", "admin": "off"} | settings))
        self._open_store = open_store
        self._metrics = Metrics()
        self._metrics.traces = traces
        self._lock = threading.Lock()
        self._stopped = False
        self.address = ""
        on_loop(self._start())

    async def _start(self) -> None:
        def open_engine() -> Any:
            return self._open_store().executor

        self._host = Host(self._settings, open_engine, self._metrics)
        self.service = self._host.service
        await self._host.open()
        self._server = GrpcServer(self.service, self._host.standbys)
        self.sharing = SharedMemoryPort(self.service)
        self.address, self.socket = self._server.address, self.sharing.path
        await self._server.start()
        await self._server.ready()

    @property
    def store(self) -> Store:
        """The served store, to be looked into; calls on it go by `on_engine`."""
        return self.service.store

    def on_engine(self, work: Callable[[Store], Any]) -> Any:
        """Do work on the engine thread, in its turn, and return its result."""
        return on_loop(self._submit(work))

    async def _submit(self, work: Callable[[Store], Any]) -> Any:
        deadline = monotonic() + _TIMEOUT_S
        task = self.service.worker.submit(
            "test", lambda engine: work(Store(engine)), client="test", deadline=deadline
        )
        return await task.outcome

    def stop(self) -> None:
        """Answer the calls that run, refuse others, commit and close, as SIGTERM does."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                on_loop(self._stop())

    async def _stop(self) -> None:
        self.service.stopping = True
        await self._server.stop(self._settings.drain_s)
        self.sharing.close()
        await self._host.stop()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
