"""The area under the ROC curve, from ranks.

It is the probability that a positive sample scores above a negative one, ties counting half: the
Mann-Whitney statistic. With R the sum of the positives' ranks (ties share their mean rank),

    AUC = (R - positives * (positives + 1) / 2) / (positives * negatives)

which costs one sort, where counting pairs would cost positives * negatives.
"""

import numpy as np
from numpy.typing import NDArray


def area_under_curve(labels: NDArray[np.floating], scores: NDArray[np.floating]) -> float | None:
    """Return the AUC of `scores` (n,) against `labels` (n,), 0 or 1; None if one does not occur."""
    positives = int(np.count_nonzero(labels))
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    rank_sum = float(mean_ranks[place][labels > 0].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)
