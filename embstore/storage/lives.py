"""The lives of a store: which process gave which commands their numbers.

Command numbers alone do not tell two histories apart: where an older copy of a directory is put
back, or the end of a command log is lost, the store gives the same numbers to other commands. So
each process that opens a store begins a **life**, with a random id, and each command is of the life
that gave it its number. A record of the command log has that id. A process that executes the
command again, as recovery and standbys do, leaves it as it is. So no promotion and no restore needs
a life of its own: both are followed by commands of another process, or go on with the numbers.

A store has the list of its lives, oldest first, each with its first command; one that has given no
number is not in it. The list is a fold over the commands, on a leader and on its standbys alike:
the catalogue has it as of a commit, and the records of the log extend it. Nothing is written for
it.

**Two histories are the same as far as a life goes that both have**, with the same first command
(`last_common`): the process of that id had one history, and gave these numbers in it. So Raft
matches logs, and Kafka a replica's leader epochs. There a majority elects the leader of a term; an
operator who copies directories asks nobody, so ids are random here, and have no order.

The list is bounded. A store whose last life is forgotten elsewhere has, as far as can be known,
nothing in common with it.
"""

import secrets
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

LIVES_MAX = 1024
"""Lives that are remembered."""
_ID_BITS = 64


class Life(NamedTuple):
    """A life that has given numbers to commands."""

    id: int
    first: int
    """The number of its first command."""


Lives = tuple[Life, ...]
"""Oldest first."""


def new_id() -> int:
    """Return the id of a life that begins."""
    return secrets.randbits(_ID_BITS)


def numbered(lives: Lives, id: int, command: int) -> Lives:
    """Return the lives of a store behind a command to which life `id` has given its number."""
    if lives and lives[-1].id == id:
        return lives
    return (*lives, Life(id, command))[-LIVES_MAX:]


def up_to(lives: Lives, command: int) -> Lives:
    """Return the lives of the commands up to one. If all of these are forgotten, it is of a life of
    its own: what is made of that state is known again by it."""
    return tuple(one for one in lives if one.first <= command) or (Life(new_id(), command),)


def last_common(mine: Lives, command: int, other: Lives, other_command: int) -> int:
    """Return the last command up to which two histories are the same, as far as is known.

    Parameters
    ----------
    command, other_command : the last command of each; both are known to be the same up to 0
    """
    others = dict(_ends(other, other_command))
    return max(
        (min(end, others[one]) for one, end in _ends(mine, command) if one in others), default=0
    )


def _ends(lives: Lives, command: int) -> Iterable[tuple[Life, int]]:
    """Return each life, and its last command."""
    firsts = chain((one.first for one in lives[1:]), [command + 1])
    return ((one, following - 1) for one, following in zip(lives, firsts, strict=False))
