"""The goals of the store, the service and its storage."""

from collections.abc import Callable
from typing import Any

from tests.bench.memory import ALLOWANCE_BYTES
from tests.bench.report import Goal, NotMeasuredError, Results, figure

FBGEMM = ("fbgemm", "fbgemm-1-thread")
PEERS = ("torch", "torch-1-thread", *FBGEMM, "redis")
BASE_LANE = "embstore-100"
STALLED_BY = ("digest", "integrity", "checkpoint", "fold", "backup", "profile export", "warm-up")
GREEDY_BY = (
    "many connections",
    "large calls",
    "unread replies",
    "sessions",
    "digests",
    "tables",
)
_ALLOWED = f"<= {ALLOWANCE_BYTES / 2**20:g} MiB"


def _faster(lane: str, peers: tuple[str, ...] = PEERS) -> Callable[[Results], float]:
    """Return what finds how many times as fast as the best of these peers that there is one is."""

    def times(results: Results) -> float:
        lanes = results["lanes"]
        found = [lanes[peer]["both_ms"] for peer in peers if peer in lanes]
        if not found:
            raise NotMeasuredError("no peer")
        return float(min(found) / figure(results, "lanes", lane, "both_ms"))

    return times


def _over(lane: str, other: str) -> Callable[[Results], float]:
    """Return what finds how many times as long as another lane one takes."""
    return lambda results: float(
        figure(results, "lanes", lane, "both_ms") / figure(results, "lanes", other, "both_ms")
    )


def _of_all(choose: Callable[[Any], float], where: str, what: str) -> Callable[[Results], float]:
    """Return what chooses, by min or max, among the figures `what` of all that is at a path."""
    return lambda results: choose(
        float(figure(one, *what.split("/"))) for one in figure(results, *where.split("/")).values()
    )


def _readers(results: Results) -> float:
    rates = figure(results, "transports", "readers", "shared_memory")
    return float(rates[max(rates, key=int)] / rates["1"])


def _drain_s(results: Results) -> float:
    drained = figure(results, "stalls", "drained")
    return float(drained["busy_s"] - drained["idle_s"])


def _worst(what: str) -> Callable[[Results], float]:
    return _of_all(max, "space/sizes", what)


GOALS = (
    Goal("all rows cached: faster than the best peer", _faster(BASE_LANE), ">= 4 times"),
    Goal("5 % cached: faster than the best peer", _faster("embstore-5"), ">= 1 times"),
    Goal(
        "26 tables in one call : one table",
        _over("embstore-26-tables", "embstore-1-table"),
        "<= 1.3 times",
    ),
    Goal(
        "service: faster than FBGEMM in process (target 1.5)",
        _faster("service", FBGEMM),
        ">= 1.3 times",
    ),
    Goal("service: faster than Redis (target 4)", _faster("service", ("redis",)), ">= 3.5 times"),
    *(
        Goal(f"{verb} of one key beyond an echo", f"wire/one_key/{verb}/beyond_ms", "<= 0.3 ms")
        for verb in ("lookup", "update")
    ),
    *(
        Goal(
            f"bulk {way} : bare bytes, the least of all sizes",
            _of_all(min, f"wire/bulk/{way}", "ratio"),
            ">= 0.75 times",
        )
        for way in ("down", "up")
    ),
    Goal("shared memory : in process", _over("shared-memory", BASE_LANE), "<= 1.3 times"),
    Goal(
        "shared memory: faster than FBGEMM in process",
        _faster("shared-memory", FBGEMM),
        ">= 4 times",
    ),
    Goal("shared memory: faster than gRPC", _over("service", "shared-memory"), ">= 2.3 times"),
    Goal(
        "shared memory: one key beyond in process",
        "transports/one_key/shared_memory/beyond_ms",
        "<= 0.15 ms",
    ),
    Goal("shared memory: 16 readers : one", _readers, ">= 1.7 times"),
    Goal("crowd: slowest client : mean", "wire/crowd/slowest_to_mean", ">= 0.5 times"),
    *(
        Goal(
            f"cold rows in the {place}: plain map : lookup",
            f"storage/cold_rows/{place}/ratio",
            ">= 10 times",
        )
        for place in ("log", "base")
    ),
    Goal("write-back of 80,000 rows", "storage/write_back/flush_ms", "<= 40 ms"),
    Goal("checkpoint : plain write and fsync", "storage/checkpoint/ratio", ">= 0.6 times"),
    Goal(
        "a server's scrubber: share of a core",
        "storage/checking/scrub_share_of_a_core",
        "<= 0.03 times",
    ),
    Goal("written per byte updated at random", _worst("updates/written_per_byte"), "<= 8 times"),
    Goal("space per byte of records", _worst("space"), "<= 1.3 times"),
    Goal("the longest update while a table is loaded", _worst("load/longest_call_s"), "<= 0.5 s"),
    Goal("the longest update later", _worst("updates/longest_call_s"), "<= 0.5 s"),
    Goal("opening after a kill, cold", _worst("open_s"), "<= 2 s"),
    Goal(
        "a cold digest : reading the files in order, rates",
        _of_all(min, "space/sizes", "digest_share_of_disk"),
        ">= 0.5 times",
    ),
    *(
        Goal(
            f"served at durability {level} : checkpoint",
            f"durability/served/throughput/{level}",
            goal,
        )
        for level, goal in (("commands", ">= 0.7 times"), ("interval", ">= 0.95 times"))
    ),
    *(
        Goal(
            f"the longest call of one key beside: {work}",
            f"stalls/served/{work}/stall_ms",
            "<= 20 ms",
        )
        for work in STALLED_BY
    ),
    Goal("from SIGTERM to the end beside long work, more than idle", _drain_s, "<= 5 s"),
    *(
        Goal(
            f"p99 of a quiet caller's {kind} beside: {attack}",
            f"neighbour/beside/{attack}/{kind}_ratio",
            "<= 3 times",
        )
        for attack in GREEDY_BY
        for kind in ("step", "key")
    ),
    Goal(
        "a step in Torch: adapter : by hand, the worst",
        _of_all(max, "torch_adapter/steps", "ratio"),
        "<= 1.15 times",
    ),
    Goal("replay : training, rates", "durability/replay/ratio", ">= 1 times"),
    Goal("whole digest", "storage/digest/bytes_per_s", ">= 0.8 GB/s", unit=1e-9),
    Goal("whole digest : digest after 1 % changed", "storage/digest/ratio", ">= 20 times"),
    *(
        Goal(
            f"anonymous memory beyond cache_bytes, {share} % cached",
            f"memory/cache-{share}/beyond_cache_bytes",
            _ALLOWED,
            unit=2**-20,
        )
        for share in (100, 5)
    ),
)
