"""The model's gradients against finite differences, in float64; and the AUC."""

import numpy as np
import pytest

from embstore_tools.demo.dlrm import Adam, Dlrm, area_under_curve, dense_features

COUNT, COLUMNS, DIM = 6, 3, 4
STEP = 1e-6


class Batch:
    """A small model of float64 and a batch for it."""

    def __init__(self) -> None:
        rng = np.random.default_rng(11)
        self.model = Dlrm(
            integers=13,
            columns=COLUMNS,
            dim=DIM,
            hidden=(7,),
            top_hidden=(9, 5),
            seed=2,
            dtype=np.float64,
        )
        for parameter in self.model.parameters:  # biases of 0 would sit on the kink of ReLU
            parameter += rng.normal(0, 0.1, parameter.shape)
        self.features = rng.normal(size=(COUNT, 13))
        self.embeddings = rng.normal(size=(COUNT, COLUMNS, DIM))
        self.labels = (rng.random(COUNT) < 0.5).astype(np.float64)

    def loss(self) -> float:
        return self.model.gradients(self.features, self.embeddings, self.labels).loss

    def slope(self, array: np.ndarray, index: tuple[int, ...]) -> float:
        """Return the central difference of the loss by one element."""
        before = array[index]
        array[index] = before + STEP
        above = self.loss()
        array[index] = before - STEP
        below = self.loss()
        array[index] = before
        return (above - below) / (2 * STEP)

    def slopes(self, array: np.ndarray) -> np.ndarray:
        found = [self.slope(array, index) for index in np.ndindex(array.shape)]
        return np.reshape(found, array.shape)


@pytest.fixture
def batch() -> Batch:
    return Batch()


def test_gradients_of_embeddings_are_slopes_of_the_loss(batch):
    found = batch.model.gradients(batch.features, batch.embeddings, batch.labels).embeddings
    assert np.abs(found).max() > 1e-3
    np.testing.assert_allclose(found, batch.slopes(batch.embeddings), atol=1e-8)


@pytest.mark.parametrize("place", range(10))
def test_gradients_of_the_dense_part_are_slopes_of_the_loss(batch, place):
    found = batch.model.gradients(batch.features, batch.embeddings, batch.labels).dense
    assert len(found) == len(batch.model.parameters) == 10
    expected = batch.slopes(batch.model.parameters[place])
    np.testing.assert_allclose(found[place], expected, atol=1e-8)


def test_scores_are_those_of_the_loss(batch):
    scores = batch.model.scores(batch.features, batch.embeddings)
    likelihood = np.where(batch.labels > 0, 1 / (1 + np.exp(-scores)), 1 / (1 + np.exp(scores)))
    assert batch.loss() == pytest.approx(-np.log(likelihood).mean())


def test_extreme_logits_do_not_overflow(batch):
    embeddings = (1e18 * batch.embeddings).astype(np.float32)
    model = Dlrm(integers=13, columns=COLUMNS, dim=DIM)
    found = model.gradients(batch.features.astype(np.float32), embeddings, batch.labels)
    assert np.isfinite(found.loss)


def test_adam_is_that_of_its_paper():
    """Its algorithm 1: moments are corrected before epsilon is added."""
    parameter, gradients = np.array([1.0]), [0.5, -2e-7, 0.1]
    expected, m, v = 1.0, 0.0, 0.0
    optimizer = Adam([parameter], 0.01, epsilon=1e-3)
    for t, g in enumerate(gradients, 1):
        optimizer.step([np.array([g])])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        expected -= 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-3)
    assert parameter[0] == pytest.approx(expected, rel=1e-12)


def test_dense_features_are_finite_for_every_integer():
    features = dense_features(np.array([[-3, 0, 1, 10**18 - 1]]))
    assert features.dtype == np.float32
    assert features[0, :2].tolist() == [0.0, 0.0]
    assert np.isfinite(features).all()


# The AUC by ranks, against counting all pairs


def counted(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the share of (positive, negative) pairs in the right order, ties as a half."""
    pairs = scores[labels > 0][:, None] - scores[labels == 0][None, :]
    return float(np.mean((pairs > 0) + 0.5 * (pairs == 0)))


@pytest.mark.parametrize("values", [2, 5, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_auc_is_the_share_of_pairs_in_order(seed, values):
    rng = np.random.default_rng(seed)
    scores = rng.integers(values, size=300).astype(np.float32)
    labels = (rng.random(300) < 0.3).astype(np.float32)
    assert area_under_curve(labels, scores) == pytest.approx(counted(labels, scores), abs=1e-12)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_label_only_has_no_auc(label):
    assert area_under_curve(np.full(4, label), np.arange(4.0)) is None
