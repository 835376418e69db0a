"""Recorded work for COMPUTE: it is collected until the host needs its results, then submitted.

The arrays that a call sends to the device between two waits are packed: small arrays share one
pinned buffer and one copy, which runs before all work recorded since the pack was opened. So an
array may be copied before work that was recorded earlier. This does no harm, because such work
cannot use the array's memory: recorded work keeps references to its own arrays, so their memory is
not given to other arrays.

Work is submitted when COMPUTE is marked (to wait for it, or to make another stream follow it), when
a copy needs the host's memory to be free again at once, and by `submit`: after an optimizer's step,
when a pack is full, and when memory is short. The rest of a call's work is submitted with the work
of the next call. If a launch fails, the error is raised when the launch is submitted, which may be
after the call that recorded it. On a GPU the errors of queued work are late in any case.

Rejected: a CUDA graph for each verb, layout and class of sizes. The sizes and addresses of launches
differ from call to call, so the parameters of each node would have to be set again. Setting a
node's parameters costs the driver about as much as a launch, and CuPy has no call for it. A graph
would save the gaps between kernels, but not the time spent in Python; `tests/bench/gpu/host.py`
measures the share of this time.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.device.runtime import BLOCK_THREADS, COMPUTE, Argument, DeviceArray, Exported, Runtime
from embstore.errors import DeviceError

_BLOCKS_PER_MULTIPROCESSOR = 16


class Recorder:
    """The Runtime protocol on top of a runtime. One thread calls it at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self.name = runtime.name
        self.compute_stream = runtime.compute_stream
        self._runtime = runtime
        self._blocks_max = runtime.facts()["multiprocessors"] * _BLOCKS_PER_MULTIPROCESSOR
        self._work: list[Callable[[], None] | tuple[Any, ...]] = []
        """Functions to call, or launches as tuples of arguments, which are cheaper than
        functions."""

    @property
    def is_lost(self) -> bool:
        """Whether the device has failed."""
        return self._runtime.is_lost

    @is_lost.setter
    def is_lost(self, is_lost: bool) -> None:
        self._runtime.is_lost = is_lost

    # Recorded

    def record(self, work: Callable[[], None]) -> None:
        """Record a function, which is called after all work recorded so far.

        Raises
        ------
        DeviceError : the device is lost.
        """
        if self._runtime.is_lost:
            self._refuse()
        self._work.append(work)

    def _refuse(self) -> NoReturn:
        raise DeviceError(f"{self.name} has failed: nothing on it may be trusted")

    def submit(self) -> None:
        """Submit the recorded work to the runtime."""
        if self._work:
            recorded, self._work = self._work, []
            launch = self._runtime.launch
            for work in recorded:
                if isinstance(work, tuple):
                    launch(*work)
                else:
                    work()

    def launch_over(self, kernel: str, items: int, *arguments: Argument) -> None:
        """Record the launch of a kernel over `items` items (or lanes, if it works on rows). It has
        one block for every 256 items, but no more blocks than keep the device busy. Kernels loop
        over the remaining items."""
        blocks = -(-items // BLOCK_THREADS)
        if self._runtime.is_lost:
            self._refuse()
        self._work.append((kernel, min(blocks, self._blocks_max), *arguments))

    def launch(self, kernel: str, blocks: int, *arguments: Argument) -> None:
        """See Runtime."""
        if self._runtime.is_lost:
            self._refuse()
        self._work.append((kernel, blocks, *arguments))

    def fill(self, array: DeviceArray, byte: int) -> None:
        """See Runtime."""
        self.record(partial(self._runtime.fill, array, byte))

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """See Runtime."""
        self.record(partial(self._runtime.copy, source, target))

    def download(self, source: DeviceArray, target: NDArray[Any], *, stream: int = COMPUTE) -> None:
        """See Runtime."""
        if stream == COMPUTE:
            self.record(partial(self._runtime.download, source, target))
        else:
            self._runtime.download(source, target, stream=stream)

    def follow(self, stream: int, mark: Any) -> None:
        """See Runtime."""
        if stream == COMPUTE:
            self.record(partial(self._runtime.follow, COMPUTE, mark))
        else:
            self._runtime.follow(stream, mark)

    # Submitted at once, after the recorded work

    def upload(self, source: NDArray[Any], target: DeviceArray, *, stream: int = COMPUTE) -> None:
        """See Runtime."""
        if stream == COMPUTE:
            self.submit()
        self._runtime.upload(source, target, stream=stream)

    def mark(self, stream: int) -> Any:
        """See Runtime."""
        if stream == COMPUTE:
            self.submit()
        return self._runtime.mark(stream)

    def lead(self, stream: int) -> None:
        """See Runtime."""
        self.submit()
        self._runtime.lead(stream)

    def wait(self, mark: Any) -> None:
        """See Runtime. The work before the mark has been submitted."""
        self._runtime.wait(mark)

    # In no stream

    def allocate(self, count: int, dtype: DTypeLike, *, width: int = 1) -> DeviceArray:
        """See Runtime."""
        return self._runtime.allocate(count, dtype, width=width)

    def allocate_host(self, byte_count: int) -> NDArray[np.uint8]:
        """See Runtime."""
        return self._runtime.allocate_host(byte_count)

    def empty(self, count: int, width: int) -> Any:
        """See Runtime."""
        return self._runtime.empty(count, width)

    def adopt(self, array: Any, dtype: DTypeLike) -> DeviceArray:
        """See Runtime."""
        return self._runtime.adopt(array, dtype)

    def export(self, array: DeviceArray) -> Exported:
        """See Runtime."""
        return self._runtime.export(array)

    def is_reached(self, event: Any) -> bool:
        """See Runtime."""
        return self._runtime.is_reached(event)

    def compile(self, verbs: Iterable[str]) -> None:
        """See Runtime."""
        self._runtime.compile(verbs)

    def facts(self) -> dict[str, Any]:
        """See Runtime."""
        return self._runtime.facts()

    def close(self) -> None:
        """Submit the recorded work, unless the device is lost, and close the runtime."""
        if self.is_lost:
            self._work.clear()
        self.submit()
        self._runtime.close()
