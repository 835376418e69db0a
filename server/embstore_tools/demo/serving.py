"""The store that a demo trains. It is on the demo's own server or cluster, or it is a running
store. If the model is on a GPU, the store is in this process, on that GPU.

A cluster has two shards on this machine, on Ray. The shards share the cache budget that a single
server would have. A running store must not have tables with the names of the demo's tables. The
demo creates its tables, and drops them afterwards, together with its checkpoint.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.request import ProxyHandler, build_opener

from embstore.errors import CheckpointNotFoundError, InvalidArgumentError, TableNotFoundError
from embstore_tools.demo.job import Job
from embstore_tools.demo.phases import Phases

if TYPE_CHECKING:
    from embstore.handles.store import Store

CHECKPOINT_LABEL = "trained"
SHARDS = 2
"""Number of shards of the demo's own cluster."""
_TIMEOUT_S = 60.0


class Served(NamedTuple):
    """A store, and its network traffic."""

    store: "Store"
    network_bytes: Callable[[], int] | None
    """Returns the bytes of requests and replies so far. None: they are not counted."""


@contextmanager
def served(
    place: Path,
    job: Job,
    phases: Phases,
    *,
    counts_all: bool = False,
    is_cluster: bool = False,
    address: str | None = None,
) -> Iterator[Served]:
    """Connect to the store at `address`, or to a store that this function starts, and that ends
    with the block.

    Parameters
    ----------
    counts_all : whether a store that this function starts counts the keys of all lookups, for a
        report
    is_cluster : start a cluster instead of a server
    """
    with ExitStack() as running:
        if address is not None:
            yield running.enter_context(_at(address, job))
            return
        what, start = ("cluster", _cluster) if is_cluster else ("server", _server)
        if job.device != "cpu":
            what, start = "store", _embedded
        with phases.phase(f"starting the {what}") as advance:
            found, where = running.enter_context(start(place, job, counts_all))
            advance(1, where)
        yield found


@contextmanager
def _server(place: Path, job: Job, counts_all: bool) -> Iterator[tuple[Served, str]]:
    from embstore_client import connect  # here, because only a run needs it
    from embstore_server.setup.launch import ServerProcess

    options = ["--cache-bytes", str(job.store_cache_bytes), *_options(job, counts_all)]
    with ServerProcess(place, *options) as server, connect(server.address) as store:
        where = f"gRPC {server.address}, REST {server.admin}"
        yield Served(store, partial(_network_bytes, (server.admin,))), where


@contextmanager
def _embedded(place: Path, job: Job, counts_all: bool) -> Iterator[tuple[Served, str]]:
    import embstore  # here, because only a run needs it

    device = job.device if ":" in job.device else f"{job.device}:0"
    with embstore.open(
        place,
        device=device,
        cache_bytes=job.store_cache_bytes,
        policy=job.policy,
        count_rate=1.0 if counts_all else 0.0,
    ) as store:
        yield Served(store, None), f"embedded in this process, on {device}"


@contextmanager
def _cluster(place: Path, job: Job, counts_all: bool) -> Iterator[tuple[Served, str]]:
    import embstore_cluster  # here, because only a run needs it
    from embstore_client import connect

    share = -(-job.store_cache_bytes // SHARDS)
    flags = _options(job, counts_all)
    cluster = embstore_cluster.start(shards=SHARDS, data=place, cache_bytes=share, flags=flags)
    try:
        with connect(cluster.address) as store:
            where = f"{SHARDS} shards, {', '.join(cluster.shard_map.shards)}"
            yield Served(store, partial(_network_bytes, cluster.admins)), where
    finally:
        embstore_cluster.stop(data=place)


@contextmanager
def _at(address: str, job: Job) -> Iterator[Served]:
    from embstore_client import connect

    names = [config.name for config in job.configs]
    with connect(address) as store:
        there = sorted({*names} & {*store.tables()})
        if there:
            raise InvalidArgumentError(
                f"expected no table of the demo's names at {address}, found {', '.join(there)}: "
                "an earlier demo may have left them; drop them, or give another store"
            )
        try:
            yield Served(store, None)
        finally:
            for name in names:
                with suppress(TableNotFoundError):
                    store.drop_table(name)
            with suppress(CheckpointNotFoundError):
                store.set_retention(CHECKPOINT_LABEL, "dropped")


def _options(job: Job, counts_all: bool) -> list[str]:
    return ["--policy", job.policy, *(["--count-rate", "1"] if counts_all else [])]


def _network_bytes(admins: tuple[str, ...]) -> int:
    """Return the bytes of the messages of all calls, which the servers report, without the
    transport's headers."""
    direct = build_opener(ProxyHandler({}))
    sent = 0
    for admin in admins:
        with direct.open(f"http://{admin}/api/v1/stats", timeout=_TIMEOUT_S) as reply:
            verbs = json.load(reply)["verbs"]
        sent += sum(verb["received_bytes"] + verb["sent_bytes"] for verb in verbs.values())
    return sent
