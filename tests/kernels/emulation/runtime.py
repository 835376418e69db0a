"""A runtime of NumPy memory: what `embstore.device.runtime` asks of a GPU, done as late as allowed.

Work is queued (`streams.py`) and refers to memory by address (`memory.py`). Whoever changes pinned
memory too early sends what it has become. Two things are done at once, as on a device: what is not
pinned is copied when it is uploaded, and what is downloaded is garbage until then (unless an upload
still has to read it).
"""

import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

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
from embstore.errors import DeviceError, InvalidArgumentError
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
from tests.kernels.emulation.exports import Export, InterprocessEvent, export
from tests.kernels.emulation.memory import GARBAGE, LentMemory, Memories, Memory
from tests.kernels.emulation.streams import Mark, Streams, Work

WAITS_A_LOOK = 8
"""At one wait in so many all guards are looked at."""
COMPILERS = 2

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
        self.launches = 0
        self.moved: list[tuple[str, Bytes]] = []
        """Of each launch that was done its kernel and bytes, where they are counted."""
        self.uploaded_bytes = 0
        """From the host, in all; and to it."""
        self.downloaded_bytes = 0
        self.turn: Callable[[], AbstractContextManager[object]] = nullcontext
        """In which a trainer uses its own arrays (`callers.py`)."""
        self._seed = seed << 32
        self._sources = sources
        self._counting = counting
        self._verbs = {k: v for v in VERBS for k in kernels_of(v)} if sources is None else {}
        self._kernels: dict[str, Kernel] = {}
        self._compile_seconds = 0.0
        self.streams = Streams((COMPUTE, UP, DOWN, CALLERS))
        self.memories = Memories(name, memory_bytes, self.streams)
        self._named: list[Memory | LentMemory] = []  # for the work that is given next
        self._waits = 0
        self._reading: list[tuple[int, int, Mark]] = []  # begin, end of what uploads read
        self._launches_left: int | None = None
        RUNTIMES.add(self)

    # Memory

    @property
    def live_bytes(self) -> int:
        return self.memories.live_bytes

    def allocate(self, count: int, dtype: Any, *, width: int = 1) -> DeviceArray:
        self._check()
        return self.memories.allocate(count, dtype, width=width)

    def allocate_host(self, byte_count: int) -> np.ndarray:
        self._check()
        return self.memories.allocate_host(byte_count)

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

    def lend(self, content: np.ndarray) -> None:
        """Let work use memory of a trainer's library, as long as this runtime lives."""
        self.memories.add(LentMemory(content))

    def bytes_of(self, array: DeviceArray) -> np.ndarray:
        """Return the bytes of an array, for work of a trainer's own."""
        found = self._bytes(array)
        self._named.clear()
        return found

    def _bytes(self, array: DeviceArray) -> np.ndarray:
        """Return the bytes of an array, all of which are live, for the work that is given next."""
        if array.nbytes == 0:
            return np.empty(0, np.uint8)
        memory = self._memory_at(array.address, array.nbytes)
        low = array.address - memory.address
        return memory.content[low : low + array.nbytes]

    def _memory_at(self, address: int, byte_count: int) -> Memory | LentMemory:
        memory = self.memories.at(address, byte_count)
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
        self.give(partial(does, Launch(built, blocks, words), **how))

    def _run_and_count(self, launch: Launch, **how: Any) -> None:
        counted = run_and_count(launch, self.memories.ranges(), **how)
        self.moved.append((launch.kernel.name, counted))

    def _word(self, kernel: str, parameter: Parameter, argument: Any) -> int:
        """Return an argument as 64 bits."""
        where = f"{kernel}: parameter {parameter.name}"
        try:
            word, byte_count = parameter.word(argument)
            if byte_count:
                self._memory_at(word, byte_count)
        except TypeError as exc:
            raise TypeError(f"{where} is {exc}") from None
        except KernelError as exc:
            raise KernelError(f"{where}: {exc}") from None
        return word

    def upload(self, source: np.ndarray, target: DeviceArray, *, stream: int = COMPUTE) -> None:
        self._check()
        source_bytes, target_bytes = _bytes_of(source), self._bytes(target)
        self.uploaded_bytes += target.nbytes
        assert len(source_bytes) == target.nbytes, f"{len(source_bytes)} into {target.nbytes} bytes"
        begin = source_bytes.ctypes.data
        is_pinned = self.memories.is_pinned(begin)
        if not is_pinned:
            source_bytes = source_bytes.copy()
        self.give(partial(np.copyto, target_bytes, source_bytes), stream)
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
        self.give(partial(np.copyto, target_bytes, source_bytes), stream)

    def _still_read(self) -> list[tuple[int, int, Mark]]:
        """Return the pinned memory that uploads have not read yet."""
        return [r for r in self._reading if not self.streams.is_reached(r[2])]

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        self._check()
        assert source.nbytes == target.nbytes, f"{source.nbytes} into {target.nbytes} bytes"
        apart = abs(source.address - target.address) >= source.nbytes
        assert apart, "source and target overlap"
        self.give(partial(np.copyto, self._bytes(target), self._bytes(source)))

    def fill(self, array: DeviceArray, byte: int) -> None:
        self._check()
        self.give(partial(self._bytes(array).fill, byte))

    def give(self, work: Work, stream: int = COMPUTE) -> None:
        """Queue work, also of a trainer's own."""
        self.streams.give(work, stream, self._named)
        self._named = []

    def run(self, stream: int) -> None:
        """Do the work of a stream, as a trainer that waits for its own; no wait of the store."""
        self.streams.run_until(self.mark(stream))

    # Order

    def mark(self, stream: int) -> Mark:
        self._check()
        return self.streams.mark(stream)

    def follow(self, stream: int, mark: Mark) -> None:
        self._check()
        self.give(partial(self.streams.run_until, mark), stream)

    def wait(self, mark: Mark) -> None:
        self._check()
        self.streams.run_until(mark)
        self._waits += 1
        self.memories.check_guards(everywhere=self._waits % WAITS_A_LOOK == 0)

    def take_launch(self) -> Launch | None:
        """Do the work before the next launch, and return that, not done; None: none is left."""
        while self.streams[COMPUTE].work:
            work = self.streams.take(COMPUTE)
            if isinstance(work, partial) and work.func is run:
                return work.args[0]
            work()
        return None

    # Other processes, each with a runtime of its own

    def export(self, array: DeviceArray) -> Exported:
        self._check()
        memory = self.memories.beginning_at(array.address)  # a whole allocation
        assert array.nbytes == len(memory.content) and array.nbytes % EXPORTED_MULTIPLE_BYTES == 0
        return export(memory)

    def is_reached(self, event: InterprocessEvent) -> bool:
        self._check()
        return event.is_reached()

    def open(self, exported: Export) -> DeviceArray:
        """Have another runtime's memory as if it were this one's."""
        memory = exported.memory
        self.memories.add(memory)
        return DeviceArray(memory.address, len(memory.content), np.uint8, None)

    def close_opened(self, opened: DeviceArray) -> None:
        """Have it no longer; work that was given before must have been waited for."""
        self.memories.remove(opened.address)

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
            self.streams.drop_all()
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
        memory_bytes = self.memories.bytes_max or 1 << 40
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
        self.streams.run_all()
        self.memories.check_guards(everywhere=True)


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
