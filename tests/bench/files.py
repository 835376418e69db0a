"""Tables as files, beside a plain copy of as many bytes: an export to each format, then its import.

The server is a process of its own, reached through shared memory. The yardstick is a copy of a file
as large as the rows, written piece by piece and synced, as an export is; it is measured again
before each, since the disk's speed is that of the moment. Ratios of medians are what to look at.
"""

import os
import pathlib
import shutil
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from embstore_client.files import export_table, import_table
from tests.bench.scale import Scale
from tests.bench.serving import Server
from tests.bench.stores import create_table
from tests.bench.worker import SkippedError

DIM = 64
FORMATS = ("safetensors", "parquet", "npy")
_ROUNDS = 3
_PIECE_BYTES = 16 << 20


class FilesContender:
    """One method for the part, in a folder that it removes."""

    def __init__(self, scale: Scale) -> None:
        self._rows = scale.rows
        self._folder = pathlib.Path(scale.data_dir) / "files"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()

    def tables(self) -> dict[str, Any]:
        """Return seconds of copies, exports and imports, and their ratios to the copies."""
        row_bytes = 4 * DIM
        source = self._folder / "rows.npy"
        rows = np.random.default_rng(1).standard_normal((self._rows, DIM), np.float32)
        np.save(source, rows)
        server = Server(
            self._folder / "store", self._rows * row_bytes // 2, transport="shared_memory"
        )
        try:
            table = create_table(server.store, "ads", self._rows, DIM)
            import_table(table, source)
            found: dict[str, Any] = {"rows": self._rows, "bytes": self._rows * row_bytes}
            for kind in FORMATS:
                place = self._folder / f"ads.{kind}"
                try:
                    found[kind] = {
                        "export": self._beside(lambda p=place: export_table(table, p), source),
                        "import": self._beside(lambda p=place: import_table(table, p), source),
                    }
                except ImportError as exc:
                    raise SkippedError(f"{kind}: {exc} (the extra `data`)") from exc
            return found
        finally:
            server.close()

    def _beside(self, work: Callable[[], Any], source: pathlib.Path) -> dict[str, float]:
        """Return the medians of work and of copies, which take turns."""
        seconds: dict[str, list[float]] = {"copy_s": [], "s": []}
        for _ in range(_ROUNDS):
            seconds["copy_s"].append(_timed(lambda: _copied(source)))
            seconds["s"].append(_timed(work))
        medians = {name: statistics.median(spent) for name, spent in seconds.items()}
        return medians | {"ratio": medians["s"] / medians["copy_s"]}

    def close(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _copied(source: pathlib.Path) -> None:
    """Copy a file and sync the copy."""
    with source.open("rb") as file, source.with_suffix(".copy").open("wb") as copy:
        while piece := file.read(_PIECE_BYTES):
            copy.write(piece)
        copy.flush()
        os.fsync(copy.fileno())


start = FilesContender
"""A folder of its own."""
