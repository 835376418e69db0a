"""The order of hot and mixed batches: FAE's shuffle scheduler, over windows of a stream.

Every change from mixed to hot batches and back costs an exchange of the hot rows with the store, so
long phases of one kind are cheap. But a model that sees only hot samples for long learns the cold
rows late, so short phases are good for the loss. The rate, in percent, is a compromise between long
and short phases: each phase has `rate` % of a window's batches of its kind. At a rate of 100, a
window has one mixed phase and one hot phase. At a rate of 1, the batches of the rarer kind are
distributed evenly among the other batches, as finely as the window allows.

FAE (Adnan et al., VLDB 2022) packs a whole data set once, starts at about 50 % and changes the rate
by the trend of the test loss. Its published code has no feedback, and runs one cold and one hot
phase per epoch, which is a rate of 100 with the epoch as window. Here the window is a bounded part
of a stream, and the rate is read again when a phase begins. A window begins with the kind of the
last batch of the window before, so no exchange is needed between two windows.

The rate changes only the order of the samples: at any rate, the rows are exact for the resulting
order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

from embstore.checks.arguments import integer

RATE_MIN, RATE_MAX = 1, 100


class RateController(Protocol):
    """The source of the rate, in percent, which is read whenever a phase begins."""

    @property
    def rate(self) -> int:
        """The present rate, from 1 to 100."""


class LossRate:
    """A rate that follows the loss on held-out samples.

    In FAE's description, the rate starts at 50, is halved when the test loss has got worse, is
    raised after several good evaluations, and stays between 1 and 100. Here a loss is worse if it
    is above the previous reported loss. The rate is doubled after `raise_after` consecutive losses
    that are not worse. A loss that is not finite counts as worse, and later losses are not compared
    with it.

    One thread can report while another reads the rate.
    """

    def __init__(self, start: int = 50, *, raise_after: int = 4) -> None:
        """Begin at rate `start`.

        Raises
        ------
        InvalidArgumentError : `start` is not from 1 to 100, or `raise_after` is below 1.
        """
        self.rate = as_rate(start)
        """The present rate, in percent."""
        self._raise_after = integer(raise_after, "raise_after", 1)
        self._loss_before: float | None = None
        self._good_reports = 0

    def report(self, loss: float) -> None:
        """Receive the loss of an evaluation, and change the rate accordingly."""
        before, is_number = self._loss_before, isfinite(loss)
        if is_number:
            self._loss_before = float(loss)
        if not is_number or (before is not None and loss > before):
            self._good_reports = 0
            self.rate = max(RATE_MIN, self.rate // 2)
        elif before is not None:
            self._good_reports += 1
            if self._good_reports == self._raise_after:
                self._good_reports = 0
                self.rate = min(RATE_MAX, 2 * self.rate)


@dataclass(frozen=True)
class FixedRate:
    """A rate that never changes."""

    rate: int
    """The rate in percent."""


def batch_kinds(
    hot_batches: int, mixed_batches: int, controller: RateController, *, hot_first: bool
) -> Iterator[bool]:
    """Yield, for each batch of a window in the order of training, whether the batch is hot.

    A phase ends when the share of each kind, rounded up to whole batches, has reached the next
    multiple of the rate. So phases of the rarer kind may be empty, and batches of that kind are
    distributed evenly among the other batches.
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
    """Return a controller of the rate: `rate` itself or, for a number, a `FixedRate`."""
    controller: RateController = rate if hasattr(rate, "rate") else FixedRate(rate)
    as_rate(controller.rate)
    return controller


def as_rate(rate: Any) -> int:
    """Return a rate from 1 to 100, or raise InvalidArgumentError."""
    return integer(rate, "the rate, in percent of a window,", RATE_MIN, RATE_MAX)
