"""The rows that a call names, and their slots, which are searched once and then remembered.

**Batches.** A trainer looks up rows, computes, and updates the same keys. Comparing a call's keys
with the keys of the last call only reads each key; making keys unique hashes each key and writes a
table. On the CPU, for 53,248 keys, comparing takes 0.03 ms, and making unique 0.43 ms. Therefore
the last batch is kept with a copy of its keys, in buffers that are used again and only grow. Where
work is queued, the batch stays on the device. Using it again saves a copy and some launches, a
tenth of a millisecond on a GPU. Above COMPARED_KEYS_MAX keys the comparison on the host would take
longer than that. Keys in the device's memory are not compared.

**Slots.** A call needs its slots several times, and the update after a lookup needs them once more.
Therefore the slots found last are kept. They are valid as long as no row has entered or left a slot
(`moves`).

**Arrivals.** Rows of announced steps are read ahead of their use (prefetch.py). A slot may be
*pending*: its key is in the index, but its row has not arrived. Before a pending slot is used, rows
under way are finished, in order, until the row of this slot has arrived.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.cache.slots import PoolSlots
from embstore.device.base import Device
from embstore.device.values import Array, Batch

COMPARED_KEYS_MAX = 1 << 17
Segment = tuple[int, int, Keys]
"""The id of one table, its number of rows, and the keys that a call names."""


class Arriving(Protocol):
    """Rows under way to slots whose keys are already in the index."""

    def finish(self) -> None:
        """Wait for the rows, and write them to their slots; free the slots of unreadable rows."""


class Finder:
    """Finds the rows of calls, and remembers the rows found last. Engine thread only.

    A batch that `unique` or `resolve` returned is valid until either method is called with other
    keys.
    """

    def __init__(self, device: Device, slots: PoolSlots) -> None:
        self.arriving: list[Arriving] = []  # the oldest first
        self.moves = 0
        """A number that grows whenever a row enters or leaves a slot."""
        self.lookups_miss = self.updates_miss = False
        """Whether keys were missing in the last lookup, and in the last update. If so, keys are
        usually missing in the next call of the same kind, too."""
        self._device = device
        self._slots = slots
        self._batch: Batch | None = None  # of the last call
        self._segments: list[Segment] = []  # of that batch; the keys are copies
        self._copies: dict[str, NDArray[Any]] = {}
        self._room: Array = device.memory.allocate(0, np.int64)  # the output of probing
        self._found_for: object = None  # the keys or the batch whose slots were found last
        self._found: Array = self._room
        self._missing = 0
        self._found_at = 0  # `moves` when the slots were found
        self._probed_at = 0  # rebuilds of the index when slots were last probed

    # The rows of a call

    def resolve(self, segments: Sequence[Segment], *, grouped: bool = False) -> Batch:
        """Return the batch of a call, and queue the search for its slots; see `synchronize`.

        grouped : whether to group positions by slot if all keys are expected to have slots. If a
            key turns out to be missing, the batch is void
        """
        device = self._device
        if grouped and device.is_queued and not self.updates_miss:
            batch = None if self.arriving else self._grouped(segments)
            if batch is not None:
                return batch
        batch = self.unique(segments)
        self.look(batch)
        return batch

    def is_asked(self, batch: Batch) -> bool:
        """Return whether the search for the slots of a batch is queued, and no row is under way."""
        return self._found_for is batch and not self.arriving

    @property
    def found(self) -> Array:
        """The slots found last, on the device."""
        return self._found

    def unique(self, segments: Sequence[Segment]) -> Batch:
        """Return the batch of a call: a new one, or the last one if its keys are the same."""
        kept = self._batch
        if kept is not None and kept.is_known and kept.found.outside < 0 and self._same(segments):
            return self._device.keys.again(kept) if self._device.is_queued else kept
        self._batch = None
        batch = self._device.keys.unique(segments)
        if not self._device.is_queued:
            if batch.found.outside < 0:
                return self._kept(segments, self._copied(batch))
        elif batch.position_count <= COMPARED_KEYS_MAX and _are_on_host(segments):
            self._kept(segments, batch)
        return batch

    def _grouped(self, segments: Sequence[Segment]) -> Batch | None:
        index, memory = self._slots.index, self._slots.memory
        grouped = self._device.keys.group(
            index.arrays, memory, self._slots.count, segments, self.moves
        )
        if grouped is None:
            return None
        self._found_for, self._found = grouped
        self._probed_at = index.rebuilds
        return grouped[0]

    def look(self, batch: Batch, slots: Array | None = None) -> None:
        """Queue the search for the slots of a batch. If the device's results are known at once,
        they are remembered.

        slots : the slots of all unique keys, if they are known: these slots are pinned, and their
            rows have arrived; None: the slots are searched
        """
        if slots is not None:
            self._found_for, self._found = batch, slots
            batch.found.missing = 0
        elif batch.unique_keys is self._found_for and self._found_at == self.moves:
            batch.found.missing = self._missing
            return
        else:
            slots = self._room_for(len(batch.unique_keys))
            index = self._slots.index
            self._device.keys.probe(index.arrays, batch, slots)
            self._found_for, self._found, self._probed_at = batch, slots, index.rebuilds
        if self.arriving and not self._device.is_queued:
            self._note_found(batch)
        elif not self._device.is_queued:  # inlined `note`, whose call would cost time with few keys
            keys, self._missing, self._found_at = batch.unique_keys, batch.found.missing, self.moves
            self._found_for, self._found = keys, slots[: len(keys)]

    def looked_at(self, batch: Batch) -> Array | None:
        """Return the array with the slots of a batch; the device may still be writing it. Return
        None if rows are under way or missing; in this case the caller must synchronize the batch
        first."""
        is_known = batch.unique_keys is self._found_for and self._is_right and not self._missing
        is_asked = self._found_for is batch and not self.arriving
        return self._found if is_known or is_asked else None

    def synchronize(self, batch: Batch) -> None:
        """Wait for the device's results about a batch."""
        if self._device.is_queued:
            self._device.keys.synchronize(batch)
            if self._found_for is batch:
                self._note_found(batch)

    def _note_found(self, batch: Batch) -> None:
        """Remember the slots that were found for a batch, and finish the rows under way to them."""
        keys, missing = batch.unique_keys, batch.found.missing
        self.note(keys, self._found[: len(keys)], missing)
        self._slots.index.synchronize()
        if batch.found.outside < 0:
            if missing and self._slots.index.rebuilds > self._probed_at:
                self._find_again(keys)
            # Queued work was not done if a key was missing when the batch was probed.
            if self.arriving:
                self._finish_arriving_at(keys)
            batch.found.missing = max(self._missing, int(missing > 0))

    # The last batch

    def _same(self, segments: Sequence[Segment]) -> bool:
        if len(segments) != len(self._segments):
            return False
        for own, other in zip(segments, self._segments, strict=True):
            if own[:2] != other[:2] or not np.array_equal(own[2], other[2]):
                return False
        return True

    def _kept(self, segments: Sequence[Segment], batch: Batch) -> Batch:
        keys, low = self._copy("keys", int(batch.bounds[-1]), np.int64), 0
        self._segments = []
        for table_id, rows, named in segments:
            own = keys[low : low + len(named)]
            own[:] = named
            self._segments.append((table_id, rows, own))
            low += len(named)
        self._batch = batch  # last: no error above may leave this batch with other keys
        return batch

    def _copied(self, batch: Batch) -> Batch:
        unique_keys = self._copy("unique_keys", len(batch.unique_keys), np.int64)
        unique_keys[:] = batch.unique_keys
        inverse = self._copy("inverse", len(batch.inverse), np.int32)
        inverse[:] = batch.inverse
        return replace(batch, unique_keys=unique_keys, inverse=inverse)

    def _copy(self, name: str, count: int, dtype: Any) -> NDArray[Any]:
        array = self._copies.get(name)
        if array is None or len(array) < count:
            array = self._copies[name] = np.empty(count + count // 4, dtype)
        return array[:count]

    # Slots

    def find(self, keys: Array) -> tuple[Array, int]:
        """Return the slots of unique row keys, -1 where absent, and the number of absent keys.

        No returned slot is pending, nor becomes pending before the next call.
        """
        if keys is not self._found_for or self._found_at != self.moves:
            self._find_again(keys)
        if self.arriving:
            self._finish_arriving_at(keys)
        return self._found, self._missing

    def locate(self, keys: Array) -> tuple[Array, int]:
        """Return the slots of row keys in a new array, -1 where absent, and the number of absent
        keys.

        Pending slots are found too.
        """
        slots = self._device.memory.allocate(len(keys), np.int64)
        return slots, self._device.keys.find(self._slots.index.synchronize(), keys, slots)

    def note(self, keys: Array, slots: Array, missing: int) -> None:
        """Remember the slots of unique row keys."""
        self._found_for, self._found = keys, slots
        self._missing, self._found_at = missing, self.moves

    def forget(self) -> None:
        """Forget the slots found last, because they are about to change."""
        self._found_for = None

    def finish_arriving(self) -> None:
        """Wait for all rows under way."""
        while self.arriving:
            self.arriving[0].finish()

    def close(self) -> None:
        """Wait for all rows under way, and drop the references to memory of the device."""
        self.finish_arriving()
        self._batch = self._room = self._found = None

    @property
    def _is_right(self) -> bool:
        """Whether no row has entered or left a slot since slots were found."""
        return self._found_at == self.moves

    def _find_again(self, keys: Array) -> None:
        slots = self._room_for(len(keys))
        self.note(keys, slots, self._device.keys.find(self._slots.index.synchronize(), keys, slots))

    def _finish_arriving_at(self, keys: Array) -> None:
        """Finish the rows under way to the slots found.

        Rows that cannot be read are missing afterwards. The call then reads these rows again and
        reports the error.
        """
        while self.arriving and self._device.slots.count_pending(self._slots.memory, self._found):
            self.arriving[0].finish()
            if not self._is_right:
                self._find_again(keys)

    def _room_for(self, count: int) -> Array:
        """Return the array into which a search writes its slots. The slots found before become
        void."""
        self.forget()
        if len(self._room) < count:
            self._room = self._device.memory.allocate(count + count // 4, np.int64)
        return self._room[:count]


def _are_on_host(segments: Sequence[Segment]) -> bool:
    return all(isinstance(keys, np.ndarray) for _, _, keys in segments)
