"""Batches are read and announced ahead of a loop; the loop takes one announced step after the
other.

A step passes three stages, each in its own thread:

    reader       takes a batch, makes its keys unique (`keys` returns them)        -> prepared
    announcer    announces prepared steps, all of them in one call                 -> announced
    the loop     takes the next announced step; looks it up, and finishes it

Because reader and announcer are separate threads, steps that become ready during a call are sent
together in the next call, and a slow iterator delays no announcement. A step is read only if it is
at most `lookahead` steps after the last finished step. This limit bounds the number of announced
keys, and the number of batches in memory.

If the iterator, `keys` or an announcement raises an error, the error is queued after all earlier
steps, and ends the sequence. The loop raises the error at the step at which the error occurred.

Rejected: announcing in the loop itself, because every step would wait for the answer. Also
rejected: a reader that starts again after a break, because the steps that were announced before the
break are still pending.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arithmetic import unique
from embstore.arrays import Keys, Rows, as_keys, is_on_device, on_host
from embstore.checks.arguments import mapping
from embstore.commands import Prefetched
from embstore.errors import InvalidArgumentError

KeysOf = Callable[[Any], Mapping[str, ArrayLike]]
"""A function that returns a batch's keys by table."""

_NO_BATCH = object()
_STOP_S = 1.0
"""Seconds for which the end of a loop waits for the threads: an iterator may block for ever."""


class OnceKeys(NamedTuple):
    """The unique keys of one table in a step, and the index of each original key among them."""

    keys: Keys  # (u,), in order of first occurrence
    inverse: NDArray[np.int32]  # (n,)

    @property
    def is_identity(self) -> bool:
        """Whether no key was repeated. If so, `inverse` is 0, 1, 2, ..."""
        return len(self.keys) == len(self.inverse)

    def spread(self, rows: Rows) -> Rows:
        """Return a row for each original key, given the rows of the unique keys."""
        return rows if self.is_identity else rows[self.inverse]


@dataclass
class Entry:
    """A step on its way from the iterator to the loop."""

    number: int
    """The number of the step in its session; 0: the step does not belong to a session."""
    batch: Any
    once: Mapping[str, OnceKeys]
    was_on_device: bool = False
    """Whether some of the keys were in a device's memory."""
    was_looked_up: bool = False
    finished_by: str = ""
    """The verb that finished the step; "": it is not finished."""
    bags: dict[str, Any] = field(default_factory=dict)
    """By table, the unit of the last pooled lookup (`bags.Of`)."""
    prefetched: Prefetched | None = None  # Only the loop's thread uses it.
    prefetched_by: str = ""
    """The member for which rows were requested; rows for an earlier member are void."""
    flight: Any = None
    """The data of this step in a run that does not wait for updates (`write_behind`)."""

    @property
    def keys(self) -> dict[str, Keys]:
        """The keys that are announced for the step."""
        return {table: once.keys for table, once in self.once.items()}


Prepare = Callable[[Any, Mapping[str, OnceKeys]], object]
"""A function that is called with a batch and its distinct keys by table."""


class End(NamedTuple):
    """The end of the sequence of steps, with the exception that the loop raises there, if there is
    one."""

    failure: BaseException | None = None


class ReadAhead:
    """Reads and announces steps ahead of one loop. The first step has the number `first`. Its batch
    is the first one after `skip` batches, which are left out.

    `_prepared`, `_announced`, `_finished` and `_stopped` are read and written under the lock of
    `_changed`.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        keys: KeysOf,
        announce: Callable[[dict[int, dict[str, Keys]]], object],
        *,
        tables: tuple[str, ...],
        first: int,
        lookahead: int,
        prepare: Callable[[Entry], object],
        skip: int = 0,
    ) -> None:
        """Start the threads; `prepare` is called with each step in turn, in the reader's thread."""
        self._skip = skip
        self.skipped = 0
        """Number of batches that were read and left out. The loop can read it after its first
        `take`."""
        self._batches, self._keys, self._announce = batches, keys, announce
        self._tables, self._first, self._lookahead = tables, first, lookahead
        self._prepare = prepare
        self._changed = threading.Condition()
        self._prepared: deque[Entry | End] = deque()
        self._announced: deque[Entry | End] = deque()
        self._finished = first - 1
        self._stopped = False
        self.has_ended = False
        """Whether the loop has reached the end: no announced step is left. Only the loop uses
        this."""
        self._threads = [
            threading.Thread(target=target, name=f"embstore-{name}", daemon=True)
            for name, target in (("reader", self._read), ("announcer", self._send))
        ]
        for thread in self._threads:
            thread.start()

    def take(self) -> Entry | None:
        """Wait for the next step to be announced and return it; None after the last step.

        An error of the iterator, of `keys` or of the announcement of this step is raised here.
        """
        if not self._wait_for(lambda: self._announced):
            raise InvalidArgumentError("expected the loop to end before the run's with block does")
        with self._changed:
            item = self._announced.popleft()
        if isinstance(item, Entry):
            return item
        self.has_ended = True
        if item.failure is not None:
            raise item.failure
        return None

    def peek(self) -> Entry | None:
        """Return the step that `take` would return at once, or None."""
        with self._changed:
            item = self._announced[0] if self._announced else None
        return item if isinstance(item, Entry) else None

    def announced(self, count: int) -> list[Entry]:
        """Return the next steps, at most `count`, that `take` would return without waiting."""
        with self._changed:
            items = list(itertools.islice(self._announced, count))
        return [item for item in items if isinstance(item, Entry)]

    def fail(self, failure: BaseException) -> None:
        """Raise a failure in the loop, after the announced steps. Call this when no further step
        can be finished, so that no further step is announced."""
        with self._changed:
            self._announced.append(End(failure))
            self._changed.notify_all()

    def finish(self, number: int) -> None:
        """Note that a step is finished, so that a later step can be read."""
        with self._changed:
            self._finished = max(self._finished, number)
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop reading and announcing; wait a moment for the threads."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_STOP_S)

    def _read(self) -> None:
        """Prepare every step in turn. Runs in the reader's thread."""
        try:
            batches = iter(self._batches)
            while self.skipped < self._skip and not self._stopped:
                if next(batches, _NO_BATCH) is _NO_BATCH:
                    return self._put(End())
                self.skipped += 1
            for number in itertools.count(self._first):
                if not self._wait_for(partial(self._has_room, number)):
                    return
                batch = next(batches, _NO_BATCH)
                if batch is _NO_BATCH:
                    return self._put(End())
                entry = self._entry(number, batch)
                self._prepare(entry)
                self._put(entry)
        except BaseException as failure:  # The loop raises it.
            self._put(End(failure))

    def _has_room(self, number: int) -> bool:
        return number <= self._finished + self._lookahead

    def _wait_for(self, condition: Callable[[], object]) -> bool:
        """Wait until `condition` is true; return False if reading was stopped instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or condition())
            return not self._stopped

    def _put(self, item: Entry | End) -> None:
        with self._changed:
            self._prepared.append(item)
            self._changed.notify_all()

    def _entry(self, number: int, batch: Any) -> Entry:
        """Return a step with the unique keys of its batch, on the host."""
        given = mapping(self._keys(batch), "keys(batch)")
        check_names(given, self._tables, "keys(batch)")
        once = {
            table: OnceKeys(*unique(as_keys(on_host(keys), table))) for table, keys in given.items()
        }
        return Entry(number, batch, once, any(map(is_on_device, given.values())))

    def _send(self) -> None:
        """Announce prepared steps until the end. Runs in the announcer's thread."""
        while self._wait_for(lambda: self._prepared):
            with self._changed:
                items = list(self._prepared)
                self._prepared.clear()
            announced = self._accepted(items)
            with self._changed:
                self._announced.extend(announced)
                self._changed.notify_all()
            if isinstance(announced[-1], End):
                return

    def _accepted(self, items: list[Entry | End]) -> list[Entry | End]:
        """Announce the steps among `items`; return the items up to the first refused step."""
        entries = [item for item in items if isinstance(item, Entry)]
        try:
            if entries:
                self._announce({entry.number: entry.keys for entry in entries})
            return items
        except BaseException as failure:
            if len(items) == 1 or not isinstance(failure, InvalidArgumentError):
                return [End(failure)]
        # A refused call has changed nothing. Repeating the call step by step shows which step is
        # wrong.
        accepted: list[Entry | End] = []
        for item in items:
            accepted += self._accepted([item])
            if isinstance(accepted[-1], End):
                break
        return accepted


def preparing(own: Callable[[Entry], object], callers: Prepare | None) -> Callable[[Entry], object]:
    """Return a function for each step that was read, which calls `own` and then `callers`."""

    def prepare(entry: Entry) -> None:
        own(entry)
        if callers is not None:
            callers(entry.batch, entry.once)

    return prepare


def check_names(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise InvalidArgumentError if `given` has unknown tables; `what` names `given` in the
    message."""
    unknown = sorted(set(given) - set(known), key=repr)
    if unknown:
        raise InvalidArgumentError(
            f"expected {what} to be of tables {sorted(known)}, found {unknown}"
        )
