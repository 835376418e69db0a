"""The history of a run over its steps, kept as samples, for a report (`embstore report`).

A **sample** contains counts up to its time: the counts of the loop (`RunStats`), of the session and
of the store's disk. The difference of two samples describes the time between them. Samples are
taken between steps, at most one in `every_s` seconds, because each sample asks the store for its
stats. At SAMPLES_MAX samples every second sample is dropped, and the interval is doubled. So a run
of any length has enough samples for a line, and the memory is bounded.

The file is one JSON object:

    kind       KIND
    session    the session's arguments: name, tables, lookahead_steps_max, planner, ranks
    samples    {name: [values]}: step, time_s, and the counts of _LOOP, _SESSION, _DISK and stages
    cache      budget_bytes, and for each layout of rows: dim, optimizer, rows_now, row_bytes
    accesses   for each layout: several numbers of `rows` and, for each number, the `share` of the
               counted accesses that so many most accessed rows had; empty if nothing was counted
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from time import monotonic
from typing import Any

import numpy as np

from embstore.errors import EmbstoreError
from embstore.handles.store import Store
from embstore.profiles.archive import replace_file
from embstore.profiles.profile import Profile
from embstore_training.run import Run

KIND = "embstore run 1"
SAMPLES_MAX = 256
_POINTS = 48
_PERCENTS = np.arange(1, 100) / 100
"""Shares of the accesses. For each share, the smallest number of rows that had it is recorded."""

_LOOP = ("batch_s", "lookup_s", "send_s", "compute_s")
_SESSION = (
    *("lookup_keys", "lookup_hits", "prefetched_keys", "early_bytes", "late_bytes"),
    *("stalls", "stall_s", "held_back_s", "steps_in_parts", "steps_planned_again"),
)
_DISK = ("bytes_read", "bytes_written")
_OPTIONS = ("name", "tables", "planner", "shared", "world_size", "lookahead_steps_max")


class RunHistory:
    """The samples of one run. Only the loop's thread uses them, inside the run's with block."""

    def __init__(self, store: Store, run: Run, *, every_s: float = 1.0) -> None:
        """Take the first sample, of the state before the first step."""
        self._store = store
        self._run = run
        self._every_s = every_s
        self._began = monotonic()
        self._samples: list[dict[str, float]] = []
        self._stages: dict[str, None] = {}
        self._session: dict[str, Any] = {}
        self._add()

    def note(self) -> None:
        """Take a sample, if the last one is at least `every_s` seconds old. Call this after each
        step."""
        if monotonic() - self._began >= self._samples[-1]["time_s"] + self._every_s:
            self._add()

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file with the samples, and with the shares of the accesses that the store's most
        accessed rows had."""
        self._add()
        stats = self._store.stats()
        names = dict.fromkeys(name for sample in self._samples for name in sample)
        samples = {name: [one.get(name, 0) for one in self._samples] for name in names}
        profile = self._store.export_profile()
        document = {
            "kind": KIND,
            "session": self._session,
            "samples": samples,
            "cache": {"budget_bytes": stats["cache"]["budget_bytes"], "layouts": _layouts(stats)},
            "accesses": _accesses(profile, stats),
        }
        replace_file(path, json.dumps(document).encode())

    def _add(self) -> None:
        stats = self._store.stats()
        name = self._run.facts.name
        [session] = [one for one in stats["sessions"]["open"] if one["name"] == name]
        loop = self._run.stats()
        sample = {"step": loop.steps, "time_s": monotonic() - self._began}
        sample |= {name: getattr(loop, name) for name in _LOOP}
        sample |= {name: session[name] for name in _SESSION}
        sample |= {name: stats["storage"][name] for name in _DISK}
        planning = stats["sessions"]["planning"]["stage_seconds"]
        sample |= {f"planning.{stage}": seconds for stage, seconds in planning.items()}
        self._session = {option: session[option] for option in _OPTIONS}
        self._samples.append(sample)
        if len(self._samples) > SAMPLES_MAX:
            self._samples = self._samples[::2]
            self._every_s *= 2


@contextmanager
def reporting(
    store: Store, run: Run, path: str | PathLike[str] | None
) -> Iterator[Callable[[], object]]:
    """Implement `Run.reporting`."""
    if path is None:
        yield lambda: None
        return
    history = RunHistory(store, run)
    try:
        yield history.note
    except BaseException:
        with suppress(EmbstoreError, OSError):  # the store itself may have failed
            history.save(path)
        raise
    history.save(path)


def _layouts(stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return, for each layout of rows, how many rows the cache has room for now, and their size."""
    return [
        {
            "dim": pool["dim"],
            "optimizer": pool["optimizer"],
            "rows_now": pool["slots"],
            "row_bytes": next(iter(_tables_of(pool, stats).values()))["row_bytes"],
        }
        for pool in stats["cache"]["pools"]
        if _tables_of(pool, stats)
    ]


def _accesses(profile: Profile, stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return, for each layout of rows, several numbers of rows and, for each number, the share of
    the counted accesses that so many most accessed rows had."""
    found = []
    for pool in stats["cache"]["pools"]:
        names = [name for name in _tables_of(pool, stats) if name in profile.tables]
        counts = [profile.tables[name].counts for name in names]
        accesses = sum(profile.tables[name].accesses for name in names)
        if not accesses:
            continue
        shares = np.cumsum(np.sort(np.concatenate(counts))[::-1]) / accesses
        of_percents = np.searchsorted(shares, _PERCENTS) + 1
        rows = np.unique(
            np.append(
                np.geomspace(1, len(shares), _POINTS).astype(np.int64),
                of_percents[of_percents <= len(shares)],
            )
        )
        found.append(
            {
                "dim": pool["dim"],
                "optimizer": pool["optimizer"],
                "tables": names,
                "rows_of_tables": sum(stats["tables"][name]["rows"] for name in names),
                "counted": int(accesses),
                "rows": rows.tolist(),
                "share": shares[rows - 1].tolist(),
            }
        )
    return found


def _tables_of(pool: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: table
        for name, table in stats["tables"].items()
        if (table["dim"], table["optimizer"]) == (pool["dim"], pool["optimizer"])
    }
