"""The life of the server process, which opens, serves, drains and commits.

1. Both ports are bound before the store is opened, so that a port in use is an error at once. The
   health service returns NOT_SERVING, and /readyz 503, until the store is open.
2. The engine thread opens the store, and both ports serve it, on one event loop.
3. On SIGTERM or SIGINT, new calls are refused, and running and waiting calls are finished within
   `drain_s`. Then the store is committed and closed, and the process ends with status 0. A second
   signal changes nothing. If there is no disk space for the commit, it is tried again until
   `drain_s` is over (`path.disk_space`). A signal that arrives while the store is being opened
   takes effect when the store is open. A signal that arrives earlier, while kernels are compiled,
   ends the process at once, because nothing is open yet. On SIGHUP, tokens and certificates are
   read again.
4. If the device is lost, the rows that existed only on the device are lost. Health and /readyz
   report the loss, running and waiting calls are refused within `drain_s`, and nothing is
   committed. The process ends with a status of its own (`cli.exits.DEVICE_FAILED`), because a new
   process may get a device that works. A disk that fails is reported in the same way, but the
   process does not end, because a new process would not help.
"""

import asyncio
import faulthandler
import logging
import math
import os
import signal
import sys
import threading
from functools import partial
from time import monotonic

import embstore.device.cpu  # noqa: F401 - its kernels are compiled before the store is opened
from embstore.arithmetic.jit import compile_kernels
from embstore.engine.engine import Engine
from embstore.engine.opening import open_engine
from embstore.host.descriptors import raise_limit
from embstore.options import StoreOptions
from embstore_server.host.host import Host
from embstore_server.path.service import Service
from embstore_server.setup.settings import Settings
from embstore_server.telemetry import tracing
from embstore_server.telemetry.logs import event
from embstore_server.telemetry.metrics import Metrics
from embstore_server.transports.grpc.port import GrpcServer
from embstore_server.transports.rest.serving import rest_server
from embstore_server.transports.shared_memory.port import SharedMemoryPort

_LOST = (
    "acknowledged commands may be among them: a new epoch has begun, and clients get an error "
    "that says so"
)
_PROGRESS_EVERY_S = 2.0
_SWITCH_INTERVAL_S = 1e-4
"""Seconds between two switches of Python threads. With the default of 5 ms, an engine thread that
returns from a kernel would wait that long for a busy event loop."""


def serve(settings: Settings) -> int:
    """Serve a store until SIGTERM or SIGINT; return the exit status.

    Raises DeviceError if the device was lost; the next start opens the store at its last
    checkpoint. Raises EmbstoreError if the store or a port could not be opened, or if not
    everything was committed.
    """
    if sys.stderr is not None:  # nothing else reports that a mapped file was truncated
        faulthandler.enable()
    raise_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    metrics = Metrics()
    metrics.traces = tracing.begun(os.environ)
    try:
        return asyncio.run(_serve(settings, metrics))
    finally:
        if metrics.traces is not None:
            metrics.traces.stop()


async def _serve(settings: Settings, metrics: Metrics) -> int:
    stop = _stop_signal()
    loop = asyncio.get_running_loop()
    compiled = threading.Event()

    def opened() -> Engine:
        _compile(service)
        compiled.set()
        engine = _open(settings)
        engine.commits.after_each = partial(_after_commit, engine, service, loop)
        engine.scrubber.found.after_problem = _after_problem
        return engine

    host = Host(settings, opened, metrics)
    service = host.service
    loop.add_signal_handler(signal.SIGHUP, service.reload)
    server = GrpcServer(service, host.standbys)
    async with rest_server(service) as admin_address:
        await server.start()
        watching: asyncio.Task[None] | None = None
        sharing: SharedMemoryPort | None = None
        try:
            await _open_or_leave(host, stop, compiled)
            # not earlier: the socket may be in the store's directory, which opening may have made
            sharing = SharedMemoryPort(service)
            if not stop.done():
                if service.engine.lost:
                    event(logging.ERROR, "commands lost", reason=service.engine.lost, note=_LOST)
                await service.disk_space.look()
                watching = asyncio.create_task(service.disk_space.watch())
                await server.ready()
                _say_ready(service, server.address, admin_address, sharing.path)
                if settings.warm_up:
                    service.warming.begin_at_start(settings.warm_up)
            await _asked_or_lost(stop, service)
            worker = service.worker
            event(
                logging.INFO,
                "stopping",
                signal=stop.result() if stop.done() else None,
                running=worker.running.verb if worker.running else None,
                waiting_calls=worker.waiting_calls,
            )
        finally:
            until = monotonic() + settings.drain_s
            service.stopping = True
            await server.stop(settings.drain_s)
            if sharing is not None:
                sharing.close()
            if watching is not None:
                watching.cancel()
                await service.disk_space.commit(until)
            await host.stop()
    if service.failure is not None:
        raise service.failure  # status 0 means that everything is committed
    event(logging.INFO, "stopped", command=service.engine.tables.frame.command_number)
    return 0


def _say_ready(service: Service, listen: str, admin: str | None, socket: str | None) -> None:
    state, engine = service.context(), service.engine
    event(
        logging.INFO,
        "ready",
        listen=listen,
        admin=admin,
        socket=socket,
        store_id=state.store_id,
        epoch=state.epoch,
        command=state.command,
        durability=service.settings.durability,
        commit_every_s=service.settings.commit_every_s,
        replayed_commands=engine.recovered_commands,
        replay_s=round(engine.recovered_s, 3),
    )


async def _open_or_leave(host: Host, stop: asyncio.Future[str], compiled: threading.Event) -> None:
    """Open the store; if a signal requests the end while kernels are compiled, end the process."""
    opening = asyncio.create_task(host.open())
    await asyncio.wait((opening, stop), return_when=asyncio.FIRST_COMPLETED)
    if stop.done() and not opening.done() and not compiled.is_set():
        event(logging.INFO, "stopped", signal=stop.result(), note="nothing was open")
        os._exit(0)  # no thread can be made to leave the compiler
    await opening


async def _asked_or_lost(stop: asyncio.Future[str], service: Service) -> None:
    """Wait until a signal requests the end of the process, or the device is lost."""
    failing = asyncio.create_task(service.failed.wait())
    await asyncio.wait((stop, failing), return_when=asyncio.FIRST_COMPLETED)
    failing.cancel()
    if service.device_error is None:
        await stop


def _stop_signal() -> asyncio.Future[str]:
    """Return a future that gets a signal's name when the signal requests the end of the process."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[str] = loop.create_future()

    def asked(name: str) -> None:
        if not stop.done():
            stop.set_result(name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked, number.name)
    return stop


def _compile(service: Service) -> None:
    """Load the kernels of the host, or compile them, so that no caller waits for a compiler."""
    begin = monotonic()
    said_at = -math.inf

    def progress(done: int, of: int) -> None:
        nonlocal said_at
        service.preparing = f"compiling kernels: {done} of {of}, once after an installation"
        if monotonic() - said_at >= _PROGRESS_EVERY_S or done == of:
            said_at = monotonic()
            kernels, note = f"{done} of {of}", "once after an installation; see `embstore compile`"
            event(logging.INFO, "preparing kernels", kernels=kernels, note=note)

    compile_kernels(progress)
    service.preparing = ""
    event(logging.INFO, "kernels prepared", seconds=round(monotonic() - begin, 2))


def _open(settings: Settings) -> Engine:
    """Open the store, with every kernel of its device compiled."""
    options = settings.store_options()
    del options["warm_up"]  # the server itself warms the cache, when it is ready
    engine = open_engine(settings.data, StoreOptions(**options))
    engine.warm_up()
    engine.backups.within = settings.backup_within
    event(
        logging.INFO,
        "opened",
        device=engine.device.name,
        model=engine.device_facts["model"],
        cache_bytes=engine.tables.arena.budget_bytes,
        host_cache_bytes=engine.tables.host_cache.budget_bytes,
        host_cache=engine.tables.host_cache.reason,
    )
    return engine


def _after_commit(engine: Engine, service: Service, loop: asyncio.AbstractEventLoop) -> None:
    """Log a commit that the store made by itself, or the error of such a commit. Runs in the thread
    of commits."""
    commits = engine.commits
    if commits.error is not None:
        note = f"the last one was {commits.age_s:.0f} s ago"
        event(logging.ERROR, "commit failed", error=commits.error, note=note)
        loop.call_soon_threadsafe(service.notice_failure)
        return
    command = engine.storage.catalogue.head.command
    event(logging.INFO, "committed", command=command, seconds=round(commits.seconds, 3))


def _after_problem(found: list[str]) -> None:
    """Log the damage of a file. Runs in the thread that checks files."""
    note = "embstore verify shows all; restore a backup"
    event(logging.ERROR, "damage found", problems=found, note=note)
