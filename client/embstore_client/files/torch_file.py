"""PyTorch's checkpoints: single tensors, or tensors in nested dictionaries. They are only read.

Checkpoints are loaded with `weights_only=True`, so that a file runs no code. They are mapped, so
that only the rows of a batch are read. They can contain NumPy scalars, because training programs
often save their losses together with their weights.
"""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError
from embstore_client.files.tensors import TensorReader
from embstore_client.files.values import Hashing


class Reader(TensorReader):
    """Reads one tensor of a checkpoint. The names in nested dictionaries are joined by "."."""

    def __init__(
        self, path: Path, tensor: str | None, key: str | None, hashed: Hashing | None
    ) -> None:
        tensors = {name: _Tensor(found) for name, found in _tensors(_loaded(path), "")}
        super().__init__(tensors, tensor, key, hashed)


def _loaded(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals(_numbers()):
            # A file from before PyTorch 1.6 is no zip archive, and cannot be mapped.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except pickle.UnpicklingError as exc:
        reason = " ".join(str(exc).split())
        found = reason.partition("Unsupported global: GLOBAL ")[2].partition(" ")[0]
        if not found:
            raise
        raise InvalidArgumentError(
            f"expected a checkpoint of tensors, found {found}, which runs code when it is loaded: "
            "save its state_dict() instead"
        ) from exc


def _numbers() -> list[Any]:
    """Return the classes and functions that pickles of NumPy scalars contain, by their names in
    NumPy 1 and 2. The types of objects and records are left out, because they may contain any
    object."""
    scalar = np.float64(0).__reduce__()[0]
    kinds = {type(np.dtype(kind)) for kind in {*np.typecodes["All"]} - {*"OV"}}
    names = "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"
    return [np.dtype, *kinds, *((scalar, name) for name in names)]


class _Tensor:
    """A tensor whose ranges are NumPy arrays. As NumPy has no bfloat16, values of that type become
    float32."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.detach()
        self.shape = tuple(tensor.shape)

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        if self._tensor.layout != torch.strided:
            raise InvalidArgumentError(f"expected a dense tensor, found {self._tensor.layout}")
        part = self._tensor[rows]
        array: NDArray[Any] = (part.float() if part.dtype == torch.bfloat16 else part).numpy()
        return array


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of nested dictionaries, by name."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _tensors(part, f"{name}.{key}" if name else str(key))
