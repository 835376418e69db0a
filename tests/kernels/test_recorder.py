"""What is recorded reaches the runtime when the host waits, in its order, and not before."""

import numpy as np
import pytest

from embstore.device.gpu_work import GpuWork
from embstore.device.runtime import COMPUTE, UP
from embstore.device.staging import LARGE_BYTES, PACK_BYTES
from embstore.errors import DeviceError
from tests.kernels.emulation.runtime import EmulatedRuntime


class Noting(EmulatedRuntime):
    """Notes what it is given."""

    def __init__(self):
        super().__init__()
        self.given = []

    def fill(self, array, byte):
        self.given.append(f"fill {byte}")
        super().fill(array, byte)

    def copy(self, source, target):
        self.given.append("copy")
        super().copy(source, target)

    def upload(self, source, target, *, stream=COMPUTE):
        self.given.append("upload" if stream == COMPUTE else "upload ahead")
        super().upload(source, target, stream=stream)

    def download(self, source, target, *, stream=COMPUTE):
        self.given.append("download")
        super().download(source, target, stream=stream)


@pytest.fixture
def work():
    return GpuWork(Noting(), 1)


def given(work):
    return work.runtime._runtime.given


def test_work_is_given_when_the_host_waits_and_in_its_order(work):
    a, b = (work.scratch.take(4, np.int64) for _ in range(2))
    work.runtime.fill(a, 1)
    work.runtime.copy(a, b)
    work.runtime.fill(a, 2)
    assert given(work) == []
    assert work.download(b).tolist() == [0x0101010101010101] * 4
    assert given(work) == ["fill 1", "copy", "fill 2", "download"]
    work.wait()
    assert len(given(work)) == 4, "nothing is given twice"


def test_what_is_sent_between_two_waits_is_one_copy(work):
    arrays = [np.arange(n) for n in (0, 1, 5, 300)]
    sent = work.send(*arrays)
    work.runtime.fill(sent[3], 0)
    again = work.upload(np.array([7.5], np.float32))
    found = [work.download(array) for array in (*sent[:3], again)]
    assert [array.tolist() for array in found] == [[], [0], [0, 1, 2, 3, 4], [7.5]]
    assert given(work)[:2] == ["upload", "fill 0"]
    assert given(work).count("upload") == 1


def test_packs_grow_and_what_is_in_them_lasts(work):
    rng = np.random.default_rng(3)
    arrays = [rng.integers(0, 1 << 60, n) for n in (10, 3_000, 9, 30_000, 60_000, 60_000, 1)]
    assert sum(array.nbytes for array in arrays) > PACK_BYTES
    sent = work.send(*arrays)
    work.secure(1_000)  # gives the buffers of packs other memory
    assert [work.download(s).tolist() for s in sent] == [a.tolist() for a in arrays]
    given(work).clear()
    for array in arrays[:4]:
        assert work.download(work.upload(array)).tolist() == array.tolist()
    assert given(work).count("upload") == 4


def test_large_arrays_go_ahead_of_what_is_recorded_after_them(work):
    parts = [np.arange(LARGE_BYTES // 16), np.arange(LARGE_BYTES // 16 + 3)]
    joined = work.join(parts, np.int64)
    assert set(given(work)) == {"upload ahead"}
    assert work.download(joined).tolist() == np.concatenate(parts).tolist()


@pytest.mark.parametrize("more", range(-33, 34, 8))
def test_arrays_about_as_large_as_what_is_packed_arrive(work, more):
    array = np.arange(LARGE_BYTES + more, dtype=np.int64).astype(np.uint8)
    others = np.arange((LARGE_BYTES + more) // 8)
    for sent in ([work.upload(array)], work.send(array), work.send(others, array, others)):
        assert all(len(one) in (len(array), len(others)) for one in sent)
    assert np.array_equal(work.download(work.upload(others)), others)
    assert np.array_equal(work.download(work.upload(array)), array)


def test_an_array_of_the_device_is_joined_where_it_is(work):
    there = work.upload(np.array([4, 5]))
    assert work.join([there], np.int64) is there
    both = work.join([there, np.array([6]), np.array([], np.int64)], np.int64)
    assert work.download(both).tolist() == [4, 5, 6]


def test_what_was_sent_is_sent_again_when_its_bits_change(work):
    for values in ([0.0, 1.0], [0.0, 1.0], [-0.0, 1.0], [-0.0, 1.0, 2.0]):
        array = np.array(values, np.float32)
        sent = work.send_changed("scalars", array)
        assert work.download(sent).tobytes() == array.tobytes()
    assert given(work).count("upload") == 3


def test_memory_that_is_recorded_is_given_to_nobody_else(work):
    """The host drops its last reference before the work is done."""
    target = work.scratch.take(1_000, np.int64)
    source = work.upload(np.arange(1_000))
    work.runtime.copy(source, target)
    address = source.address
    del source
    others = [work.scratch.take(1_000, np.int64) for _ in range(8)]
    assert address not in [other.address for other in others]
    assert work.download(target).tolist() == list(range(1_000))


def test_another_stream_follows_what_is_recorded(work):
    a = work.scratch.take(8, np.uint8)
    work.runtime.fill(a, 9)
    work.runtime.follow(UP, work.runtime.mark(COMPUTE))
    assert given(work) == ["fill 9"]


def test_a_lost_device_refuses_at_once(work):
    array = work.scratch.take(4, np.int64)
    work.runtime.is_lost = True
    for call in (lambda: work.runtime.fill(array, 0), lambda: work.upload(np.arange(3))):
        with pytest.raises(DeviceError):
            call()
    work.close()
