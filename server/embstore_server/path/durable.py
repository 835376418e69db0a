"""Answers wait here until the command log is durable; answers to writes wait for standbys, too.

The engine continues with the next command; only the answer waits, and no thread waits for it. The
log's thread reports its progress to the event loop, once per group of commands.

Event loop only.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from embstore.errors import EmbstoreError
from embstore.tables.command_log import CommandLog
from embstore_server.path.quorum import Quorum


class _Waiting(NamedTuple):
    """A call that waits for a mark of the log; `is_write`: standbys must have the mark, too."""

    mark: int
    is_write: bool
    future: "asyncio.Future[None]"


class Durable:
    """The calls that wait for marks of the command log.

    `refusal` makes the error that a call ends with if the log fails before it is durable up to the
    call's mark. `failed` is called when the log has failed; `progressed` is called after each sync.
    """

    def __init__(
        self,
        log: CommandLog,
        quorum: Quorum,
        *,
        refusal: Callable[[], EmbstoreError],
        failed: Callable[[], None],
        progressed: Callable[[], None],
    ) -> None:
        self._log = log
        self._quorum = quorum
        self._failed = failed
        self._refusal = refusal
        self._progressed = progressed
        self._waiting: list[_Waiting] = []
        self._refused: Callable[[], EmbstoreError] | None = None
        self._loop = asyncio.get_running_loop()
        log.files.progressed = self._noticed

    @property
    def writes_waiting(self) -> int:
        """The number of writes that are on this server's disk, and wait for standbys."""
        durable = self._log.files.durable
        return sum(one.is_write and one.mark <= durable for one in self._waiting)

    async def wait(self, mark: int, *, is_write: bool = False) -> None:
        """Return once the log is durable up to a mark; for a write, it must be durable on standbys,
        too.

        Raises the error of `refusal` if the log will never be durable up to the mark.
        """
        if self._has(mark, is_write):
            return
        if is_write and self._refused is not None:
            raise self._refused()
        if self._log.files.failure is not None:
            raise self._refusal()
        future = self._loop.create_future()
        self._waiting.append(_Waiting(mark, is_write, future))
        await future

    def has(self, mark: int) -> bool:
        """Return whether the answer of a read with this mark need not wait."""
        return self._has(mark, is_write=False)

    def _has(self, mark: int, is_write: bool) -> bool:
        return self._log.files.durable >= mark and (not is_write or self._quorum.mark >= mark)

    def _noticed(self) -> None:
        """Make the event loop look at the log's progress. Called on the log's thread."""
        with suppress(RuntimeError):  # the loop has ended, with all waiting calls
            self._loop.call_soon_threadsafe(self._synced)

    def _synced(self) -> None:
        if self._log.files.failure is not None:
            self._failed()
        files = self._log.files
        durable = files.durable  # read first: the synced mark is then at least as high
        self._quorum.synced(durable, files.synced)
        self.look()
        self._progressed()

    def look(self) -> None:
        """Resume the calls that need not wait any longer."""
        has_failed = self._log.files.failure is not None
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.future.done():
                continue  # its call has ended
            if self._has(one.mark, one.is_write):
                one.future.set_result(None)
            elif has_failed:
                one.future.set_exception(self._refusal())
            else:
                self._waiting.append(one)

    def refuse_writes(self, refusal: Callable[[], EmbstoreError]) -> None:
        """End the writes that wait for standbys, and all later writes, by the error of `refusal`,
        because this server was replaced as the leader."""
        self._refused = refusal
        for one in self._waiting:
            if one.is_write and not one.future.done():
                one.future.set_exception(refusal())
        self._waiting = [one for one in self._waiting if not one.future.done()]
