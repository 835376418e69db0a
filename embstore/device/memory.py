"""Memory of a device, as the cache asks for it."""

from typing import Any, Protocol

from numpy.typing import DTypeLike, NDArray

from embstore.arrays import Rows
from embstore.device.values import Answer, Array, IndexArrays, SlotMemory
from embstore.layout import Layout


class DeviceMemory(Protocol):
    """Memory of a device: allocation of arrays, and copies between it and the host."""

    slab_bytes_max: int
    """Largest slab of a pool: small enough to be shared fairly, large enough to be few."""
    slots_max: int
    """Slots of a pool, at most."""
    frees_parts: bool
    """Whether `drop_slots` frees parts of slabs, and not only whole ones."""
    staging_bytes_max: int
    """Size of the buffer through which a pool's missing rows come in; 0: there is none."""

    def cache_bytes_max(self) -> int:
        """Return the bytes that a first cache can have: on a GPU the free memory without the calls'
        part, on the CPU the host's memory."""

    def check_budget(self, cache_bytes: int, used_bytes: int) -> None:
        """Refuse a cache that does not fit, `used_bytes` of which are allocated already.

        Raises
        ------
        CapacityError : says how much there is, and how much is kept for calls.
        """

    def secure(self, count: int) -> None:
        """Reserve the memory that it takes to change `count` slots and their rows.

        Raises
        ------
        CapacityError : here, before anything has changed, rather than in the middle.
        """

    def slot_bytes(self, slab_slots: int, row_bytes: int) -> int:
        """Return the bytes of a slot (row, key, score and flag) in slabs of `slab_slots` slots."""

    def slab_slots(self, wanted: int) -> int:
        """Return how many slots, at most `wanted`, a slab has on this device."""

    def allocate_slots(self, layout: Layout) -> SlotMemory:
        """Return the memory of a pool without slots."""

    def reserve_slots(
        self, memory: SlotMemory, slot_count: int, slots_max: int, slab_slots: int
    ) -> None:
        """Prepare for up to `slots_max` slots in slabs; there are `slot_count` now.

        Raises
        ------
        CapacityError : the slots are as they were.
        """

    def add_slots(self, memory: SlotMemory, low: int, high: int) -> None:
        """Add free slots [low, high) at the end.

        Raises
        ------
        CapacityError : the device is out of memory. The slots are as they were.
        """

    def drop_slots(self, memory: SlotMemory, low: int, high: int) -> None:
        """Free the memory of the last slots [low, high)."""

    def allocate(self, count: int, dtype: DTypeLike, *, width: int | None = None) -> Array:
        """Return (count,) uninitialized elements, or (count, width) with a width."""

    def allocate_rows(self, count: int, layout: Layout) -> Array:
        """Return `count` uninitialized rows that are no slots; freed with the last reference."""

    def allocate_index(self, slot_count: int) -> IndexArrays:
        """Return an empty index with room for `slot_count` keys at a load of at most two thirds."""

    def index_bytes(self, slot_count: int) -> int:
        """Return the bytes that `allocate_index(slot_count)` takes."""

    def upload(self, array: NDArray[Any]) -> Array:
        """Return a copy in the device's memory (on the CPU, the array itself)."""

    def download(self, array: Array) -> NDArray[Any]:
        """Return a copy on the host; the array itself where it is there already."""

    def copy(self, source: Array, target: Array) -> None:
        """Copy an array of the device to another of the same length."""

    def ask(self, array: Array) -> Answer[NDArray[Any]]:
        """Begin to copy an array to the host; it stays as it is until the answer."""

    def staging(self, count: int, layout: Layout) -> Rows:
        """Return a (count, stride) host buffer to fill and to pass to `scatter_rows` next."""

    def adopt(
        self, array: Any, dtype: DTypeLike, dimensions: int, *, write: bool = False
    ) -> Array | None:
        """Return a caller's array that is in the device's memory; None for an array of the host.

        Raises
        ------
        InvalidArgumentError : another dtype, number of dimensions or device, not C-contiguous, not
            aligned, or, to `write`, read-only.
        """

    def empty(self, count: int, width: int) -> Any:
        """Return an array for a caller, (count, width) float32, that `adopt` takes to write: on a
        GPU a CuPy array, on the CPU one of NumPy.

        Raises
        ------
        CapacityError : the device has no such memory.
        """
