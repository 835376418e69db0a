"""Tables as files: an export to each format and then its import, beside a plain copy of as many
bytes.

The server is a process of its own, and is reached through shared memory. The yardstick is a copy of
a file as large as the rows. Like an export, the copy is written piece by piece, and synced. The
copy is measured again before each export or import, because the speed of the disk changes. The
ratios of medians are the results to compare.
"""

import os
import pathlib
import statistics
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from embstore_client.files import export_table, import_table
from tests.bench.scale import Scale
from tests.bench.serving import Server
from tests.bench.stores import create_table
from tests.bench.turns import seconds_of
from tests.bench.worker import SkippedError

DIM = 64
FORMATS = ("safetensors", "parquet", "npy")
_ROUNDS = 3
_PIECE_BYTES = 16 << 20


def tables(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Return seconds of copies, exports and imports, and their ratios to the copies."""
    source = folder / "rows.npy"
    rows = np.random.default_rng(1).standard_normal((scale.rows, DIM), np.float32)
    np.save(source, rows)
    with closing(Server(folder / "store", rows.nbytes // 2, transport="shared_memory")) as server:
        table = create_table(server.store, "ads", scale.rows, DIM)
        import_table(table, source)
        found: dict[str, Any] = {"rows": scale.rows, "bytes": rows.nbytes}
        for kind in FORMATS:
            place = folder / f"ads.{kind}"
            try:
                found[kind] = {
                    "export": _beside(partial(export_table, table, place), source),
                    "import": _beside(partial(import_table, table, place), source),
                }
            except ImportError as exc:
                raise SkippedError(f"{kind}: {exc} (the extra `data`)") from exc
        return found


def _beside(work: Callable[[], Any], source: pathlib.Path) -> dict[str, float]:
    """Return the medians of work and of copies, which take turns."""
    seconds: dict[str, list[float]] = {"copy_s": [], "s": []}
    for _ in range(_ROUNDS):
        seconds["copy_s"].append(seconds_of(_copied, source))
        seconds["s"].append(seconds_of(work))
    medians = {name: statistics.median(spent) for name, spent in seconds.items()}
    return medians | {"ratio": medians["s"] / medians["copy_s"]}


def _copied(source: pathlib.Path) -> None:
    with source.open("rb") as file, source.with_suffix(".copy").open("wb") as copy:
        while piece := file.read(_PIECE_BYTES):
            copy.write(piece)
        copy.flush()
        os.fsync(copy.fileno())
