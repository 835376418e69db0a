"""The AUC by ranks against counting all pairs."""

import numpy as np
import pytest

from embstore_tools.demo.dlrm import area_under_curve


def counted(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the share of (positive, negative) pairs in the right order, ties as a half."""
    pairs = scores[labels > 0][:, None] - scores[labels == 0][None, :]
    return float(np.mean((pairs > 0) + 0.5 * (pairs == 0)))


@pytest.mark.parametrize("values", [2, 5, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_auc_is_the_share_of_pairs_in_order(seed: int, values: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(values, size=300).astype(np.float32)
    labels = (rng.random(300) < 0.3).astype(np.float32)
    assert area_under_curve(labels, scores) == pytest.approx(counted(labels, scores), abs=1e-12)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_label_only_has_no_auc(label: float) -> None:
    assert area_under_curve(np.full(4, label), np.arange(4.0)) is None
