"""The life of the server process: open, serve, drain, commit.

1. Both ports are bound before the store is opened, so that a port in use is said at once. Health
   says NOT_SERVING, and /readyz 503, until the store is open.
2. The engine thread opens the store, and both borders serve it, on one event loop.
   Where the settings say so, the cache is warmed then, in the background.
3. SIGTERM or SIGINT: new calls are refused, those that run or wait are finished within `drain_s`,
   the store is committed and closed, and the process ends with 0. A second signal changes nothing.
   One that comes while the store is being opened has its effect when it is open.
4. When the device is lost, so are the rows that only it held: health and /readyz say so, what runs
   or waits is refused within `drain_s`, nothing is committed, and the process ends with a status of
   its own (`cli.exits.DEVICE_FAILED`), because a new process may well get a device that works. A
   disk that fails is told in the same way, but the process stays: there a new one would not help.

The switch interval is lowered for the process: at the default of 5 ms the engine thread, back from
a kernel, waits for the interpreter while the loop is busy (measured in design.md, section 3).
"""

import asyncio
import logging
import signal
import sys
from time import monotonic

import embstore
from embstore_server import logs
from embstore_server.borders import GrpcBorder, rest_border
from embstore_server.logs import event
from embstore_server.metrics import Metrics
from embstore_server.service import Service
from embstore_server.settings import Settings
from embstore_server.worker import Worker

_SWITCH_INTERVAL_S = 1e-4


def serve(settings: Settings) -> int:
    """Serve a store until SIGTERM or SIGINT; return the exit status.

    Raises
    ------
    DeviceError : the device was lost; the store opens at its last checkpoint.
    EmbstoreError : the store or a port could not be opened, or not everything was committed.
    """
    logs.configure(settings)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    return asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    stop = _stop_signal()
    worker = Worker(lambda: _open(settings), settings.queue_calls_max)
    service = Service(settings, worker, Metrics())
    border = GrpcBorder(service)
    async with rest_border(service) as admin_address:
        event(logging.INFO, "starting", version=embstore.__version__, **settings.describe())
        await border.start()
        try:
            service.opened(await worker.start())
            if not stop.done():
                await border.ready()
                _say_ready(service, border.address, admin_address)
                if settings.warm_up:
                    service.warming.begin_at_start(settings.warm_up)
            await _asked_or_lost(stop, service)
            event(
                logging.INFO,
                "stopping",
                signal=stop.result() if stop.done() else None,
                running=worker.running.verb if worker.running else None,
                waiting_calls=worker.waiting_calls,
            )
        finally:
            service.stopping = True
            await border.stop(settings.drain_s)
            await worker.stop()
    if service.store.failure is not None:
        raise service.store.failure  # 0 says that everything is committed
    event(logging.INFO, "stopped", command=service.store.command)
    return 0


async def _asked_or_lost(stop: asyncio.Future[str], service: Service) -> None:
    """Wait until the process is asked to end, or has lost its device."""
    failing = asyncio.create_task(service.failed.wait())
    await asyncio.wait((stop, failing), return_when=asyncio.FIRST_COMPLETED)
    failing.cancel()
    if service.device_error is None:
        await stop


def _stop_signal() -> asyncio.Future[str]:
    """Return what is done, with the signal's name, when the process is asked to end."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[str] = loop.create_future()

    def asked(name: str) -> None:
        if not stop.done():
            stop.set_result(name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked, number.name)
    return stop


def _say_ready(service: Service, listen: str, admin: str) -> None:
    store = service.store
    event(
        logging.INFO,
        "ready",
        listen=listen,
        admin=admin,
        store_id=store.store_id,
        epoch=store.epoch,
        command=store.command,
    )


def _open(settings: Settings) -> embstore.Store:
    """Open the store with every kernel compiled: no caller is to wait for a compiler."""
    store = embstore.open(
        settings.data,
        device=settings.device,
        cache_bytes=settings.cache_bytes,
        policy=settings.policy,
        count_rate=settings.count_rate,
        checkpoints_keep=settings.checkpoints_keep,
        read_only=settings.read_only,
        threads=settings.threads,
    )
    begin = monotonic()
    note = "takes a while after an installation, then none"
    event(logging.INFO, "preparing kernels", device=store.device, note=note)
    store.warm_up()
    event(
        logging.INFO,
        "kernels prepared",
        device=store.device,
        model=store.device_facts["model"],
        seconds=round(monotonic() - begin, 2),
    )
    return store
