"""Checkpoints of PyTorch as tables: a tensor by name, and nothing that a file could run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.config import Sgd, Uniform
from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore_client.files import import_table

torch = pytest.importorskip("torch", reason="needs the extra torch: make test-frameworks")

DIM, ROWS = 8, 500


@pytest.fixture
def table(store: Store) -> Any:
    return store.create_table(
        "ads", dim=DIM, rows=ROWS, optimizer=Sgd(0.1), initializer=Uniform(-1.0, 1.0)
    )


def test_an_embedding_of_a_model(table: Any, tmp_path: Path) -> None:
    embedding = torch.nn.Embedding(ROWS, DIM)
    model = torch.nn.ModuleDict({"emb": embedding, "top": torch.nn.Linear(DIM, 1)})
    place = tmp_path / "model.pt"
    torch.save(model.state_dict(), place)
    with pytest.raises(InvalidArgumentError, match=r"'emb\.weight', 'top\.weight': name one"):
        import_table(table, place)
    done = import_table(table, place, tensor="emb.weight", batch_rows=70)
    assert done.rows == ROWS
    expected = embedding.weight.detach().numpy()
    np.testing.assert_array_equal(table.lookup(np.arange(ROWS)), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("end", ["pt", "pth", "bin", "ckpt"])
def test_a_tensor_alone_and_nested(table: Any, tmp_path: Path, dtype: str, end: str) -> None:
    rows = torch.randn(DIM, 90).to(getattr(torch, dtype)).T  # not contiguous
    torch.save(rows, tmp_path / f"rows.{end}")
    assert import_table(table, tmp_path / f"rows.{end}").rows == 90
    found = table.lookup(np.arange(90))
    np.testing.assert_array_equal(found, rows.to(torch.float32).numpy())
    torch.save({"epoch": 3, "state_dict": {"rows": rows + 1}}, tmp_path / f"more.{end}")
    import_table(table, tmp_path / f"more.{end}", tensor="state_dict.rows")
    np.testing.assert_array_equal(table.lookup([7])[0], (rows + 1)[7].to(torch.float32).numpy())


class Runs:
    """An object that a file would make."""


def test_what_is_refused(table: Any, tmp_path: Path) -> None:
    place = tmp_path / "rows.pt"
    before = table.digest()
    for content, expected in (
        (Runs(), "a whole file of its format.*Weights only load failed"),
        (torch.zeros(ROWS + 1, DIM), "at most the 500 rows"),
        (torch.zeros(9, DIM + 1), "rows of 8 elements"),
        (torch.zeros(9, DIM, dtype=torch.float64), "float32, float16 or bfloat16"),
        (torch.zeros(9, DIM).to_sparse(), "to be dense"),
        (torch.full((9, DIM), torch.nan), "no NaN, found one in the row of key 0"),
        ({"lr": 0.5}, "one tensor of two dimensions, found none"),
    ):
        torch.save(content, place)
        with pytest.raises(InvalidArgumentError, match=f"(?s)rows.pt: expected.*{expected}"):
            import_table(table, place)
    place.write_bytes(place.read_bytes()[:100])
    with pytest.raises(InvalidArgumentError, match="a whole file of its format"):
        import_table(table, place)
    assert table.digest() == before
