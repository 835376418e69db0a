"""How often a call of a store on a GPU waits, launches and copies: what it costs beside its bytes.

A launch or a copy costs microseconds whatever it moves, and a wait idles the device. So the counts
of a call are held here, on the emulated device, where they are the same as on a real one.
"""

import gc
from collections import Counter
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest

import embstore
from embstore import Adam, RowWiseAdagrad, Uniform
from embstore.arithmetic import unique
from embstore.device.gpu import GpuDevice
from embstore.handles.sessions import BagGradients, StepBags
from embstore.profiles.hotset import HotSet
from tests.kernels.emulation.callers import CallersArray
from tests.kernels.emulation.counting import CountingRuntime
from tests.kernels.emulation.runtime import EmulatedRuntime

ROWS, DIM, KEYS, FEW_KEYS = 4_000, 8, 300, 30
OPENED: list[ExitStack] = []


@pytest.fixture(autouse=True)
def stores():
    """Close what a test has opened: planners' threads would stay."""
    with ExitStack() as opened_here:
        OPENED.append(opened_here)
        yield
    OPENED.pop()


def opened(tmp_path, tables, cache_bytes, host_cache_bytes=0, durability="checkpoint"):
    runtime = CountingRuntime()
    store = embstore.open(
        tmp_path / "store", device=GpuDevice(runtime, 1), cache_bytes=cache_bytes,
        host_cache_bytes=host_cache_bytes, durability=durability,
    )  # fmt: skip
    OPENED[-1].enter_context(store)
    for number in range(tables):
        store.create_table(
            f"t{number}", dim=DIM, rows=ROWS, optimizer=RowWiseAdagrad(0.1),
            initializer=Uniform(-1, 1),
        )  # fmt: skip
    return store, runtime


def keys_of(store, seed):
    rng = np.random.default_rng(seed)
    return {name: np.minimum(rng.zipf(1.3, KEYS), ROWS) - 1 for name in store.tables()}


def gradients_of(keys):
    return {name: (named, np.ones((len(named), DIM), np.float32)) for name, named in keys.items()}


def costs_of_calls(tmp_path, tables, durability, *, is_followed):
    """Return what calls cost whose rows are all there, once packs have their size."""
    store, runtime = opened(tmp_path, tables, 1 << 24, durability=durability)
    store.lookup({name: np.arange(ROWS) for name in store.tables()})
    for name in store.tables() if is_followed else ():
        store.table(name).digest()
    found = {}
    for seed in range(3):
        keys, others = keys_of(store, seed), keys_of(store, seed + 10)
        found["lookup"] = runtime.counted(partial(store.lookup, keys))
        found["the same lookup"] = runtime.counted(partial(store.lookup, keys))
        found["its update"] = runtime.counted(partial(store.update, gradients_of(keys)))
        found["update"] = runtime.counted(partial(store.update, gradients_of(others)))
    return found


@pytest.mark.parametrize("durability", ["checkpoint", "interval"])
@pytest.mark.parametrize("tables", [1, 26])
@pytest.mark.parametrize("is_followed", [False, True])
def test_the_calls_of_tables_whose_rows_are_there(tmp_path, tables, durability, is_followed):
    """One kernel groups positions, whatever the number of slots and keys, and what applies an
    update waits on the device for what was found. A log of commands has keys and sums come to the
    host first, and rows touched by a kernel of their own. A digest that was taken has keys copied
    on the device, which goes with the next call's work."""
    found = costs_of_calls(tmp_path, tables, durability, is_followed=is_followed)
    copies = [costs.pop("copies", 0) for costs in found.values()]
    assert sum(copies) == 2 * is_followed
    once = {"uploads": 1, "downloads": 1, "waits": 1}
    for verb in ("lookup", "the same lookup"):
        assert found[verb] == once | {"kernels": 3}, verb
    logged = {"downloads": 3, "waits": 2, "kernels": 6} if durability != "checkpoint" else {}
    for verb in ("its update", "update"):
        assert found[verb] == once | {"kernels": 5} | logged, verb


def test_a_pooled_lookup(tmp_path):
    store, runtime = opened(tmp_path, 1, 1 << 24)
    store.lookup({"t0": np.arange(ROWS)})
    table, offsets = store.table("t0"), np.arange(0, KEYS + 1, 10)
    for seed in range(3):
        keys = keys_of(store, seed)["t0"]
        found = runtime.counted(partial(table.lookup_pooled, keys, offsets))
    assert found == {"uploads": 1, "downloads": 1, "waits": 1, "fills": 1, "kernels": 6}


def _keep_lookup(step, rows):
    rows.append(step.lookup())


def few_keys_of(store, rng, rows=ROWS):
    tables = list(store.tables())
    return {name: rng.integers(0, rows, max(FEW_KEYS // len(tables), 1)) for name in tables}


@pytest.mark.parametrize("tables", [1, 26])
def test_the_calls_of_rows_that_are_missing(tmp_path, tables):
    """Most rows do not fit, and those that leave are dirty. That no key was without a place in the
    index is known one wait later. A call that misses after one that did not has looked for its rows
    in vain."""
    store, runtime = opened(tmp_path, tables, 90_000)
    rng, found = np.random.default_rng(7), {"lookup": [], "its update": [], "update": []}

    def count(name, call, keys):
        found[name].append(runtime.counted(partial(call, keys)))

    for _ in range(30):
        keys = few_keys_of(store, rng)
        count("lookup", store.lookup, keys)
        count("its update", store.update, gradients_of(keys))
    for _ in range(30):
        count("update", store.update, gradients_of(few_keys_of(store, rng)))
    for _ in range(30):
        count("lookup", store.lookup, few_keys_of(store, rng))
    pool = store.stats()["cache"]["pools"][0]
    assert pool["evictions_dirty"] > pool["evictions_clean"]
    waits = {name: sorted(each["waits"] for each in costs) for name, costs in found.items()}
    assert [of_verb[len(of_verb) // 2] for of_verb in waits.values()] == [3, 1, 2]
    assert max(max(of_verb) for of_verb in waits.values()) == 4, "also where victims are searched"
    uploads = [each["uploads"] for costs in found.values() for each in costs]
    assert max(uploads) <= 7, "what is sent between two waits goes together"


@pytest.mark.parametrize("durability", ["checkpoint", "interval"])
@pytest.mark.parametrize("tables", [1, 26])
def test_the_calls_of_rows_that_level_two_has(tmp_path, tables, durability):
    """The host waits for what is unique and missing, and for what level two has and must go. Each
    row that comes up sends one down; nothing is read or logged."""
    store, runtime = opened(tmp_path, tables, 400_000, 1 << 24, durability=durability)
    rows = ROWS // tables
    for low in range(0, rows, step := rows // 20):
        keys = np.arange(low, low + step)
        store.update(gradients_of(dict.fromkeys(store.tables(), keys)))
    rng, found = np.random.default_rng(7), {"lookup": [], "its update": [], "update": []}

    def figures():
        stats = store.stats()
        return [
            Counter({name: n for name, n in part.items() if isinstance(n, int)})
            for part in (stats["cache"]["pools"][0], stats["storage"])
        ]

    store.lookup(few_keys_of(store, rng, rows))  # the first misses behind calls that hit
    cache, storage = figures()
    for _ in range(20):
        keys, others = few_keys_of(store, rng, rows), few_keys_of(store, rng, rows)
        found["lookup"].append(runtime.counted(partial(store.lookup, keys)))
        found["its update"].append(runtime.counted(partial(store.update, gradients_of(keys))))
        found["update"].append(runtime.counted(partial(store.update, gradients_of(others))))
    grown = [after - before for before, after in zip((cache, storage), figures(), strict=True)]
    assert grown[0]["misses_host"] == grown[0]["evictions_host"] > 20 * FEW_KEYS // 2
    assert not grown[0]["misses_log"] and not grown[0]["misses_base"]
    assert not grown[0]["evictions_dirty"] and not grown[1]["bytes_read"]
    logged = durability != "checkpoint"
    waits = {name: max(each["waits"] for each in costs) for name, costs in found.items()}
    assert waits == {"lookup": 2, "its update": 1 + logged, "update": 2 + logged}
    assert max(each["kernels"] for each in found["lookup"]) <= 40
    assert max(each["uploads"] for each in found["lookup"]) <= 3


@pytest.mark.parametrize("host_cache_bytes", [0, 1 << 24])
@pytest.mark.parametrize("tables", [1, 26])
def test_the_steps_whose_rows_may_be_missing(tmp_path, tables, host_cache_bytes):
    """Rows of steps ahead are read, or come up from level two, on the planner's thread, whose
    launches are not counted."""
    store, runtime = opened(tmp_path, tables, 90_000 + host_cache_bytes // 64, host_cache_bytes)
    rng, found = np.random.default_rng(7), {"lookup": [], "update": []}
    for _ in range(30):
        store.update(gradients_of(few_keys_of(store, rng)))
    batches = [few_keys_of(store, rng) for _ in range(20)]
    with store.session(tables=list(store.tables()), lookahead=1) as run:
        for step in run.steps(batches, keys=lambda batch: batch):
            rows = []
            look = partial(_keep_lookup, step, rows)
            found["lookup"].append(runtime.counted(look))
            found["update"].append(runtime.counted(partial(step.update, rows[0])))
    assert max(costs["waits"] for costs in found["lookup"]) <= 3
    assert {costs["waits"] for costs in found["update"]} == {1}
    assert {costs["uploads"] for costs in found["update"]} == {1}
    assert {costs["downloads"] for costs in found["update"]} == {1}


def test_the_update_of_a_step(tmp_path):
    """Its keys are on the device since it was planned, and its occurrences since its lookup; one
    kernel groups them by key, and three sum and apply."""
    store, runtime = opened(tmp_path, 2, 1 << 24)
    found = []
    with store.session(tables=list(store.tables()), lookahead=1) as run:
        batches = [keys_of(store, seed) for seed in range(4)]
        for step in run.steps(batches, keys=lambda batch: batch):
            rows = step.lookup()
            found.append(runtime.counted(partial(step.update, rows)))
    # What became of its pins is asked, and goes with the next call.
    assert found[-1] == {"uploads": 1, "downloads": 1, "waits": 1, "kernels": 4}


def test_a_closed_store_leaves_nothing_on_the_device(tmp_path):
    """Without the help of the collector of circular references."""
    runtime = EmulatedRuntime()
    gc.collect()
    gc.disable()
    try:
        store = embstore.open(
            tmp_path, device=GpuDevice(runtime), cache_bytes=1 << 20, host_cache_bytes=0
        )
        table = store.create_table(
            "a", dim=8, rows=500, optimizer=Adam(0.1), initializer=Uniform(-1, 1)
        )
        for _ in range(3):
            table.update(np.arange(500), np.ones((500, 8), np.float32))
        store.pin_hot_set(HotSet({"a": np.arange(50)}))
        assert runtime.live_bytes > 100_000
        store.close()
        assert runtime.live_bytes < 100_000, "the index may stay as long as the object"
        del store, table
        assert runtime.live_bytes == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("durability", ["checkpoint", "interval"])
@pytest.mark.parametrize("tables", [1, 26])
def test_the_steps_of_arrays_in_the_devices_memory(tmp_path, tables, durability):
    """Rows are spread and gradients summed there, and neither crosses the bus: what does are ids, a
    few numbers, and for a log of commands each key's sum. The trainer's stream waits for the rows;
    the host for what is wrong with gradients, and for the log's copy."""
    store, runtime = opened(tmp_path, tables, 1 << 24, durability=durability)
    runtime.turn = store.executor.tables.frame.turn
    names, sessions = list(store.tables()), store.sessions
    sessions.open("s", names)
    member, found = sessions.join("s", 0).member, []
    for number in range(1, 7):
        keys = keys_of(store, number % 2)
        once = {name: unique(of) for name, of in keys.items()}
        sessions.announce(member, {number: {name: of for name, (of, _) in once.items()}})
        sessions.lookup_step(member, number)  # planned, and all rows are there
        occurrences = {name: StepBags(inverse) for name, (_, inverse) in once.items()}
        own = np.ones((KEYS, DIM), np.float32)
        gradients = {
            name: BagGradients(of, CallersArray.of(runtime, own))
            for name, of in occurrences.items()
        }
        before = runtime.uploaded_bytes, runtime.downloaded_bytes
        look = partial(sessions.lookup_step_pooled, member, number, occurrences, on_device=True)
        update = partial(sessions.update_step, member, number, gradients)
        costs = Counter(runtime.counted(look)) + Counter(runtime.counted(update))
        moved = runtime.uploaded_bytes - before[0], runtime.downloaded_bytes - before[1]
        found.append((costs, moved))
    logged = durability != "checkpoint"
    ids_bytes, sums_bytes = 4 * KEYS * tables, logged * (4 * DIM + 8) * KEYS * tables
    for costs, (up_bytes, down_bytes) in found[3:]:  # packs have their sizes, and the log its room
        assert costs["waits"] == 1 + logged
        assert costs["kernels"] == 6 + logged
        assert costs["uploads"] == 2 and costs["downloads"] == 1 + 2 * logged
        assert up_bytes <= ids_bytes + 1_300 + 100 * tables
        assert down_bytes <= sums_bytes + 100
