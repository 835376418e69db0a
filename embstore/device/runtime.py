"""The interface to a GPU: memory, copies, launches, and the order between them.

The modules `gpu*.py` are written against this protocol alone. `cuda.py` implements it with CuPy.
The tests implement it with NumPy and the same `.cu` files built for the host, so that every line of
a GPU device also runs where there is no GPU. The protocol is therefore as small as possible. A
device's memory is a `DeviceArray`: an address without access to the elements. So code that reads
such an array on the host by mistake fails everywhere, and not only on a machine with a GPU.

Work is ordered by **streams**: COMPUTE runs kernels, small copies and fills; UP and DOWN run large
copies concurrently, each in one direction. The work of one stream is done in the order in which it
was queued. `mark` and `follow` define the order between streams, and `wait` makes the host wait. No
other method waits, except `upload` from memory that is not from `allocate_host`.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

COMPUTE, UP, DOWN = 0, 1, 2
BLOCK_THREADS = 256
"""The number of threads of a block in every launch; `types.cuh` has the same number."""


class DeviceArray:
    """(count,) elements, or (count, width), in a device's memory. A slice shares the memory.

    `owner` keeps the memory alive: the memory is freed with the last array that refers to it.
    """

    __slots__ = ("address", "count", "dtype", "owner", "width")

    def __init__(
        self, address: int, count: int, dtype: DTypeLike, owner: Any, *, width: int = 1
    ) -> None:
        self.address = address
        self.count = count
        self.width = width
        self.dtype = np.dtype(dtype)
        self.owner = owner

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.count * self.width * self.dtype.itemsize

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, items: slice) -> "DeviceArray":
        low, high, step = items.indices(self.count)
        assert step == 1, "a device's array is contiguous"
        count = max(high - low, 0)
        if count == self.count:
            return self
        address = self.address + low * self.width * self.dtype.itemsize
        return DeviceArray(address, count, self.dtype, self.owner, width=self.width)

    def view(self, dtype: DTypeLike, *, width: int = 1) -> "DeviceArray":
        """Return the same bytes as elements of another type."""
        item = np.dtype(dtype).itemsize * width
        return DeviceArray(self.address, self.nbytes // item, dtype, self.owner, width=width)


class Adopted(NamedTuple):
    """The owner of a caller's array."""

    array: Any
    stream: int | None = None
    """The stream in which the caller uses the array, a cudaStream_t; None: the stream is not
    known."""


class Exported(NamedTuple):
    """The handles by which another process opens an allocation, and the event by which that process
    signals that its work on the allocation is done."""

    gpu: str
    """The GPU's address on its bus, the same in every process and container of the host."""
    memory: bytes
    """A cudaIpcMemHandle_t, 64 bytes."""
    event: Any
    """Our event, which the other process records. An event that was never recorded counts as
    reached."""
    event_handle: bytes
    """A cudaIpcEventHandle_t, 64 bytes."""


EXPORTED_MULTIPLE_BYTES = 2 << 20
"""Sizes of exported allocations are multiples of this size. CUDA may place smaller allocations in
one block, which is exported as a whole (CUDA C++ Programming Guide, "Interprocess
Communication")."""

Argument = DeviceArray | np.generic
"""An argument of a kernel: an array, whose address is passed, or a NumPy scalar of the parameter's
exact type."""


class Runtime(Protocol):
    """A GPU. One thread calls it at a time.

    Every method may raise DeviceError if the device has failed, in this call or in work queued
    before. Afterwards the content of the device's memory must not be trusted.
    """

    name: str  # "cuda:0"
    is_lost: bool  # a DeviceError has been raised
    compute_stream: int
    """COMPUTE as a cudaStream_t, so that callers can order their own work after it."""

    def allocate(self, count: int, dtype: DTypeLike, *, width: int = 1) -> DeviceArray:
        """Return an uninitialized array in an allocation of its own, aligned to 256 bytes.

        Raises
        ------
        CapacityError : the device has too little memory.
        """

    def allocate_host(self, byte_count: int) -> NDArray[np.uint8]:
        """Return pinned host memory, which the driver copies without its own staging."""

    def adopt(self, array: Any, dtype: DTypeLike) -> DeviceArray:
        """Return a caller's array (any object with `__cuda_array_interface__`). COMPUTE uses the
        array only after the work that has been queued in the stream that the interface names. The
        `owner` of the result is an Adopted.

        Raises
        ------
        InvalidArgumentError : the array has another dtype or device, is not C-contiguous, or is
            neither 1-D nor 2-D.
        """

    def lead(self, stream: int) -> None:
        """Make a caller's stream wait for all work queued in COMPUTE so far."""

    def empty(self, count: int, width: int) -> Any:
        """Return a new array for a caller, (count, width) float32, uninitialized. The array belongs
        to a library with `__cuda_array_interface__` and DLPack; its memory and current stream are
        those of this library.

        Raises
        ------
        CapacityError : the device has too little memory.
        """

    def launch(self, kernel: str, blocks: int, *arguments: Argument) -> None:
        """Run a kernel of `embstore/kernels` in COMPUTE, with `blocks` blocks of BLOCK_THREADS
        threads."""

    def upload(self, source: NDArray[Any], target: DeviceArray, *, stream: int = COMPUTE) -> None:
        """Copy host to device. The caller may change `source` at once, unless it is from
        `allocate_host`."""

    def download(self, source: DeviceArray, target: NDArray[Any], *, stream: int = COMPUTE) -> None:
        """Copy device to host. `target` is valid once the host has waited for the stream."""

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """Copy device to device, in COMPUTE."""

    def fill(self, array: DeviceArray, byte: int) -> None:
        """Set every byte to `byte`, in COMPUTE."""

    def mark(self, stream: int) -> Any:
        """Return a mark (an event) after all work queued in the stream so far."""

    def follow(self, stream: int, mark: Any) -> None:
        """Make the stream wait for the mark before it executes work that is queued after this
        call."""

    def wait(self, mark: Any) -> None:
        """Block the host until the mark is reached."""

    def export(self, array: DeviceArray) -> Exported:
        """Return the handles by which another process opens a whole allocation, whose size is a
        multiple of EXPORTED_MULTIPLE_BYTES. The allocation must not be freed before that process
        has closed it.

        Raises
        ------
        CapacityError : the device, its driver or the container does not export memory.
        """

    def is_reached(self, event: Any) -> bool:
        """Return whether all work that another process queued before it last recorded the event is
        done. If so, work that is queued from now on reads the results of the other process. Any
        thread.
        """

    def compile(self, verbs: Iterable[str]) -> None:
        """Compile the kernels of verbs (`.cu` files), so that no later launch waits for a
        compiler."""

    def facts(self) -> dict[str, Any]:
        """Return facts about the device for operators.

        model : str; memory_bytes, memory_free_bytes : of the whole device, now; driver_version,
            runtime_version : str; multiprocessors : int; compile_seconds : time spent in `compile`
        """

    def close(self) -> None:
        """Wait for all work, and free everything except arrays."""
