"""A runtime of NumPy memory: what `embstore.device.runtime` asks of a GPU, done as late as allowed.

A stream is a queue. Nothing of it is done before the host waits for a mark behind it, or for one of
another stream that follows it; and then no more than that needs. So whoever forgets to wait reads
garbage, whoever forgets to have a stream follow another finds its work not done, and whoever
changes pinned memory too early sends what it has become. Two things are done at once, as on a
device: what is not pinned is copied when it is uploaded, and what is downloaded is garbage until
then (unless an upload still has to read it).

A plain allocation is garbage at first, with a guard on either side. A write into a guard of what
work was given is found by the wait for that work. Other guards, as those of slabs, which kernels
find by addresses in arrays, are looked at by one wait in some, when the memory is given back, and
at the end of a test; those of pinned memory when it is given back. To give memory back, as
`cudaFree` and `cudaFreeHost`, lets the work given before go on using it: the memory itself goes
when that is done. Work refers to memory by address, and keeps no array: scratch memory is used
again when its last array goes, as it is on a device.
"""

import mmap
import time
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from embstore.device.runtime import (
    COMPUTE,
    DOWN,
    EXPORTED_MULTIPLE_BYTES,
    UP,
    Adopted,
    DeviceArray,
    Exported,
)
from embstore.errors import CapacityError, DeviceError, InvalidArgumentError
from embstore.kernels.sources import VERBS, kernels_of, source
from tests.kernels.emulation.build import (
    Bytes,
    Kernel,
    KernelError,
    Launch,
    Parameter,
    build,
    run,
    run_and_count,
)
from tests.kernels.emulation.callers import CALLERS, CallersArray
from tests.kernels.emulation.exports import Export, InterprocessEvent, export, freed

GARBAGE = 0xA5
WAITS_A_LOOK = 8
"""At one wait in so many all guards are looked at."""
GUARD = bytes([0x6B]) * 256
ALIGNMENT = 256
SPARSE_BYTES = 64 << 20
"""Allocations of more are mapped and not filled, so that what is not touched takes no memory."""
COMPILERS = 2
_MAP_NORESERVE = 0x4000  # of Linux; mmap has no name for it


class Mark(NamedTuple):
    """Behind the first `position` works of a stream."""

    stream: int
    position: int


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


class _Lent:
    """Memory of a trainer's library, which may have its own right beside it: without guards."""

    def __init__(self, content: np.ndarray) -> None:
        self.content, self.address = content, content.ctypes.data
        self.end = self.address + content.nbytes

    def damage(self) -> None:
        return None


@dataclass
class _Stream:
    work: deque[tuple[Callable[[], None], list[Memory | _Lent]]] = field(default_factory=deque)
    given: int = 0
    done: int = 0


RUNTIMES: "weakref.WeakSet[EmulatedRuntime]" = weakref.WeakSet()
"""All there are in this process, so that a test can end with a look at all guards."""


class EmulatedRuntime:
    """A `Runtime` on the host. `seed` decides the order of lanes and blocks of every launch.

    Parameters
    ----------
    memory_bytes : what there is to allocate; None: no limit
    fibers : run all kernels in fibers, so that they may give way at every atomic
    resident_blocks : how many blocks of a launch run together, all in fibers; None: the class's
    counting : count the bytes that launches move, into `moved`
    sources : CUDA sources, for tests of this itself; None: those of embstore
    """

    resident_blocks = 1

    def __init__(
        self,
        *,
        seed: int = 0,
        memory_bytes: int | None = None,
        fibers: bool = False,
        resident_blocks: int | None = None,
        counting: bool = False,
        sources: dict[str, str] | None = None,
        name: str = "emulated:0",
    ) -> None:
        self.name = name
        self.is_lost = False
        self.compute_stream = id(self)
        self.fibers = fibers
        if resident_blocks is not None:
            self.resident_blocks = resident_blocks
        self.live_bytes = 0
        self.launches = 0
        self.moved: list[tuple[str, Bytes]] = []
        """Of each launch that was done its kernel and bytes, where they are counted."""
        self.uploaded_bytes = 0
        """From the host, in all; and to it."""
        self.downloaded_bytes = 0
        self.turn: Callable[[], AbstractContextManager[object]] = nullcontext
        """In which a trainer uses its own arrays (`callers.py`)."""
        self._seed = seed << 32
        self._memory_bytes = memory_bytes
        self._sources = sources
        self._counting = counting
        self._verbs = {k: v for v in VERBS for k in kernels_of(v)} if sources is None else {}
        self._kernels: dict[str, Kernel] = {}
        self._compile_seconds = 0.0
        self._streams = {stream: _Stream() for stream in (COMPUTE, UP, DOWN, CALLERS)}
        self._live: dict[int, Memory | _Lent] = {}
        self._starts: list[int] | None = None  # of the live, ascending; None: find them again
        self._given_back: list[tuple[list[int], Memory]] = []  # and what was given to each stream
        self._named: list[Memory | _Lent] = []  # for the work that is given next
        self._touched: set[Memory | _Lent] = (
            set()
        )  # named for work that was done since the last look
        self._waits = 0
        self._damages: list[str] = []
        self._allocations = 0
        self._pinned: dict[int, int] = {}  # begin -> end
        self._reading: list[tuple[int, int, Mark]] = []  # begin, end of what uploads read
        self._launches_left: int | None = None
        RUNTIMES.add(self)

    # Memory

    def allocate(self, count: int, dtype: Any, *, width: int = 1) -> DeviceArray:
        self._check()
        dtype = np.dtype(dtype)
        byte_count = count * width * dtype.itemsize
        if self._memory_bytes is not None and self.live_bytes + byte_count > self._memory_bytes:
            raise CapacityError(
                f"{self.name}: asked for {byte_count} bytes, {self.live_bytes} of "
                f"{self._memory_bytes} are in use"
            )
        self._allocations += 1
        memory = Memory(
            byte_count, f"allocation {self._allocations}, ({count}, {width}) {dtype.name}"
        )
        self._live[memory.address] = memory
        self._starts = None
        self.live_bytes += byte_count
        owner = _Owner()
        weakref.finalize(owner, self._release_ended, memory).atexit = False
        return DeviceArray(memory.address, count, dtype, owner, width=width)

    def allocate_host(self, byte_count: int) -> np.ndarray:
        self._check()
        self._allocations += 1
        memory = Memory(byte_count, f"allocation {self._allocations}, {byte_count} bytes pinned")
        self._pinned[memory.address] = memory.end
        owner = _PinnedOwner(memory)
        weakref.finalize(owner, self._release_pinned, memory).atexit = False
        return np.asarray(owner)

    def adopt(self, array: Any, dtype: Any) -> DeviceArray:
        interface = array.__cuda_array_interface__
        if np.dtype(interface["typestr"]) != dtype:
            raise InvalidArgumentError(f"expected an array of {np.dtype(dtype)}")
        count, width = (*interface["shape"], 1)[:2]
        stream = interface.get("stream") if interface["version"] >= 3 else None
        if stream == CALLERS:
            self.follow(COMPUTE, self.mark(CALLERS))
        owner = Adopted(array, stream)
        return DeviceArray(interface["data"][0], count, dtype, owner, width=width)

    def lead(self, stream: int) -> None:
        assert stream == CALLERS
        self.follow(CALLERS, self.mark(COMPUTE))

    def empty(self, count: int, width: int) -> CallersArray:
        return CallersArray(self, self.allocate(count, np.float32, width=width))

    def _release_pinned(self, memory: Memory) -> None:
        del self._pinned[memory.address]
        self._give_back(memory)

    def _release_ended(self, memory: Memory) -> None:
        del self._live[memory.address]
        self._starts = None
        self.live_bytes -= len(memory.content)
        self._give_back(memory)

    def _give_back(self, memory: Memory) -> None:
        self._note_damage(memory)
        if freed(memory):
            self._damages.append(f"{memory.label}: freed while another process has it open")
        self._given_back.append(([s.given for s in self._streams.values()], memory))

    def _bytes(self, array: DeviceArray) -> np.ndarray:
        """Return the bytes of an array, all of which are live."""
        memory = self._memory_at(array.address, array.nbytes)
        if memory is None:
            return np.empty(0, np.uint8)
        low = array.address - memory.address
        return memory.content[low : low + array.nbytes]

    def _memory_at(self, address: int, byte_count: int) -> Memory | _Lent | None:
        if byte_count == 0:
            return None
        starts = self._starts
        if starts is None:
            starts = self._starts = sorted(self._live)
        found = bisect_right(starts, address) - 1
        memory = self._live.get(starts[found]) if found >= 0 else None
        if memory is None or address + byte_count > memory.end:
            raise KernelError(f"{byte_count} bytes at {address:#x} are not live memory")
        self._named.append(memory)
        return memory

    # Work

    def launch(self, kernel: str, blocks: int, *arguments: Any) -> None:
        self._check()
        self._count_down()
        built = self._built(kernel)
        if len(arguments) != len(built.parameters):
            names = ", ".join(p.name for p in built.parameters)
            raise TypeError(f"{kernel} takes {names}; found {len(arguments)} arguments")
        pairs = zip(built.parameters, arguments, strict=True)
        words = [self._word(kernel, parameter, argument) for parameter, argument in pairs]
        self.launches += 1
        how = {
            "seed": self._seed + self.launches,
            "fibers": self.fibers,
            "resident_blocks": self.resident_blocks,
        }
        does = self._run_and_count if self._counting else run
        self._give(partial(does, Launch(built, blocks, words), **how))

    def _run_and_count(self, launch: Launch, **how: Any) -> None:
        memories = [*self._live.values(), *(memory for _, memory in self._given_back)]
        ranges = sorted((memory.address, memory.end) for memory in memories)
        self.moved.append((launch.kernel.name, run_and_count(launch, ranges, **how)))

    def _word(self, kernel: str, parameter: Parameter, argument: Any) -> int:
        """Return an argument as 64 bits."""
        where = f"{kernel}: parameter {parameter.name}"
        if parameter.dtype is not None:
            if getattr(argument, "dtype", None) != parameter.dtype or np.ndim(argument):
                raise TypeError(f"{where} is {parameter.dtype}, found {_kind(argument)}")
            return int.from_bytes(argument.tobytes(), "little")
        if isinstance(argument, np.uint64):  # an address, or none
            address, byte_count = int(argument), int(argument != 0)
        elif isinstance(argument, DeviceArray):
            if argument.dtype.itemsize != parameter.item_bytes:
                raise TypeError(
                    f"{where} is of {parameter.item_bytes}-byte elements, found {_kind(argument)}"
                )
            address, byte_count = argument.address, argument.nbytes
        else:
            raise TypeError(f"{where} is an array, found {_kind(argument)}")
        try:
            self._memory_at(address, byte_count)
        except KernelError as exc:
            raise KernelError(f"{where}: {exc}") from None
        return address

    def upload(self, source: np.ndarray, target: DeviceArray, *, stream: int = COMPUTE) -> None:
        self._check()
        source_bytes, target_bytes = _bytes_of(source), self._bytes(target)
        self.uploaded_bytes += target.nbytes
        assert len(source_bytes) == target.nbytes, f"{len(source_bytes)} into {target.nbytes} bytes"
        begin = source_bytes.ctypes.data
        is_pinned = any(low <= begin < high for low, high in list(self._pinned.items()))
        if not is_pinned:
            source_bytes = source_bytes.copy()
        self._give(partial(np.copyto, target_bytes, source_bytes), stream)
        if is_pinned:
            self._reading = self._still_read()
            self._reading.append((begin, begin + len(source_bytes), self.mark(stream)))

    def download(self, source: DeviceArray, target: np.ndarray, *, stream: int = COMPUTE) -> None:
        self._check()
        source_bytes, target_bytes = self._bytes(source), _bytes_of(target)
        self.downloaded_bytes += source.nbytes
        assert source.nbytes == len(target_bytes), f"{source.nbytes} into {len(target_bytes)} bytes"
        begin = target_bytes.ctypes.data
        end = begin + len(target_bytes)
        if not any(low < end and begin < high for low, high, _ in self._still_read()):
            target_bytes[:] = GARBAGE
        self._give(partial(np.copyto, target_bytes, source_bytes), stream)

    def _still_read(self) -> list[tuple[int, int, Mark]]:
        """Return the pinned memory that uploads have not read yet."""
        return [r for r in self._reading if self._streams[r[2].stream].done < r[2].position]

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        self._check()
        assert source.nbytes == target.nbytes, f"{source.nbytes} into {target.nbytes} bytes"
        apart = abs(source.address - target.address) >= source.nbytes
        assert apart, "source and target overlap"
        self._give(partial(np.copyto, self._bytes(target), self._bytes(source)))

    def fill(self, array: DeviceArray, byte: int) -> None:
        self._check()
        self._give(partial(self._bytes(array).fill, byte))

    def bytes_of(self, array: DeviceArray) -> np.ndarray:
        """Return the bytes of an array, for work of a trainer's own."""
        found = self._bytes(array)
        self._named.clear()
        return found

    def lend(self, content: np.ndarray) -> None:
        """Let work use memory of a trainer's library, as long as this runtime lives."""
        lent = _Lent(content)
        self._live[lent.address] = lent
        self._starts = None

    def give(self, work: Callable[[], None], stream: int) -> None:
        """Queue work of a trainer's own."""
        self._give(work, stream)

    def run(self, stream: int) -> None:
        """Do the work of a stream, as a trainer that waits for its own; no wait of the store."""
        self._run_until(self.mark(stream))

    def _give(self, work: Callable[[], None], stream: int = COMPUTE) -> None:
        self._streams[stream].work.append((work, self._named))
        self._named = []
        self._streams[stream].given += 1

    # Order

    def mark(self, stream: int) -> Mark:
        self._check()
        return Mark(stream, self._streams[stream].given)

    def follow(self, stream: int, mark: Mark) -> None:
        self._check()
        self._give(partial(self._run_until, mark), stream)

    def wait(self, mark: Mark) -> None:
        self._check()
        self._run_until(mark)
        self._waits += 1
        self.check_guards(everywhere=self._waits % WAITS_A_LOOK == 0)

    def _run_until(self, mark: Mark) -> None:
        stream = self._streams[mark.stream]
        while stream.done < mark.position:
            self._take(stream)()

    def _take(self, stream: _Stream) -> Callable[[], None]:
        stream.done += 1
        work, named = stream.work.popleft()
        self._touched.update(named)
        return work

    def take_launch(self) -> Launch | None:
        """Do the work before the next launch, and return that, not done; None: none is left."""
        stream = self._streams[COMPUTE]
        while stream.work:
            work = self._take(stream)
            if isinstance(work, partial) and work.func is run:
                return work.args[0]
            work()
        return None

    def check_guards(self, *, everywhere: bool) -> None:
        """Raise KernelError for guards that were written into: of what work was given since the
        last look, or of all that is live."""
        for memory in list(self._live.values()) if everywhere else self._touched:
            self._note_damage(memory)
        self._touched.clear()
        waiting = []
        for given, memory in self._given_back:
            if all(s.done >= g for s, g in zip(self._streams.values(), given, strict=True)):
                self._note_damage(memory)
            else:
                waiting.append((given, memory))
        self._given_back = waiting
        if self._damages:
            damages, self._damages = self._damages, []
            raise KernelError("; ".join(dict.fromkeys(damages)))

    def _note_damage(self, memory: Memory | _Lent) -> None:
        damage = memory.damage()
        if damage:
            self._damages.append(damage)

    # Other processes, each with a runtime of its own

    def export(self, array: DeviceArray) -> Exported:
        self._check()
        memory = self._live[array.address]  # a whole allocation
        assert array.nbytes == len(memory.content) and array.nbytes % EXPORTED_MULTIPLE_BYTES == 0
        return export(memory)

    def is_reached(self, event: InterprocessEvent) -> bool:
        self._check()
        return event.is_reached()

    def open(self, exported: Export) -> DeviceArray:
        """Have another runtime's memory as if it were this one's."""
        memory = exported.memory
        self._live[memory.address] = memory
        self._starts = None
        return DeviceArray(memory.address, len(memory.content), np.uint8, None)

    def close_opened(self, opened: DeviceArray) -> None:
        """Have it no longer; work that was given before must have been waited for."""
        del self._live[opened.address]
        self._starts = None

    # Failures

    def fail_at(self, launch: int) -> None:
        """Have the n-th launch from now raise DeviceError, and every call after it."""
        assert launch > 0
        self._launches_left = launch

    def _count_down(self) -> None:
        if self._launches_left is None:
            return
        self._launches_left -= 1
        if self._launches_left == 0:
            self.is_lost = True
            for stream in self._streams.values():
                stream.work.clear()
                stream.done = stream.given
            self._check()

    def _check(self) -> None:
        if self.is_lost:
            raise DeviceError(f"{self.name}: a launch failed, as it was told to")

    # Kernels

    def compile(self, verbs: Iterable[str]) -> None:
        self._check()
        begin = time.monotonic()
        with ThreadPoolExecutor(COMPILERS) as compilers:
            for built in compilers.map(self._build, map(source, verbs)):
                self._kernels |= built
        self._compile_seconds += time.monotonic() - begin

    def _build(self, text: str) -> dict[str, Kernel]:
        return build(text, counting=self._counting)

    def _built(self, kernel: str) -> Kernel:
        if kernel not in self._kernels:
            if self._sources is None:
                self.compile([self._verbs[kernel]])
            else:
                for text in self._sources.values():
                    self._kernels |= self._build(text)
        return self._kernels[kernel]

    def facts(self) -> dict[str, Any]:
        self._check()
        memory_bytes = self._memory_bytes or 1 << 40
        return {
            "model": "emulated by the host's compiler",
            "memory_bytes": memory_bytes,
            "memory_free_bytes": memory_bytes - self.live_bytes,
            "driver_version": "emulated",
            "runtime_version": "emulated",
            "multiprocessors": 2,
            "compile_seconds": self._compile_seconds,
        }

    def close(self) -> None:
        """Do all that is left; raises nothing of a device that is lost: it has nothing left."""
        for number, stream in self._streams.items():
            self._run_until(Mark(number, stream.given))
        self.check_guards(everywhere=True)


def run_at_once(*runtimes: EmulatedRuntime, seed: int = 0, resident_blocks: int = 1) -> None:
    """Do all that runtimes were given, as of servers that share a GPU: launch beside launch.

    Those that run at the same time are of one source; others are run one after the other.
    """
    while True:
        launches = [launch for r in runtimes if (launch := r.take_launch()) is not None]
        if not launches:
            return
        alike = len({launch.kernel.library for launch in launches}) == 1
        for together in [launches] if alike else [[launch] for launch in launches]:
            run(*together, seed=seed, resident_blocks=resident_blocks)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    assert array.flags.c_contiguous, "a copy is of contiguous memory"
    return array.reshape(-1).view(np.uint8)


def _kind(argument: Any) -> str:
    if isinstance(argument, DeviceArray):
        return f"({len(argument)}, {argument.width}) {argument.dtype}"
    return str(getattr(argument, "dtype", type(argument).__name__))
