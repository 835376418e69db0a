"""The store that a release wrote: later versions must read it (docs/stability.md).

`python -m tests.kept_store` writes `tests/data/store-VERSION.tar.xz`, with the digests that the
store had, for the format of this version. Run it when the format changes before a release; from the
release on the archive stays as it is, and the next format gets one of its own.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

import embstore
from embstore.config import Limits
from embstore.profiles.hotset import HotSet
from embstore.version import __version__
from tests.conformance.cases import engine_of
from tests.style.sources import ROOT

FOLDER = ROOT / "tests" / "data"
STORE, BACKUP, FACTS = "store", "backup", "facts.json"
LABELS = ("first", "second", "third")
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "cache_bytes": 1 << 20,
    "durability": "commands",
    "count_rate": 1.0,
    "threads": 1,
    # So small that training fills segments, folds them and merges them into a base.
    "limits": Limits(segment_bytes=4 * 4096, fold_bytes=6 * 4096, fold_segments=3),
}
OPTIMIZERS = {
    "sgd": embstore.Sgd(0.1),
    "adagrad": embstore.Adagrad(0.1),
    "rows": embstore.RowWiseAdagrad(0.1),
    "adam": embstore.Adam(0.01, weight_decay=0.01),
    "ftrl": embstore.Ftrl(0.1, l1=0.001),
}
DIM, ROWS, SEED = 4, 200, 41


def train(store: embstore.Store, round_number: int) -> None:
    """Update, assign and delete rows of every table, as the round's number says."""
    rng = np.random.default_rng([SEED, round_number])
    for name in sorted(store.tables()):
        keys = rng.integers(0, ROWS, 60)
        if name.startswith("sparse"):
            keys = embstore.hash_ids(keys)
        table = store.table(name)
        table.update(keys, rng.standard_normal((60, DIM), np.float32))
        table.assign(keys[:5], rng.random((5, DIM), np.float32))
        table.delete(keys[5:9])


def facts_of(store: embstore.Store) -> dict[str, Any]:
    """Return the number of the last command, and of each table t and digest."""
    tables = {name: store.table(name) for name in sorted(store.tables())}
    return {
        "command": store.command,
        "tables": {name: [table.t, table.digest()] for name, table in tables.items()},
    }


def make(path: Path) -> None:
    """Write a store, its backup and what is known of both to `path`, and end as a crash does."""
    facts: dict[str, Any] = {}
    store = embstore.open(path / STORE, **OPTIONS)
    for name, optimizer in OPTIMIZERS.items():
        uniform = embstore.Uniform(-1.0, 1.0)
        store.create_table(name, dim=DIM, rows=ROWS, optimizer=optimizer, initializer=uniform)
        normal = embstore.Normal(0.0, 0.1)
        store.create_table(
            f"sparse/{name}",
            dim=DIM,
            key_space="sparse",
            optimizer=optimizer,
            initializer=normal,
        )
    store.import_profile(store.export_profile())
    store.pin_hot_set(HotSet({"sgd": np.arange(3)}))
    for number, label in enumerate(LABELS):
        train(store, number)
        store.checkpoint(label, {"round": number})
        facts[label] = facts_of(store)
        engine_of(store).storage.merges.finish()
    store.backup(str(path / BACKUP))
    facts[BACKUP] = facts_of(store)
    store.restore(LABELS[0])
    train(store, len(LABELS))
    store.table("sgd").grow(2 * ROWS)
    facts["last"] = facts_of(store)
    (path / FACTS).write_text(json.dumps(facts))
    os._exit(0)  # the commands since the last commit are in the write-ahead log alone


def opened(path: Path) -> embstore.Store:
    """Open a store with the options that it was written with."""
    return embstore.open(path, **OPTIONS)


def unpacked(archive: Path, path: Path) -> dict[str, Any]:
    """Unpack an archive into `path`; return the facts in it."""
    with tarfile.open(archive) as file:
        file.extractall(path, filter="data")
    facts: dict[str, Any] = json.loads((path / FACTS).read_text())
    return facts


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def main() -> None:
    """Write the archive of this version."""
    path = ROOT / "build" / "kept-store"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    making = "import sys, pathlib, tests.kept_store as k; k.make(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", making, str(path)], check=True, cwd=ROOT)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=9) as file:
        for name in (STORE, BACKUP, FACTS):
            file.add(path / name, name, filter=_without_owner)
    archive = FOLDER / f"store-{__version__}.tar.xz"
    archive.write_bytes(packed.getvalue())
    sys.stdout.write(f"{archive.relative_to(ROOT)}: {len(packed.getvalue()):,} bytes\n")


if __name__ == "__main__":
    main()
