"""The format .safetensors: tensors `keys`, `weights` and `state`, and the table's description.

    length of the header (u64) | header, JSON | the bytes of each tensor

The library writes tensors only if they are in memory as a whole, but a tensor can be as large as
the table. So this module writes the file. The header comes first; the number of rows of the scan
determines the offset of each tensor. Each batch is then written at three offsets. A reader maps the
tensors; the library checks that the file is complete.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from embstore.arrays import Keys, Rows
from embstore_client.files.file_origin import METADATA, FileOrigin
from embstore_client.files.formats import bytes_of
from embstore_client.files.tensors import KEYS, STATE, WEIGHTS, Tensor, TensorReader
from embstore_client.files.values import Hashing

_LENGTH_BYTES = 8
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"} | {
    f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)
}
"""NumPy's dtype for each dtype of the format that NumPy has, and uint16 for the bits of bfloat16.
Tensors of other dtypes are ignored."""


class Writer:
    """Writes one file of a known number of rows."""

    def __init__(self, path: Path, about: FileOrigin, rows: int, *, with_state: bool) -> None:
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
        text += b" " * (-len(text) % 8)  # aligns the tensors
        self._file = path.open("r+b", buffering=0)
        self._file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        self._places = [_LENGTH_BYTES + len(text) + place for place in self._places]

    def write(self, keys: Keys, weights: Rows, state: Rows | None) -> None:
        """Write the next rows, each array into its tensor."""
        arrays: tuple[NDArray[Any], ...] = keys, weights
        for number, array in enumerate((*arrays, *([] if state is None else [state]))):
            content = bytes_of(array)
            self._file.seek(self._places[number])
            while len(content):
                written = self._file.write(content) or 0
                self._places[number] += written
                content = content[written:]

    def finish(self) -> None:
        """Do nothing, because the file ends with the last row."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Reader(TensorReader):
    """Reads one file."""

    def __init__(
        self, path: Path, tensor: str | None, key: str | None, hashed: Hashing | None
    ) -> None:
        open_file: Any = safe_open  # the library has no types
        with open_file(path, framework="numpy") as file:  # raises if parts of the file are missing
            metadata, names = file.metadata() or {}, sorted(file.keys())
        about = FileOrigin.from_json(metadata[METADATA]) if METADATA in metadata else None
        super().__init__(_tensors(path, names), tensor, key, hashed, about)


def _tensors(path: Path, names: list[str]) -> dict[str, Tensor]:
    """Return the tensors of a file, mapped. Tensors of bfloat16, which NumPy lacks, are returned as
    `_Bfloat16`."""
    data: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
    length = int(data[:_LENGTH_BYTES].view("<u8")[0])
    header = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes())
    data = data[_LENGTH_BYTES + length :]
    tensors: dict[str, Tensor] = {}
    for name in names:
        described = header[name]
        dtype, (begin, end) = described["dtype"], described["data_offsets"]
        if dtype in _DTYPES:
            array = data[begin:end].view(_DTYPES[dtype]).reshape(described["shape"])
            tensors[name] = _Bfloat16(array) if dtype == "BF16" else array
    return tensors


class _Bfloat16:
    """A tensor of bfloat16, whose bits are the upper half of float32."""

    def __init__(self, halves: NDArray[np.uint16]) -> None:
        self._halves = halves
        self.shape = halves.shape

    def __getitem__(self, rows: slice, /) -> NDArray[np.float32]:
        return (self._halves[rows].astype(np.uint32) << 16).view(np.float32)
