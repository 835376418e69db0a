"""The score at which victims end, without a sort.

The candidates of lowest score are wanted, which are in [0, PIN_ONE): what is above has a pin, and
what is below has no row yet. Cut the range of all scores into bins of a power of two,
count, go on with the bin in which the wanted-th score lies, until a bin is one score or ends
exactly at the wanted count. Each counting reads all scores; a device counts, the search is the
same on all. Two countings are enough for an LRU of up to four million calls in age.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.kernels.select_victims import BIN_BITS
from embstore.kernels.slots import PIN_ONE


class Scores(Protocol):
    """The scores of candidates, as a device counts them."""

    def extent(self, floor: int, ceiling: int) -> tuple[int, int, int]:
        """Return how many candidates have floor <= score < ceiling, their lowest and highest."""

    def bins(self, floor: int, ceiling: int, shift: int) -> NDArray[np.int64]:
        """Count them into 2**BIN_BITS bins of 2**shift scores each, the first from floor on."""


def find_threshold(scores: Scores, count: int) -> tuple[int, int, int]:
    """Return how many victims there are, at most `count`, the score of the last, and how many of
    them have exactly that score."""
    found, lowest, highest = scores.extent(0, PIN_ONE)
    wanted = min(count, found)
    if wanted == found:
        return wanted, highest, wanted
    ties = wanted
    while True:
        shift = max((highest - lowest).bit_length() - BIN_BITS, 0)
        bins = scores.bins(lowest, highest + 1, shift)
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
            _, lowest, highest = scores.extent(lowest, highest + 1)
