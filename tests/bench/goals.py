"""The benchmark's goals for the store, the service and its storage."""

from tests.bench.memory import ALLOWANCE_BYTES
from tests.bench.report import Goal

BASE_LANE = "embstore-100"
FBGEMM = "fbgemm|fbgemm-1-thread"
PEERS = f"torch|torch-1-thread|{FBGEMM}|redis"
STALLED_BY = ("digest", "integrity", "checkpoint", "fold", "backup", "profile export", "warm-up")
GREEDY_BY = ("many connections", "large calls", "unread replies", "sessions", "digests", "tables")
WORST = "max space/sizes/*"
READERS = "transports/readers/shared_memory"


def _over(lane: str, other: str) -> str:
    """Want how many times as long as another lane, or the best of others, one takes."""
    found = (f"{'min ' if '|' in one else ''}lanes/{one}/both_ms" for one in (lane, other))
    return " : ".join(found)


GOALS = (
    Goal("all rows cached: faster than the best peer", _over(PEERS, BASE_LANE), ">= 4 times"),
    Goal("5 % cached: faster than the best peer", _over(PEERS, "embstore-5"), ">= 1 times"),
    Goal(
        "26 tables in one call : one table",
        _over("embstore-26-tables", "embstore-1-table"),
        "<= 1.3 times",
    ),
    Goal(
        "service: faster than FBGEMM in process (target 1.5)",
        _over(FBGEMM, "service"),
        ">= 1.3 times",
    ),
    Goal("service: faster than Redis (target 4)", _over("redis", "service"), ">= 3.5 times"),
    *(
        Goal(f"{verb} of one key beyond an echo", f"wire/one_key/{verb}/beyond_ms", "<= 0.3 ms")
        for verb in ("lookup", "update")
    ),
    *(
        Goal(
            f"bulk {way} : bare bytes, the least of all sizes",
            f"min wire/bulk/{way}/*/ratio",
            ">= 0.75 times",
        )
        for way in ("down", "up")
    ),
    Goal("shared memory : in process", _over("shared-memory", BASE_LANE), "<= 1.3 times"),
    Goal(
        "shared memory: faster than FBGEMM in process", _over(FBGEMM, "shared-memory"), ">= 4 times"
    ),
    Goal("shared memory: faster than gRPC", _over("service", "shared-memory"), ">= 2.3 times"),
    Goal(
        "shared memory: one key beyond in process",
        "transports/one_key/shared_memory/beyond_ms",
        "<= 0.15 ms",
    ),
    Goal("shared memory: 16 readers : one", f"{READERS}/16 : {READERS}/1", ">= 1.7 times"),
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
    Goal("written per byte updated at random", f"{WORST}/updates/written_per_byte", "<= 8 times"),
    Goal("space per byte of records", f"{WORST}/space", "<= 1.3 times"),
    Goal("the longest update while a table is loaded", f"{WORST}/load/longest_call_s", "<= 0.5 s"),
    Goal("the longest update later", f"{WORST}/updates/longest_call_s", "<= 0.5 s"),
    Goal("opening after a kill, cold", f"{WORST}/open_s", "<= 2 s"),
    Goal(
        "a cold digest : reading the files in order, rates",
        "min space/sizes/*/digest_share_of_disk",
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
    Goal(
        "from SIGTERM to the end beside long work, more than idle",
        "stalls/drained/busy_s - stalls/drained/idle_s",
        "<= 5 s",
    ),
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
        "max torch_adapter/steps/*/ratio",
        "<= 1.15 times",
    ),
    Goal("replay : training, rates", "durability/replay/ratio", ">= 1 times"),
    Goal("whole digest", "storage/digest/bytes_per_s", ">= 0.8 GB/s", unit=1e-9),
    Goal("whole digest : digest after 1 % changed", "storage/digest/ratio", ">= 20 times"),
    *(
        Goal(
            f"anonymous memory beyond cache_bytes, {share} % cached",
            f"memory/cache-{share}/beyond_cache_bytes",
            f"<= {ALLOWANCE_BYTES / 2**20:g} MiB",
            unit=2**-20,
        )
        for share in (100, 5)
    ),
)
