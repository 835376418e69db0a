"""The interface to a GPU: memory, copies, launches, and the order between them.

The modules `gpu*.py` are written against this protocol alone. `cuda.py` implements it with CuPy;
the tests implement it with NumPy and the same `.cu` files built for the host, so that every line of
a GPU device runs where there is no GPU. The protocol is therefore as small as it can be. A device's
memory is a `DeviceArray`: an address without access to the elements, so that a read of the host by
mistake is an error everywhere, not only where a GPU is.

Work is ordered by **streams**: COMPUTE runs kernels, small copies and fills; UP and DOWN run large
copies in each direction at the same time. Work of one stream is done in the order in which it was
queued; between streams `mark` and `follow` order it, and with `wait` the host waits. Nothing else
waits, except `upload` from memory that is not from `allocate_host`.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

COMPUTE, UP, DOWN = 0, 1, 2
BLOCK_THREADS = 256
"""Threads of a block, in every launch; `types.cuh` has the same."""


class DeviceArray:
    """(count,) elements, or (count, width), in a device's memory. A slice shares it.

    `owner` keeps the memory alive: it is freed with the last array that refers to it.
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
        """Bytes of all elements."""
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
    """The owner of an array that is a caller's."""

    array: Any
    stream: int | None = None
    """In which the caller uses it, a cudaStream_t; None: its library does not say."""


class Exported(NamedTuple):
    """An allocation as another process opens it, and the event by which that one says that its work
    on it is done."""

    gpu: str
    """The GPU's address on its bus, the same in every process and container of the host."""
    memory: bytes
    """A cudaIpcMemHandle_t, 64 bytes."""
    event: Any
    """Our event; the process that opened it records it. It is reached if never recorded."""
    event_handle: bytes
    """A cudaIpcEventHandle_t, 64 bytes."""


EXPORTED_MULTIPLE_BYTES = 2 << 20
"""Exported allocations are multiples of it: CUDA may cut smaller allocations from one block, which
is exported whole (CUDA C++ Programming Guide, "Interprocess Communication")."""

Argument = DeviceArray | np.generic
"""A kernel's argument: an array, as its address, or a NumPy scalar of the parameter's exact
type."""


class Runtime(Protocol):
    """A GPU. One thread calls it at a time.

    Every method may raise DeviceError: the device failed, now or in work queued before; nothing in
    its memory may be trusted.
    """

    name: str  # "cuda:0"
    is_lost: bool  # a DeviceError has been raised
    compute_stream: int
    """COMPUTE as its library names it, a cudaStream_t: callers order their own work by it."""

    def allocate(self, count: int, dtype: DTypeLike, *, width: int = 1) -> DeviceArray:
        """Return an array in a plain allocation of its own, aligned to 256 bytes, of any content.

        Raises
        ------
        CapacityError : the device has no such memory.
        """

    def allocate_host(self, byte_count: int) -> NDArray[np.uint8]:
        """Return pinned host memory, which is copied without the driver's own staging."""

    def adopt(self, array: Any, dtype: DTypeLike) -> DeviceArray:
        """Return a caller's array (any object with `__cuda_array_interface__`), which COMPUTE uses
        when the caller's work on it is done, as queued in the interface's stream so far. Its owner
        is Adopted.

        Raises
        ------
        InvalidArgumentError : another dtype, another device, not C-contiguous, or not 1-D or 2-D.
        """

    def lead(self, stream: int) -> None:
        """Make a caller's stream wait for all work queued in COMPUTE so far."""

    def empty(self, count: int, width: int) -> Any:
        """Return a caller's array, (count, width) float32 of any content, of a library that has
        `__cuda_array_interface__` and DLPack, in its own memory and its current stream.

        Raises
        ------
        CapacityError : the device has no such memory.
        """

    def launch(self, kernel: str, blocks: int, *arguments: Argument) -> None:
        """Run a kernel of `embstore/kernels` with `blocks` blocks of BLOCK_THREADS, in COMPUTE."""

    def upload(self, source: NDArray[Any], target: DeviceArray, *, stream: int = COMPUTE) -> None:
        """Copy host to device. `source` is free again at once, unless it is from allocate_host."""

    def download(self, source: DeviceArray, target: NDArray[Any], *, stream: int = COMPUTE) -> None:
        """Copy device to host; `target` is there once the stream has been waited for."""

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """Copy device to device, in COMPUTE."""

    def fill(self, array: DeviceArray, byte: int) -> None:
        """Set every byte, in COMPUTE."""

    def mark(self, stream: int) -> Any:
        """Return a mark (an event) behind all work queued in the stream so far."""

    def follow(self, stream: int, mark: Any) -> None:
        """Make work queued in the stream from here on wait for the mark."""

    def wait(self, mark: Any) -> None:
        """Block the host until the mark is reached."""

    def export(self, array: DeviceArray) -> Exported:
        """Return the handles by which another process opens a whole allocation, of a multiple of
        EXPORTED_MULTIPLE_BYTES. It must not be freed before that process has closed it.

        Raises
        ------
        CapacityError : the device, its driver or the container does not export memory.
        """

    def is_reached(self, event: Any) -> bool:
        """Return whether the work is done that another process last recorded an event behind.

        Any thread. Work queued from then on sees it.
        """

    def compile(self, verbs: Iterable[str]) -> None:
        """Make the kernels of verbs (`.cu` files) ready: no later launch waits for a compiler."""

    def facts(self) -> dict[str, Any]:
        """Return facts of the device for operators.

        model : str; memory_bytes, memory_free_bytes : of the whole device, now; driver_version,
        runtime_version : str; multiprocessors : int; compile_seconds : of `compile`
        """

    def close(self) -> None:
        """Wait for all work, and free everything but arrays."""
