"""Rows from named tensors, as in .safetensors, .npz and PyTorch's checkpoints.

One tensor (rows, dim) contains the rows. Two more tensors are optional: `keys` (rows,) contains the
keys of the rows, and `state` their optimizer state. Without `keys`, row i has the key i.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError
from embstore_client.files.file_origin import FileOrigin
from embstore_client.files.formats import Batch
from embstore_client.files.values import Hashing, keys_of, rows_of

KEYS, WEIGHTS, STATE = "keys", "weights", "state"


class Tensor(Protocol):
    """An array that is read by ranges of rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, as in NumPy."""

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        """Return a range of rows."""


class TensorReader:
    """Reads the rows of one tensor."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        tensor: str | None,
        key: str | None,
        hashed: Hashing | None,
        about: FileOrigin | None = None,
    ) -> None:
        self.about, self._hashed = about, hashed
        self.are_sparse = False
        shapes = {name: tuple(one.shape) for name, one in tensors.items()}
        keys = key or KEYS
        has_keys = len(shapes.get(keys, ())) == 1
        if not has_keys and (key is not None or hashed is not None):
            raise InvalidArgumentError(
                f"expected a tensor {keys!r} of keys, found {_names(shapes, 1)}"
            )
        if tensor is None and has_keys and WEIGHTS in shapes:
            tensor = WEIGHTS
        name = _chosen(tensor, shapes)
        self.rows, self.dim = shapes[name]
        self._name, self._keys_name = name, keys
        self._weights = tensors[name]
        self._keys = tensors[keys] if has_keys else None
        self._state = tensors[STATE] if STATE in shapes and name == WEIGHTS else None
        self.state_dim = None if self._state is None else shapes[STATE][1]
        self._check(shapes)

    def _check(self, shapes: dict[str, tuple[int, ...]]) -> None:
        next(self._batches([slice(0, 0)], with_state=True))  # refuses tensors of other types
        if self._state is not None and shapes[STATE][0] != self.rows:
            raise InvalidArgumentError(
                f"expected {self.rows} rows of {STATE!r}, found {shapes[STATE][0]}"
            )
        if self._keys is not None and shapes[self._keys_name] != (self.rows,):
            raise InvalidArgumentError(
                f"expected {self.rows} keys, found {self._keys_name!r} of {shapes[self._keys_name]}"
            )

    def batches(self, batch_rows: int, *, with_state: bool) -> Iterator[Batch]:
        """Yield the rows in order."""
        starts = range(0, self.rows, batch_rows)
        pieces = (slice(low, min(low + batch_rows, self.rows)) for low in starts)
        return self._batches(pieces, with_state=with_state)

    def _batches(self, pieces: Any, *, with_state: bool) -> Iterator[Batch]:
        for piece in pieces:
            keys: Keys = np.arange(piece.start, piece.stop, dtype=np.int64)
            if self._keys is not None:
                keys = self._keys_of(self._keys[piece])
            weights = rows_of(self._weights[piece], f"tensor {self._name!r}")
            state = None
            if with_state and self._state is not None:
                state = rows_of(self._state[piece], f"tensor {STATE!r}")
            yield keys, weights, state

    def _keys_of(self, ids: NDArray[Any]) -> Keys:
        if self._hashed is not None:
            return self._hashed(ids)
        return keys_of(ids, f"tensor {self._keys_name!r}", are_sparse=self.are_sparse)

    def close(self) -> None:
        """Close the file."""
        del self._weights, self._keys, self._state


def _chosen(tensor: str | None, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the name of the tensor that contains the rows: the requested tensor, or the only
    tensor with two dimensions."""
    matrices = [name for name, shape in shapes.items() if len(shape) == 2]
    if tensor is not None and tensor in matrices:
        return tensor
    if tensor is None and len(matrices) == 1:
        return matrices[0]
    what = "one tensor of two dimensions" if tensor is None else f"a tensor {tensor!r} of rows"
    raise InvalidArgumentError(f"expected {what}, found {_names(shapes, 2)}: name one of them")


def _names(shapes: Mapping[str, tuple[int, ...]], dimensions: int) -> str:
    names = [name for name, shape in shapes.items() if len(shape) == dimensions]
    return ", ".join(map(repr, names[:20])) or "none"
