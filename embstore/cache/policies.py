"""Eviction policies, with everything in which they differ.

The score of a slot has a count in its upper bits, and the clock of the last touch in its lower
bits. The row with the lowest score leaves first (`scores.py`). A policy defines the count:

    lru    nothing: the row used longest ago leaves first
    lfu    calls that touched the row since it came, halved from time to time
    rank   the level of the row's profiled frequency (`levels.py`), which it has from the start

`POLICIES` is the only list of policies. The store, the server's settings, the command line, and the
simulation that predicts hit rates read it. A new way to count is a new class in this module.

The module imports nothing large, because the command line reads the list to show its help.

Under LFU, counts age: after `ageing_touches` touches per slot all counts are halved. So rows that
were hot leave after a few halvings (a count of 1,000 is 0 after ten).
"""

from typing import TYPE_CHECKING, Any, ClassVar

from embstore.errors import InvalidArgumentError
from embstore.score import COUNT_KEEP, COUNT_MAX, COUNT_NONE, COUNT_UP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]
    Profiled = Counts | NDArray[np.float64]


class Policy:
    """The count of a slot under a policy.

    Attributes
    ----------
    name : the policy's name for users
    counting : the effect of a touch on the count. It also defines the count of a new row: 0 with
        COUNT_NONE, the count of the next victim with COUNT_UP, and the row's level with COUNT_KEEP
    queue_share : the selection of victims queues one in `queue_share` slots. With 64, it reads 64
        scores per victim on average
    queued_calls : the queue gets at least this many times the victims that the current call needs
    ageing_touches : counts are halved after this many touches per slot; 0: never
    """

    name: ClassVar[str]
    counting: ClassVar[int]
    queue_share: ClassVar[int] = 64
    queued_calls: ClassVar[int] = 1
    ageing_touches: ClassVar[int] = 0

    @property
    def has_counts(self) -> bool:
        """Whether more than the time of the last touch decides which row leaves."""
        return self.counting != COUNT_NONE

    @property
    def counts_touches(self) -> bool:
        """Whether the count of a row is the number of calls that touched it."""
        return self.counting == COUNT_UP

    @property
    def has_levels(self) -> bool:
        """Whether the count of a row is the row's level: its access count in the imported profile,
        reduced to eleven bits."""
        return self.counting == COUNT_KEEP

    def first_counts(self, counts: "Profiled", accesses: float, slot_count: int) -> "Counts":
        """Return the counts that slots get from the profile of their rows before any touch.

        Parameters
        ----------
        counts : (n,) profiled accesses of the rows
        accesses : profiled accesses of all rows
        slot_count : slots of the cache
        """
        raise NotImplementedError


class Lru(Policy):
    """The row used longest ago leaves first."""

    name = "lru"
    counting = COUNT_NONE
    queue_share = 8  # a queue of any length is exact
    queued_calls = 4

    def first_counts(self, counts: "Profiled", accesses: float, slot_count: int) -> "Counts":
        import numpy as np

        return np.zeros(len(counts), np.int64)


class Lfu(Policy):
    """The row touched by the fewest calls leaves first; counts are halved from time to time."""

    name = "lfu"
    counting = COUNT_UP
    ageing_touches = 10

    def first_counts(self, counts: "Profiled", accesses: float, slot_count: int) -> "Counts":
        """Return estimates of the counts that the rows would have if they had long been in the
        cache.

        If a row gets a share s of all touches, and n touches of any rows are between two halvings,
        the row's estimate is 2 n s: n s for the touches since the last halving, half as much for
        the touches between the last two halvings, and so on.
        """
        import numpy as np

        touches = 2 * self.ageing_touches * slot_count
        expected = np.rint(counts * (touches / max(accesses, 1)))
        counted: Counts = np.clip(expected, 1, COUNT_MAX).astype(np.int64)
        return counted


class Rank(Policy):
    """The row with the lowest profiled frequency leaves first, independently of current uses.

    Among rows of one level the row used longest ago leaves first; rows without a profile have level
    0.
    """

    name = "rank"
    counting = COUNT_KEEP

    def first_counts(self, counts: "Profiled", accesses: float, slot_count: int) -> "Counts":
        from embstore.cache.levels import levels_of

        return levels_of(counts)


POLICIES: dict[str, Policy] = {policy.name: policy for policy in (Lru(), Lfu(), Rank())}


def policy_of(name: Any) -> Policy:
    """Return the policy with this name.

    Raises
    ------
    InvalidArgumentError : there is no policy with this name.
    """
    policy = POLICIES.get(name) if isinstance(name, str) else None
    if policy is None:
        raise InvalidArgumentError(
            f"expected policy to be one of {', '.join(POLICIES)}, found {name!r}"
        )
    return policy
