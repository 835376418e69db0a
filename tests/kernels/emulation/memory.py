"""Memory of an emulated device: allocations between guards, found by their addresses.

A plain allocation is garbage at first, with a guard on either side. A write into a guard of what
work was given is found by the wait for that work. Other guards, as those of slabs, which kernels
find by addresses in arrays, are looked at by one wait in some, when the memory is given back, and
at the end of a test; those of pinned memory when it is given back. To give memory back, as
`cudaFree` and `cudaFreeHost`, lets the work given before go on using it: the memory itself goes
when that is done. Work refers to memory by address, and keeps no array: scratch memory is used
again when its last array goes, as it is on a device.
"""

import mmap
import weakref
from bisect import bisect_right
from typing import Any

import numpy as np

from embstore.device.runtime import DeviceArray
from embstore.errors import CapacityError
from tests.kernels.emulation.build import KernelError
from tests.kernels.emulation.exports import freed
from tests.kernels.emulation.streams import Streams

GARBAGE = 0xA5
GUARD = bytes([0x6B]) * 256
ALIGNMENT = 256
SPARSE_BYTES = 64 << 20
"""Allocations of more are mapped and not filled, so that what is not touched takes no memory."""
_MAP_NORESERVE = 0x4000  # of Linux; mmap has no name for it


class Memory:
    """A plain allocation between two guards."""

    def __init__(self, byte_count: int, label: str) -> None:
        size = byte_count + 2 * len(GUARD) + ALIGNMENT
        if byte_count > SPARSE_BYTES:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            raw = np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)
        else:
            raw = np.full(size, GARBAGE, np.uint8)
        begin = -(raw.ctypes.data + len(GUARD)) % ALIGNMENT + len(GUARD)
        end = begin + byte_count
        self.label = label
        self.content = raw[begin:end]
        self.address = raw.ctypes.data + begin
        self.end = raw.ctypes.data + end
        self._before, self._after = raw[begin - len(GUARD) : begin], raw[end : end + len(GUARD)]
        self._before[:] = self._after[:] = GUARD[0]

    def damage(self) -> str | None:
        """Return what is wrong with the guards, and put them right."""
        places = {"before its beginning": self._before, "behind its end": self._after}
        for place, guard in places.items():
            if guard.tobytes() != GUARD:
                guard[:] = GUARD[0]
                return f"{self.label}: written {place}"
        return None


class LentMemory:
    """Memory of a trainer's library, which may have its own right beside it: without guards."""

    def __init__(self, content: np.ndarray) -> None:
        self.content, self.address = content, content.ctypes.data
        self.end = self.address + content.nbytes

    def damage(self) -> None:
        return None


class _Owner:
    """Of an allocation's arrays: when the last of them goes, the memory is given back."""


class _PinnedOwner:
    """Of the views of pinned memory: NumPy keeps it as long as there is one."""

    def __init__(self, memory: Memory) -> None:
        self.__array_interface__ = {
            "shape": (len(memory.content),),
            "typestr": "|u1",
            "data": (memory.address, False),
            "version": 3,
        }


class Memories:
    """All memory that work in `streams` may use.

    Parameters
    ----------
    bytes_max : what there is to allocate; None: no limit
    """

    def __init__(self, name: str, bytes_max: int | None, streams: Streams) -> None:
        self.bytes_max = bytes_max
        self.live_bytes = 0
        self._name = name
        self._streams = streams
        self._live: dict[int, Memory | LentMemory] = {}
        self._starts: list[int] | None = None  # of the live, ascending; None: find them again
        self._given_back: list[tuple[list[int], Memory]] = []  # and what was given to each stream
        self._damages: list[str] = []
        self._allocations = 0
        self._pinned: dict[int, int] = {}  # begin -> end

    def allocate(self, count: int, dtype: Any, *, width: int) -> DeviceArray:
        dtype = np.dtype(dtype)
        byte_count = count * width * dtype.itemsize
        if self.bytes_max is not None and self.live_bytes + byte_count > self.bytes_max:
            raise CapacityError(
                f"{self._name}: asked for {byte_count} bytes, {self.live_bytes} of "
                f"{self.bytes_max} are in use"
            )
        self._allocations += 1
        label = f"allocation {self._allocations}, ({count}, {width}) {dtype.name}"
        memory = Memory(byte_count, label)
        self.add(memory)
        self.live_bytes += byte_count
        owner = _Owner()
        weakref.finalize(owner, self._release, memory).atexit = False
        return DeviceArray(memory.address, count, dtype, owner, width=width)

    def allocate_host(self, byte_count: int) -> np.ndarray:
        self._allocations += 1
        memory = Memory(byte_count, f"allocation {self._allocations}, {byte_count} bytes pinned")
        self._pinned[memory.address] = memory.end
        owner = _PinnedOwner(memory)
        weakref.finalize(owner, self._release_pinned, memory).atexit = False
        return np.asarray(owner)

    def is_pinned(self, address: int) -> bool:
        return any(low <= address < high for low, high in list(self._pinned.items()))

    def add(self, memory: Memory | LentMemory) -> None:
        """Let work use memory that is not allocated here."""
        self._live[memory.address] = memory
        self._starts = None

    def remove(self, address: int) -> None:
        """Have memory no longer; work that was given before must have been waited for."""
        del self._live[address]
        self._starts = None

    def beginning_at(self, address: int) -> Memory | LentMemory:
        return self._live[address]

    def at(self, address: int, byte_count: int) -> Memory | LentMemory:
        """Return the live memory that has these bytes, one at least.

        Raises
        ------
        KernelError : there is none.
        """
        starts = self._starts
        if starts is None:
            starts = self._starts = sorted(self._live)
        found = bisect_right(starts, address) - 1
        memory = self._live.get(starts[found]) if found >= 0 else None
        if memory is None or address + byte_count > memory.end:
            raise KernelError(f"{byte_count} bytes at {address:#x} are not live memory")
        return memory

    def ranges(self) -> list[tuple[int, int]]:
        """Return begin and end of all memory that work may use, ascending."""
        memories = [*self._live.values(), *(memory for _, memory in self._given_back)]
        return sorted((memory.address, memory.end) for memory in memories)

    def _release_pinned(self, memory: Memory) -> None:
        del self._pinned[memory.address]
        self._give_back(memory)

    def _release(self, memory: Memory) -> None:
        self.remove(memory.address)
        self.live_bytes -= len(memory.content)
        self._give_back(memory)

    def _give_back(self, memory: Memory) -> None:
        self._note_damage(memory)
        if freed(memory):
            self._damages.append(f"{memory.label}: freed while another process has it open")
        self._given_back.append((self._streams.given(), memory))

    # Guards

    def check_guards(self, *, everywhere: bool) -> None:
        """Raise KernelError for guards that were written into: of what work was given since the
        last look, or of all that is live."""
        touched = self._streams.take_touched()
        for memory in list(self._live.values()) if everywhere else touched:
            self._note_damage(memory)
        waiting = []
        for given, memory in self._given_back:
            if self._streams.are_done(given):
                self._note_damage(memory)
            else:
                waiting.append((given, memory))
        self._given_back = waiting
        if self._damages:
            damages, self._damages = self._damages, []
            raise KernelError("; ".join(dict.fromkeys(damages)))

    def _note_damage(self, memory: Memory | LentMemory) -> None:
        damage = memory.damage()
        if damage:
            self._damages.append(damage)
