# ruff: noqa: RUF009 - the calls declare fields
"""The stats of the process: its state, its memory, and the calls of each verb.

Together with the stats of the store, these stats form the stats document of REST, and the metrics.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any, NamedTuple

import embstore
from embstore.engine.stats import StoreStats
from embstore.stats import counter, document, flag, gauge, info, inline, part, text
from embstore_server.access.principals import Principal
from embstore_server.access.shares import cache_bytes_max, used
from embstore_server.telemetry.verb_stats import VerbStats

if TYPE_CHECKING:
    from embstore_server.path.service import Service

_CLOCK_BEGAN = time() - monotonic()
"""The Unix time, in seconds, at which the monotonic clock was 0."""


@dataclass
class ServiceStats:
    """The state of the process."""

    version: str = info("Version of embstore.", lambda _: embstore.__version__, metric="build")
    instance: str = info("Id of the process's life: it changes with a restart.", metric="build")
    start_time_seconds: float = gauge(
        "Start of the service, in seconds since the Unix epoch.", lambda s: _CLOCK_BEGAN + s.started
    )
    uptime_s: float = gauge("Time since the service began.", lambda s: monotonic() - s.started)
    ready: bool = flag("Calls are served, writes too.", lambda s: not s.unready)
    reason: str = text("Why they are not; empty if they are.", lambda s: s.unready)
    queue_calls: int = gauge("Calls that wait for the engine.", lambda s: s.worker.waiting_calls)
    running_verb: str | None = text(
        "Verb that the engine works on.",
        lambda s: s.worker.running.verb if s.worker.running else None,
        metric="running_calls",
        label="verb",
    )
    inflight_bytes: int = gauge(
        "Size of requests and replies in flight.", lambda s: s.inflight.reserved_bytes
    )
    remembered_calls: int = gauge(
        "Answers kept for calls that are sent again.", lambda s: s.replay.remembered_calls
    )
    trace_spans: dict[str, int] = counter(
        "Spans by outcome: exported, failed (the collector did not take them), dropped "
        "(they found the queue full). Empty: no traces are made.",
        lambda s: s.metrics.traces.spans.copy() if s.metrics.traces else {},
        label="outcome",
        default=None,
    )


def _of_owner(name: str, help: str) -> Any:
    return gauge(help, lambda used: used.get(name, 0), metric=f"owner_{name}")


def _limit_of_owner(name: str) -> Any:
    what = name.replace("_", " ")
    return gauge(
        f"Limit of {what}; absent if there is no limit.",
        lambda used: used.get(f"{name}_max"),
        metric="owner_limit",
        labels={"limit": name},
    )


@dataclass
class OwnerStats:
    """One token's use of shared resources."""

    queue_calls: int = _of_owner("queue_calls", "Calls that wait for the engine.")
    inflight_bytes: int = _of_owner("inflight_bytes", "Size of requests and replies in flight.")
    sessions: int = _of_owner("sessions", "Open sessions.")
    announced_bytes: int = _of_owner("announced_bytes", "Size of the keys of announced steps.")
    scans: int = _of_owner("scans", "Open scans.")
    scan_bytes: int = _of_owner("scan_bytes", "Memory that those scans hold.")
    cache_bytes: int = _of_owner(
        "cache_bytes", "What the pools of its tables take before they have a row."
    )
    tables: int = _of_owner("tables", "Tables that it may write.")
    rows: int = _of_owner("rows", "Rows of those tables.")
    disk_bytes: int = _of_owner("disk_bytes", "What those rows take on disk, at most.")
    queue_calls_max: int | None = _limit_of_owner("queue_calls")
    call_bytes_max: int | None = _limit_of_owner("call_bytes")
    inflight_bytes_max: int | None = _limit_of_owner("inflight_bytes")
    sessions_max: int | None = _limit_of_owner("sessions")
    announced_bytes_max: int | None = _limit_of_owner("announced_bytes")
    scans_max: int | None = _limit_of_owner("scans")
    scan_bytes_max: int | None = _limit_of_owner("scan_bytes")
    cache_bytes_max: int | None = _limit_of_owner("cache_bytes")
    tables_max: int | None = _limit_of_owner("tables")
    rows_max: int | None = _limit_of_owner("rows")
    disk_bytes_max: int | None = _limit_of_owner("disk_bytes")


@dataclass
class TransportStats:
    """The traffic of one transport, since the process began."""

    calls: int = counter("Calls that have ended.")
    received_bytes: int = counter("Size of requests.")
    sent_bytes: int = counter("Size of replies.")
    copied_bytes: int = counter(
        "Bytes copied between shared memory and other memory of the process.",
        lambda t: t.copies.bytes,
    )
    connections: int | None = gauge("Connections; none where the transport does not say.")
    segment_bytes: int = gauge("Memory that is shared with clients.")
    device_segment_bytes: int = gauge("Memory of the GPU that is shared with clients.")


class Memory(NamedTuple):
    """The values from which `MemoryStats` is made."""

    store: dict[str, Any]
    inflight_bytes: int


def _memory(purpose: str, help: str, read: Any) -> Any:
    return gauge(help, read, metric="memory_bytes", labels={"purpose": purpose})


@dataclass
class MemoryStats:
    """Memory by purpose; the resident bytes of tables show how much of the cache each table
    occupies."""

    process_resident_bytes: int = _memory(
        "process", "RAM of the whole process.", lambda _: _resident_bytes()
    )
    cache_bytes: int = _memory(
        "cache", "Rows, their index and staging.", lambda m: m.store["cache"]["memory_bytes"]
    )
    host_cache_bytes: int = _memory(
        "host_cache",
        "Pinned memory of level two of a GPU's cache.",
        lambda m: m.store["cache"]["host_memory_bytes"],
    )
    log_index_bytes: int = _memory(
        "log_index", "Index of the log.", lambda m: m.store["storage"]["log_index_bytes"]
    )
    inflight_bytes: int = _memory(
        "inflight", "Requests and replies in flight.", lambda m: m.inflight_bytes
    )


@dataclass
class ScrapedStats:
    """The stats of the store at one command, and of the process directly after it."""

    service: ServiceStats = part("What the process is doing.", metric="")
    memory: MemoryStats = part("Memory by purpose.", metric="")
    owners: dict[str, OwnerStats] = part("Tokens, by name.", label="token")
    transports: dict[str, TransportStats] = part(
        "Transports, by name.", metric="transport", label="transport"
    )
    store: StoreStats = inline(lambda stats: stats)


@dataclass
class ServerStats:
    """All stats: the scraped stats, and the stats of calls, which
    `embstore_server.telemetry.metrics` counts."""

    scraped: ScrapedStats = inline(lambda stats: stats)
    verbs: dict[str, VerbStats] = part("Verbs that were called.", label="verb")


def process_stats(service: "Service", store: dict[str, Any] | None) -> dict[str, Any]:
    """Return the stats of the process, by the names in `ServerStats`.

    If the store's stats are missing, the stats of memory are missing as well.
    """
    found = {
        "service": document(ServiceStats, service),
        "owners": _owners(service),
        "transports": {
            name: document(TransportStats, traffic) for name, traffic in service.traffic.items()
        },
    }
    if store is not None:
        memory = Memory(store, service.inflight.reserved_bytes)
        found["memory"] = document(MemoryStats, memory)
    return found


def _owners(service: "Service") -> dict[str, Any]:
    if not service.is_open:
        return {}
    return {
        principal.name: document(OwnerStats, _used(service, principal))
        for principal in service.callers.known
    }


def _used(service: "Service", principal: Principal) -> dict[str, int | None]:
    name = principal.name
    limits = {
        **principal.limits,
        "announced_bytes": service.engine.sessions.announcing.owner_bytes_max(name),
        "scans": service.engine.scans.places.owner_scans_max(name),
        "scan_bytes": service.engine.scans.places.owner_bytes_max(name),
        "cache_bytes": cache_bytes_max(principal, service.engine),
    }
    now = {
        "queue_calls": service.worker.client_calls(name),
        "inflight_bytes": service.inflight.owned_bytes[name],
    }
    return now | used(principal, service.engine) | {f"{n}_max": c for n, c in limits.items()}


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
