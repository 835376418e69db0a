"""The lives of a store: a record of which process numbered which commands.

Command numbers alone do not distinguish two histories. If an older copy of a directory is put back,
or the end of a command log is lost, the store gives other commands numbers that it has already
used. Therefore each process that opens a store begins a **life**, with a random id, and each
command belongs to the life that numbered it. The command's record in the command log contains the
life's id. A process that executes the command again, as recovery and standbys do, leaves that id as
it is. A promotion or a restore begins no new life: afterwards either another process numbers the
commands, or the numbers continue.

A store has a list of its lives, oldest first, each with its first command. A life that has numbered
no command is not in the list. The list follows from the commands alone, on a leader and on its
standbys alike: the catalogue contains the list as of a commit, and the records of the log extend
it. No other write is needed for the list.

**Two histories are the same up to the end of a life that both contain**, with the same first
command (`last_common`): the process with that id had one history, and it gave these numbers in that
history. Raft matches logs in this way, and Kafka matches the leader epochs of a replica. In Raft
and Kafka, a majority elects the leader of a term. An operator who copies directories needs no
majority, so the ids here are random, and have no order.

The list is bounded. If another store has forgotten this store's last life, nothing is known that
the two stores have in common.
"""

import secrets
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

LIVES_MAX = 1024
"""Maximum number of lives that are remembered."""
_ID_BITS = 64


class Life(NamedTuple):
    """A life (one process that had the store open) in which commands got numbers."""

    id: int
    first: int
    """The number of the life's first command."""


Lives = tuple[Life, ...]
"""Lives, oldest first."""


def new_id() -> int:
    """Return the id for a new life."""
    return secrets.randbits(_ID_BITS)


def numbered(lives: Lives, id: int, command: int) -> Lives:
    """Return the lives of a store after the life `id` has given `command` its number."""
    if lives and lives[-1].id == id:
        return lives
    return (*lives, Life(id, command))[-LIVES_MAX:]


def up_to(lives: Lives, command: int) -> Lives:
    """Return the lives of the commands up to `command`. If all of these lives are forgotten,
    `command` gets a new life; two copies of the state after that command both contain this new
    life, and so recognize their common history."""
    return tuple(one for one in lives if one.first <= command) or (Life(new_id(), command),)


def last_common(mine: Lives, command: int, other: Lives, other_command: int) -> int:
    """Return the last command up to which two histories are the same, as far as can be known.

    Parameters
    ----------
    command, other_command : the last command of each history; the histories are the same up to 0
    """
    others = dict(_ends(other, other_command))
    return max(
        (min(end, others[one]) for one, end in _ends(mine, command) if one in others), default=0
    )


def _ends(lives: Lives, command: int) -> Iterable[tuple[Life, int]]:
    """Return each life with its last command."""
    firsts = chain((one.first for one in lives[1:]), [command + 1])
    return ((one, following - 1) for one, following in zip(lives, firsts, strict=False))
