"""Answers that wait until the command log is durable.

The engine goes on with the next command; only the answer waits, and holds no thread. The log's
thread says on the event loop how far it has come: once for a group of commands.

Event loop only.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from embstore.errors import EmbstoreError
from embstore.storage.command_files import CommandFiles


class Durable:
    """What waits for marks of the command log.

    `refusal` makes the error that a call ends with if the log fails before its mark.
    """

    def __init__(self, files: CommandFiles, refusal: Callable[[], EmbstoreError]) -> None:
        self._files = files
        self._refusal = refusal
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._loop = asyncio.get_running_loop()
        files.progressed = self._noticed

    async def wait(self, mark: int) -> None:
        """Return once a mark is durable. Raises what `refusal` makes: it never will be."""
        if self._files.durable >= mark:
            return
        if self._files.failure is not None:
            raise self._refusal()
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((mark, future))
        await future

    def _noticed(self) -> None:
        """Have it looked into, on the loop. On the log's thread."""
        with suppress(RuntimeError):  # the loop has ended, and whoever waited with it
            self._loop.call_soon_threadsafe(self._progressed)

    def _progressed(self) -> None:
        durable, has_failed = self._files.durable, self._files.failure is not None
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
