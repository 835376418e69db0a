"""Opens a server's GPU memory by CuPy; implements `OpenSegment` and `Gpu` of device_segment.py.

The memory is opened on the GPU where it is allocated. This process must see that GPU
(CUDA_VISIBLE_DEVICES), because the server's event can only be recorded in a stream of that GPU.
Copies from and to another GPU of this process need peer access between the two GPUs. Without it
CUDA would copy through the host, so such copies are refused.

Every method sets the memory's GPU as the thread's current device, and restores the previous device.
`read` waits for its copy if the library of `out` names no stream; `copied` always waits. `close`
waits for all queued work first, because closing memory that queued work still uses is undefined
behaviour.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import cupy
from cupy.cuda import runtime as cuda

from embstore.errors import DeviceError, InvalidArgumentError
from embstore_client.device_segment import check_is
from embstore_proto.device_places import Place
from embstore_proto.device_segment import Handles

_CALLERS_MISTAKES = (1, 400)
"""cudaErrorInvalidValue, cudaErrorInvalidResourceHandle."""
_ENABLED_ALREADY = 704
"""cudaErrorPeerAccessAlreadyEnabled."""
_LEGACY_STREAM = 1
"""cudaStreamLegacy, the default stream, as `__cuda_array_interface__` names it too."""

P = ParamSpec("P")
R = TypeVar("R")


def named(ordinal: int) -> str:
    """Return the name of a GPU of this process, such as "cuda:1"."""
    return f"cuda:{ordinal}"


class CupyGpu:
    """Opens memory on the GPUs that this process sees, by CUDA."""

    def open(self, handles: Handles, name: str | None = None) -> "CupySegment":
        """Open a server's memory; see `Gpu.open`."""
        try:
            ordinal = cuda.deviceGetByPCIBusId(handles.gpu)
        except cuda.CUDARuntimeError as exc:
            raise InvalidArgumentError(
                f"the rows are on the GPU {handles.gpu}, which this process does not see ({exc}): "
                "add it to CUDA_VISIBLE_DEVICES, or give host arrays"
            ) from exc
        check_is(named(ordinal), name)
        try:
            with cupy.cuda.Device(ordinal):
                return CupySegment(ordinal, handles)
        except cuda.CUDARuntimeError as exc:
            raise InvalidArgumentError(
                f"CUDA does not open the memory of the server's GPU {handles.gpu} ({exc}): its "
                "process must be on this host and in this IPC namespace; or give host arrays"
            ) from exc


def _on_device(
    call: Callable[Concatenate["CupySegment", P], R],
) -> Callable[Concatenate["CupySegment", P], R]:
    """Run a method on the segment's GPU. An error of CUDA becomes InvalidArgumentError if the
    caller's arrays are the cause, else DeviceError."""

    @wraps(call)
    def called(self: "CupySegment", /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with cupy.cuda.Device(self.ordinal):
                return call(self, *args, **kwargs)
        except cuda.CUDARuntimeError as exc:
            if exc.status in _CALLERS_MISTAKES:
                raise InvalidArgumentError(
                    f"expected arrays and streams of this process's GPUs, found an address or a "
                    f"stream that CUDA does not know ({exc})"
                ) from exc
            raise DeviceError(
                f"cuda:{self.ordinal} of this process: {call.__name__}: {exc}; it, or work queued "
                "before it, has failed"
            ) from exc

    return called


class CupySegment:
    """The memory and the event of a server, opened on the GPU `ordinal` of this process."""

    def __init__(self, ordinal: int, handles: Handles) -> None:
        self.ordinal, self.device = ordinal, named(ordinal)
        self.byte_count = handles.byte_count
        self._address = cuda.ipcOpenMemHandle(handles.memory)
        try:
            self._event = cuda.ipcOpenEventHandle(handles.event)
        except cuda.CUDARuntimeError:
            cuda.ipcCloseMemHandle(self._address)
            raise
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._peers = {ordinal}
        """Ordinals of the GPUs of this process that the segment's GPU can copy from and to."""

    @_on_device
    def follow(self, arrays: Sequence[Any]) -> None:
        """Make copies wait for the present work on arrays; see `OpenSegment.follow`."""
        for array in arrays:
            device, interface = self._device_of(array), array.__cuda_array_interface__
            if interface["version"] < 3 and hasattr(array, "__dlpack__"):
                self._ask_library(array, device)
                continue
            stream = interface.get("stream") if interface["version"] >= 3 else _LEGACY_STREAM
            if stream is not None:
                self._check_capture(stream)
                self._after(stream, self._stream.ptr, device)
        self._check_capture(self._stream.ptr)  # a capture may include it by now

    def follow_current(self) -> None:
        """Make copies wait for the present work of two of CuPy's current streams: that of the
        thread's GPU, and that of the segment's GPU; see `OpenSegment.follow_current`."""
        for device in {cuda.getDevice(), self.ordinal}:
            self._follow_current(device)

    @_on_device
    def _follow_current(self, device: int) -> None:
        with cupy.cuda.Device(device):
            stream = cupy.cuda.get_current_stream().ptr
        self._check_capture(stream)
        self._after(stream, self._stream.ptr, device)

    def _ask_library(self, array: Any, device: int) -> None:
        """Make the segment's stream wait for the stream that an array's library uses now. The array
        does not name that stream, so this is possible only by DLPack."""
        try:
            if device == self.ordinal:
                array.__dlpack__(stream=self._stream.ptr)
                return
            with cupy.cuda.Device(device):  # a library accepts only streams of its array's GPU
                theirs = cupy.cuda.Stream(non_blocking=True)
                array.__dlpack__(stream=theirs.ptr)
        except Exception as exc:  # any error of the library
            raise InvalidArgumentError(
                f"expected an array that its library exports by DLPack: {exc}"
            ) from exc
        self._after(theirs.ptr, self._stream.ptr, device)

    def _after(self, first: int, then: int, device: int) -> None:
        """Have later work of the stream `then` wait for the present work of the stream `first`, on
        `device`."""
        with cupy.cuda.Device(device):
            event = cupy.cuda.Event(disable_timing=True)
            cuda.eventRecord(event.ptr, first)
        cuda.streamWaitEvent(then, event.ptr)

    def _check_capture(self, stream: int) -> None:
        if cuda.streamIsCapturing(stream):
            raise InvalidArgumentError(
                "expected an array whose stream does its work, found one that is being captured "
                "into a CUDA graph: call the store outside of the capture"
            )

    def _device_of(self, array: Any) -> int:
        """Return the GPU of an array; refuse the array if the segment's GPU cannot copy from that
        GPU."""
        interface = array.__cuda_array_interface__
        if 0 in interface["shape"]:
            return self.ordinal
        place = cuda.pointerGetAttributes(int(interface["data"][0]))
        if place.type not in (cuda.memoryTypeDevice, cuda.memoryTypeManaged):
            raise InvalidArgumentError("expected an array in a GPU's memory, found one on the host")
        device = int(place.device)
        if device not in self._peers:
            if not cuda.deviceCanAccessPeer(self.ordinal, device):
                raise InvalidArgumentError(
                    f"expected an array on a GPU with peer access to cuda:{self.ordinal}, which "
                    f"has the server's rows, found one on cuda:{device}; give host arrays"
                )
            try:
                cuda.deviceEnablePeerAccess(device)
            except cuda.CUDARuntimeError as exc:
                if exc.status != _ENABLED_ALREADY:
                    raise
            self._peers.add(device)
        return device

    @_on_device
    def write(self, array: Any, offset: int, byte_count: int) -> None:
        """Copy a caller's array into the segment."""
        source = int(array.__cuda_array_interface__["data"][0])
        self._copy(self._address + offset, source, byte_count)

    def _copy(self, target: int, source: int, byte_count: int) -> None:
        cuda.memcpyAsync(target, source, byte_count, cuda.memcpyDefault, self._stream.ptr)

    @_on_device
    def record(self) -> None:
        """Record the server's event after all copies so far."""
        cuda.eventRecord(self._event, self._stream.ptr)

    @_on_device
    def read(self, place: Place, out: Any) -> None:
        """Copy an array of the segment into a caller's array; see `OpenSegment.read`."""
        if not place.byte_count:
            return
        device, interface = self._device_of(out), out.__cuda_array_interface__
        self._copy(int(interface["data"][0]), self._address + place.offset, place.byte_count)
        stream = interface.get("stream") if interface["version"] >= 3 else None
        if stream is None:
            self._stream.synchronize()
            return
        event = cupy.cuda.Event(disable_timing=True)
        event.record(self._stream)
        with cupy.cuda.Device(device):
            cuda.streamWaitEvent(stream, event.ptr)

    @_on_device
    def lent(self, place: Place, owner: object) -> Any:
        """Return a `cupy.ndarray` in the segment itself, which keeps `owner` alive."""
        memory = cupy.cuda.UnownedMemory(
            self._address, self.byte_count, owner, device_id=self.ordinal
        )
        pointer = cupy.cuda.MemoryPointer(memory, place.offset)
        return cupy.ndarray(place.shape, place.dtype, memptr=pointer)

    @_on_device
    def copied(self, place: Place) -> Any:
        """Return a copy of an array of the segment: a `cupy.ndarray` from CuPy's memory pool."""
        own = cupy.empty(place.shape, place.dtype)
        if place.byte_count:
            self._after(cupy.cuda.get_current_stream().ptr, self._stream.ptr, self.ordinal)
            self._copy(int(own.data.ptr), self._address + place.offset, place.byte_count)
            self._stream.synchronize()
        return own

    @_on_device
    def close(self) -> None:
        """Wait for the copies, and close the memory and the event. If the server or this process's
        GPU has failed, no error is raised."""
        for close in (
            self._stream.synchronize,
            partial(cuda.eventDestroy, self._event),
            partial(cuda.ipcCloseMemHandle, self._address),
        ):
            with suppress(cuda.CUDARuntimeError):
                close()
