"""Reads the contents of compressed files (gzip, Zstandard, bzip2, LZ4).

A file's first bytes identify its compression, whatever the file's name is. pyarrow decompresses it.
"""

import os
from io import BufferedReader, RawIOBase
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
            way = _way_of(self._file)
            raw: Any = self._file if way is None else _unpacking(self._file, way, path)
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


class UnpackedByThreads:
    """The decompressed bytes of one file, from its beginning, for readers of pyarrow that read
    ahead in threads of their own.

    Such a thread cannot be joined: it can outlive its reader, and after an error, also the
    interpreter. If it then called a Python object, it would abort the process, or wait forever.
    Therefore `stream` contains no Python object. It has no `close` either, because its descriptor
    must not be closed, and used again for another file, while a thread still reads from it. pyarrow
    closes the file when nothing refers to the stream any longer.

    Raises OSError if the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow

        with path.open("rb", buffering=0) as file:
            way = _way_of(file)
        self._file = pyarrow.OSFile(os.fsencode(path))  # bytes, because a name can be no UTF-8
        self.stream: Any = self._file if way is None else _unpacking(self._file, way, path)
        """pyarrow's stream of decompressed bytes."""

    @property
    def read_bytes(self) -> int:
        """Roughly the number of bytes, as stored on disk, that were read from the file so far."""
        return int(self._file.tell())


def _way_of(file: RawIOBase) -> str | None:
    """Return pyarrow's name of a file's compression, or None. The file stays at its beginning."""
    begins = file.read(max(map(len, _BEGINNINGS))) or b""
    file.seek(0)
    return next((way for first, way in _BEGINNINGS.items() if begins.startswith(first)), None)


def _unpacking(file: Any, way: str, path: Path) -> Any:
    try:
        import pyarrow
    except ModuleNotFoundError as exc:
        raise InvalidArgumentError(
            f"{path} is compressed by {way}; reading it needs another package: "
            f"{pip_install('data')}"
        ) from exc
    return pyarrow.CompressedInputStream(file, way)
