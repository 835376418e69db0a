"""The goals of the device, and the table that is printed.

Published beside the step: the results that NVIDIA recsys-examples keeps of its DynamicEmb
benchmark, of another machine, in which 10 tables share the yardstick's keys.
"""

from collections.abc import Callable
from typing import Any

from tests.bench.report import Goal, Results, at, closing_lines, figure

PUBLISHED_MS = {
    "TorchRec TBE, all in GPU memory": 1.35,
    "DynamicEmb, all in GPU memory": 2.19,
    "DynamicEmb, cache 1.0x the footprint": 12.3,
    "DynamicEmb, cache 0.8x the footprint": 24.3,
}
SOURCE = "DynamicEmb benchmark JSON (NVIDIA recsys-examples, 2026): H100 80 GB, 10 tables, Adam"


def _verb(dim: int, verb: str, what: str, unit: float = 1.0) -> Callable[[Results], float]:
    return at("kernels", str(dim), "verbs", verb, what, unit=unit)


def _same_digests(results: Results) -> float:
    return sum(one["same"] for one in figure(results, "digests").values())


GOALS = (
    *(
        Goal(f"{verb}, dim {dim}: share of the ceiling", _verb(dim, verb, "share"), f">= {share:g}")
        for dim, share in ((128, 0.85), (32, 0.75))
        for verb in ("gather of unique rows", "gather_rows", "scatter_rows")
    ),
    Goal("probe of a call's unique keys", _verb(128, "probe", "per_s", 1e-9), ">= 8 G keys/s"),
    Goal("the step, resident", at("step", "step", "wall_ms"), "<= 0.9 ms"),
    *(
        Goal(f"Python of {verb} of 2,048 keys", at("host", verb), "<= 0.1 ms")
        for verb in ("lookup", "its_update", "update")
    ),
    Goal("the step, cache 0.8x the footprint", at("tiers", "cached", "ms"), "<= 12 ms"),
    Goal(
        "bytes of a slot beside its row", at("step", "memory", "bytes_beside_a_row"), "<= 40 bytes"
    ),
    Goal("rows from storage: share of pinned copies", at("tiers", "storage", "share"), ">= 0.6"),
    Goal("optimizers with one digest on CPU and device", _same_digests, ">= 5"),
    Goal(
        "one digest at the yardstick, half the rows cached",
        at("digests-large", "rowwise_adagrad", "same"),
        ">= 1",
    ),
)


def judge(results: Results) -> list[dict[str, Any]]:
    """Return every goal with its figure."""
    return [goal.judge(results) for goal in GOALS]


def _head_lines(results: Results) -> list[str]:
    ceiling = results.get("ceiling")
    if ceiling is None:
        return []
    device = ceiling["device"]
    return [
        f"{device['model']}, driver {device['driver_version']}, runtime "
        f"{device['runtime_version']}, {device['memory_bytes'] / 1e9:.0f} GB",
        f"ceiling: a copy on the device moves {ceiling['bytes_per_s'] / 1e9:.0f} GB/s",
    ]


def _verb_lines(found: dict[str, Any]) -> list[str]:
    lines = [
        "",
        f"dim {found['dim']}: {found['keys']:,} keys, {found['unique_keys']:,} unique, "
        f"{found['slots']:,} slots; scratch {found['scratch_bytes'] / 1e6:.0f} MB",
        f"{'':28}{'ms':>10}{'MB':>10}{'GB/s':>10}{'share':>8}{'G/s':>8}{'call ms':>10}",
    ]
    for name, verb in found["verbs"].items():
        rate = "" if verb["per_s"] is None else f"{verb['per_s'] / 1e9:.2f}"
        lines.append(
            f"{name:28}{verb['ms']:10.4f}{verb['bytes'] / 1e6:10.1f}"
            f"{verb['bytes_per_s'] / 1e9:10.0f}{verb['share']:8.2f}{rate:>8}{verb['call_ms']:10.4f}"
        )
        if len(verb["launches_ms"]) > 1:
            lines += [
                f"    {launch:24}{spent['ms']:10.4f}  alone, {spent['count']} launched"
                for launch, spent in verb["launches_ms"].items()
            ]
    return lines


def _by_size(spent: dict[str, float]) -> str:
    return ", ".join(f"{n} {ms:.3f}" for n, ms in sorted(spent.items(), key=lambda i: -i[1]))


def _step_lines(step: dict[str, Any]) -> list[str]:
    memory = step["memory"]
    lines = ["", f"{'step, all rows resident':28}{'wall ms':>10}{'device ms':>12}"]
    lines += [
        f"{part:28}{step[part]['wall_ms']:10.3f}{step[part]['device_ms']:12.3f}"
        for part in ("step", "lookup", "update")
    ]
    alone = step["launches_ms"]
    return [
        *lines,
        f"    {step['unique_keys']:,.0f} unique keys a step, {step['missing_keys']:,.0f} missing",
        f"    stages of the host, ms: {_by_size(step['stages_ms'])}",
        f"    launches alone, ms: {sum(alone.values()):.3f} in all: {_by_size(alone)}",
        f"    {memory['slots']:,} slots, {memory['bytes_beside_a_row']:.1f} bytes beside a row of "
        f"{memory['row_bytes']} ({memory['growing_bytes_beside_a_row']:.1f} while it grew); "
        f"scratch {memory['scratch_bytes'] / 1e6:.0f} MB",
    ]


def _tier_lines(tiers: dict[str, Any]) -> list[str]:
    stored, pinned = tiers["storage"], tiers["storage"]["pinned_bytes_per_s"]
    tier = tiers["host_tier"]
    return [
        "",
        f"from storage: {stored['rows']:,} rows in {stored['ms']:.2f} ms, "
        f"{stored['bytes_per_s'] / 1e9:.1f} GB/s; pinned up {pinned['up'] / 1e9:.1f}, down "
        f"{pinned['down'] / 1e9:.1f} GB/s; share {stored['share']:.2f}; from "
        + ", ".join(f"{name} {count:,.0f}" for name, count in stored["origins"].items()),
        f"host tier: {tier['rows']:,} rows, up {tier['bytes_per_s']['up'] / 1e9:.1f} GB/s, down "
        f"{tier['bytes_per_s']['down'] / 1e9:.1f} GB/s; came from it {tier['came']:,.0f}",
        *_cached_lines(tiers["cached"], "without a host tier"),
        *_cached_lines(tiers["cached_with_tier"], "with one"),
    ]


def _cached_lines(cached: dict[str, Any], what: str) -> list[str]:
    return [
        f"cache {cached['share']:.2f}x the footprint of {cached['footprint_rows']:,} rows, {what}: "
        f"{cached['ms']:.2f} ms a step (quartiles {cached['quartiles_ms'][0]:.2f} - "
        f"{cached['quartiles_ms'][1]:.2f}, highest {cached['highest_ms']:.2f})",
        f"    {cached['unique_keys']:,.0f} unique keys a step, {cached['missing_keys']:,.0f} "
        "missing",
        f"    stages of the host, ms: {_by_size(cached['stages_ms'])}",
    ]


def _host_lines(host: dict[str, Any]) -> list[str]:
    spent = ", ".join(f"{name} {ms:.3f}" for name, ms in host.items() if name != "keys")
    return ["", f"the host above the runtime, {host['keys']:,} keys, ms: {spent}"]


def _shared_lines(shared: dict[str, Any]) -> list[str]:
    lines = ["", f"{shared['keys']:,} keys, dim {shared['dim']}, through memory of"]
    return lines + [
        f"    {way:12} lookup {shared[way]['lookup_ms']:.3f} ms, update "
        f"{shared[way]['update_ms']:.3f} ms"
        for way in ("in process", "the GPU", "the host")
    ]


def _peer_lines(results: Results) -> list[str]:
    lines = [""]
    peer = results.get("torch")
    if peer is not None:
        lines.append(
            f"torch, {peer['rows']:,} rows: lookup {peer['lookup_ms']:.3f} ms, update "
            f"{peer['update_ms']:.3f} ms, both {peer['both_ms']:.3f} ms ({peer['optimizer']})"
        )
    lines += [f"published: {name}: {ms:.2f} ms" for name, ms in PUBLISHED_MS.items()]
    return [*lines, f"    {SOURCE}"]


def table(results: Results) -> str:
    """Return the text that is printed at the end."""
    lines = _head_lines(results)
    for found in results.get("kernels", {}).values():
        lines += _verb_lines(found)
    lines += _step_lines(results["step"]) if "step" in results else []
    lines += _host_lines(results["host"]) if "host" in results else []
    lines += _shared_lines(results["shared"]) if "shared" in results else []
    lines += _tier_lines(results["tiers"]) if "tiers" in results else []
    lines += _peer_lines(results)
    return "\n".join([*lines, "", *closing_lines(results)])
