"""Tensors of PyTorch as arguments of a store's verbs: filled in place, or refused with advice."""

from typing import Any

import numpy as np
import pytest

import embstore
from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore.handles.table import Table

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

DIM = 4
KEYS = [3, 1, 3]


@pytest.fixture
def table(store: Store) -> Table:
    return store.create_table(
        "ads",
        dim=DIM,
        rows=10,
        optimizer=embstore.RowWiseAdagrad(0.1),
        initializer=embstore.Uniform(-1, 1),
    )


def tensor(*shape: int, **options: Any) -> Any:
    return torch.full(shape, -7.0, **options)


def test_lookups_fill_tensors_and_return_them(store: Store, table: Table) -> None:
    expected = np.array(table.lookup(KEYS))
    out = tensor(3, DIM)
    assert table.lookup(torch.tensor(KEYS), out=out) is out
    np.testing.assert_array_equal(out.numpy(), expected)
    out = tensor(1, DIM)
    assert table.lookup_pooled(KEYS, torch.tensor([0, 3]), out=out) is out
    np.testing.assert_array_equal(out.numpy(), table.lookup_pooled(KEYS, [0, 3]))
    weights, state = tensor(3, DIM), tensor(3, 1)
    found = table.read_rows(KEYS, out=(weights, state))
    assert found[0] is weights
    assert found[1] is state
    np.testing.assert_array_equal(weights.numpy(), expected)
    np.testing.assert_array_equal(state.numpy(), np.zeros((3, 1)))
    out = tensor(3, DIM)
    assert store.lookup({"ads": KEYS}, out={"ads": out})["ads"] is out
    np.testing.assert_array_equal(out.numpy(), expected)
    out = tensor(1, DIM)
    assert store.lookup_pooled({"ads": (KEYS, [0, 3])}, out={"ads": out})["ads"] is out
    np.testing.assert_array_equal(out.numpy(), table.lookup_pooled(KEYS, [0, 3]))


def test_a_step_fills_tensors(store: Store, table: Table) -> None:
    session = store.sessions
    session.open("s", ["ads"])
    member = session.join("s", 0).member
    session.announce(member, {1: {"ads": [1, 3]}})
    out = tensor(2, DIM)
    assert session.lookup_step(member, 1, out={"ads": out})["ads"] is out
    np.testing.assert_array_equal(out.numpy(), table.read_rows([1, 3])[0])
    session.update_step(member, 1, {"ads": torch.ones(2, DIM)})
    session.close(member)


@pytest.mark.parametrize(
    ("out", "found"),
    [
        ({"requires_grad": True}, r"requires grad; pass its \.detach\(\)"),
        ({"dtype": "bfloat16"}, r"torch.bfloat16 \(3, 4\)"),
        ({"dtype": "float64"}, r"torch.float64 \(3, 4\)"),
        ({"dtype": "float16"}, r"torch.float16 \(3, 4\)"),
    ],
    ids=str,
)
def test_other_tensors_are_refused_as_out(out: dict[str, Any], found: str, table: Table) -> None:
    options = {k: getattr(torch, v) if isinstance(v, str) else v for k, v in out.items()}
    given = tensor(3, DIM, **options)
    with pytest.raises(InvalidArgumentError, match=rf"'ads': expected out .* found .*{found}"):
        table.lookup(KEYS, out=given)
    assert given.eq(-7).all()


def test_a_tensor_with_gaps_is_refused_as_out(table: Table) -> None:
    with pytest.raises(InvalidArgumentError, match=r"C-contiguous .*\(3, 4\), not contiguous"):
        table.lookup(KEYS, out=tensor(DIM, 3).T)


@pytest.mark.parametrize(
    ("gradients", "advice"),
    [
        (tensor(3, DIM, requires_grad=True), r"requires grad; pass its \.detach\(\)"),
        (tensor(3, DIM, dtype=torch.bfloat16), r"torch.bfloat16; pass its \.float\(\)"),
        (tensor(3, DIM, dtype=torch.float64), r"float64; pass its \.float\(\)"),
        (np.ones((3, DIM)), r"float64; pass its \.astype\('float32'\)"),
    ],
    ids=["requires grad", "bfloat16", "float64", "array"],
)
def test_gradients_and_rows_of_other_dtypes_are_refused_with_advice(
    gradients: Any, advice: str, table: Table
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"expected gradients .* found .*{advice}"):
        table.update(KEYS, gradients)
    with pytest.raises(InvalidArgumentError, match=f"expected rows .* found .*{advice}"):
        table.assign(KEYS, gradients)
    assert table.t == 0


@pytest.mark.parametrize(
    ("keys", "advice"),
    [
        (torch.tensor([1.0, 2.0]), r"float32; pass its \.long\(\)"),
        (torch.tensor([1.0, 2.0], requires_grad=True), r"requires grad; pass its \.detach\(\)"),
        (np.array([1.0, 2.0]), r"float64; pass its \.astype\('int64'\)"),
    ],
    ids=["float", "requires grad", "array"],
)
def test_keys_that_are_no_integers_are_refused_with_advice(
    keys: Any, advice: str, table: Table
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"expected keys .* found .*{advice}"):
        table.lookup(keys)
