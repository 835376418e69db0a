"""`embstore stats`: what the store is and did."""

from collections.abc import Iterator
from typing import Any

from embstore_server.cli import connection, output
from embstore_server.cli.options import ADDRESS, TIMEOUT_S, Address, AsJson, Timeout, TlsCa
from embstore_server.cli.output import bytes_text


def stats(
    *,
    address: Address = ADDRESS,
    timeout: Timeout = TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Show what the store is and did since it was opened."""
    with connection.connected(address, timeout, tls_ca) as store:
        found = store.stats()
        found["device_facts"] = store.device_facts
    if as_json:
        output.show_json(found)
    else:
        output.show_parts(_parts(found))


def _parts(found: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yield what a person asks first, in words; all of it is in --json."""
    yield (
        "store",
        [
            (name.replace("_", " "), found[name])
            for name in ("store_id", "epoch", "command", "device", "policy", "read_only")
        ],
    )
    yield "device", _device_lines(found["device_facts"])
    yield "tables", [(name, _table_line(table)) for name, table in sorted(found["tables"].items())]
    yield "cache", _cache_lines(found["cache"])
    yield "frequency", _frequency_lines(found["frequency"])
    yield "storage", _storage_lines(found["storage"])
    yield (
        "stages",
        [
            (name, f"{stage['seconds']:.3f} s in {stage['laps']:,} laps")
            for name, stage in found["stages"].items()
        ],
    )


def _device_lines(facts: dict[str, Any]) -> list[tuple[str, Any]]:
    memory = f"{bytes_text(facts['memory_free_bytes'])} free of {bytes_text(facts['memory_bytes'])}"
    lines: list[tuple[str, Any]] = [("model", facts["model"]), ("memory", memory)]
    if "scratch_bytes" in facts:
        lines.append(("scratch", bytes_text(facts["scratch_bytes"])))
    if "driver_version" in facts:
        versions = f"driver {facts['driver_version']}, runtime {facts['runtime_version']}"
        lines.append(("versions", versions))
    if "compile_seconds" in facts:
        lines.append(("kernels compiled in", f"{facts['compile_seconds']:.1f} s"))
    return lines


def _table_line(table: dict[str, Any]) -> str:
    return (
        f"{table['rows']:,} rows of {table['dim']}, {table['optimizer']}, t {table['t']:,}, "
        f"{table['resident_rows']:,} resident, {table['dirty_rows']:,} dirty"
    )


def _cache_lines(cache: dict[str, Any]) -> list[tuple[str, Any]]:
    def total(name: str) -> int:
        return sum(int(pool[name]) for pool in cache["pools"])

    used = f"{bytes_text(cache['memory_bytes'])} of {bytes_text(cache['budget_bytes'])}"
    return [
        ("memory", used),
        ("resident rows", total("resident_rows")),
        ("dirty rows", total("dirty_rows")),
        ("hits by unique key", _share(total("unique_hits"), total("unique_keys"))),
        ("hits by access", _share(total("access_hits"), total("accesses"))),
        ("evictions", total("evictions_clean") + total("evictions_dirty")),
        ("calls in parts", total("calls_in_parts")),
    ]


def _frequency_lines(frequency: dict[str, Any]) -> list[tuple[str, Any]]:
    tables, warming, hot_set = (frequency[name] for name in ("tables", "warming", "hot_set"))
    counted = f"{frequency['counted_accesses']:,} accesses in {frequency['counted_calls']:,} calls"
    profiled = sum(table["profile_rows"] for table in tables.values())
    warmed = f"{warming['rows']:,} of {warming['of']:,} rows" if warming["of"] else None
    pinned = None
    if hot_set["version"]:
        pinned = (
            f"version {hot_set['version']}, {hot_set['pinned_rows']:,} of {hot_set['rows']:,} rows"
        )
    return [
        ("counted", f"{counted}, of {frequency['count_rate']:.4g} of all"),
        ("counted keys", sum(table["distinct"] for table in tables.values())),
        ("memory", bytes_text(frequency["memory_bytes"])),
        ("profiled rows", profiled),
        ("warming" if warming["running"] else "warmed", warmed),
        ("hot set", pinned),
    ]


def _storage_lines(storage: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        ("checkpoints", ", ".join(storage["checkpoints"]) or None),
        ("log", f"{bytes_text(storage['log_bytes'])}, {storage['log_rows']:,} rows"),
        ("read", bytes_text(storage["bytes_read"])),
        ("written", bytes_text(storage["bytes_written"])),
        ("merges", storage["folds"] + storage["compactions"]),
        ("merge error", storage["merge_error"]),
    ]


def _share(part: int, whole: int) -> str | None:
    return f"{part / whole:.1%} of {whole:,}" if whole else None
