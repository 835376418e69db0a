"""Checkpoints of PyTorch as tables: a tensor by name, and nothing that a file could run."""

import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

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


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
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


NUMBERS = {
    "test_acc": np.float64(0.75),
    "total_loss": np.float32(8.5),
    "iter": np.int64(10),
    "done": np.bool_(True),
    "name": np.str_("dlrm"),
    "commit": np.bytes_(b"f2eb1ae"),
    "phase": np.complex64(1j),
    "began": np.datetime64("2020-01-01"),
    "took": np.timedelta64(3, "s"),
    "loss": np.longdouble(0.5),
}
"""Scalars of NumPy beside weights, as facebookresearch/dlrm keeps some."""


@pytest.mark.parametrize("numpy_1", [False, True])
def test_numbers_of_numpy_beside_the_weights(table: Any, tmp_path: Path, numpy_1: bool) -> None:
    rows, place = torch.randn(90, DIM), tmp_path / "dlrm.pt"
    torch.save(NUMBERS | {"state_dict": {"emb_l.0.weight": rows}}, place)
    if numpy_1:
        _as_of_numpy_1(place)
    assert import_table(table, place, tensor="state_dict.emb_l.0.weight").rows == 90
    np.testing.assert_array_equal(table.lookup(np.arange(90)), rows.numpy())


def _as_of_numpy_1(place: Path) -> None:
    """Give what the pickle of a checkpoint imports the names that NumPy 1 had."""
    with ZipFile(place) as archive:
        content = {info: archive.read(info) for info in archive.infolist()}
    with ZipFile(place, "w") as archive:
        for info, part in content.items():
            archive.writestr(info, part.replace(b"cnumpy._core.", b"cnumpy.core."))
    assert b"cnumpy.core.multiarray\nscalar" in place.read_bytes()


def test_a_checkpoint_from_before_archives(table: Any, tmp_path: Path) -> None:
    rows, place = torch.randn(90, DIM), tmp_path / "old.bin"
    torch.save({"emb.weight": rows}, place, _use_new_zipfile_serialization=False)
    assert import_table(table, place).rows == 90
    np.testing.assert_array_equal(table.lookup(np.arange(90)), rows.numpy())


def test_a_model_saved_whole_is_saved_as_the_refusal_says(table: Any, tmp_path: Path) -> None:
    model, place = torch.nn.EmbeddingBag(90, DIM), tmp_path / "model.pt"
    torch.save(model, place)
    with pytest.raises(InvalidArgumentError) as caught:
        import_table(table, place)
    (call,) = re.findall(r"save its ([a-z_]+)\(\)", str(caught.value))
    assert "torch.nn.modules.sparse.EmbeddingBag" in str(caught.value)
    torch.save(getattr(model, call)(), place)
    assert import_table(table, place).rows == 90


class Runs:
    """An object that a file would make."""


def test_what_is_refused(table: Any, tmp_path: Path) -> None:
    place = tmp_path / "rows.pt"
    before = table.digest()
    for content, expected in (
        (Runs(), r"a checkpoint of tensors, found .*test_torch_checkpoints\.Runs, which runs code"),
        (torch.zeros(ROWS + 1, DIM), "at most the 500 rows"),
        (torch.zeros(9, DIM + 1), "rows of 8 elements"),
        (torch.zeros(9, DIM, dtype=torch.int32), "float32, float16 or float64, found int32"),
        (
            torch.full((9, DIM), 1e39, dtype=torch.float64),
            r"within the range of float32, found 1e\+39",
        ),
        (torch.zeros(9, DIM).to_sparse(), "a dense tensor"),
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
