"""In which order hot and mixed batches come: FAE's shuffle scheduler, over windows of a stream.

Every change from mixed to hot batches and back costs an exchange of the hot rows with the store, so
long phases of one kind are cheap. But a model that sees only hot samples for long learns the cold
ones late, so short phases are good for the loss. The rate, in percent, is that balance: each phase
takes `rate` % of a window's batches of its kind. At 100 a window is one mixed and one hot phase; at
1 the batches of the rarer kind stand evenly among the others, as finely as the window allows.

FAE [seeds.md 4.1] packs a whole data set once, starts at about 50 % and moves the rate by the trend
of the test loss; its published code has no feedback, and runs one cold and one hot phase an epoch,
which is a rate of 100 with the epoch as window. Here the window is a bounded stretch of a stream,
and the rate is read again as each phase begins. A window begins with the kind that the one before
ended with, so that two windows meet without an exchange.

The rate changes the order of the samples and nothing else: for the order that comes out, the rows
are exact at any rate.
"""

from collections.abc import Iterator
from math import isfinite
from typing import Any, Protocol

import numpy as np

from embstore.errors import InvalidArgumentError

RATE_MIN, RATE_MAX = 1, 100


class RateController(Protocol):
    """What says the rate, in percent, whenever a phase begins."""

    @property
    def rate(self) -> int:
        """The rate of now, from 1 to 100."""
        ...


class LossRate:
    """A rate that follows the loss on held-out samples.

    As FAE describes it [seeds.md 4.1]: it starts at 50, is halved when the test loss got worse, and
    raised after several good evaluations, within 1 and 100. Here "worse" is above the loss reported
    before, `raise_after` reports in a row that are not worse double the rate, and a loss that is
    not finite is worse, and nothing is compared with it.

    One thread may report while another reads the rate.
    """

    def __init__(self, start: int = 50, *, raise_after: int = 4) -> None:
        """Begin at rate `start`.

        Raises
        ------
        InvalidArgumentError : no such rate, or `raise_after` is below 1.
        """
        self._rate = as_rate(start)
        self._raise_after = as_positive(raise_after, "raise_after")
        self._loss_before: float | None = None
        self._good_reports = 0

    @property
    def rate(self) -> int:
        """The rate of now, in percent."""
        return self._rate

    def report(self, loss: float) -> None:
        """Take the loss of an evaluation, and change the rate by it."""
        before, is_number = self._loss_before, isfinite(loss)
        if is_number:
            self._loss_before = float(loss)
        if not is_number or (before is not None and loss > before):
            self._good_reports = 0
            self._rate = max(RATE_MIN, self._rate // 2)
        elif before is not None:
            self._good_reports += 1
            if self._good_reports == self._raise_after:
                self._good_reports = 0
                self._rate = min(RATE_MAX, 2 * self._rate)


class FixedRate:
    """A rate that stays."""

    def __init__(self, rate: int) -> None:
        """Keep `rate`, in percent.

        Raises
        ------
        InvalidArgumentError : no such rate.
        """
        self._rate = as_rate(rate)

    @property
    def rate(self) -> int:
        """The rate, in percent."""
        return self._rate


def batch_kinds(
    hot_batches: int, mixed_batches: int, controller: RateController, *, hot_first: bool
) -> Iterator[bool]:
    """Yield for each batch of a window whether it is a hot one, in the order they come.

    The phases end where the shares of both kinds have come to the next multiple of the rate, each
    rounded up to whole batches: so phases of the rarer kind may be empty, and its batches stand
    evenly among the others.

    Raises
    ------
    InvalidArgumentError : the controller's rate is no integer from 1 to 100.
    """
    totals = {True: hot_batches, False: mixed_batches}
    given = {True: 0, False: 0}
    percent = 0
    while percent < RATE_MAX:
        percent = min(RATE_MAX, percent + as_rate(controller.rate))
        for is_hot in (hot_first, not hot_first):
            due = -(-totals[is_hot] * percent // 100)
            yield from [is_hot] * (due - given[is_hot])
            given[is_hot] = due


def as_controller(rate: Any) -> RateController:
    """Return what says the rate: `rate` itself, or a number as one that stays.

    Raises
    ------
    InvalidArgumentError : neither has a rate from 1 to 100.
    """
    controller: RateController = rate if hasattr(rate, "rate") else FixedRate(rate)
    as_rate(controller.rate)
    return controller


def as_rate(rate: Any) -> int:
    """Return `rate` as an integer from 1 to 100.

    Raises
    ------
    InvalidArgumentError : it is none.
    """
    if (
        isinstance(rate, bool)
        or not isinstance(rate, int | np.integer)
        or not RATE_MIN <= rate <= RATE_MAX
    ):
        raise InvalidArgumentError(
            f"expected the rate to be an integer from {RATE_MIN} to {RATE_MAX} (percent of a "
            f"window), found {rate!r}"
        )
    return int(rate)


def as_positive(value: Any, name: str) -> int:
    """Return `value` as an integer >= 1; `name` names it in errors.

    Raises
    ------
    InvalidArgumentError : it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidArgumentError(f"expected {name} to be an integer >= 1, found {value!r}")
    return int(value)
