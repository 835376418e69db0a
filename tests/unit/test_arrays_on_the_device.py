"""Callers' arrays in the device's memory: the same bits as the host's, and nothing copied."""

import numpy as np
import pytest

import embstore
from embstore import InvalidArgumentError, RowWiseAdagrad, Uniform
from embstore.device.gpu import GpuDevice
from tests.kernels.emulation.runtime import EmulatedRuntime

SEED = 71
ROWS, DIM, KEYS = 500, 12, 300


class Exported:
    """An array in the device's memory, as another library shows it."""

    def __init__(self, device, array):
        self.d_array = device.memory.upload(array)
        shape = array.shape
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": array.dtype.str,
            "data": (self.d_array.address, False),
            "version": 2,
        }


@pytest.fixture
def store(tmp_path):
    with embstore.open(tmp_path, device=GpuDevice(EmulatedRuntime()), cache_bytes=20_000) as opened:
        for name in ("host", "device"):
            opened.create_table(
                name, dim=DIM, rows=ROWS, optimizer=RowWiseAdagrad(0.1),
                initializer=Uniform(-1, 1), seed=5,
            )  # fmt: skip
        yield opened


def test_lookups_and_updates_give_the_same_bits(store):
    rng, device = np.random.default_rng(SEED), store.executor.device
    for _ in range(5):
        keys = rng.integers(0, ROWS, KEYS)
        grads = rng.standard_normal((KEYS, DIM)).astype(np.float32)
        expected = store.table("host").lookup(keys)
        out = Exported(device, np.zeros((KEYS, DIM), np.float32))
        assert store.table("device").lookup(Exported(device, keys), out=out) is out
        assert np.array_equal(device.memory.download(out.d_array), expected)
        store.table("host").update(keys, grads)
        store.table("device").update(Exported(device, keys), Exported(device, grads))
    host, other = (store.table(name).lookup(np.arange(ROWS)) for name in ("host", "device"))
    assert np.array_equal(host, other)


def test_one_call_may_mix_both(store):
    device, keys = store.executor.device, np.arange(100)
    out = Exported(device, np.zeros((100, DIM), np.float32))
    found = store.lookup({"host": keys, "device": Exported(device, keys)}, out={"device": out})
    assert found["device"] is out
    assert np.array_equal(found["host"], device.memory.download(out.d_array))


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
    with pytest.raises(InvalidArgumentError, match="out"):
        store.table("device").lookup(Exported(store.executor.device, np.arange(3)))


class RequiresGrad:
    """A tensor as PyTorch shows one that requires gradients."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("use var.detach()")


def test_an_array_that_its_library_does_not_show_is_refused(store):
    with pytest.raises(InvalidArgumentError, match="detach"):
        store.table("device").lookup(RequiresGrad())


def test_an_output_that_may_not_be_written_or_is_not_aligned_is_refused(store):
    device, keys = store.executor.device, np.arange(3)
    for address, is_read_only in ((0, True), (2, False)):
        out = Exported(device, np.zeros((3, DIM), np.float32))
        begin = out.__cuda_array_interface__["data"][0]
        out.__cuda_array_interface__["data"] = begin + address, is_read_only
        with pytest.raises(InvalidArgumentError, match="aligned"):
            store.table("device").lookup(keys, out=out)
