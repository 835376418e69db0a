"""The format .safetensors: tensors `keys`, `weights` and `state`, and what is said of the table.

    length of the header (u64) | header, JSON | the bytes of each tensor

The library writes tensors that are in memory as a whole. Here a tensor is as large as the table; so
the header, which says where each begins, is written first, for as many rows as a scan has, and each
batch goes to three places. Reading is the library's.

A file of another program has no `keys`: its rows are numbered.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import safe_open

from embstore.arrays import Keys, Rows
from embstore.errors import InvalidArgumentError
from embstore_client.files.about import METADATA, About
from embstore_client.files.formats import Batch, bytes_of, chosen, numbered, pieces

KEYS, WEIGHTS, STATE = "keys", "weights", "state"
_LENGTH_BYTES = 8
_DTYPES = ("F32", "F16")


class Writer:
    """Writes one file of so many rows."""

    def __init__(self, path: Path, about: About, rows: int, *, with_state: bool) -> None:
        config = about.config
        shapes = {KEYS: (rows,), WEIGHTS: (rows, config.dim)}
        if with_state:
            shapes[STATE] = (rows, config.state_dim)
        header: dict[str, Any] = {"__metadata__": {METADATA: about.to_json()}}
        begin, self._places = 0, []
        for name, shape in shapes.items():
            dtype, size = ("I64", 8) if name == KEYS else ("F32", 4)
            end = begin + size * math.prod(shape)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
            self._places.append(begin)
            begin = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # tensors are aligned
        self._file = path.open("r+b", buffering=0)
        self._file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        self._places = [_LENGTH_BYTES + len(text) + place for place in self._places]

    def write(self, keys: Keys, weights: Rows, state: Rows | None) -> None:
        """Write the next rows, each array to its tensor."""
        arrays: tuple[NDArray[Any], ...] = keys, weights
        for number, array in enumerate((*arrays, *([] if state is None else [state]))):
            content = bytes_of(array)
            self._file.seek(self._places[number])
            while len(content):
                written = self._file.write(content) or 0
                self._places[number] += written
                content = content[written:]

    def finish(self) -> None:
        """Every row has its place: nothing comes behind the last."""

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


class Reader:
    """Reads one file."""

    def __init__(self, path: Path, tensor: str | None) -> None:
        open_file: Any = safe_open  # it is not typed
        self._file = open_file(path, framework="numpy")
        metadata = self._file.metadata() or {}
        self.about = About.from_json(metadata[METADATA]) if METADATA in metadata else None
        names = sorted(self._file.keys())
        slices = {name: self._file.get_slice(name) for name in names}
        shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
        has_keys = len(shapes.get(KEYS, ())) == 1
        if tensor is None and has_keys and WEIGHTS in names:
            tensor = WEIGHTS
        name = chosen(tensor, shapes)
        self._weights, (self.rows, self.dim) = slices[name], shapes[name]
        self._keys = slices[KEYS] if has_keys else None
        self._state = slices[STATE] if STATE in names and name == WEIGHTS else None
        self.state_dim = None if self._state is None else shapes[STATE][1]
        self._check(name, slices, shapes)

    def _check(self, name: str, slices: Any, shapes: dict[str, tuple[int, ...]]) -> None:
        for own in (name, *([STATE] if self._state is not None else [])):
            found = slices[own].get_dtype()
            if found not in _DTYPES:
                raise InvalidArgumentError(f"expected tensor {own!r} of F32 or F16, found {found}")
            if shapes[own][0] != self.rows:
                raise InvalidArgumentError(
                    f"expected {self.rows} rows of {own!r}, found {shapes[own][0]}"
                )
        if self._keys is None:
            return
        found = slices[KEYS].get_dtype()
        if found != "I64" or shapes[KEYS] != (self.rows,):
            raise InvalidArgumentError(
                f"expected {self.rows} keys of I64, found {shapes[KEYS]} of {found}"
            )

    def batches(self, batch_rows: int, *, with_state: bool) -> Iterator[Batch]:
        """Yield the rows in order."""
        for piece in pieces(self.rows, batch_rows):
            keys = numbered(piece) if self._keys is None else self._keys[piece]
            state = self._state[piece] if with_state and self._state is not None else None
            yield keys, self._weights[piece], state

    def close(self) -> None:
        """Let the file go."""
        self._file.__exit__(None, None, None)
