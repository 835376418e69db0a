"""Which commands of a cluster a shard has answered lately.

A client of a cluster sends a part of a command to each shard, and gives all parts the same random
id (`PartOf`). A shard that has answered its part, by a result or by an error that ends the command,
notes the id. At a barrier the ids of all shards are compared (`embstore_client.barrier`): an id
that some shards have and others lack belongs to a command that is half executed. Its client still
sends the missing parts, which the shards execute although their writes are paused. If a part never
comes, for example because the client was killed or stopped, the command is **given up**: a shard
refuses the part from then on, and the client gets OutcomeUnknownError.

After a restart a shard has the ids of the commands that are executed again from the command log. It
lacks the ids of earlier ones, so the next barrier waits for parts that do not come, and gives their
commands up, which refuses nothing.
"""

from collections.abc import Iterable
from time import monotonic

from embstore.errors import OutcomeUnknownError

_KEPT_S = 300.0
"""Seconds after which an id is forgotten: far longer than a client takes to send all parts of a
command."""
_KEPT_MAX = 1 << 14


class ClusterCommands:
    """The commands of a cluster that one shard has answered or given up. Its callers have the
    engine."""

    def __init__(self) -> None:
        self._answered: dict[int, float] = {}  # the time of each answer, the oldest first
        self._given_up: dict[int, float] = {}

    def check(self, command_id: int) -> None:
        """Raise OutcomeUnknownError if a command was given up."""
        if command_id in self._given_up:
            raise OutcomeUnknownError(
                "another client made a checkpoint, or changed the shard map, while this command "
                "was executed by some shards only, and did not wait for it any longer"
            )

    def answered(self, command_id: int) -> None:
        """Note that this shard's part of a command was answered."""
        if command_id:
            self._answered[command_id] = monotonic()
            _forget_old(self._answered)

    def give_up(self, ids: Iterable[int]) -> None:
        """Refuse the parts of these commands from now on."""
        for command_id in ids:
            self._answered.pop(command_id, None)
            self._given_up[command_id] = monotonic()
        _forget_old(self._given_up)

    def adopt(self, ids: Iterable[int]) -> None:
        """Take over the ids of another shard, whose position this shard has adopted."""
        self._answered = dict.fromkeys(ids, monotonic())

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the commands answered lately, ascending."""
        _forget_old(self._answered)
        return tuple(sorted(self._answered))


def _forget_old(kept: dict[int, float]) -> None:
    until = monotonic() - _KEPT_S
    while kept:
        oldest = next(iter(kept))
        if kept[oldest] > until and len(kept) <= _KEPT_MAX:
            return
        del kept[oldest]
