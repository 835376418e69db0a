"""Samples of sparse ids told hot or cold, whichever dtype the ids have."""

import numpy as np
import pytest

from embstore.arrays import SPARSE_ROWS
from embstore.errors import InvalidArgumentError
from embstore_training.hotcold import Classifier


def test_sparse_ids_are_told_whichever_their_dtype():
    hot = np.array([0, 7, 2**63 - 1, 2**63, 2**64 - 2], np.uint64)
    cold = np.array([1, 8, 2**63 + 1, 2**64 - 3, 2**62], np.uint64)
    for keys in (hot, hot[:2]):
        classifier = Classifier({"ads": keys}, {"ad": "ads"}, rows={"ads": SPARSE_ROWS})
        for ids in (np.concatenate([hot, cold]), np.concatenate([hot, cold]).view(np.int64)):
            expected = np.isin(ids.view(np.uint64), keys)
            np.testing.assert_array_equal(classifier.hot({"ad": ids}), expected)
        with pytest.raises(InvalidArgumentError, match=f"< {SPARSE_ROWS}.*found -1"):
            classifier.hot({"ad": np.array([5, -1])})


def test_ids_below_zero_need_the_rows_of_their_table():
    """They may be sparse keys, and rather are a mistake."""
    with pytest.raises(InvalidArgumentError, match=r"ids >= 0, found -5; rows=\.\.\. says"):
        Classifier({"ads": np.arange(0, 100, 2)}, {"ad": "ads"}).hot({"ad": np.array([2, -5])})
    with pytest.raises(InvalidArgumentError, match=r"hot keys >= 0, found .*; rows=\.\.\. says"):
        Classifier({"ads": [-5]}, {"ad": "ads"})
