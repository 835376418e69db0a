# ruff: noqa: RUF009 - the calls declare fields
"""A stat is declared once, and shown in four places: document, REST, metrics, `embstore stats`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import embstore
from embstore.device.facts import DeviceFacts
from embstore.engine.stats import StoreStats
from embstore.stats import Stat, counter, declared, document, flag, gauge, info, part, ratio, share
from embstore.stats import text as text_stat
from embstore_server.cli import output
from embstore_server.cli.stats import shown as drawn
from embstore_server.telemetry.metrics import Metrics
from embstore_server.transports.rest.exposition import Families, exposition
from embstore_server.transports.rest.models import example_of, model_of
from embstore_server.transports.rest.stats import ScrapedStats
from tests.service.rest import fill

Samples = dict[tuple[str, ...], float]


def samples(of: type, stats: Any) -> Samples:
    """Return {(name, label values...): value}."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in Families(of, stats).collect()
        for sample in family.samples
    }


# Toys


@dataclass
class Wheel:
    """A part that counts by itself."""

    turns: int = counter("Turns made.")


@dataclass
class Toy:
    """One of everything."""

    jumps: int = counter("Jumps made.", lambda toy: toy["jumps"])
    size_bytes: int = gauge("Size of the toy.", lambda toy: 3 << 20)
    air_s: float = counter("Time in the air.", lambda toy: 1.5)
    landed: float | None = ratio("Jumps landed.", lambda toy: share(3, toy["jumps"]))
    broken: bool = flag("It is broken.", lambda toy: True)
    maker: str = info("Who made it.", lambda toy: "me", metric="toy")
    note: str | None = text_stat("A note.", lambda toy: None)
    wheels: dict[str, Wheel] = part(
        "By place.", lambda toy: {"left": toy["wheel"]}, metric="wheel", label="place"
    )


@pytest.fixture
def toy() -> dict[str, Any]:
    wheel = Wheel()
    wheel.turns += 7
    return document(Toy, {"jumps": 4, "wheel": wheel})


def test_a_declared_stat_is_in_the_document(toy):
    assert toy == {
        "jumps": 4,
        "size_bytes": 3 << 20,
        "air_s": 1.5,
        "landed": 0.75,
        "broken": True,
        "maker": "me",
        "note": None,
        "wheels": {"left": {"turns": 7}},
    }


def test_a_declared_stat_is_in_the_model(toy):
    model = model_of(Toy)
    assert model.model_validate(toy).model_dump() == toy
    schema = model.model_json_schema()
    assert schema["properties"]["jumps"]["description"] == "Jumps made."
    assert schema["description"] == "One of everything."
    assert schema["examples"] == [example_of(Toy)]
    assert model.model_validate(example_of(Toy))


def test_a_declared_stat_is_in_the_metrics(toy):
    assert samples(Toy, toy) == {
        ("embstore_jumps_total",): 4,
        ("embstore_size_bytes",): 3 << 20,
        ("embstore_air_seconds_total",): 1.5,
        ("embstore_broken",): 1,
        ("embstore_wheel_turns_total", "left"): 7,
        ("embstore_toy_info", "me"): 1,
    }


def test_a_declared_stat_is_in_the_commands_output(toy, capsys):
    output.show(toy, partial(drawn, "toy", Toy, toy), as_json=False)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    for line in (
        *("toy jumps 4", "size bytes 3 MiB", "air time 1.500 s", "landed 75.0%", "broken yes"),
        *("maker me", "note -", "place turns", "left 7"),
    ):
        assert line.split() in shown


# The store's


@pytest.fixture
def stats(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Return the stats of a store that has one of every part."""
    with embstore.open(tmp_path / "store", cache_bytes=1 << 20, count_rate=1.0) as store:
        fill(store)
        store.checkpoint("one")
        store.sessions.open("ctr", ["ads/stats"])
        yield store.stats()


def leaves(of: type, stats: dict[str, Any]) -> Iterator[tuple[Stat, dict[str, Any]]]:
    """Yield every declaration that is no part, with the dict that has its value."""
    names = {stat.name for stat in declared(of)}
    assert stats.keys() == names if of is not DeviceFacts else stats.keys() <= names
    for stat in declared(of):
        if stat.part is None:
            yield stat, stats
        elif stat.type is stat.part:
            yield from leaves(stat.part, stats[stat.name])
        else:
            several = stats[stat.name]
            assert several, f"the fixture has no {stat.name}"
            for one in several.values() if isinstance(several, dict) else several:
                yield from leaves(stat.part, one)


def test_every_stat_of_a_store_is_declared_and_helps(stats):
    found = list(leaves(StoreStats, stats))
    assert len(found) > 100
    assert all(stat.help.endswith(".") for stat, _ in found)


def test_every_number_of_a_store_is_a_metric(stats):
    stats["device_facts"] = dict.fromkeys(stat.name for stat in declared(DeviceFacts))
    numbers, fresh = {}, count(1000)
    for stat, owner in leaves(StoreStats, stats):
        if stat.kind in ("counter", "gauge"):
            number = next(fresh)
            owner[stat.name] = {"x": number} if stat.type == dict[str, float] else number
            numbers[number] = stat.name
    shown = set(samples(ScrapedStats, stats).values())
    assert [name for number, name in numbers.items() if number not in shown] == []


KEPT = """
    build_info cache_budget_bytes cache_memory_bytes call_seconds calls_total checkpoints
    command commit compactions_total count_rate counted_accesses_total counted_calls_total
    device_compile_seconds device_info device_memory_bytes device_memory_free_bytes
    device_scratch_bytes engine_seconds epoch folds_total frequency_memory_bytes hot_set_bytes
    hot_set_pinned_rows hot_set_rows hot_set_version inflight_bytes log_bytes log_index_bytes
    log_records log_rows log_segments lookahead_arriving_collections
    lookahead_collected_rows_total lookahead_collections lookahead_pinned_rows
    lookahead_planned_keys_total lookahead_stage_seconds_total merge_failures_total
    merge_running pool_access_hits_total pool_accesses_total pool_calls_in_parts_total
    pool_dirty_rows pool_evictions_total pool_memory_bytes pool_misses_total pool_parts_total
    pool_resident_rows pool_slots pool_unique_hits_total pool_unique_keys_total queue_calls
    queue_wait_seconds ready received_bytes_total recorded_calls recorded_events recorded_rate
    remembered_calls running_calls sent_bytes_total session_announced_step
    session_early_bytes_total session_held_back session_held_back_seconds_total
    session_last_step session_late_bytes_total session_lookup_hits_total
    session_lookup_keys_total session_oldest_lease_seconds session_planned_step session_ranks
    session_ranks_joined session_ready_steps session_stall_seconds_total session_stalls_total
    session_steps_finished_total session_steps_in_parts_total session_steps_planned_again_total
    sessions stage_laps_total stage_seconds_total start_time_seconds stats_age_seconds
    storage_read_bytes_total storage_written_bytes_total table_count_error table_counted_keys
    table_dirty_rows table_profile_rows table_resident_rows table_row_bytes table_rows table_t
    warming_of_rows warming_rows warming_running
""".split()
"""Metrics that dashboards use, without their prefix."""


def test_metrics_keep_their_names(stats):
    metrics = Metrics()
    metrics.observe_call(
        "Lookup", "OK", seconds=0.1, wait_s=0.1, run_s=0.1, received_bytes=1, sent_bytes=1
    )
    scrape = exposition(metrics.registry, stats, 1.5).decode()
    assert {f"embstore_{name}" for name in KEPT} <= set(re.findall(r"^# TYPE (\w+)", scrape, re.M))


def test_metrics_have_the_labels_and_values_of_their_parts(stats):
    gpu = {"model": "a GPU", "driver_version": "12.9", "runtime_version": "12.8", "memory_bytes": 9}
    more = {"device": "cuda:1", "device_facts": gpu, "memory": {"cache_bytes": 7}}
    found = samples(ScrapedStats, stats | more)
    pool = "8", "rowwise_adagrad"
    for key, value in {
        ("embstore_pool_unique_hits_total", *pool): 1,
        ("embstore_pool_misses_total", *pool, "initializer"): 4,
        ("embstore_pool_misses_total", *pool, "log"): 0,
        ("embstore_pool_evictions_total", *pool, "dirty"): 0,
        ("embstore_table_resident_rows", "ads"): 4,
        ("embstore_table_t", "ads/stats"): 0,
        ("embstore_log_rows",): 2,
        ("embstore_checkpoints",): 1,
        ("embstore_sessions",): 1,
        ("embstore_session_last_step", "ctr"): 0,
        ("embstore_lookahead_stage_seconds_total", "plan"): 0,
        ("embstore_memory_bytes", "cache"): 7,
        ("embstore_device_memory_bytes",): 9,
        ("embstore_device_info", "cuda:1", "a GPU", "12.9", "12.8"): 1,
        ("embstore_build_info", stats["store_id"]): 1,
    }.items():
        assert found[key] == value, key
    assert ("embstore_device_scratch_bytes",) not in found


def test_every_stat_of_a_store_is_in_the_model_and_the_commands_output(stats, capsys):
    assert model_of(StoreStats).model_validate(stats).model_dump(exclude_unset=True) == stats
    output.show(stats, partial(drawn, "store", StoreStats, stats), as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    for stat, owner in leaves(StoreStats, stats):
        if stat.kind != "label" and stat.name in owner:
            assert stat.name.removesuffix("_s").replace("_", " ") in shown
