"""The norm of the gradients that were left, and what is sent by it, in each framework."""

import importlib
from typing import Any

import numpy as np
import pytest

from embstore import InvalidArgumentError, Sgd
from embstore.handles.store import Store
from tests.frameworks.numpy_twin import Forward, Twin

ROWS = 40


@pytest.fixture(params=["torch", "keras", "jax"])
def on(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param, reason=f"needs {request.param}")
    return importlib.import_module(f"tests.frameworks.on_{request.param}").Adapter()


def norm_of(share: Any) -> float:
    """Return the norm of keys' sums, in float64."""
    squares = 0.0
    for keys, rows in share.values():
        sums = np.zeros((ROWS, rows.shape[1]))
        np.add.at(sums, keys, rows)
        squares += np.square(sums).sum()
    return float(np.sqrt(squares))


@pytest.mark.parametrize("is_ahead", [False, True])
def test_the_norm_is_of_the_sums_by_key(embedded: Store, is_ahead: bool, on: Any) -> None:
    rng, layer = np.random.default_rng(1), on.collection(embedded)
    twin, batches = Twin(layer), [on.batch_of(rng) for _ in range(3)]
    loop: Any = batches
    if is_ahead:
        loop = on.ahead(layer, batches, lambda batch: batch[0], lookahead=2)
    for given, twins in loop:
        assert layer.grad_norm() == 0.0
        forwards = [Forward(twins, of) for of in on.back(layer, [given])]
        assert layer.grad_norm() == pytest.approx(norm_of(twin.share(forwards)), rel=1e-6)
        layer.step(gradient_scale=0.25)
        twin.step(forwards, gradient_scale=0.25)
    twin.assert_same()


def moved(store: Store, layer: Any, **options: Any) -> float:
    """Return by how much a step moves the rows: by Sgd(1), what was sent."""
    rows = [store.table("t").lookup(np.arange(ROWS))]
    layer.step(**options)
    rows.append(store.table("t").lookup(np.arange(ROWS)))
    return float(np.linalg.norm(rows[0] - rows[1]))


def test_a_step_scales_and_then_clips(embedded: Store, on: Any) -> None:
    if on.features == "xyzi":
        pytest.skip("a step of JAX has gradient_scale, by which a program clips")
    layer = on.one_table(embedded, optimizer=Sgd(1.0))
    for options, wanted in (
        ({"gradient_scale": 0.125}, lambda norm: norm / 8),
        ({"max_norm": 2.0}, lambda norm: 2.0),
        ({"gradient_scale": 0.01, "max_norm": 2.0}, lambda norm: norm * 0.01),
        ({"gradient_scale": 0.5, "max_norm": 2.0}, lambda norm: 2.0),
        ({"max_norm": float("inf")}, lambda norm: norm),
    ):
        embedded.table("t").assign(np.arange(ROWS), np.ones((ROWS, 4), np.float32))
        on.back_of(layer, on.ids([[1, 2, 1], [7, 1, 9]]))
        norm = layer.grad_norm()
        assert 5 < norm < 100
        assert moved(embedded, layer, **options) == pytest.approx(wanted(norm), rel=1e-4), options


@pytest.mark.parametrize("options", [{"max_norm": -1.0}, {"max_norm": "1"}, {"gradient_scale": -1}])
def test_a_bound_or_a_scale_that_is_none_is_refused(
    embedded: Store, on: Any, options: dict[str, Any]
) -> None:
    (name,) = options
    if on.features == "xyzi" and name == "max_norm":
        pytest.skip("a step of JAX has gradient_scale, by which a program clips")
    layer = on.one_table(embedded)
    on.back_of(layer, on.ids([[1, 2]]))
    with pytest.raises(InvalidArgumentError, match=f"expected {name} to be"):
        layer.step(**options)
    assert layer.step() is not None  # nothing was forgotten


def test_what_is_not_finite_is_not_clipped(embedded: Store, on: Any) -> None:
    layer = on.one_table(embedded)
    how = {} if on.features == "xyzi" else {"max_norm": 1.0}
    on.back_of(layer, on.ids([[1, 2]]), np.inf)
    assert not np.isfinite(layer.grad_norm())
    with pytest.raises(InvalidArgumentError, match="expected finite gradients"):
        layer.step(**how)
    done = layer.step(**how, on_nonfinite="skip")
    assert done is not None and done.skipped
