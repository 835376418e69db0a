"""The options of a run that is ahead of the store, and how many steps it may be ahead."""

from dataclasses import dataclass

from embstore.checks.arguments import integer, one_of
from embstore.checks.sessions import WAITS
from embstore.errors import InvalidArgumentError
from embstore.handles.run_options import RunOptions
from embstore.handles.sessions import Sessions
from embstore_training.replicas.ranks import AllGather, CheckedGather

DEPTH = 4
"""The default number of steps that may be unacknowledged. The trainer never waits if it computes,
per step, for at least a quarter of the time that an answer takes over the network."""


@dataclass(frozen=True)
class Behind:
    """The options of a run that does not wait for updates."""

    depth: int
    all_gather: AllGather | None
    """The all-gather hook of several ranks; None: there is one rank."""


def behind_of(sessions: Sessions, options: RunOptions) -> Behind | None:
    """Check the arguments of a run, and return its options; None: the run waits for late rows.

    Raises
    ------
    InvalidArgumentError : `waits` is none of its values. Or `depth` or `all_gather` was passed
        without waits="none". Or with it, `depth` is above `lookahead`, several ranks have no
        `all_gather`, or the connection rounds rows.
    """
    depth, all_gather, world_size = options.depth, options.all_gather, options.world_size
    one_of(options.waits, "waits", WAITS)
    if options.waits != "none":
        for name, given in (("depth", depth), ("all_gather", all_gather)):
            if given is not None:
                raise InvalidArgumentError(f'expected {name} with waits="none" only, found {given}')
        return None
    if sessions.rounds_rows:
        raise InvalidArgumentError(
            'expected a connection with wire_dtype="float32" for waits="none", found one that '
            "rounds rows and gradients: the trainer could not compute the rows that the store "
            "will have"
        )
    steps = integer(options.lookahead, "lookahead", 1)
    most = integer(min(DEPTH, steps) if depth is None else depth, "depth", 1, steps)
    if world_size == 1:
        return Behind(most, None)
    if all_gather is None:
        raise InvalidArgumentError(
            f'expected all_gather with waits="none", by which the {world_size} ranks exchange '
            "their gradients"
        )
    return Behind(most, CheckedGather(all_gather, options.rank, world_size))
