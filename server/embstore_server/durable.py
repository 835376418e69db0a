"""Answers that wait until the command log is durable.

The engine goes on with the next command; only the answer waits, and holds no thread. The log's
thread says on the event loop how far it has come: once for a group of commands.

Event loop only.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from embstore.errors import EmbstoreError
from embstore.tables.command_log import CommandLog


class Durable:
    """What waits for marks of the command log.

    `refusal` makes the error that a call ends with if the log fails before its mark; `failed` is
    called when it has failed.
    """

    def __init__(
        self,
        log: CommandLog,
        refusal: Callable[[], EmbstoreError],
        failed: Callable[[], None],
    ) -> None:
        self._log = log
        self._failed = failed
        self._refusal = refusal
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._loop = asyncio.get_running_loop()
        log.files.progressed = self._noticed

    async def wait(self, mark: int) -> None:
        """Return once the log has come to a mark. Raises what `refusal` makes: it never will."""
        if self._log.files.durable >= mark:
            return
        if self._log.files.failure is not None:
            raise self._refusal()
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((mark, future))
        await future

    def _noticed(self) -> None:
        """Have it looked into, on the loop. On the log's thread."""
        with suppress(RuntimeError):  # the loop has ended, and whoever waited with it
            self._loop.call_soon_threadsafe(self._progressed)

    def _progressed(self) -> None:
        durable, has_failed = self._log.files.durable, self._log.files.failure is not None
        if has_failed:
            self._failed()
        waiting, self._waiting = self._waiting, []
        for mark, future in waiting:
            if future.done():
                continue  # nobody waits any more
            if mark <= durable:
                future.set_result(None)
            elif has_failed:
                future.set_exception(self._refusal())
            else:
                self._waiting.append((mark, future))
