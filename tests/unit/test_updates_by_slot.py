"""Updates on a GPU whose rows are all in its cache: grouped by slot, with the bits of any other.

Slots that a lookup has found are not looked for again, as long as they are right.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import CapacityError, InvalidArgumentError, RowWiseAdagrad, Store, Uniform
from embstore.device.gpu import GpuDevice
from embstore.device.gpu_keys import GpuKeys
from embstore.errors import DeviceError
from tests.kernels.emulation.runtime import EmulatedRuntime

SEED, ROWS, DIM = 20_261_126, 700, 8
NAMES = "a", "b"


def opened(path: Path, device: Any, durability: Any = "commands") -> Store:
    store = embstore.open(
        path, device=device, cache_bytes=1 << 20, host_cache_bytes=0, durability=durability
    )
    for name in NAMES:
        store.create_table(
            name, dim=DIM, rows=ROWS, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(-1, 1)
        )
    return store


@pytest.fixture(params=["commands", "checkpoint"])
def stores(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Store]]:
    """A store on the emulated GPU, and one on the CPU. What is not logged is queued whole."""
    device, how = GpuDevice(EmulatedRuntime(), 1), request.param
    with opened(tmp_path / "gpu", device, how) as gpu, opened(tmp_path / "cpu", "cpu", how) as cpu:
        yield [gpu, cpu]


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches that were grouped by slot."""
    found: list[Any] = []
    group = GpuKeys.group

    def noted(*arguments: Any) -> Any:
        made = group(*arguments)
        found.append(made and made[0])
        return made

    monkeypatch.setattr(GpuKeys, "group", noted)
    return found


def keys_of(rng: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    return np.minimum(rng.zipf(1.3, count), ROWS) - 1


def same(stores: list[Store]) -> None:
    digests = [[store.table(name).digest() for name in NAMES] for store in stores]
    assert digests[0] == digests[1]


def test_rows_digests_and_a_replay_are_those_of_the_cpu(stores, grouped, tmp_path):
    """Hot keys have several chunks; each table is in each call, in either order."""
    rng = np.random.default_rng(SEED)
    for _ in range(2):  # the second finds all of them
        for store in stores:
            store.lookup({name: np.arange(ROWS) for name in NAMES})
    for step in range(12):
        order = NAMES[:: (-1) ** step]
        counts = rng.integers(1, 900, 2)
        keys = {name: keys_of(rng, n) for name, n in zip(order, counts, strict=True)}
        grads = {name: rng.standard_normal((len(k), DIM), np.float32) for name, k in keys.items()}
        rows = [store.lookup(keys) for store in stores]
        assert all(rows[0][name].tobytes() == rows[1][name].tobytes() for name in NAMES)
        other = step % 3 == 2  # than was looked up
        named = {name: (k[::-1] if other else k, grads[name]) for name, k in keys.items()}
        for store in stores:
            store.update(named)
    assert sum(not batch.found.missing for batch in grouped) > 6
    same(stores)
    engine: Any = stores[0].executor
    if engine.log is None:  # nothing is executed again then
        stores[0].checkpoint("end")
    engine.abandon()
    with embstore.open(tmp_path / "gpu", device="cpu") as again:
        same([again, stores[1]])


def test_a_missing_key_has_the_call_made_unique(stores, grouped):
    rng = np.random.default_rng(SEED)
    for store in stores:
        store.table("a").lookup(np.arange(300))
        store.table("a").lookup(np.arange(300))
    keys = rng.integers(200, 400, 500)
    for store in stores:
        store.table("a").update(keys, np.ones((500, DIM), np.float32))
    assert [batch.found.missing > 0 for batch in grouped] == [True]
    same(stores)
    for store in stores:
        store.table("a").update(keys, np.ones((500, DIM), np.float32))
    same(stores)


@pytest.mark.parametrize("key", [-1, ROWS])
def test_a_foreign_key_is_named(stores, key):
    keys = np.arange(300)
    keys_and_one = np.concatenate([keys, [key]])
    for store in stores:
        table = store.table("a")
        for _ in range(3):
            with pytest.raises(InvalidArgumentError, match=rf"keys in \[0, 700\).*{key}"):
                table.lookup(keys_and_one)
            table.lookup(keys)
        with pytest.raises(InvalidArgumentError, match=rf"keys in \[0, 700\).*{key}"):
            table.update(keys_and_one, np.ones((301, DIM), np.float32))
    same(stores)


def test_of_foreign_keys_in_two_tables_the_first_is_named(stores):
    """Only those of the first are grouped by slot: the last lookup of the other found none."""
    keys, grads = np.array([3, -1]), np.ones((2, DIM), np.float32)
    for store in stores:
        store.create_table(
            "other", dim=5, rows=ROWS, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(-1, 1)
        )
        for _ in range(2):
            store.table("a").lookup(np.arange(300))
        store.table("other").lookup(np.arange(300))
        with pytest.raises(InvalidArgumentError, match=r"'a': expected keys"):
            store.update({"a": (keys, grads), "other": (keys, grads[:, :5])})
    same(stores)


def test_of_two_wrong_sums_the_first_by_occurrence_is_named(stores):
    keys, messages = np.array([9, 3, 5, 3]), []
    grads = np.ones((4, DIM), np.float32)
    grads[[2, 3]] = np.inf  # of keys 5 and 3, and 3 occurs before 5
    for store in stores:
        store.table("a").lookup(keys)
        store.table("a").lookup(keys)
        with pytest.raises(InvalidArgumentError) as refused:
            store.table("a").update(keys, grads)
        messages.append(str(refused.value))
    assert messages[0] == messages[1]
    assert "3" in messages[0]
    same(stores)


def test_slots_are_looked_for_again_where_rows_have_moved(tmp_path):
    """A cache of few rows: those of a lookup leave before its update, whose keys are the same."""
    rng = np.random.default_rng(SEED)
    made = []
    for name, device in (("gpu", GpuDevice(EmulatedRuntime(), 1)), ("cpu", "cpu")):
        store = embstore.open(
            tmp_path / name, device=device, cache_bytes=40_000, host_cache_bytes=0
        )
        store.create_table(
            "a", dim=DIM, rows=ROWS, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(-1, 1)
        )
        made.append(store)
    for _ in range(8):
        keys, others = rng.integers(0, ROWS, 60), rng.integers(0, ROWS, 400)
        for store in made:
            table = store.table("a")
            for _ in range(3):  # the last finds all of them, and is known to
                table.lookup(keys)
            table.lookup_pooled(others, np.arange(401))
            table.update(keys, np.ones((60, DIM), np.float32))
    assert made[0].table("a").digest() == made[1].table("a").digest()
    for store in made:
        store.close()


def test_keys_of_the_caller_may_change_in_their_place(tmp_path):
    """As those of a trainer do, who uses one array of the device for all steps."""
    from tests.unit.test_arrays_on_the_device import Exported

    device = GpuDevice(EmulatedRuntime(), 1)
    with opened(tmp_path / "gpu", device) as store:
        table, keys = store.table("a"), np.arange(200)
        for _ in range(2):  # the second finds all of them
            table.lookup(np.arange(ROWS))
        d_keys, out = Exported(device, keys), Exported(device, np.zeros((200, DIM), np.float32))
        table.lookup(d_keys, out=out)
        device.runtime.upload(keys[::-1] + 300, d_keys.d_array)
        table.update(d_keys, Exported(device, np.ones((200, DIM), np.float32)))
        expected = table.lookup(np.arange(ROWS))
        with opened(tmp_path / "cpu", "cpu") as cpu:
            cpu.table("a").update(keys + 300, np.ones((200, DIM), np.float32))
            assert cpu.table("a").lookup(np.arange(ROWS)).tobytes() == expected.tobytes()


def test_rows_may_be_written_over_their_keys(tmp_path):
    """The slots that a lookup has found are those of its keys, not of the rows in their place."""
    from tests.unit.test_arrays_on_the_device import Exported

    device = GpuDevice(EmulatedRuntime(), 1)
    with opened(tmp_path, device) as store:
        table, out = store.table("a"), Exported(device, np.zeros((200, DIM), np.float32))
        keys, d_keys = np.arange(200), Exported(device, np.arange(200))
        for _ in range(2):  # the second finds all of them
            table.lookup(keys)
        d_keys.__cuda_array_interface__["data"] = out.__cuda_array_interface__["data"]
        device.runtime.upload(keys, out.d_array[: 1600 // (4 * DIM)])
        table.lookup(d_keys, out=out)
        with pytest.raises(InvalidArgumentError, match="expected keys"):  # bits of rows
            table.update(d_keys, np.ones((200, DIM), np.float32))


def test_the_slots_of_one_table_are_not_those_of_another(stores):
    keys, grads = np.arange(300), np.ones((300, DIM), np.float32)
    for store in stores:
        for _ in range(2):
            store.lookup(dict.fromkeys(NAMES, keys))
        store.table("a").lookup(keys)
        store.table("b").update(keys, grads)
        store.table("a").lookup(keys)
        store.update(dict.fromkeys(NAMES, (keys, grads)))
    same(stores)


class Refusing(EmulatedRuntime):
    """Has no pinned memory while it refuses."""

    refuses = False

    def allocate_host(self, byte_count: int) -> np.ndarray[Any, Any]:
        if self.refuses:
            raise CapacityError("no pinned memory, says the test")
        return super().allocate_host(byte_count)


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[tuple[Refusing, Store]]:
    """A store on a device that may refuse, its packs allocated, with a cache of few rows."""
    runtime = Refusing()
    device = GpuDevice(runtime, 1)
    with embstore.open(tmp_path, device=device, cache_bytes=40_000, host_cache_bytes=0) as store:
        store.create_table(
            "a", dim=DIM, rows=2 * ROWS, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(-1, 1)
        )
        for _ in range(4):
            store.table("a").lookup([0])
        yield runtime, store


def refused(runtime: Refusing, store: Store, keys: Any) -> None:
    runtime.refuses = True
    with pytest.raises(CapacityError):
        store.table("a").lookup(keys)
    runtime.refuses = False


def test_slots_of_a_refused_lookup_are_looked_for_again(refusing):
    """None of its rows was there, which the host had not been told yet."""
    runtime, store = refusing
    keys = np.arange(1, 200)
    refused(runtime, store, keys)
    rows = store.table("a").lookup(keys)
    assert rows.tobytes() == store.table("a").read_rows(keys)[0].tobytes()
    store.check_integrity()


def test_rows_of_a_refused_lookup_may_leave(refusing):
    """The device had touched all there are, which the host had not been told yet."""
    runtime, store = refusing
    table = store.table("a")
    for low in range(0, 2 * ROWS, 14):  # few at once, whose buffers are small
        table.lookup(np.arange(low, low + 14))
    slots = store.stats()["cache"]["pools"][0]["slots"]
    resident = np.arange(2 * ROWS)[-slots:]
    for _ in range(2):  # the second finds it, and is known to
        table.lookup(resident[:1])
    refused(runtime, store, resident)
    assert len(table.lookup(np.arange(slots))) == slots
    store.check_integrity()


class FailsLater(EmulatedRuntime):
    """Fails in the kernel that applies an update, behind what its call waits for."""

    is_armed = False

    def launch(self, kernel: str, blocks: int, *arguments: Any) -> None:
        if self.is_armed and kernel.startswith("apply_"):
            self.give(self._fail)
        else:
            super().launch(kernel, blocks, *arguments)

    def _fail(self) -> None:
        self.is_lost = True
        self._check()


@pytest.mark.parametrize("durability", ["checkpoint", "interval", "commands"])
def test_a_gpu_that_fails_after_an_update_was_acknowledged(tmp_path, durability):
    """The next call hears of it, and what was acknowledged is in the log, where there is one."""
    runtime, keys = FailsLater(), np.arange(50)
    gradients = np.ones((50, DIM), np.float32)
    store = opened(tmp_path / "store", GpuDevice(runtime, 1), durability)
    table = store.table("a")
    table.update(keys, gradients)
    store.checkpoint("one")
    digests = [table.digest()]
    runtime.is_armed = True
    assert table.update(keys, gradients).t == 2
    with pytest.raises(DeviceError):
        table.lookup(keys)
    store.close()
    with opened(tmp_path / "twin", "cpu") as twin:
        for _ in range(2):
            twin.table("a").update(keys, gradients)
        digests.append(twin.table("a").digest())
    with opened(tmp_path / "store", "cpu", durability) as again:
        assert again.table("a").digest() == digests[durability != "checkpoint"]
