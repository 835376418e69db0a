"""Who keeps track of the rows that commands write: the digests of a pool's tables.

Where work is queued, the keys of a command are on the device, and to bring each command's to the
host would idle it. They are collected there, in memory that was allocated when the first table was
followed, and brought when they are asked for, or when that memory is full.
"""

from collections.abc import Callable

from embstore.arrays import KEY_BITS, Keys
from embstore.device.base import Array, Device

COLLECTED_KEYS = 1 << 21
Note = Callable[[Keys], None]


class Followers:
    """The followers of one pool's tables. Engine thread only."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._notes: dict[Note, int] = {}  # of which table
        self._collected: Array | None = None
        self._count = 0

    def follow(self, table_id: int, note: Note) -> None:
        """Have `note` called with the row keys of a table that are written from now on.

        Raises CapacityError: no memory on the device.
        """
        if self._device.is_queued and self._collected is None:
            self._collected = self._device.memory.allocate(COLLECTED_KEYS, "int64")
        self._notes[note] = table_id

    def leave(self, table_id: int) -> None:
        """Forget a table."""
        self._notes = {note: own for note, own in self._notes.items() if own != table_id}

    def written(self, keys: Array) -> None:
        """Take up row keys that a command has written, of any tables."""
        if not self._notes:
            return
        if self._collected is None or len(keys) > len(self._collected):
            self._tell(self._device.memory.download(keys))
            return
        if self._count + len(keys) > len(self._collected):
            self.take_up()
        end = self._count + len(keys)
        self._device.memory.copy(keys, self._collected[self._count : end])
        self._count = end

    def take_up(self) -> None:
        """Tell the followers of all that was written so far."""
        if self._count:
            assert self._collected is not None
            keys = self._device.memory.download(self._collected[: self._count])
            self._count = 0
            self._tell(keys)

    def _tell(self, keys: Keys) -> None:
        for note, table_id in self._notes.items():
            note(keys[keys >> KEY_BITS == table_id])

    def close(self) -> None:
        """Refer to no memory of the device."""
        self._collected, self._count = None, 0
