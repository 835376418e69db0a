"""PyTorch's checkpoints: a tensor (rows, dim), alone or in a state_dict; only read.

They are loaded with `weights_only=True`, so that a file runs no code, and mapped, so that only the
rows of a batch are read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.errors import InvalidArgumentError
from embstore_client.files.formats import Batch, chosen, numbered, pieces


class Reader:
    """Reads one tensor of a checkpoint; of nested dictionaries its names are joined by "."."""

    about = None
    state_dim = None

    def __init__(self, path: Path, tensor: str | None) -> None:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if isinstance(loaded, torch.Tensor) and tensor is None:
            tensors = {"": loaded}
        else:
            tensors = dict(_tensors(loaded, ""))
        name = chosen(tensor, {name: tuple(one.shape) for name, one in tensors.items()})
        self._tensor = tensors[name].detach()
        kinds = (torch.float32, torch.float16, torch.bfloat16)
        if self._tensor.dtype not in kinds or self._tensor.layout != torch.strided:
            raise InvalidArgumentError(
                f"expected tensor {name!r} to be dense and of float32, float16 or bfloat16, found "
                f"{self._tensor.layout} of {self._tensor.dtype}"
            )
        self.rows, self.dim = self._tensor.shape

    def batches(self, batch_rows: int, *, with_state: bool) -> Iterator[Batch]:
        """Yield the rows in order."""
        for piece in pieces(self.rows, batch_rows):
            yield numbered(piece), self._tensor[piece].to(torch.float32).numpy(), None

    def close(self) -> None:
        """Let the file go."""
        del self._tensor


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of nested dictionaries, by name."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _tensors(part, f"{name}.{key}" if name else str(key))
