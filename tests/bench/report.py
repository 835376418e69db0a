"""The table, the goals and the JSON. A goal finds its figure in the results by path."""

import json
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.bench.resident import ALLOWANCE_BYTES

PEERS = ("torch", "torch-1-thread", "fbgemm", "fbgemm-1-thread", "redis")
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

Results = dict[str, Any]


class NotMeasuredError(LookupError):
    """A goal's figure is not among the results."""


def figure(results: Results, *path: str) -> Any:
    """Return one figure of the results.

    Raises
    ------
    NotMeasuredError : a part of `path` is not there.
    """
    found: Any = results
    for name in path:
        if name not in found:
            raise NotMeasuredError(".".join(path))
        found = found[name]
    return found


def at(*path: str, unit: float = 1.0) -> Callable[[Results], float]:
    """Return what finds a figure by its path, in units of `unit`."""
    return lambda results: float(figure(results, *path)) * unit


def best_peer_ms(results: Results, peers: tuple[str, ...] = PEERS) -> float:
    """Return lookup + update of the fastest of these peers that there is."""
    times = [results["lanes"][p]["both_ms"] for p in peers if p in results["lanes"]]
    if not times:
        raise NotMeasuredError("no peer")
    return float(min(times))


def _times_best_peer(lane: str, peers: tuple[str, ...] = PEERS) -> Callable[[Results], float]:
    return lambda results: best_peer_ms(results, peers) / figure(results, "lanes", lane, "both_ms")


def _over(lane: str, other: str) -> Callable[[Results], float]:
    """Return what finds how many times as long as another lane one takes."""
    return lambda results: float(
        figure(results, "lanes", lane, "both_ms") / figure(results, "lanes", other, "both_ms")
    )


def _readers(results: Results) -> float:
    rates = figure(results, "transports", "readers", "shared_memory")
    return float(rates[max(rates, key=int)] / rates["1"])


def _tables_ratio(results: Results) -> float:
    one = figure(results, "lanes", "embstore-1-table", "both_ms")
    return float(figure(results, "lanes", "embstore-26-tables", "both_ms") / one)


def _least_ratio(way: str) -> Callable[[Results], float]:
    return lambda results: min(
        size["ratio"] for size in figure(results, "wire", "bulk", way).values()
    )


@dataclass(frozen=True)
class Goal:
    """A bound on one figure."""

    name: str
    value_of: Callable[[Results], float]
    goal: str
    """">= 4 times", or "<= 0.3 ms"; the unit may be missing."""

    def judge(self, results: Results) -> dict[str, Any]:
        """Return the figure, and whether it is reached; None where it was not measured."""
        try:
            value: float | None = float(self.value_of(results))
        except NotMeasuredError:
            value = None
        reached = None
        if value is not None:
            sign, bound = self.goal.split()[:2]
            reached = value >= float(bound) if sign == ">=" else value <= float(bound)
        return {"name": self.name, "goal": self.goal, "value": value, "reached": reached}


def _worst(*path: str) -> Callable[[Results], float]:
    """Return what finds the largest figure at `path` of all sizes."""
    return lambda results: max(
        float(figure(size, *path)) for size in figure(results, "space", "sizes").values()
    )


def _least_digest(results: Results) -> float:
    sizes = figure(results, "space", "sizes").values()
    return min(float(size["digest_share_of_disk"]) for size in sizes)


_FBGEMM = ("fbgemm", "fbgemm-1-thread")
_ALLOWED = f"<= {ALLOWANCE_BYTES / 2**20:g} MiB"


def _adapter(results: Results) -> float:
    steps = figure(results, "torch_adapter", "steps")
    return max(float(found["ratio"]) for found in steps.values())


def _drain_s(results: Results) -> float:
    drained = figure(results, "stalls", "drained")
    return float(drained["busy_s"] - drained["idle_s"])


def _beyond_cache(share: str) -> Callable[[Results], float]:
    return at("memory", share, "beyond_cache_bytes", unit=2**-20)


GOALS = (
    Goal("all rows cached: faster than the best peer", _times_best_peer(BASE_LANE), ">= 4 times"),
    Goal("5 % cached: faster than the best peer", _times_best_peer("embstore-5"), ">= 1 times"),
    Goal("26 tables in one call : one table", _tables_ratio, "<= 1.3 times"),
    Goal(
        "service: faster than FBGEMM in process (target 1.5)",
        _times_best_peer("service", _FBGEMM),
        ">= 1.3 times",
    ),
    Goal(
        "service: faster than Redis (target 4)",
        _times_best_peer("service", ("redis",)),
        ">= 3.5 times",
    ),
    *(
        Goal(
            f"{verb} of one key beyond an echo",
            at("wire", "one_key", verb, "difference_ms"),
            "<= 0.3 ms",
        )
        for verb in ("lookup", "update")
    ),
    *(
        Goal(f"bulk {way} : bare bytes, the least of all sizes", _least_ratio(way), ">= 0.75 times")
        for way in ("down", "up")
    ),
    Goal("shared memory : in process", _over("shared-memory", BASE_LANE), "<= 1.3 times"),
    Goal(
        "shared memory: faster than FBGEMM in process",
        _times_best_peer("shared-memory", _FBGEMM),
        ">= 4 times",
    ),
    Goal("shared memory: faster than gRPC", _over("service", "shared-memory"), ">= 2.3 times"),
    Goal(
        "shared memory: one key beyond in process",
        at("transports", "one_key", "shared_memory", "beyond_ms"),
        "<= 0.15 ms",
    ),
    Goal("shared memory: 16 readers : one", _readers, ">= 1.7 times"),
    Goal("crowd: slowest client : mean", at("wire", "crowd", "slowest_to_mean"), ">= 0.5 times"),
    *(
        Goal(
            f"cold rows in the {place}: plain map : lookup",
            at("storage", "cold_rows", place, "ratio"),
            ">= 10 times",
        )
        for place in ("log", "base")
    ),
    Goal("write-back of 80,000 rows", at("storage", "write_back", "flush_ms"), "<= 40 ms"),
    Goal(
        "checkpoint : plain write and fsync", at("storage", "checkpoint", "ratio"), ">= 0.6 times"
    ),
    Goal(
        "a server's scrubber: share of a core",
        at("storage", "checking", "scrub_share_of_a_core"),
        "<= 0.03 times",
    ),
    Goal("written per byte updated at random", _worst("updates", "written_per_byte"), "<= 8 times"),
    Goal("space per byte of records", _worst("space"), "<= 1.3 times"),
    Goal(
        "the longest update while a table is loaded", _worst("load", "longest_call_s"), "<= 0.5 s"
    ),
    Goal("the longest update later", _worst("updates", "longest_call_s"), "<= 0.5 s"),
    Goal("opening after a kill, cold", _worst("open_s"), "<= 2 s"),
    Goal("a cold digest : reading the files in order, rates", _least_digest, ">= 0.5 times"),
    *(
        Goal(
            f"served at durability {level} : checkpoint",
            at("durability", "served", "throughput", level),
            goal,
        )
        for level, goal in (("commands", ">= 0.7 times"), ("interval", ">= 0.95 times"))
    ),
    *(
        Goal(
            f"the longest call of one key beside: {work}",
            at("stalls", "served", work, "stall_ms"),
            "<= 20 ms",
        )
        for work in STALLED_BY
    ),
    Goal(
        "from SIGTERM to the end beside long work, more than idle",
        _drain_s,
        "<= 5 s",
    ),
    *(
        Goal(
            f"p99 of a quiet caller's {kind} beside: {attack}",
            at("neighbour", "beside", attack, f"{kind}_ratio"),
            "<= 3 times",
        )
        for attack in GREEDY_BY
        for kind in ("step", "key")
    ),
    Goal("a step in Torch: adapter : by hand, the worst", _adapter, "<= 1.15 times"),
    Goal("replay : training, rates", at("durability", "replay", "ratio"), ">= 1 times"),
    Goal("whole digest", at("storage", "digest", "bytes_per_s", unit=1e-9), ">= 0.8 GB/s"),
    Goal(
        "whole digest : digest after 1 % changed", at("storage", "digest", "ratio"), ">= 20 times"
    ),
    Goal("anonymous memory beyond cache_bytes, 100 % cached", _beyond_cache("cache-100"), _ALLOWED),
    Goal("anonymous memory beyond cache_bytes, 5 % cached", _beyond_cache("cache-5"), _ALLOWED),
)


def judge(results: Results) -> list[dict[str, Any]]:
    """Return every goal with its figure."""
    return [goal.judge(results) for goal in GOALS]


def _lane_lines(lanes: dict[str, Any]) -> list[str]:
    base = lanes.get(BASE_LANE, {}).get("both_ms")
    lines = [
        f"{'':24}{'lookup ms':>12}{'update ms':>12}{'both ms':>12}{'quartiles':>20}{'times':>8}"
    ]
    for name, lane in lanes.items():
        low, high = lane["both_ms_quartiles"]
        times = f"{lane['both_ms'] / base:8.2f}" if base else ""
        lines.append(
            f"{name:24}{lane['lookup_ms']:12.2f}{lane['update_ms']:12.2f}{lane['both_ms']:12.2f}"
            f"{f'{low:.2f} - {high:.2f}':>20}{times}"
        )
    return lines


def _stage_lines(lanes: dict[str, Any]) -> list[str]:
    lines = []
    for name, lane in lanes.items():
        stages = sorted(lane.get("stages_ms", {}).items(), key=lambda item: -item[1])
        if stages:
            spent = ", ".join(f"{stage} {ms:.2f}" for stage, ms in stages)
            lines.append(f"{name}: ms of a batch by stage: {spent}")
    return lines


def _call_lines(lanes: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {verb}: {call['received_bytes']:,.0f} bytes up, {call['sent_bytes']:,.0f} down, "
        f"{1e3 * call['call_s']:.2f} ms in the server, {1e3 * call['engine_s']:.2f} on the engine"
        for name, lane in lanes.items()
        for verb, call in lane.get("calls", {}).items()
        if verb.startswith(("Lookup", "Update"))
    ]


def _one_key_lines(one_key: dict[str, Any]) -> list[str]:
    lines = [f"{'one key':24}{'median ms':>12}{'p99 ms':>12}{'echo ms':>12}{'echo p99':>12}"]
    for verb, found in one_key.items():
        times = [
            found[who][what] for who in ("service", "echo") for what in ("median_ms", "p99_ms")
        ]
        lines.append(f"{verb:24}" + "".join(f"{ms:12.3f}" for ms in times))
    return lines


def _bulk_lines(bulk: dict[str, Any]) -> list[str]:
    titles = ("call ms", "engine ms", "MB/s", "stream", "whole", "joined", "ratio", "to its form")
    lines = ["bulk: MB/s of the service without its engine, and of bare bytes"]
    lines.append(f"{'':24}" + "".join(f"{title:>12}" for title in titles))
    for way, sizes in bulk.items():
        for size, found in sizes.items():
            rates = {name: f"{rate / 1e6:.0f}" for name, rate in found["bytes_per_s"].items()}
            cells = [f"{found['call_ms']:.2f}", f"{found['engine_ms']:.2f}"]
            cells += [rates.get(name, "") for name in ("service", "stream", "whole", "joined")]
            cells += [f"{found['ratio']:.2f}", f"{found['ratio_to_form']:.2f} {found['form']}"]
            lines.append(f"{way + ' ' + size:24}" + "".join(f"{cell:>12}" for cell in cells))
    return lines


def _transport_lines(transports: dict[str, Any]) -> list[str]:
    lines = []
    for name, found in transports.get("one_key", {}).items():
        beyond = f", {found['beyond_ms']:.3f} beyond in process" if "beyond_ms" in found else ""
        spent = f"median {found['median_ms']:.3f} ms, p99 {found['p99_ms']:.3f}{beyond}"
        lines.append(f"{'one key, ' + name:24}{spent}")
    sizes = transports.get("sizes", {})
    ways = list(dict.fromkeys(way for found in sizes.values() for way in found))
    if ways:
        lines.append(f"{'rows down, MB/s':24}" + "".join(f"{way:>18}" for way in ways))
    for size, found in sizes.items():
        cells = (f"{found[way] / 1e6:.4g}" if way in found else "" for way in ways)
        lines.append(f"{size + ' bytes':24}" + "".join(f"{cell:>18}" for cell in cells))
    for name, rates in transports.get("readers", {}).items():
        told = ", ".join(f"{clients}: {rate:.0f} lookups/s" for clients, rate in rates.items())
        lines.append(f"{'readers, ' + name:24}{told}")
    return lines


def _crowd_lines(found: dict[str, Any]) -> list[str]:
    return [
        f"crowd: {found['clients']} clients, {found['keys']} keys a call, "
        f"{found['calls_per_s']:.0f} calls/s; each {min(found['calls'])} to {max(found['calls'])}"
    ]


def _wire_lines(wire: dict[str, Any]) -> list[str]:
    parts = {"one_key": _one_key_lines, "bulk": _bulk_lines, "crowd": _crowd_lines}
    return [line for name, part in parts.items() if name in wire for line in part(wire[name])]


def _space_lines(space: dict[str, Any]) -> list[str]:
    columns = {
        "load s": lambda f: f["load"]["seconds"],
        "written": lambda f: f["load"]["written_per_byte"],
        "longest s": lambda f: f["load"]["longest_call_s"],
        "updates": lambda f: f["updates"]["written_per_byte"],
        "their longest": lambda f: f["updates"]["longest_call_s"],
        "space": lambda f: f["space"],
        "files": lambda f: f["base_files"],
        "open s": lambda f: f["open_s"],
        "B a row": lambda f: f["memory_per_row"],
        "cold ms": lambda f: 1e3 * f["cold_lookup_s"],
        "digest s": lambda f: f["digest_s"],
        "of the disk": lambda f: f["digest_share_of_disk"],
    }
    lines = []
    for name, found in space.get("sizes", {}).items():
        if not lines:
            lines = ["", " " * 18 + "".join(f"{column:>14}" for column in columns)]
        lines.append(f"{name:18}" + "".join(f"{of(found):14.3g}" for of in columns.values()))
    return lines


def _durability_lines(durability: dict[str, Any]) -> list[str]:
    lines = []
    for way in ("served", "embedded"):
        for what, unit in (("step_ms", "step, ms"), ("one_key_ms", "one key, ms")):
            found = durability.get(way, {}).get(what, {})
            cells = "".join(f"{name:>12} {ms:8.2f}" for name, ms in found.items())
            lines += [f"{way + ': ' + unit:24}{cells}"] if found else []
    return lines


def _standby_lines(standby: dict[str, Any]) -> list[str]:
    lines = []
    titles = {
        "step_ms": "leader: step, ms",
        "one_key_ms": "leader: one key, ms",
        "lookup_ms": "lookup, ms",
        "lag": "lag",
    }
    for what, title in titles.items():
        found = standby.get("following", {}).get(what, {})
        cells = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
        lines += [f"{title:24}{cells}"] if found else []
    return lines


def _stall_lines(stalls: dict[str, Any]) -> list[str]:
    columns = ("work_s", "calls", "median_ms", "lookup_ms", "update_ms", "stall_ms")
    lines = []
    for name, found in stalls.get("served", {}).items():
        if not lines:
            lines = ["", f"{'one key, beside':24}" + "".join(f"{c:>14}" for c in columns)]
        lines.append(f"{name:24}" + "".join(f"{found[column]:14.4g}" for column in columns))
    drained = stalls.get("drained")
    if drained:
        spent = ", ".join(f"{name.removesuffix('_s')} {s:.2f}" for name, s in drained.items())
        lines.append(f"{'SIGTERM to the end, s':24}{spent}")
    return lines


def _neighbour_lines(neighbour: dict[str, Any]) -> list[str]:
    columns = ("step_ms", "step_p99_ms", "step_ratio", "key_ms", "key_p99_ms", "key_ratio")
    lines = []
    for name, found in neighbour.get("beside", {}).items():
        if not lines:
            lines = ["", f"{'a quiet caller, beside':24}" + "".join(f"{c:>14}" for c in columns)]
        lines.append(f"{name:24}" + "".join(f"{found[column]:14.4g}" for column in columns))
    return lines


def _adapter_lines(adapter: dict[str, Any]) -> list[str]:
    lines = []
    for name, found in adapter.get("steps", {}).items():
        told = ", ".join(f"{what} {value:.2f}" for what, value in found.items())
        lines.append(f"{'Torch, ' + name:32}{told}")
    return lines


def closing_lines(results: Results) -> list[str]:
    """Return what every table ends with: the goals, what was skipped, what broke."""
    lines = []
    for goal in results["goals"]:
        outcome = {True: "reached", False: "MISSED", None: "not measured"}[goal["reached"]]
        value = "" if goal["value"] is None else f"{goal['value']:.3f}"
        lines.append(f"{goal['name']:52}{value:>12}  {goal['goal']:24}{outcome}")
    lines += [f"skipped: {name}: {why}" for name, why in results["skipped"].items()]
    return lines + [f"FAILED: {name}: {why}" for name, why in results["failed"].items()]


def table(results: Results) -> str:
    """Return the text that is printed at the end."""
    lines = _lane_lines(results["lanes"]) if results["lanes"] else []
    lines += _stage_lines(results["lanes"]) + _call_lines(results["lanes"])
    lines += _wire_lines(results["wire"]) + _transport_lines(results["transports"])
    lines += _space_lines(results["space"])
    lines += _durability_lines(results["durability"]) + _standby_lines(results["standby"])
    lines += _stall_lines(results["stalls"]) + _neighbour_lines(results["neighbour"])
    lines += _adapter_lines(results["torch_adapter"])
    return "\n".join([*lines, "", *closing_lines(results)])


def write_json(results: Results, path: pathlib.Path) -> None:
    """Write the results; what a store's stats hold that JSON does not know becomes text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, default=str) + "\n")
