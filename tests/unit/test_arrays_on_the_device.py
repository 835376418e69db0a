"""Callers' arrays in the device's memory: the same bits as the host's, and nothing copied."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import embstore
from embstore import InvalidArgumentError, RowWiseAdagrad, Sgd, Uniform
from embstore.device.gpu import GpuDevice
from embstore.device.runtime import COMPUTE
from embstore.errors import CapacityError
from tests.kernels.emulation.runtime import EmulatedRuntime

SEED = 71
ROWS, DIM, KEYS = 500, 12, 300


class Exported:
    """An array in the device's memory, as another library shows it."""

    def __init__(self, device, array):
        with device.runtime.turn():
            self.d_array = device.memory.upload(array)
        shape = array.shape
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": array.dtype.str,
            "data": (self.d_array.address, False),
            "version": 2,
        }


class OfAStream(Exported):
    """One that a stream of its library is still writing, as PyTorch shows it.

    It is there for whoever asks, by DLPack, for that work to be done before its own.
    """

    def __init__(self, device, array):
        super().__init__(device, np.zeros_like(array))
        with device.runtime.turn():
            device.finish()
        self._device, self._array = device, array

    def __dlpack__(self, *, stream):
        assert stream == self._device.runtime.compute_stream
        self._device.runtime.upload(self._array, self.d_array)


@pytest.fixture
def store(tmp_path):
    options = {"cache_bytes": 20_000, "host_cache_bytes": 0}
    with embstore.open(tmp_path, device=GpuDevice(EmulatedRuntime()), **options) as opened:
        for name in ("host", "device"):
            opened.create_table(
                name, dim=DIM, rows=ROWS, optimizer=RowWiseAdagrad(0.1),
                initializer=Uniform(-1, 1), seed=5,
            )  # fmt: skip
        # The planner's thread uses the device, too.
        opened.executor.device.runtime.turn = opened.executor.tables.frame.turn
        yield opened


def test_lookups_and_updates_give_the_same_bits(store):
    rng, device = np.random.default_rng(SEED), store.executor.device
    for _ in range(5):
        keys = rng.integers(0, ROWS, KEYS)
        grads = rng.standard_normal((KEYS, DIM)).astype(np.float32)
        expected = store.table("host").lookup(keys)
        out = Exported(device, np.zeros((KEYS, DIM), np.float32))
        assert store.table("device").lookup(Exported(device, keys), out=out) is out
        # Not only in the device's order: the stream in which its owner goes on is another one.
        there = device.runtime._bytes(out.d_array).view(np.float32)
        assert np.array_equal(there.reshape(KEYS, DIM), expected)
        store.table("host").update(keys, grads)
        store.table("device").update(Exported(device, keys), Exported(device, grads))
    host, other = (store.table(name).lookup(np.arange(ROWS)) for name in ("host", "device"))
    assert np.array_equal(host, other)


def both(store):
    return store.table("host"), store.table("device")


def assert_same(store):
    keys = np.arange(ROWS)
    (weights, state), (others, their_state) = (table.read_rows(keys) for table in both(store))
    assert np.array_equal(weights, others) and np.array_equal(state, their_state)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_give_the_same_bits(store, mode):
    rng, device = np.random.default_rng(SEED), store.executor.device
    offsets = np.array([0, 3, 3, 170, KEYS])
    host, other = both(store)
    for _ in range(5):
        keys = rng.integers(0, ROWS, KEYS)
        grads = rng.standard_normal((4, DIM)).astype(np.float32)
        out = Exported(device, np.zeros((4, DIM), np.float32))
        assert other.lookup_pooled(Exported(device, keys), offsets, mode, out=out) is out
        expected = host.lookup_pooled(keys, offsets, mode)
        assert np.array_equal(device.memory.download(out.d_array), expected)
        host.update_pooled(keys, offsets, grads, mode)
        other.update_pooled(Exported(device, keys), offsets, Exported(device, grads), mode)
    assert_same(store)


def test_rows_that_are_put_and_read_are_the_same(store):
    rng, device = np.random.default_rng(SEED), store.executor.device
    host, other = both(store)
    keys = rng.permutation(ROWS)[:60]
    rows = rng.standard_normal((60, DIM)).astype(np.float32)
    state = rng.random((60, 1)).astype(np.float32)
    host.assign(keys, rows)
    other.assign(Exported(device, keys), Exported(device, rows))
    assert_same(store)
    host.put_rows(keys[:9], rows[9:18], state[:9], 2)
    there = [Exported(device, array) for array in (keys[:9], rows[9:18], state[:9])]
    other.put_rows(*there, 2)
    assert_same(store)
    for found, expected in zip(other.read_rows(there[0]), host.read_rows(keys[:9]), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("ranks", [1, 2])
def test_steps_give_the_same_bits(store, ranks):
    rng, device, sessions = np.random.default_rng(SEED), store.executor.device, store.sessions
    # Long leases: in its turn a call may have to compile kernels first.
    long = {"lease_ms": 600_000, "rank_timeout_ms": 600_000}
    sessions.open("s", ["host", "device"], world_size=ranks, **long)
    members = [sessions.join("s", rank).member for rank in range(ranks)]
    for step in range(1, 5):
        keys = [rng.permutation(ROWS)[:50] for _ in members]
        grads = [rng.standard_normal((50, DIM)).astype(np.float32) for _ in members]
        outs = [Exported(device, np.zeros((50, DIM), np.float32)) for _ in members]
        given = [{"host": own, "device": Exported(device, own)} for own in grads]
        for member, own in zip(members, keys, strict=True):
            sessions.announce(member, {step: {"host": own, "device": own}})
        for member, out in zip(members, outs, strict=True):
            found = sessions.lookup_step(member, step, out={"device": out})
            assert found["device"] is out
            with device.runtime.turn():
                assert np.array_equal(device.memory.download(out.d_array), found["host"])
        with ThreadPoolExecutor(ranks) as pool:
            sent = [
                pool.submit(sessions.update_step, member, step, own)
                for member, own in zip(members, given, strict=True)
            ]
        for done in sent:
            done.result()
    assert_same(store)
    assert store.table("device").t == 4


def test_a_step_with_gradients_that_do_not_fit_is_open(store):
    device, sessions = store.executor.device, store.sessions
    sessions.open("s", ["device"])
    member = sessions.join("s", 0).member
    sessions.announce(member, {1: {"device": np.arange(9)}})
    for wrong in (np.ones((8, DIM), np.float32), np.ones((9, DIM), np.float64)):
        with pytest.raises(InvalidArgumentError, match=r"shape|float32"):
            sessions.update_step(member, 1, {"device": Exported(device, wrong)})
    sessions.update_step(member, 1, {"device": Exported(device, np.ones((9, DIM), np.float32))})
    assert store.table("device").t == 1


def test_what_a_side_stream_writes_is_waited_for(store):
    rng, device = np.random.default_rng(SEED), store.executor.device
    keys = rng.integers(0, ROWS, KEYS)
    grads = rng.standard_normal((KEYS, DIM)).astype(np.float32)
    store.table("host").update(keys, grads)
    store.table("device").update(OfAStream(device, keys), OfAStream(device, grads))
    host, other = (store.table(name).lookup(np.arange(ROWS)) for name in ("host", "device"))
    assert np.array_equal(host, other)


class Unwilling(Exported):
    """One that its library does not give away."""

    def __dlpack__(self, *, stream):
        raise BufferError("conjugated")


def test_an_array_that_is_not_given_away_is_refused(store):
    with pytest.raises(InvalidArgumentError, match="conjugated"):
        store.table("device").lookup(Unwilling(store.executor.device, np.arange(3)))


@pytest.mark.parametrize(
    "keys, grads, message",
    [
        (np.zeros(4, np.int32), np.zeros((4, DIM), np.float32), "int64"),
        (np.zeros((4, 1), np.int64), np.zeros((4, DIM), np.float32), "dimensions"),
        (np.zeros(4, np.int64), np.zeros(4, np.float32), "dimensions"),
        (np.zeros((4, 2), np.int64), np.zeros((4, DIM), np.float32), "dimensions"),
        (np.zeros(4, np.int64), np.zeros((4, DIM + 1), np.float32), "shape"),
        (np.zeros(4, np.int64), np.zeros((3, DIM), np.float32), "shape"),
        (np.array([1, ROWS, 2, 3]), np.zeros((4, DIM), np.float32), f"found {ROWS}"),
    ],
)
def test_wrong_arrays_are_refused_and_change_nothing(store, keys, grads, message):
    device, table = store.executor.device, store.table("device")
    before = table.digest()
    with pytest.raises(InvalidArgumentError, match=message):
        table.update(Exported(device, keys), Exported(device, grads))
    assert (table.digest(), table.t) == (before, 0)


def test_keys_on_the_device_need_an_out(store):
    keys, table = Exported(store.executor.device, np.arange(3)), store.table("device")
    for call in (lambda: table.lookup(keys), lambda: table.lookup_pooled(keys, [0, 3])):
        with pytest.raises(InvalidArgumentError, match="expected out to be given"):
            call()


def test_keys_of_an_announcement_are_the_hosts(store):
    keys = Exported(store.executor.device, np.arange(10))
    with store.session(tables=["device"], lookahead=2) as run:
        steps = run.steps([keys], keys=lambda batch: {"device": batch})
        with pytest.raises(InvalidArgumentError, match="keys in the host's memory, found an array"):
            next(iter(steps))


def test_state_of_no_element_is_put(store):
    store.resize_cache(1 << 20)
    table = store.create_table("c", dim=4, rows=9, optimizer=Sgd(0.1), initializer=Uniform(-1, 1))
    rows = np.ones((5, 4), np.float32)
    there = [Exported(store.executor.device, a) for a in (rows, np.ones((5, 0), np.float32))]
    table.put_rows(np.arange(5), *there, 1)
    assert np.array_equal(table.lookup(np.arange(5)), rows)


@pytest.fixture
def turns(store, monkeypatch):
    """Return of each array that was adopted whether the engine's turn was held."""
    held, memory, lock = [], store.executor.device.memory, store.executor.tables.frame._lock
    adopt = memory.adopt

    def noted(array, *arguments, **options):
        if hasattr(array, "__cuda_array_interface__"):
            held.append(lock._is_owned())
        return adopt(array, *arguments, **options)

    monkeypatch.setattr(memory, "adopt", noted)
    return held


@pytest.mark.parametrize("ranks", [1, 2])
def test_arrays_are_taken_within_the_engines_turn(store, turns, ranks):
    test_steps_give_the_same_bits(store, ranks)
    assert len(turns) == 4 * 2 * ranks and all(turns)


class Hidden:
    """An array that its library does not show: by PyTorch one that requires gradients, or one of a
    dtype that has no name."""

    def __init__(self, error):
        self._error = error

    @property
    def __cuda_array_interface__(self):
        raise self._error


def test_an_array_that_its_library_does_not_show_is_refused(store):
    table, unnamed = store.table("device"), Hidden(KeyError("no such dtype"))
    with pytest.raises(InvalidArgumentError, match="detach"):
        table.lookup(Hidden(RuntimeError("use var.detach()")))
    for call in (
        lambda: table.lookup(np.arange(2), out=unnamed),
        lambda: table.update(np.arange(2), unnamed),
        lambda: table.assign(np.arange(2), unnamed),
    ):
        with pytest.raises(InvalidArgumentError, match="no such dtype"):
            call()


def test_an_output_that_may_not_be_written_or_is_not_aligned_is_refused(store):
    device, keys = store.executor.device, np.arange(3)
    for address, is_read_only in ((0, True), (2, False)):
        out = Exported(device, np.zeros((3, DIM), np.float32))
        begin = out.__cuda_array_interface__["data"][0]
        out.__cuda_array_interface__["data"] = begin + address, is_read_only
        with pytest.raises(InvalidArgumentError, match="aligned"):
            store.table("device").lookup(keys, out=out)


def refused_lookup(store):
    """A lookup with an output on the device, which is refused after its work was queued."""
    device, out = store.executor.device, np.full((100, DIM), 7, np.float32)
    out = Exported(device, out)
    store.lookup({"device": np.arange(100)})  # all rows are there
    return out, lambda keys: store.lookup(keys, out={"device": out})


def test_a_lookup_refused_for_another_pool_leaves_an_output_as_it_was(store):
    """Review: The gather of the first pool was begun, and knew nothing of the second's keys."""
    store.resize_cache(1 << 20)
    store.create_table("other", dim=3, rows=9, optimizer=Sgd(0.1), initializer=Uniform(-1, 1))
    out, call = refused_lookup(store)
    with pytest.raises(InvalidArgumentError, match=r"keys in \[0, 9\)"):
        call({"device": np.arange(100), "other": np.array([9])})
    assert (store.executor.device.memory.download(out.d_array) == 7).all()


def test_nothing_of_a_call_that_raised_is_done_later(store, monkeypatch):
    """Review: What it had recorded was given to the device with the next call, when its arrays
    might be others'."""
    out, call = refused_lookup(store)
    device = store.executor.device

    def refuse(self, *batches):
        raise CapacityError("no memory for findings")

    with monkeypatch.context() as patched:
        patched.setattr("embstore.device.gpu_keys.GpuKeys.synchronize", refuse)
        with pytest.raises(CapacityError):
            call({"device": np.arange(100)})
    device.runtime.upload(np.full((100, DIM), 9, np.float32), out.d_array)
    device.runtime.wait(device.runtime.mark(COMPUTE))
    store.table("host").lookup([1])
    assert (device.memory.download(out.d_array) == 9).all()


def test_lookups_with_missing_rows_allocate_no_pinned_memory(store):
    """Review: The buffer of a reply that did not come was lost, with every miss."""
    runtime, rng = store.executor.device.runtime, np.random.default_rng(SEED)
    allocated, allocate = [], runtime.allocate_host
    runtime.allocate_host = lambda count: allocated.append(count) or allocate(count)
    counts = []
    for _ in range(24):  # buffers have their sizes after some
        store.table("host").lookup(rng.integers(0, ROWS, KEYS))
        counts.append((len(allocated), store.stats()["cache"]["pools"][0]["evictions_clean"]))
    assert counts[-1][0] == counts[15][0], counts
    assert counts[-1][1] > counts[15][1], "rows were missing"
