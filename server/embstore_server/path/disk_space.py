"""Free disk space: it is checked even without writes, reported, and awaited when the server ends.

A server whose directory has no space is **not ready**. /readyz and gRPC's health service report
this state and its reason until there is space again. Stats and metrics report it too, and the
server logs it once a minute. Reads are served all the same; but readiness decides where work is
sent, and this server would refuse a trainer's writes. A write that finds no space in the command
log is refused before it changes anything. Without a command log, only the next commit would find
that there is no space. Therefore writes are then refused as soon as a commit of all changes may
find no space.

When the server ends, it commits its last commands. If there is no space for that, it tries again
until `drain_s` is over. Then the server logs that the commands are lost, or that the command log
contains them, and the process does not end with status 0. If commands are logged, a commit that is
not complete by then is abandoned: the next start executes the commands.

The check also looks for files that were removed while the server runs. The store has failed in that
case, because acknowledged writes would be lost. Event loop only.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from embstore.commands import Command, DropTable, Effect
from embstore.engine.engine import Engine
from embstore.errors import CapacityError, EmbstoreError
from embstore.storage.disk_space import lack_of
from embstore_server.telemetry.logs import REPEAT_S, event

if TYPE_CHECKING:
    from embstore_server.path.served import Served

LOOK_S = 2.0
_AGAIN_S = 0.5


async def _nobody() -> None:
    """Do nothing: no function is registered."""


class _LateError(Exception):
    """The time for a commit is over."""


class DiskSpace:
    """The free disk space of a service's directory."""

    def __init__(self, served: "Served") -> None:
        self.lack = ""
        """Why the directory accepts no writes; empty if it accepts writes."""
        self.changed: Callable[[], Awaitable[None]] = _nobody
        """Called when the directory begins or ceases to accept writes."""
        self._service = served
        self._said_at = -REPEAT_S

    async def watch(self) -> None:
        """Check every LOOK_S seconds, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Check now, and report a change."""
        before, self.lack = self.lack, await asyncio.to_thread(_lack, self._service.engine)
        self._service.notice_failure()
        if self.lack and monotonic() - self._said_at >= REPEAT_S:
            self._said_at = monotonic()
            event(logging.ERROR, "no room", reason=self.lack, note="reads are served")
        if before and not self.lack:
            self._said_at = -REPEAT_S
            event(logging.INFO, "room again")
        if bool(before) is not bool(self.lack):
            await self.changed()

    def check(self, command: Command[Any]) -> None:
        """Raise CapacityError if the command writes, and a commit may find no space for its
        changes. With a command log, the log itself refuses writes for which it has no space."""
        if self.lack and command.effect is Effect.WRITES and self._service.engine.log is None:
            if not isinstance(command, DropTable):  # frees space with the next commits
                raise CapacityError(f"nothing has changed: {self.lack}")

    async def commit(self, until: float) -> None:
        """Commit the last commands. If there is no space, try again until a monotonic time.

        Without a command log, a commit that has begun continues after that time.
        """
        engine = self._service.engine
        deadline = None if engine.log is None else partial(_check, until)
        await asyncio.to_thread(engine.look_for_files)
        if engine.storage.read_only or engine.failure is not None:
            return
        while True:
            try:
                await asyncio.to_thread(engine.commits.commit, deadline)
                return
            except _LateError as exc:
                engine.is_left_to_log = True
                _say_uncommitted(engine, exc)
                return
            except CapacityError as exc:
                deadline = None  # the next attempt must find, and the exit status show, the lack
                if monotonic() >= until:
                    _say_uncommitted(engine, exc)
                    return
            except EmbstoreError:
                return  # closing the store raises it again
            await asyncio.sleep(min(_AGAIN_S, max(until - monotonic(), 0.0)))


def _check(until: float, done: int, of: int) -> None:
    """End a commit by _LateError if the monotonic time `until` is over. The commit calls this
    function as its `progress`."""
    if monotonic() > until:
        raise _LateError("the time to stop (drain_s) is over")


def _lack(engine: Engine) -> str:
    engine.look_for_files()
    if engine.storage.read_only:
        return ""
    lack = lack_of(engine.storage.files, engine.commits.write_back.commit_bytes)
    error = engine.commits.error
    return lack or (f"no commit could be made: {error}" if error else "")


def _say_uncommitted(engine: Engine, cause: Exception) -> None:
    """Log the number of commands that no commit contains, and whether they are lost."""
    commands = engine.tables.frame.command_number - engine.storage.catalogue.head.command
    note = "they are lost"
    if engine.log is not None:
        note = "the command log has them, and they are executed when the server is restarted"
    event(logging.ERROR, "not committed", reason=str(cause), commands=commands, note=note)
