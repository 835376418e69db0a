"""A server for a demo: started for one job, and given up with it."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from embstore_server.demo.job import Job
from embstore_server.demo.phases import Phases
from embstore_server.demo.stores import TrainingStore

_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Served:
    """A store, and what is known of the way to it."""

    store: TrainingStore
    network_bytes: Callable[[], int] | None
    """Returns how many bytes of requests and replies there were so far; None: there are none."""


@contextmanager
def served(place: Path, job: Job, phases: Phases) -> Iterator[Served]:
    """Start a server and connect to it; both end with the block."""
    from embstore_client import connect  # here, as only a run needs them
    from embstore_server.launch import ServerProcess

    with ExitStack() as running:
        with phases.phase("starting the server") as advance:
            options = ("--cache-bytes", str(job.store_cache_bytes), "--policy", job.policy)
            server = running.enter_context(ServerProcess(place, *options))
            store = running.enter_context(connect(server.address))
            advance(1, f"gRPC {server.address}, REST {server.admin}")
        yield Served(store, partial(_network_bytes, server.admin))


def _network_bytes(admin: str) -> int:
    """Ask a server for the bytes of all its calls' messages, without headers of the transport."""
    direct = build_opener(ProxyHandler({}))
    with direct.open(f"http://{admin}/api/v1/stats", timeout=_TIMEOUT_S) as reply:
        verbs = json.load(reply)["verbs"]
    return sum(verb["received_bytes"] + verb["sent_bytes"] for verb in verbs.values())
