"""The mutating calls of a client: their numbers, and the state of the store that it had seen.

Each mutating call has a sequence number of its own, under which the server remembers its answer.
The server keeps the newest `calls_max` answers, so no call begins that would push an open one out.

**Epoch.** A restore, or a crash that lost commands, begins another epoch of the store: rows and t
that this client has seen are void, and so are gradients computed from them. The client therefore
keeps the epoch it first saw, not the newest, and sends it with every mutating call; the server
refuses one of another epoch, and the caller gets that error once. From then on the client uses the
new epoch. A restore of its own is no surprise, nor is a promotion: the standby has all that this
client has seen there.

A call that reads rows or t raises the error as well, once, by the epoch of its reply. The thread
that has read that the old rows are void may not be the one that sends gradients computed from them:
so the next mutating call is refused all the same, unless the client has restored in between.

**Store.** An address may come to serve another directory. Table ids begin alike in all of them, so
the store's id is sent with mutating calls, and compared in their replies.

Any thread.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from embstore.errors import DeadlineError, InvalidArgumentError, OutcomeUnknownError
from embstore.results import EPOCH_STEP, Context, ServerInfo
from embstore_proto.envelope import Origin


class Origins:
    """The origins of a client's mutating calls."""

    def __init__(self) -> None:
        self._client_id = os.urandom(16).hex()
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._calls_max = 1
        self._last = 0
        self._open: set[int] = set()
        self._store_id = ""
        self._instance = ""
        self._epoch = 0  # 0: not known; the next reply has it
        self._read_epoch = 0  # the same, of rows and t that were read
        self._beginning = 0  # restores and promotions of this client, under way

    def connected(self, info: ServerInfo) -> None:
        """Check the store's id, and note the server's limits and state."""
        with self._room:
            server = info.server
            self._calls_max = max(server.remembered_calls_max if server else 1, 1)
        self.knows(info.context)

    def knows(self, context: Context) -> None:
        """Take note of the state that a reply was of; refuse one of another store."""
        with self._lock:
            self._note(context)

    def _note(self, context: Context) -> None:
        self._store_id = self._store_id or context.store_id
        self._epoch = self._epoch or context.epoch
        self._read_epoch = self._read_epoch or context.epoch
        self._instance = context.instance
        if context.store_id != self._store_id:
            raise InvalidArgumentError(
                f"the address serves store {context.store_id} now, and served {self._store_id} "
                "before; connect again"
            )

    def read(self, context: Context) -> None:
        """Take note of the state that rows or t are of; raise OutcomeUnknownError, once, where
        earlier ones are of an epoch that has ended."""
        with self._lock:  # once: another thread may begin anew with the epoch of the next reply
            self._note(context)
            before, is_newer = self._read_epoch, context.epoch > self._read_epoch
            if not is_newer or self._beginning:
                return
            self._read_epoch = context.epoch
        raise OutcomeUnknownError(
            f"the store is in epoch {context.epoch}, what this client read before is of epoch "
            f"{before}: the store was restored, or lost commands in a crash. Rows and t may have "
            "gone back: read t, or restore a checkpoint, and go on from there"
        )

    def placed(self, context: Context) -> None:
        """Take note of the state that a session was opened in, whose place shows what was kept."""
        with self._lock:
            self._note(context)
            self._read_epoch = max(self._read_epoch, context.epoch)

    @contextmanager
    def beginning_epoch(self) -> Iterator[None]:
        """Send a restore or a promotion of this client, whose calls are not surprised by its epoch
        meanwhile."""
        with self._lock:
            self._beginning += 1
        try:
            yield
        finally:
            with self._lock:
                self._beginning -= 1

    def changed_epoch(self, epoch: int = 0) -> None:
        """Use another epoch from now on; 0: the epoch of the next reply."""
        with self._lock:
            self._epoch = self._read_epoch = epoch

    def promoted(self, epoch: int) -> None:
        """Use the epoch of a promotion of this client, unless the store has begun others since the
        one that is known here: in those, commands were lost."""
        with self._lock:
            if epoch == self._epoch + EPOCH_STEP:
                self._epoch = epoch
            if epoch == self._read_epoch + EPOCH_STEP:
                self._read_epoch = epoch

    def begin(self, deadline: float) -> Origin:
        """Return the origin of a new call, once the server will remember it."""
        with self._room:
            if not self._room.wait_for(self._has_room, deadline - monotonic()):
                raise DeadlineError(
                    f"{len(self._open)} calls of this client are in flight, and the server "
                    f"remembers at most {self._calls_max}; nothing was sent: call again when some "
                    "have ended"
                )
            self._last += 1
            self._open.add(self._last)
            return Origin(
                client_id=self._client_id,
                sequence=self._last,
                finished_below=min(self._open),
                store_id=self._store_id,
                instance=self._instance,
                epoch=self._epoch,
            )

    def _has_room(self) -> bool:
        return not self._open or self._last + 1 - min(self._open) < self._calls_max

    def end(self, origin: Origin) -> None:
        """Note that a call will not be sent again."""
        with self._room:
            self._open.discard(origin.sequence)
            self._room.notify_all()
