"""The highest score of the victims, which is found without a sort.

Victims are the candidates of lowest score in [0, PIN_ONE). A slot with a higher score is pinned; a
slot with a lower score has no row yet. The range of all scores is cut into bins whose width is a
power of two, and the scores in each bin are counted. Then the bin with the `count`-th lowest score
is cut in the same way. The search ends when this bin is one score, or when the number of scores up
to its end is exactly `count`. Each round of counting reads all scores. Under LRU two rounds are
enough if the oldest score is at most four million calls old. `select_victims.cu` does the same on a
GPU.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.kernels.select_victims import BIN_BITS
from embstore.score import PIN_ONE


class Candidates(Protocol):
    """The scores of the candidates, which an implementation counts."""

    def extent(self, floor: int, ceiling: int) -> tuple[int, int, int]:
        """Return how many candidates have floor <= score < ceiling, and the lowest and the highest
        score of these candidates."""

    def bins(self, floor: int, ceiling: int, shift: int) -> NDArray[np.int64]:
        """Return how many candidates with floor <= score < ceiling are in each of 2**BIN_BITS bins.
        A bin has 2**shift scores; the first bin begins at floor."""


def find_threshold(candidates: Candidates, count: int) -> tuple[int, int, int]:
    """Return the number of victims, at most `count`, the score of the last victim, and how many
    victims have exactly that score."""
    found, lowest, highest = candidates.extent(0, PIN_ONE)
    wanted = min(count, found)
    if wanted == found:
        return wanted, highest, wanted
    ties = wanted
    while True:
        shift = max((highest - lowest).bit_length() - BIN_BITS, 0)
        bins = candidates.bins(lowest, highest + 1, shift)
        ends = np.cumsum(bins)
        place = int(np.searchsorted(ends, ties))
        lowest += place << shift
        highest = min(highest, lowest + (1 << shift) - 1)
        if int(ends[place]) == ties:
            return wanted, highest, ties
        ties -= int(ends[place] - bins[place])
        if shift == 0:
            return wanted, lowest, ties
        if shift > BIN_BITS:
            _, lowest, highest = candidates.extent(lowest, highest + 1)
