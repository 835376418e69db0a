"""A training job that is a function of (seed, command number), for engine and reference alike.

Command n does the same to any store that stands where command n - 1 left it, so whoever knows the
number at which a store stands can go on from there: a child after a kill, and the test that judges
it. Commits (labels and restores) belong to the job and are announced, before and after.

LIMITS are so small that some commands fill a log segment and some commits start a fold or a
compaction; CACHE_BYTES so that every command evicts. One table has records larger than a page, one
sparse keys.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import embstore
from embstore import Adam, Constant, Normal, RowWiseAdagrad, Sgd, Uniform
from embstore.config import Limits
from embstore.device.gpu import GpuDevice
from embstore.storage.files import Files
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.reference import ReferenceStore

LIMITS = Limits(segment_bytes=4 * 4096, fold_bytes=6 * 4096, fold_segments=3)
MANY_BASES = replace(LIMITS, base_segment_bytes=12 * 4096)
"""Several segments in the base of every table."""
CACHE_BYTES = 90_000
LABELS_KEPT = 2
COMMANDS_PER_LABEL = 8

TABLES: dict[str, dict[str, Any]] = {
    "ads": {
        "dim": 5,
        "rows": 900,
        "optimizer": RowWiseAdagrad(learning_rate=0.1),
        "initializer": Uniform(-0.1, 0.1),
    },
    "users/by-id": {
        "dim": 13,
        "key_space": "sparse",
        "optimizer": Adam(learning_rate=0.01),
        "initializer": Normal(0.0, 0.1),
    },
    "wide": {
        "dim": 345,  # with Adam's two moments a record of 4,160 bytes
        "rows": 20,
        "optimizer": Adam(learning_rate=0.01),
        "initializer": Constant(0.5),
    },
}
USERS = np.random.default_rng(20261127).integers(-(1 << 63), 1 << 63, 400)
"""The keys of the users; the least, the greatest and the last signed one are among them."""
USERS[:3] = 0, -2, (1 << 63) - 1
VISITORS: dict[str, Any] = {  # comes and goes
    "dim": 7,
    "rows": 300,
    "optimizer": Sgd(learning_rate=0.1),
    "initializer": Uniform(-1.0, 1.0),
}
KINDS = {
    "update": 0.52,
    "ranks": 0.06,
    "assign": 0.07,
    "put_rows": 0.06,
    "delete": 0.07,
    "clear": 0.01,
    "grow": 0.05,
    "rate": 0.04,
    "visitors": 0.07,
    "restore": 0.05,
}

LOGGED: dict[str, Any] = {"durability": "commands"}
"""Options of a store whose every command is durable when it has returned."""
TWO_LEVELS: dict[str, Any] = LOGGED | {"host_cache_bytes": 60_000, "cache_bytes": 120_000}
"""Of one on an emulated GPU, both of whose levels are small: dirty rows are in both, and leave."""

Announce = Callable[[str, int], None]


def generator(seed: int) -> np.random.Generator:
    """Return the generator of a seed, which pytest shows beside a failure."""
    sys.stdout.write(f"seed {seed}\n")
    return np.random.default_rng(seed)


def open_store(path: Any, *, files: Files | None = None, **options: Any) -> embstore.Store:
    """Open a store as every fault test does."""
    usual: dict[str, Any] = {
        "cache_bytes": CACHE_BYTES,
        "checkpoints_keep": LABELS_KEPT,
        "limits": LIMITS,
        "threads": 1,
    }
    if "host_cache_bytes" in options:
        usual["device"] = GpuDevice(EmulatedRuntime(), 1)
    return embstore.open(path, files=files, **usual | options)


class DenseStore(ReferenceStore):
    """The reference with labels: what a store must be at each of its commits."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, Any] = {}

    @property
    def command(self) -> int:
        """The number of the last command."""
        return self.command_number

    def checkpoint(self, label: str) -> None:
        """Keep the present content under `label`."""
        self._kept[label] = self.snapshot()
        for old in list(self._kept)[:-LABELS_KEPT]:
            del self._kept[old]

    def checkpoints(self) -> list[str]:
        """Return the kept labels, oldest first."""
        return list(self._kept)

    def restore(self, label: Any) -> None:
        """Go back to a label."""
        super().restore(self._kept[label])
        for newer in self.checkpoints()[self.checkpoints().index(label) + 1 :]:
            del self._kept[newer]


def labels_of(store: Any) -> list[str]:
    """Return the kept labels of either store, oldest first."""
    return [getattr(kept, "label", kept) for kept in store.checkpoints()]


def train(
    store: Any,
    seed: int,
    commands: int,
    announce: Announce = lambda word, n: None,
    *,
    every: bool = False,
    label_last: bool = True,
) -> None:
    """Give the store its next commands. Announces ("begins" | "done", n) around every commit, or
    around every command as well. Without `label_last` the label due at the end is not made."""
    last = store.command + commands
    for n in range(store.command + 1, last + 1):
        restores = is_restore(store, seed)
        labels = n % COMMANDS_PER_LABEL == 0 and not restores and (label_last or n < last)
        commits = n % COMMANDS_PER_LABEL == COMMANDS_PER_LABEL // 2 and not restores
        if restores or every:
            announce("begins", n)
        run_command(store, seed)
        assert store.command == n
        if restores or every:
            announce("done", n)
        if labels or commits:
            announce("begins", n)
        if labels:
            store.checkpoint(f"command-{n}")
        if commits:
            commit(store)
        if labels or commits:
            announce("done", n)


def commit(store: Any) -> None:
    """Have the engine's store commit as it does by itself every so often."""
    if isinstance(store, embstore.Store):
        assert store.executor.commits.commit() or store.executor.tables.is_committed


def is_restore(store: Any, seed: int) -> bool:
    """Say whether the next command is a restore: a commit, after which no label is due."""
    return _kind(store, seed, store.command + 1) == "restore"


def run_command(store: Any, seed: int) -> None:
    """Give the store its next command."""
    n = store.command + 1
    kind = _kind(store, seed, n)
    rng = np.random.default_rng([seed, n])
    if kind == "create":
        name = list(TABLES)[n - 1]
        store.create_table(name, **TABLES[name])
    elif kind == "visitors" and kind in store.tables():
        store.drop_table("visitors")
    elif kind == "visitors":
        store.create_table("visitors", **VISITORS)
    elif kind == "restore":
        store.restore(str(rng.choice(labels_of(store))))
    elif kind == "ranks":
        store.update_ranks([_shares(store, rng, 20) for _ in range(3)], gradient_scale=0.5)
    elif kind == "update":
        store.update(_shares(store, rng, 60))
    else:
        _change_one(store, str(rng.choice(store.tables())), kind, rng)


def stir(store: Any, seed: int) -> None:
    """Look rows up and flush: it changes where rows are, and nothing else. Where there are two
    levels, so many are looked up that dirty rows go down, and they stay dirty until a commit."""
    rng = np.random.default_rng([seed, store.command, 1])
    store.lookup({n: keys_of(n, _keys(rng, rows_of(store, n), 40)) for n in store.tables()})
    if store.executor.tables.host_arena is None or store.command % 8 == 1:
        store.flush()
    else:
        store.lookup({n: keys_of(n, _any_keys(rng, rows_of(store, n))) for n in store.tables()})


def rows_of(store: Any, name: str) -> int:
    """Return how many rows of a table are named, all of them but of the sparse one."""
    return len(USERS) if name == "users/by-id" else int(store.table(name).rows)


def keys_of(name: str, numbers: Any) -> Any:
    """Return the keys of some of a table's rows, by number."""
    return USERS[numbers] if name == "users/by-id" else numbers


def _any_keys(rng: np.random.Generator, rows: int) -> Any:
    return rng.integers(0, rows, rows // 6)


def dirty_by_level(store: Any) -> list[int]:
    """Return how many rows are dirty in each level."""
    pools = store.executor.tables.pools.values()
    levels = zip(*[(p.slots, p.level_two.slots) for p in pools], strict=True)
    return [sum(int(slots.contents().dirty.sum()) for slots in level) for level in levels]


def _kind(store: Any, seed: int, n: int) -> str:
    if n <= len(TABLES):
        return "create"
    kind = str(np.random.default_rng([seed, n, 2]).choice(list(KINDS), p=list(KINDS.values())))
    return "update" if kind == "restore" and not store.checkpoints() else kind


def _keys(rng: np.random.Generator, rows: int, count: int) -> Any:
    """Return keys: often the few hot ones, whose older records are soon dead; else any."""
    hot = rng.random() < 0.7
    return rng.integers(0, 12 if hot else rows, min(count, rows // 4 + 1))


def _shares(store: Any, rng: np.random.Generator, count: int) -> dict[str, Any]:
    """Return keys and gradients of one wide table, or of some others.

    Apart, because room is reserved for the widest record: a segment takes all that is reserved.
    """
    narrow = [n for n in store.tables() if n != "wide" and rng.random() < 0.7]
    return {n: _share(store, n, rng, count) for n in narrow or ["wide"]}


def _share(store: Any, name: str, rng: np.random.Generator, count: int) -> tuple[Any, Any]:
    keys = keys_of(name, _keys(rng, rows_of(store, name), count))
    dim = (TABLES | {"visitors": VISITORS})[name]["dim"]
    return keys, rng.standard_normal((len(keys), dim)).astype(np.float32)


def _change_one(store: Any, name: str, kind: str, rng: np.random.Generator) -> None:
    table, (keys, values) = store.table(name), _share(store, name, rng, 30)
    if kind == "assign":
        table.assign(keys, values)
    elif kind == "put_rows":
        _, state = table.read_rows(keys)
        table.put_rows(keys, values, state + np.float32(1), int(rng.integers(5)))
    elif kind == "delete":
        more = keys_of(name, _any_keys(rng, rows_of(store, name)))
        table.delete(np.concatenate([keys, more]))
    elif kind == "clear":
        table.clear()
    elif kind == "grow" and name != "users/by-id":
        table.grow(table.rows + int(rng.integers(50)))
    else:
        table.learning_rate = float(rng.random())
