"""The ids of a client's commands that every shard executes a part of.

By these ids shards notice half executed commands (`embstore.engine.sharding`). A shard keeps only
the last id of each **sender**. A sender therefore sends one command after the other, and concurrent
commands have different senders. A command that failed may be half executed, so its sender sends no
other command, and the shards keep its id.
"""

from contextlib import suppress
from secrets import randbits

from embstore.commands.executor import COUNT_BITS


class CommandIds:
    """Makes ids of commands. Any thread may use it."""

    def __init__(self) -> None:
        self._last: list[int] = []  # the last id of each sender that can send a command

    def begin(self) -> int:
        """Return the id of a new command."""
        last = randbits(63 - COUNT_BITS) << COUNT_BITS
        with suppress(IndexError):
            last = self._last.pop()
        return last + 1

    def end(self, command_id: int) -> None:
        """Let the sender of a command send another one, since all shards have answered. 0: do
        nothing."""
        if command_id and (command_id + 1) % (1 << COUNT_BITS):  # else it has no id left
            self._last.append(command_id)
