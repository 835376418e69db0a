"""What tests of profiles, hot sets, warm-up and replica rows over gRPC have in common."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import embstore
from embstore.config import RowWiseAdagrad, Uniform
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile, TableProfile
from tests.service.faults.served import Served
from tests.service.plain import chunks

DIM, ROWS = 4, 4000
OPTIMIZER, INITIALIZER = RowWiseAdagrad(0.1), Uniform(-1.0, 1.0)
CACHE_BYTES = 4 << 20
PATIENCE_S = 300.0


def add(store: Any, name: str, rows: int = ROWS) -> Any:
    return store.create_table(
        name, dim=DIM, rows=rows, optimizer=OPTIMIZER, initializer=INITIALIZER
    )


class Serving:
    """Serves one directory, again and again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.options: dict[str, Any] = {"policy": "rank", "count_rate": 1.0}

    def __call__(self, settings: Any = None, **options: Any) -> Served:
        """Serve it with these settings; `options` are of `embstore.open`."""
        told: dict[str, Any] = {"cache_bytes": CACHE_BYTES, "device": "cpu"}
        told |= self.options | options
        opening = partial(embstore.open, self._directory, **told)
        return Served(self._directory, opening, **(settings or {}))


def profile_of(counts: dict[str, dict[int, int]], rate: float = 1.0) -> Profile:
    """Return a profile of counts by key, by table."""
    tables = {}
    for name, by_key in counts.items():
        keys = np.array(sorted(by_key), np.int64)
        numbers = np.array([by_key[key] for key in sorted(by_key)], np.int64)
        tables[name] = TableProfile(name, 0, keys, numbers, int(numbers.sum()))
    return Profile(tables, rate=rate)


def counts_of(profile: Profile, table: str) -> dict[int, int]:
    found = profile.tables[table]
    return dict(zip(found.keys.tolist(), found.counts.tolist(), strict=True))


def hot_set_of(version: int = 1, **keys: Any) -> HotSet:
    return HotSet({name: np.array(k, np.int64) for name, k in keys.items()}, version)


def falling(rows: int) -> dict[int, int]:
    """Return counts that fall with the key."""
    return {key: 10 * (rows - key) for key in range(rows)}


def called(stub: Any, verb: str, request: Any, reply: Any, piece_bytes: int) -> Any:
    """Do a bulk call, unary or in pieces of so many bytes."""
    if not piece_bytes:
        return getattr(stub, verb)(request)
    return document(getattr(stub, f"{verb}Stream")(chunks(request, piece_bytes)), reply)


def document(came: Iterable[Any], reply: Any) -> Any:
    """Return the one bulk message that a stream is."""
    return reply.FromString(b"".join(chunk.piece for chunk in came))
