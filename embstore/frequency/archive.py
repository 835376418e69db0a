"""Files of profiles and hot sets: a JSON header and arrays of integers, in an .npz archive.

Arrays are of unsigned integers, each of the narrowest kind that its values fit. What a file says is
never trusted: sizes are compared before memory is taken, nothing is unpickled, the checksum of each
array is read to its end. The same content makes the same bytes.

NumPy only: clients import this.
"""

import io
import json
import math
import os
import secrets
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError, StorageError
from embstore.frequency.checks import check

Unpacked = TypeVar("Unpacked")
Unpack = Callable[[dict[str, Any], dict[str, NDArray[np.int64]]], Unpacked]


class Archive:
    """One kind of file: a JSON header and arrays of integers >= 0, in an .npz archive."""

    def __init__(self, what: str, version: int) -> None:
        self.what = what
        """As errors call it: "an embstore profile"."""
        self._version = version

    def to_bytes(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
        """Return the file. Its bytes depend on the arguments alone."""
        whole = {"format": self.what, "version": self._version, **header}
        text = json.dumps(whole, allow_nan=False).encode()
        file = io.BytesIO()
        narrow: dict[str, Any] = {name: _narrowest(values) for name, values in arrays.items()}
        np.savez(file, header=np.frombuffer(text, np.uint8), **narrow)
        return file.getvalue()

    def read(self, content: bytes, what: str, unpack: Unpack[Unpacked]) -> Unpacked:
        """Return what `unpack` makes of header and arrays, int64; it takes out all that it knows.

        Raises
        ------
        InvalidArgumentError : `content` is no such file, or `unpack` finds it wrong, or leaves
            some of it; `what` is named.
        """
        try:
            arrays = _read_arrays(content)
            header = json.loads(arrays.pop("header").astype(np.uint8).tobytes())
            self._check_format(header)
            unpacked = unpack(header, arrays)
            check(not header and not arrays, "no more in it", [*header, *arrays])
            return unpacked
        except MemoryError:
            raise  # It may well be one.
        except Exception as exc:  # zipfile, json and NumPy have a dozen for bytes that are foreign.
            reason = str(exc) if isinstance(exc, InvalidArgumentError) else repr(exc)
            raise InvalidArgumentError(
                f"{what}: expected {self.what}, found another file, or a damaged one: {reason}"
            ) from exc

    def _check_format(self, header: Any) -> None:
        check(isinstance(header, dict), "a header", type(header).__name__)
        found = header.pop("format", "none"), header.pop("version", "none")
        expected = f"{self.what} of format version {self._version}"
        check(found == (self.what, self._version), expected, f"{found[0]} of version {found[1]}")


def _read_arrays(content: bytes) -> dict[str, NDArray[np.int64]]:
    """Return the arrays of an archive. Each is read to its end, where its checksum is compared."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        members = file.infolist()
        names = {member.filename for member in members}
        check(len(names) == len(members), "each array once", sorted(names))
        arrays = {}
        for member in members:
            # Uncompressed, so that nothing takes more memory than the file is long.
            check(member.compress_type == zipfile.ZIP_STORED, "no compression", member.filename)
            check(member.file_size <= len(content), "a file as long as it says", len(content))
            arrays[member.filename.removesuffix(".npy")] = _read_array(file.read(member))
    return arrays


def _read_array(content: bytes) -> NDArray[np.int64]:
    file = io.BytesIO(content)
    version = npy.read_magic(file)
    check(version == (1, 0), "arrays of NumPy's format 1.0", version)
    shape, is_transposed, dtype = npy.read_array_header_1_0(file)
    check(dtype.kind == "u" and not is_transposed, "arrays of unsigned integers", dtype)
    values = np.frombuffer(content, dtype, offset=file.tell())
    check(len(values) == math.prod(shape), f"an array of shape {shape}", len(values))
    return values.reshape(shape).astype(np.int64)  # one of 2**63 or more becomes negative


def _narrowest(values: NDArray[Any]) -> NDArray[Any]:
    """Return integers >= 0 in the narrowest unsigned kind that holds them all."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def read_file(path: str | os.PathLike[str], what: str) -> bytes:
    """Return a file's content; `what` is said to be expected in it.

    Raises
    ------
    InvalidArgumentError : it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise InvalidArgumentError(f"{path}: expected {what}, found {exc.strerror}") from exc


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file beside `path` and give it that name when all of it is on the disk.

    Raises
    ------
    StorageError : the disk said no; what was there before is as it was.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(8)}")
    try:
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(final)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as exc:
        raise StorageError(f"{path}: expected to write {len(content)} bytes, found {exc}") from exc


def keys_to_gaps(keys: Keys) -> NDArray[np.int64]:
    """Return the first of ascending keys, and how far each is above the one before."""
    return np.diff(keys, prepend=np.int64(0))


def gaps_to_keys(gaps: NDArray[np.int64]) -> Keys:
    """Return the keys of `keys_to_gaps`. Too large a sum wraps round, and no longer ascends."""
    return np.cumsum(gaps, dtype=np.int64)
