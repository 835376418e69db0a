"""Reads the contents of compressed files (gzip, Zstandard, bzip2, LZ4).

A file's first bytes identify its compression, whatever the file's name is. pyarrow decompresses it.
"""

from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Any

from embstore.errors import InvalidArgumentError
from embstore.version import pip_install

_BEGINNINGS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bz2",
    b"\x04\x22\x4d\x18": "lz4",
}
"""pyarrow's name of each compression, by the first bytes."""
ENDINGS = ".gz", ".zst", ".bz2", ".lz4"
"""The endings of the names of compressed files."""


class Unpacked:
    """The decompressed bytes of one file, from its beginning. A context manager.

    Raises
    ------
    InvalidArgumentError : the file is compressed, and pyarrow is not installed.
    OSError : the file cannot be read. Reads raise it, too, if a compressed file turns out to be
        incomplete.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        try:
            begins = self._file.read(max(map(len, _BEGINNINGS)))
            self._file.seek(0)
            ways = (way for first, way in _BEGINNINGS.items() if begins.startswith(first))
            raw: Any = self._file
            for way in ways:
                raw = _unpacking(raw, way, path)
        except BaseException:
            self._file.close()
            raise
        self.bytes = BufferedReader(raw)
        """The stream of decompressed bytes."""

    @property
    def read_bytes(self) -> int:
        """Roughly the number of bytes, as stored on disk, that were read from the file so far."""
        return 0 if self._file.closed else self._file.tell()

    def __enter__(self) -> "Unpacked":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def _unpacking(file: Any, way: str, path: Path) -> Any:
    try:
        import pyarrow
    except ModuleNotFoundError as exc:
        raise InvalidArgumentError(
            f"{path} is compressed by {way}; reading it needs another package: "
            f"{pip_install('data')}"
        ) from exc
    return pyarrow.CompressedInputStream(file, way)
