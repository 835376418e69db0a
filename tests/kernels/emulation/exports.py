"""What emulated runtimes export to each other, as processes do by CUDA's handles.

A runtime is a process's: its memory is not live in another one. Handles are looked up here. Memory
that is freed while somebody has it open is noticed, and an event that is not asked for leaves the
work before it undone, since work is done as late as allowed (runtime.py).
"""

from collections.abc import Callable
from itertools import count
from typing import Any

from embstore.device.runtime import Exported

HANDLE_BYTES = 64
BUS_ADDRESS = "0000:e0:00.0"
_numbers = count(1)


class Export:
    """Memory of a runtime, and how many have it open."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.opened = 0


class InterprocessEvent:
    """An event of one runtime that another one records. Any thread."""

    def __init__(self) -> None:
        self._work: Callable[[], None] | None = None
        self._looks = 0

    def record(self, work: Callable[[], None], looks: int) -> None:
        """Be reached at the so many-th look from now; `work` is what is done then."""
        self._work, self._looks = work, looks

    def is_reached(self) -> bool:
        """Return whether the work it was recorded behind is done; it does that work at last."""
        if self._looks:
            self._looks -= 1
            return False
        if self._work is not None:
            work, self._work = self._work, None
            work()
        return True


EXPORTS: dict[bytes, Export] = {}
EVENTS: dict[bytes, InterprocessEvent] = {}


def export(memory: Any) -> Exported:
    """Return handles of memory, and a new event's."""
    number = next(_numbers)
    handle = b"memory".ljust(HANDLE_BYTES - 8, b"\0") + number.to_bytes(8, "little")
    event_handle = b"event".ljust(HANDLE_BYTES - 8, b"\0") + number.to_bytes(8, "little")
    event = InterprocessEvent()
    EXPORTS[handle], EVENTS[event_handle] = Export(memory), event
    return Exported(BUS_ADDRESS, handle, event, event_handle)


def freed(memory: Any) -> bool:
    """Forget memory that is freed; return whether somebody has it open."""
    for handle, exported in list(EXPORTS.items()):
        if exported.memory is memory:
            del EXPORTS[handle]
            return exported.opened > 0
    return False


def open_bytes() -> int:
    """Return the bytes of all memory that somebody has open."""
    return sum(len(e.memory.content) for e in list(EXPORTS.values()) if e.opened)
