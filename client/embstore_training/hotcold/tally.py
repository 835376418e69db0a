"""Counts the finished batches of a loop's stream, and the batches that the store has.

A step is not counted when it is finished, because an interrupt could come between finishing and
counting. Instead, whenever the count is read, the step that the loop has now is counted if that
step itself shows that it is finished.
"""

from embstore_training.hotcold.steps import HotColdStep

_COUNTED = "hot_batches", "mixed_batches", "hot_samples", "mixed_samples", "switches"


class Tally:
    """The numbers of batches of one run; `counts` covers all loops of the run."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(_COUNTED, 0)
        self.begin()

    def begin(self, skip: int = 0) -> None:
        """Begin with a stream. The stream's first `skip` batches are left out, because the store
        has them."""
        self.at_hand: HotColdStep | None = None
        """The step that the body of the loop has now; None: that step has been counted."""
        self._finished = self._stored = skip

    @property
    def finished(self) -> int:
        """The number of the loop's batches that are finished, or were left out."""
        step = self.at_hand
        if step is not None and step.is_finished:
            self.at_hand, self._finished = None, self._finished + 1
            kind = "hot" if step.is_hot else "mixed"
            self.counts[f"{kind}_batches"] += 1
            self.counts[f"{kind}_samples"] += len(next(iter(step.batch.values())))
        return self._finished

    def note_stored(self) -> None:
        """Note that the store has all finished batches."""
        self._stored = self.finished

    def stored(self, is_hot: bool) -> int:
        """Return how many batches the store has; if `is_hot`, only up to the last exchange."""
        return self._stored if is_hot else self.finished
