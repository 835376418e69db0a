"""The mutating calls of a client: their sequence numbers, and the store's state as last seen.

Each mutating call has a sequence number, under which the server remembers its answer. The server
keeps the newest `calls_max` answers (the deduplication window). A new call therefore waits while
its answer would displace the answer of an unfinished call.

**Epoch.** A restore, or a crash that lost commands, begins another epoch of the store. Rows and t
that this client has read are then void, and so are gradients computed from them. The client
therefore keeps the epoch that it saw first, not the newest, and sends it with every mutating call.
The server refuses a call of another epoch, and the caller gets the error OutcomeUnknownError once.
From then on the client uses the new epoch. A restore or a promotion by this client itself raises no
such error. (A standby that is promoted has all commands that this client has seen.)

A call that reads rows or t also raises this error once, if its reply has another epoch, which can
be a lower number: a store that was restored from a backup, or another standby, can be promoted or
served. Only a late reply of an epoch that this client has left raises no error. But the
thread that gets the error may not be the thread that sends gradients computed from the old rows.
Therefore the next mutating call is refused nevertheless, unless this client itself has restored a
checkpoint in between.

**Store.** An address can later serve another directory. Table ids start at the same number in every
store, so the store's id is sent with mutating calls, and compared in their replies.

All methods can be called from any thread.
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
        self._epoch = 0  # 0: unknown; the next reply has it
        self._read_epoch = 0  # the epoch of rows and t that were read; 0: unknown
        self._left: set[int] = set()  # epochs before it, whose last replies may be late
        self._beginning = 0  # the number of running restores and promotions of this client

    def connected(self, info: ServerInfo) -> None:
        """Check the store's id, and remember the limits of the server and the state of the
        store."""
        with self._room:
            server = info.server
            self._calls_max = max(server.remembered_calls_max if server else 1, 1)
        self.knows(info.context)

    def knows(self, context: Context) -> None:
        """Remember the store's state that a reply contains; refuse a reply of another store."""
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
        """Remember the store's state in a reply with rows or t. Raise OutcomeUnknownError, once, if
        rows or t that were read earlier belong to an epoch that has ended."""
        with self._lock:  # raise once: another thread may already use the next reply's epoch
            self._note(context)
            before = self._read_epoch
            if context.epoch == before or self._beginning or not self._reads(context.epoch):
                return
        raise OutcomeUnknownError(
            f"the store is in epoch {context.epoch}, what this client read before is of epoch "
            f"{before}: the store was restored, or lost commands in a crash. Rows and t may have "
            "gone back: read t, or restore a checkpoint, and go on from there. If you do not "
            "restore one, the next call that writes raises this error too, and has no effect"
        )

    def placed(self, context: Context) -> None:
        """Remember the store's state in a reply to opening a session. Another epoch raises no error
        here, because the session's resume position shows which of its steps were kept."""
        with self._lock:
            self._note(context)
            self._reads(context.epoch)

    def _reads(self, epoch: int) -> bool:
        """Take an epoch as that of what is read from now on. Return whether it is another one."""
        if epoch == self._read_epoch or epoch in self._left:
            return False
        self._left.add(self._read_epoch)
        self._read_epoch = epoch
        return True

    @contextmanager
    def beginning_epoch(self) -> Iterator[None]:
        """Accept a new epoch during the block, in which this client sends a restore or a promotion:
        the client's calls raise no error about that epoch."""
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
            self._left.add(self._read_epoch)
            self._epoch = self._read_epoch = epoch

    def promoted(self, before: int, epoch: int) -> None:
        """Use the epoch of a promotion by this client; `before` is the standby's epoch before it.
        If other epochs have begun since the epoch that this client knows, commands were lost: in
        that case keep the known epoch."""
        with self._lock:
            if (epoch - before) % EPOCH_STEP:
                return
            if before == self._epoch:
                self._epoch = epoch
            if before == self._read_epoch:
                self._reads(epoch)

    def begin(self, deadline: float) -> Origin:
        """Return the origin of a new call, as soon as the server has room to remember the call's
        answer."""
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
        """Mark a call as ended: it will not be sent again."""
        with self._room:
            self._open.discard(origin.sequence)
            self._room.notify_all()
