"""Memory of a device, as the cache uses it."""

from typing import Any, Protocol

from numpy.typing import DTypeLike, NDArray

from embstore.arrays import Rows
from embstore.device.values import Answer, Array, IndexArrays, SlotMemory
from embstore.layout import Layout


class DeviceMemory(Protocol):
    """Memory of a device: allocation of arrays, and copies between it and the host."""

    slab_bytes_max: int
    """Bytes of the largest slab of a pool: small enough to share memory fairly, and large enough
    that there are few slabs."""
    slots_max: int
    """The most slots of a pool."""
    frees_parts: bool
    """Whether `drop_slots` can free parts of slabs, and not only whole slabs."""
    staging_bytes_max: int
    """The most bytes of the buffer through which a pool's missing rows are read; 0: there is
    none."""

    def cache_bytes_max(self) -> int:
        """Return the most bytes that a cache can take if there is no cache yet. On a GPU this is
        the free memory minus the memory that is reserved for calls; on the CPU it is the host's
        memory."""

    def check_budget(self, cache_bytes: int, used_bytes: int) -> None:
        """Refuse a cache of `cache_bytes` that does not fit into memory; `used_bytes` of the cache
        are already allocated.

        Raises
        ------
        CapacityError : the cache does not fit. The message states how much memory there is, and how
            much of the memory is reserved for calls.
        """

    def secure(self, count: int) -> None:
        """Reserve the memory that is needed to change `count` slots and their rows.

        Raises
        ------
        CapacityError : there is too little memory. The error is raised here, before anything has
            changed, and not in the middle of the change.
        """

    def slot_bytes(self, slab_slots: int, row_bytes: int) -> int:
        """Return the bytes of a slot (row, key, score and flag) in slabs of `slab_slots` slots."""

    def slab_slots(self, wanted: int) -> int:
        """Return how many slots, at most `wanted`, a slab has on this device."""

    def allocate_slots(self, layout: Layout) -> SlotMemory:
        """Return the memory of a pool, without slots."""

    def reserve_slots(
        self, memory: SlotMemory, slot_count: int, slots_max: int, slab_slots: int
    ) -> None:
        """Prepare for up to `slots_max` slots in slabs; at present there are `slot_count` slots.

        Raises
        ------
        CapacityError : there is too little memory. The slots are unchanged.
        """

    def add_slots(self, memory: SlotMemory, low: int, high: int) -> None:
        """Add free slots [low, high) at the end.

        Raises
        ------
        CapacityError : the device is out of memory. The slots are unchanged.
        """

    def drop_slots(self, memory: SlotMemory, low: int, high: int) -> None:
        """Free the memory of the last slots [low, high)."""

    def allocate(self, count: int, dtype: DTypeLike, *, width: int | None = None) -> Array:
        """Return (count,) uninitialized elements, or (count, width) if `width` is given."""

    def allocate_rows(self, count: int, layout: Layout) -> Array:
        """Return `count` uninitialized rows outside slots; the last reference frees them."""

    def allocate_index(self, slot_count: int) -> IndexArrays:
        """Return an empty index for `slot_count` keys, at a load of at most two thirds."""

    def index_bytes(self, slot_count: int) -> int:
        """Return the bytes that `allocate_index(slot_count)` takes."""

    def upload(self, array: NDArray[Any]) -> Array:
        """Return a copy in the device's memory (on the CPU, the array itself)."""

    def download(self, array: Array) -> NDArray[Any]:
        """Return a copy on the host, or the array itself if it is on the host."""

    def copy(self, source: Array, target: Array) -> None:
        """Copy an array of the device to another of the same length."""

    def ask(self, array: Array) -> Answer[NDArray[Any]]:
        """Begin to copy an array to the host. The array must not change until the caller calls the
        returned answer."""

    def staging(self, count: int, layout: Layout) -> Rows:
        """Return a (count, stride) host buffer, which the caller fills and then passes to
        `scatter_rows`."""

    def adopt(
        self, array: Any, dtype: DTypeLike, dimensions: int, *, write: bool = False
    ) -> Array | None:
        """Return a caller's array if it is in the device's memory, None if it is a host array.

        Raises
        ------
        InvalidArgumentError : the array has another dtype, number of dimensions or device, is not
            C-contiguous or not aligned, or, with `write`, is read-only.
        """

    def empty(self, count: int, width: int) -> Any:
        """Return a new (count, width) float32 array for a caller, which `adopt` accepts with
        `write`: a CuPy array on a GPU, a NumPy array on the CPU.

        Raises
        ------
        CapacityError : the device has too little memory.
        """
