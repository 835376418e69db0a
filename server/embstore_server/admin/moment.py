"""What the service is doing now, read at once on the event loop."""

import os
from pathlib import Path
from time import monotonic

import embstore
from embstore.store import Store
from embstore_server.metrics.state import State
from embstore_server.service import Service


def opened_store(service: Service) -> Store | None:
    """Return the store, None while it is being opened; a failed one is still opened."""
    return service.store if service.is_open else None


def uptime_s(service: Service) -> float:
    """Return the seconds since the service began."""
    return monotonic() - service.started


def running_verb(service: Service) -> str:
    """Return the verb that the engine thread works on, empty for none."""
    running = service.worker.running
    return running.verb if running else ""


def resident_bytes() -> int:
    """Return the memory that the process holds in RAM, of all purposes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def state_of(service: Service, started: float) -> State:
    """Return the moment as the metrics want it; `started` is in seconds since the Unix epoch."""
    store = opened_store(service)
    return State(
        version=embstore.__version__,
        instance=service.instance,
        started=started,
        ready=not service.not_ready,
        queue_calls=service.worker.waiting_calls,
        running_verb=running_verb(service),
        inflight_bytes=service.inflight.held_bytes,
        remembered_calls=service.once.remembered_calls,
        store_id=store.store_id if store else "",
        epoch=store.epoch if store else None,
        command=store.command if store else None,
    )
