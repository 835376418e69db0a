"""The Runtime protocol on a CUDA device, implemented with CuPy. No other module here imports CuPy.

CuPy from 14.2 to below 15 works, for CUDA 12 and 13. CuPy is used as a thin interface to the
driver: plain allocations (no pool), three streams of our own that do not wait for the default
stream, events without timing, and kernels compiled from the text of `embstore/kernels`.

**Compilation.** `RawModule`, and with it CuPy's cache on disk, appends `-ftz=true` to all options.
NVRTC obeys the last option, so denormals would be flushed, against the contract (cupy issue 9576).
Therefore NVRTC is called with our options through a function that adds none. Compiling all kernels
takes one or two seconds per process, which is too little to justify a cache of our own.

**Counts and sorts** are kernels of our own (`tiles.cuh`, `group.cu`). CuPy's versions allocate from
CuPy's pool, which a caller may share, or end by waiting for the stream.

**Devices and threads.** The current device is a property of the thread, and the thread belongs to
the caller, who may be using another device. Therefore every call sets our device and restores the
previous device, unless our device is current already.

Freeing device or pinned memory waits for the device. So a call may safely free memory that queued
work still uses, but the call is delayed.
"""

import time
from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import cupy
import numpy as np
from cupy.cuda import compiler, function
from cupy.cuda import runtime as cuda
from numpy.typing import DTypeLike, NDArray

from embstore.arrays import device_address
from embstore.device.runtime import (
    BLOCK_THREADS,
    COMPUTE,
    DOWN,
    UP,
    Adopted,
    Argument,
    DeviceArray,
    Exported,
)
from embstore.errors import CapacityError, DeviceError, InvalidArgumentError
from embstore.kernels.sources import OPTIONS, VERBS, kernels_of, source

_CALLERS_MISTAKES = (1, 400)
"""cudaErrorInvalidValue, cudaErrorInvalidResourceHandle: these errors do not harm the device."""
_CAPTURED = range(900, 909)
"""cudaErrorStreamCapture...: a caller is capturing a graph. The graph may be lost, but the device
still works."""
_OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation."""
_NOT_EXPORTED = (1, 2, 205, 801)
"""cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorMapBufferObjectFailed,
cudaErrorNotSupported: an export that fails with one of these errors does no harm."""
_SUCCESS, _NOT_READY = 0, 600
_LEGACY_STREAM = 1
"""cudaStreamLegacy, the default stream; `__cuda_array_interface__` uses this number for it too."""

_OUTSIDE = (
    "call the store outside of the capture of a CUDA graph, or capture in another thread, in mode "
    "'thread_local'"
)

P = ParamSpec("P")
R = TypeVar("R")


def device_count() -> int:
    """Return how many CUDA devices this process sees; 0 if there is no driver."""
    try:
        return int(cuda.getDeviceCount())
    except RuntimeError:
        return 0


def open_runtime(ordinal: int) -> "CudaRuntime":
    """Return the runtime of the device with this number.

    Raises
    ------
    InvalidArgumentError : there is no such device.
    DeviceError : the device does not answer.
    """
    count = device_count()
    if not 0 <= ordinal < count:
        raise InvalidArgumentError(
            f"device is 'cuda:{ordinal}'; CUDA devices in sight of this process: {count}"
        )
    return CudaRuntime(ordinal)


def _on_device(
    call: Callable[Concatenate["CudaRuntime", P], R],
) -> Callable[Concatenate["CudaRuntime", P], R]:
    """Run a method on the runtime's device. Errors of CUDA or of its compiler become
    DeviceErrors."""

    @wraps(call)
    def called(self: "CudaRuntime", /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            found = cuda.getDevice()
            if found == self.ordinal:
                return call(self, *args, **kwargs)
            cuda.setDevice(self.ordinal)
            try:
                return call(self, *args, **kwargs)
            finally:
                cuda.setDevice(found)
        except (RuntimeError, compiler.CompileException) as exc:
            what = " ".join([call.__name__, *(arg for arg in args if isinstance(arg, str))])
            if getattr(exc, "status", None) in _CAPTURED:
                raise InvalidArgumentError(f"{self.name}: {what}: {exc}; {_OUTSIDE}") from exc
            self.is_lost = True
            raise DeviceError(
                f"{self.name}: {what}: {exc}; it, or work queued before it, has failed: nothing on "
                "the device may be trusted, restart the server"
            ) from exc

    return called


class CudaRuntime:
    """The Runtime protocol (`runtime.py`) on the CUDA device `ordinal`. One thread at a time."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.name = f"cuda:{ordinal}"
        self.is_lost = False
        self._verbs = {kernel: verb for verb in VERBS for kernel in kernels_of(verb)}
        self._functions: dict[str, Any] = {}
        self._compile_seconds = 0.0
        self._open()

    @_on_device
    def _open(self) -> None:
        self._streams = {
            stream: cupy.cuda.Stream(non_blocking=True) for stream in (COMPUTE, UP, DOWN)
        }
        self._compute = self._streams[COMPUTE]
        self.compute_stream = int(self._compute.ptr)
        self._properties: dict[str, Any] = cuda.getDeviceProperties(self.ordinal)

    # Memory

    @_on_device
    def allocate(self, count: int, dtype: DTypeLike, *, width: int = 1) -> DeviceArray:
        item = np.dtype(dtype)
        memory = self._taken(cupy.cuda.Memory, max(count * width * item.itemsize, 1))
        return DeviceArray(int(memory.ptr), count, item, memory, width=width)

    @_on_device
    def allocate_host(self, byte_count: int) -> NDArray[np.uint8]:
        memory = self._taken(_Pinned, max(byte_count, 1))
        pointer = cupy.cuda.PinnedMemoryPointer(memory, 0)
        return np.frombuffer(pointer, np.uint8, count=byte_count)

    def _taken(self, kind: Callable[[int], Any], byte_count: int) -> Any:
        try:
            return kind(byte_count)
        except cuda.CUDARuntimeError as exc:
            if exc.status != _OUT_OF_MEMORY:
                raise
            free, total = cuda.memGetInfo()
            place = "pinned host memory" if kind is _Pinned else "device memory"
            raise CapacityError(
                f"{self.name}: expected {byte_count} bytes of {place}, which CUDA refused; the "
                f"device has {free} bytes free of {total}: give a smaller cache_bytes"
                + (" or host_cache_bytes" if kind is _Pinned else "")
            ) from exc

    @_on_device
    def adopt(self, array: Any, dtype: DTypeLike) -> DeviceArray:
        """Return a caller's array, from any library whose arrays have `__cuda_array_interface__`.

        COMPUTE follows the work that is queued so far in the array's stream. Before version 3 the
        interface names no stream; in this case COMPUTE follows the default stream.
        """
        interface = array.__cuda_array_interface__
        address = device_address(interface, np.dtype(dtype))
        count, width = (*interface["shape"], 1)[:2]
        named = interface.get("stream") if interface["version"] >= 3 else None
        stream = _LEGACY_STREAM if interface["version"] < 3 else named
        if count * width:
            try:
                self._check_place(address)
                self._check_capture(stream)
                if stream is not None:
                    self._follow_callers(stream)
            except cuda.CUDARuntimeError as exc:
                if exc.status not in _CALLERS_MISTAKES:
                    raise
                raise InvalidArgumentError(
                    f"expected an array and a stream of {self.name}, found an address or a "
                    f"stream that CUDA does not know ({exc})"
                ) from exc
        return DeviceArray(address, count, dtype, Adopted(array, named), width=width)

    @_on_device
    def lead(self, stream: int) -> None:
        mark = cupy.cuda.Event(disable_timing=True)
        mark.record(self._compute)
        cuda.streamWaitEvent(stream, mark.ptr)

    @_on_device
    def empty(self, count: int, width: int) -> Any:
        """Return a `cupy.ndarray`, from CuPy's pool."""
        try:
            return cupy.empty((count, width), np.float32)
        except cupy.cuda.memory.OutOfMemoryError as exc:
            raise CapacityError(
                f"{self.name}: expected memory for ({count}, {width}) rows, which CuPy refused: "
                f"{exc}; give a smaller cache_bytes, or ask for rows on the host"
            ) from exc

    def _follow_callers(self, stream: int) -> None:
        mark = cupy.cuda.Event(disable_timing=True)
        cuda.eventRecord(mark.ptr, stream)  # ExternalStream is deprecated from 14 on
        self._compute.wait_event(mark)

    def _check_capture(self, stream: int | None) -> None:
        """Refuse the work of a stream that is being captured, or whose capture includes COMPUTE."""
        if any(cuda.streamIsCapturing(s) for s in (stream, self.compute_stream) if s is not None):
            raise InvalidArgumentError(
                "expected an array whose stream executes its work, found one that is being "
                f"captured into a CUDA graph; {_OUTSIDE}"
            )

    def _check_place(self, address: int) -> None:
        place = cuda.pointerGetAttributes(address)
        if place.type not in (cuda.memoryTypeDevice, cuda.memoryTypeManaged):
            raise InvalidArgumentError(f"expected an array on {self.name}, found one on the host")
        if place.device != self.ordinal:
            raise InvalidArgumentError(
                f"expected an array on {self.name}, found one on cuda:{place.device}"
            )

    # Work

    @_on_device
    def launch(self, kernel: str, blocks: int, *arguments: Argument) -> None:
        run = self._functions.get(kernel) or self._function(kernel)
        # A NumPy scalar is passed by value, in its own size. Addresses could be passed as scalars
        # too. But a CIntptr needs no conversion, which costs more than half a microsecond per
        # address.
        passed = [
            function.CIntptr(argument.address) if isinstance(argument, DeviceArray) else argument
            for argument in arguments
        ]
        run((blocks,), (BLOCK_THREADS,), passed, stream=self._compute)

    @_on_device
    def upload(self, source: NDArray[Any], target: DeviceArray, *, stream: int = COMPUTE) -> None:
        assert source.flags.c_contiguous and source.nbytes == target.nbytes
        if not source.nbytes:
            return
        queue = self._streams[stream]
        cuda.memcpyAsync(
            target.address, source.ctypes.data, source.nbytes, cuda.memcpyHostToDevice, queue.ptr
        )
        # The copy from pageable memory "might be synchronous"; older manuals promised that it is,
        # up to the driver's staging (CUDA Runtime API, "API synchronization behavior"). And pinned
        # memory of a caller looks like our pinned memory. So only a wait ensures that the caller
        # may change the source again.
        if not _is_pinned(source):
            queue.synchronize()

    @_on_device
    def download(self, source: DeviceArray, target: NDArray[Any], *, stream: int = COMPUTE) -> None:
        # The call may wait if `target` is pageable memory; it never waits if `target` is pinned
        # memory.
        assert target.flags.c_contiguous and source.nbytes == target.nbytes
        if target.nbytes:
            cuda.memcpyAsync(
                target.ctypes.data,
                source.address,
                target.nbytes,
                cuda.memcpyDeviceToHost,
                self._streams[stream].ptr,
            )

    @_on_device
    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        assert source.nbytes == target.nbytes
        self._copy(source.address, target.address, source.nbytes)

    def _copy(self, source: int, target: int, byte_count: int) -> None:
        if byte_count:
            cuda.memcpyAsync(
                target, source, byte_count, cuda.memcpyDeviceToDevice, self._compute.ptr
            )

    @_on_device
    def fill(self, array: DeviceArray, byte: int) -> None:
        if array.nbytes:
            cuda.memsetAsync(array.address, byte, array.nbytes, self._compute.ptr)

    # Order

    @_on_device
    def mark(self, stream: int) -> Any:
        event = cupy.cuda.Event(disable_timing=True)
        event.record(self._streams[stream])
        return event

    @_on_device
    def follow(self, stream: int, mark: Any) -> None:
        self._streams[stream].wait_event(mark)

    @_on_device
    def wait(self, mark: Any) -> None:
        mark.synchronize()

    # Other processes

    @_on_device
    def export(self, array: DeviceArray) -> Exported:
        try:
            event = cupy.cuda.Event(disable_timing=True, interprocess=True)
            return Exported(
                gpu=cuda.deviceGetPCIBusId(self.ordinal),
                memory=bytes(cuda.ipcGetMemHandle(array.address)),
                event=event,
                event_handle=bytes(cuda.ipcGetEventHandle(event.ptr)),
            )
        except cuda.CUDARuntimeError as exc:
            if exc.status not in _NOT_EXPORTED:
                raise
            raise CapacityError(
                f"{self.name}: expected memory that another process can open, which CUDA refused "
                f"({exc}); give host arrays"
            ) from exc

    @_on_device
    def is_reached(self, event: Any) -> bool:
        status = cuda.eventQuery(event.ptr)
        if status not in (_SUCCESS, _NOT_READY):
            raise cuda.CUDARuntimeError(status)
        return bool(status == _SUCCESS)

    # Kernels

    @_on_device
    def compile(self, verbs: Iterable[str]) -> None:
        begin = time.perf_counter()
        for verb in verbs:
            self._load(verb)
        self._compile_seconds += time.perf_counter() - begin

    def _function(self, kernel: str) -> Any:
        self._load(self._verbs[kernel])
        return self._functions[kernel]

    def _load(self, verb: str) -> None:
        names = kernels_of(verb)
        if all(name in self._functions for name in names):
            return
        module = cupy.cuda.Module()
        module.load(_compiled(verb, self.ordinal))
        for name in names:
            self._functions[name] = module.get_function(name)

    # Facts, end

    @_on_device
    def facts(self) -> dict[str, Any]:
        free, total = cuda.memGetInfo()
        return {
            "model": self._properties["name"].decode(),
            "memory_bytes": total,
            "memory_free_bytes": free,
            "driver_version": _version(cuda.driverGetVersion()),
            "runtime_version": _version(cuda.runtimeGetVersion()),
            "multiprocessors": self._properties["multiProcessorCount"],
            "compile_seconds": self._compile_seconds,
        }

    @_on_device
    def close(self) -> None:
        """Wait for all work, unless the device is lost, and drop the kernels."""
        if not self.is_lost:
            for stream in self._streams.values():
                stream.synchronize()
        self._functions.clear()


class _Pinned(cupy.cuda.PinnedMemory):  # type: ignore[misc]  # CuPy has no types
    """Pinned memory outside CuPy's pool; the pool allocates twice the bytes and never frees them.

    As in CuPy's pool, the memory is pinned for every device and thread of the process.
    """

    def __init__(self, byte_count: int) -> None:
        super().__init__(byte_count, cuda.hostAllocPortable)


def _is_pinned(array: NDArray[Any]) -> bool:
    """Return whether an array is a view of memory from `allocate_host`."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return isinstance(getattr(base, "mem", None), _Pinned)


@cache
def _compiled(verb: str, ordinal: int) -> bytes:
    """Return a verb's binary for a device, which must be the current device."""
    # With no architecture named, CuPy uses that of the device, or the newest that NVRTC knows.
    binary, _ = compiler.compile_using_nvrtc(source(verb), OPTIONS, filename=f"{verb}.cu")
    return bytes(binary)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
