"""How many slots are pinned, where the device's work is queued."""

import threading

import numpy as np
import pytest

import embstore
from embstore import Sgd, Uniform
from embstore.device.gpu import GpuDevice
from embstore.profiles.hotset import HotSet
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.service.faults.served import until

ROWS = 500


@pytest.fixture
def store(tmp_path):
    with embstore.open(
        tmp_path, device=GpuDevice(EmulatedRuntime()), cache_bytes=1 << 20, host_cache_bytes=0
    ) as opened:
        opened.create_table("a", dim=4, rows=ROWS, optimizer=Sgd(0.1), initializer=Uniform(-1, 1))
        opened.pin_hot_set(HotSet({"a": np.arange(300)}))
        yield opened


def pool_of(store):
    (pool,) = store.executor.tables.pools.values()
    return pool


def test_what_was_let_go_is_counted_when_it_is_told(store):
    pins, slots = pool_of(store).pins, pool_of(store).slots.contents().scores
    pinned = np.flatnonzero(slots >= 1 << 52)[:7]
    assert pins.count == 300
    with store.executor.tables.reading():
        pins.unpin(pinned)
        assert pins.known_count == 300, "nobody has waited"
        pins.pin(pinned[:2])
    assert store.stats()["sessions"]["planning"]["pinned_rows"] == 295


def test_slots_that_go_take_their_own_pins_only(store):
    """All of a pool's were taken, and what was wanted pinned again, for each slab that went."""
    pool, table = pool_of(store), store.table("a")
    with store.executor.tables.reading():
        while pool.evictor.grow():
            pass
    table.lookup(np.arange(300, 340))  # to the last slab
    hot_set = HotSet({"a": np.arange(320)}, version=2)
    assert store.pin_hot_set(hot_set).pinned_rows == 320
    with store.executor.tables.reading():
        pool.evictor.release_slabs(1)
        assert pool.pins.count == 300
    assert store.pin_hot_set(hot_set).pinned_rows == 320
    store.check_integrity()


def test_answers_that_nobody_asks_for_do_not_pile_up(store):
    pool, runtime = pool_of(store), store.executor.device.runtime
    allocated, allocate = [], runtime.allocate_host
    runtime.allocate_host = lambda count: allocated.append(count) or allocate(count)
    slots = np.flatnonzero(pool.slots.contents().scores >= 1 << 52)
    with store.executor.tables.reading():
        for slot in slots[:200]:
            pool.pins.unpin(np.array([slot]))
    assert len(allocated) < 40
    assert pool.pins.count == 100


def test_commands_that_hold_the_engine_do_not_wait_for_a_swap_that_waits_for_it(store):
    """A restore, as a server runs it: its turn covers the answer that it remembers."""
    frame = store.executor.tables.frame
    store.checkpoint("c")
    hot_set = HotSet({"a": np.arange(320)}, version=2)
    swap = threading.Thread(target=store.pin_hot_set, args=(hot_set,))
    with frame.turn():
        swap.start()
        until(lambda: frame.is_waited_for)
        store.restore("c")
        store.resize_cache(1 << 20)
    swap.join()
    until(lambda: pool_of(store).pins.count == 320)
