"""Callbacks that get the keys of written rows. The digests of a pool's tables register them.

On a GPU the keys of a command are in the device's memory, and a download after each command would
leave the GPU idle. Therefore the keys are collected in a buffer on the device, which is allocated
when the first table is followed. They are downloaded when a digest needs them, or when the buffer
is full.
"""

from collections.abc import Callable

from embstore.arrays import Keys
from embstore.device.base import Device
from embstore.device.values import Array
from embstore.row_keys import RowKeys

COLLECTED_KEYS = 1 << 21
Note = Callable[[Keys], None]


class Followers:
    """The callbacks of one pool, by table. Engine thread only."""

    def __init__(self, device: Device, row_keys: RowKeys) -> None:
        self._device, self._row_keys = device, row_keys
        self._notes: dict[Note, int] = {}  # callback -> table id
        self._collected: Array | None = None
        self._count = 0

    def follow(self, table_id: int, note: Note) -> None:
        """Register `note` as a callback, which gets the keys of all rows of a table that are
        written later.

        Raises
        ------
        CapacityError : the device has too little memory for the buffer that collects these keys.
        """
        if self._device.is_queued and self._collected is None:
            self._collected = self._device.memory.allocate(COLLECTED_KEYS, "int64")
        self._notes[note] = table_id

    def leave(self, table_id: int) -> None:
        """Drop the callbacks of a table."""
        self._notes = {note: own for note, own in self._notes.items() if own != table_id}

    def prepare(self, count: int) -> None:
        """Make room for the keys of a command before it changes a row.

        Raises
        ------
        CapacityError : the device has too little memory for the keys. No row has changed.
        """
        if self._collected is not None and self._count + count > len(self._collected):
            self.download()
            if count > len(self._collected):
                self._collected = self._device.memory.allocate(count, "int64")

    def written(self, keys: Array) -> None:
        """Collect the keys of the rows that a command has written, (n,) int64, or pass them to the
        callbacks at once. The keys may belong to several tables."""
        if not self._notes:
            return
        if self._collected is None:
            self._tell(self._device.memory.download(keys))
            return
        end = self._count + len(keys)
        self._device.memory.copy(keys, self._collected[self._count : end])
        self._count = end

    def download(self) -> None:
        """Download the collected keys, and pass them to the callbacks."""
        if self._count:
            assert self._collected is not None
            keys = self._device.memory.download(self._collected[: self._count])
            self._count = 0
            self._tell(keys)

    def _tell(self, keys: Keys) -> None:
        for note, table_id in self._notes.items():
            note(keys[self._row_keys.are_of(keys, table_id)])

    def close(self) -> None:
        """Drop the buffer of collected keys."""
        self._collected, self._count = None, 0
