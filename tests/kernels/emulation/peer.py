"""The GPU of a client, emulated: a process of its own beside the server's, in state if not in fact.

A trainer's arrays are `ClientArray`s: written, and read, in a stream that is not the one in which
the client copies. They name that stream, or leave it to DLPack. Whoever does not have the streams
follow each other reads garbage.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from embstore.device.runtime import COMPUTE, UP, DeviceArray
from embstore_client.device_segment import check_is
from embstore_proto.device_places import Place
from embstore_proto.device_segment import Handles
from tests.kernels.emulation.callers import CALLERS
from tests.kernels.emulation.exports import EVENTS, EXPORTS
from tests.kernels.emulation.runtime import EmulatedRuntime

CALLERS_STREAM, OUR_STREAM = 7, 9
"""Which the runtime has as UP and COMPUTE."""
STREAMS = {CALLERS_STREAM: UP, CALLERS: CALLERS}
"""Of a trainer, as the runtime has them; CALLERS is that of Torch."""


class EmulatedGpu:
    """The `Gpu` of a client; `looks` is how often a server finds an event unreached."""

    def __init__(self, looks: int = 0) -> None:
        self.runtime = EmulatedRuntime(name="client:0")
        self.name = "cuda:0"
        self.lock = threading.RLock()
        self.looks = looks
        self.opened = 0
        """Segments, ever."""
        self.open_segments: list[EmulatedArea] = []

    def open(self, handles: Handles, name: str | None = None) -> "EmulatedArea":
        """See `Gpu`."""
        check_is(self.name, name)
        with self.lock:
            self.opened += 1
            segment = EmulatedArea(self, handles)
            self.open_segments.append(segment)
            return segment

    def array(self, content: Any, **how: Any) -> "ClientArray":
        """Return a trainer's array, which its stream has still to write."""
        return ClientArray(self, np.ascontiguousarray(content), **how)

    def synchronize(self) -> None:
        """Wait for all streams."""
        with self.lock:
            for stream in (UP, COMPUTE):
                self.runtime.wait(self.runtime.mark(stream))


class ClientArray:
    """An array of a trainer, as its library shows it."""

    def __init__(self, gpu: EmulatedGpu, content: np.ndarray, *, names_stream: bool = True) -> None:
        self._gpu = gpu
        width = content.shape[1] if content.ndim == 2 else 1
        self.shape, self.dtype = content.shape, content.dtype
        with gpu.lock:
            self.d_array = gpu.runtime.allocate(len(content), content.dtype, width=width)
            gpu.runtime.upload(content, self.d_array, stream=UP)
        interface = {
            "shape": content.shape,
            "typestr": content.dtype.str,
            "data": (self.d_array.address, False),
            "version": 2,
        }
        if names_stream:
            interface |= {"version": 3, "stream": CALLERS_STREAM}
        self.__cuda_array_interface__ = interface

    def __dlpack__(self, *, stream: int) -> None:
        assert stream == OUR_STREAM
        self._gpu.runtime.follow(COMPUTE, self._gpu.runtime.mark(UP))

    def content(self) -> np.ndarray:
        """Return the elements, as the trainer's stream has them."""
        return read(self._gpu, self.d_array, self.shape, stream=UP)

    get = content
    """As CuPy calls it."""


class LentArray:
    """Rows of a segment, as a client gets them."""

    def __init__(self, gpu: EmulatedGpu, d_array: DeviceArray, place: Place, owner: object) -> None:
        self._gpu, self._d_array, self._owner = gpu, d_array, owner
        self.shape, self.dtype = place.shape, place.dtype
        self.__cuda_array_interface__ = {
            "shape": place.shape,
            "typestr": place.dtype.str,
            "data": (d_array.address, False),
            "version": 3,
            "stream": None,
        }

    def content(self) -> np.ndarray:
        """Return the elements as they are: an answer says that they are there."""
        return read(self._gpu, self._d_array, self.shape, stream=UP)

    def begin_read(self) -> Callable[[], np.ndarray]:
        """Queue a read in the trainer's stream, and return what waits for it."""
        out = np.empty(self.shape, self.dtype)
        with self._gpu.lock:
            self._gpu.runtime.download(self._d_array, out, stream=UP)
            mark = self._gpu.runtime.mark(UP)
        gpu = self._gpu

        def end() -> np.ndarray:
            with gpu.lock:
                gpu.runtime.wait(mark)
            return out

        return end


def read(gpu: EmulatedGpu, d_array: DeviceArray, shape: Any, *, stream: int) -> np.ndarray:
    """Return what a stream reads of an array."""
    out = np.empty(shape, d_array.dtype)
    with gpu.lock:
        gpu.runtime.download(d_array, out, stream=stream)
        gpu.runtime.wait(gpu.runtime.mark(stream))
    return out


class EmulatedArea:
    """An `OpenSegment`, of a server's runtime in this process."""

    def __init__(self, gpu: EmulatedGpu, handles: Handles) -> None:
        self._gpu, self._runtime = gpu, gpu.runtime
        self._export, self._event = EXPORTS[handles.memory], EVENTS[handles.event]
        assert len(self._export.memory.content) == handles.byte_count
        self.byte_count, self.device = handles.byte_count, gpu.name
        self._export.opened += 1
        self.d_bytes = self._runtime.open(self._export)
        self.content: np.ndarray = self._export.memory.content
        """Its bytes, which a client may change whenever it likes."""

    def follow(self, arrays: Sequence[Any]) -> None:
        """See `OpenSegment`."""
        with self._gpu.lock:
            for array in arrays:
                interface = array.__cuda_array_interface__
                if interface["version"] < 3:
                    array.__dlpack__(stream=OUR_STREAM)
                elif interface["stream"] in STREAMS:
                    stream = STREAMS[interface["stream"]]
                    self._runtime.follow(COMPUTE, self._runtime.mark(stream))

    def follow_current(self) -> None:
        """See `OpenSegment`: the trainer's stream is the current one."""
        with self._gpu.lock:
            self._runtime.follow(COMPUTE, self._runtime.mark(UP))

    def write(self, array: Any, offset: int, byte_count: int) -> None:
        """See `OpenSegment`."""
        address = array.__cuda_array_interface__["data"][0]
        source = DeviceArray(address, byte_count, np.uint8, array)
        with self._gpu.lock:
            self._runtime.copy(source, self.d_bytes[offset : offset + byte_count])

    def record(self) -> None:
        """See `OpenSegment`."""
        with self._gpu.lock:
            self._event.record(partial(self._reach, self._runtime.mark(COMPUTE)), self._gpu.looks)

    def _reach(self, mark: Any) -> None:
        with self._gpu.lock:
            self._runtime.wait(mark)

    def read(self, place: Place, out: Any) -> None:
        """See `OpenSegment`."""
        if not place.byte_count:
            return
        interface = out.__cuda_array_interface__
        target = DeviceArray(interface["data"][0], place.byte_count, np.uint8, out)
        with self._gpu.lock:
            self._runtime.copy(self.d_bytes[place.offset : place.end], target)
            mark = self._runtime.mark(COMPUTE)
            if interface["version"] >= 3:
                self._runtime.follow(STREAMS.get(interface["stream"], UP), mark)
            else:
                self._runtime.wait(mark)

    def _array(self, place: Place) -> DeviceArray:
        width = place.shape[1]
        return self.d_bytes[place.offset : place.end].view(place.dtype, width=width)

    def lent(self, place: Place, owner: object) -> LentArray:
        """See `OpenSegment`."""
        return LentArray(self._gpu, self._array(place), place, owner)

    def copied(self, place: Place) -> LentArray:
        """See `OpenSegment`."""
        with self._gpu.lock:
            own = self._runtime.allocate(place.shape[0], place.dtype, width=place.shape[1])
            self._runtime.copy(self._array(place), own)
            self._runtime.wait(self._runtime.mark(COMPUTE))
        return LentArray(self._gpu, own, place, None)

    def close(self) -> None:
        """See `OpenSegment`."""
        self._gpu.synchronize()
        with self._gpu.lock:
            self._runtime.close_opened(self.d_bytes)
            self._export.opened -= 1
            self._gpu.open_segments.remove(self)
