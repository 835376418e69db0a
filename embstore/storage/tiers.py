"""The choice of the runs of the base to merge next.

The oldest run is the **bottom**: it contains nearly all rows, each once. The other runs are
**deltas**. Each merge copies all of its rows, so the rules keep merges few:

- Four or more deltas are merged with each other if they are of similar size (the largest delta is
  at most twice as large as the others together). Therefore a lookup searches few deltas, and a row
  is copied about once each time the deltas grow by a factor of four. A group of deltas that is
  larger than a tenth of the bottom is left alone, because its merge would need as much free space
  as the group takes. There are never more than 12 runs between two kept checkpoints: beyond that
  number, the four consecutive deltas whose merge costs the least are merged.
- Deltas are merged into the bottom when the base takes more than SPACE times the bottom. Only rows
  whose keys are in the range of one part of the bottom are merged: the part for which the deltas
  have the most bytes. If updates are spread over the whole table, the deltas have twice as many
  bytes for that part as for the mean part, so merging a byte of a delta costs
  (1 + 2 s) / 2 s = 2.7 bytes, where s is SPACE - 1. The merged rows then stay in the files of the
  deltas, as dead rows, until these files are removed.
- A part of a delta is moved to the bottom, without being read, if nothing older has a key in its
  range. Therefore rows that are written in key order are never merged.
- Tombstones are in runs of their own, which are merged with the deltas around them. A merge into
  the bottom removes tombstones together with the rows that they hide. Before that merge, tombstones
  count as deltas of the size of these rows: a tombstone is small, but the row that it frees is not.
  Four neighbouring runs of tombstones, with no delta between them, become one.

Together with one write to the log and one write in a fold, each byte of a row that is updated at
random is written about six times. The functions here decide by sizes alone;
tests/unit/test_storage_tiers.py simulates years of merges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.layout import RECORD_HEADER_BYTES
from embstore.storage.run import Part, Run, has_tombstones

SPACE = 1.3
_FAN = 4
_RUNS_MAX = 12
_LIKE = 2
_SHARE = 0.1
_KEY_END = 1 << 62


@dataclass(frozen=True)
class Choice:
    """A merge into the run `oldest`. It takes the rows with keys in [low, high) from the runs
    `oldest` to `newest`, `newest` included."""

    oldest: int
    newest: int
    low: int = 0
    high: int = _KEY_END


def choose(
    runs: Sequence[Run], part_bytes: int, dropped: Keys, *, has_older: bool = False
) -> Choice | None:
    """Return the merge to do next; None if no merge is due.

    Parameters
    ----------
    runs : oldest first, all between the same two kept checkpoints
    part_bytes : approximate size of a part
    dropped : ids of tables whose rows are not needed any more
    has_older : whether there are older runs, before a kept checkpoint, that need the tombstones
    """
    places = [n for n, run in enumerate(runs) if not has_tombstones(run)]
    hiding = [] if has_older else [part for run in runs if has_tombstones(run) for part in run]
    choice = _choose_of_rows([runs[n] for n in places], part_bytes, dropped, hiding)
    if choice is None:
        return _neighbours(runs)
    ends = [*places[1:], len(runs)]
    return replace(choice, oldest=places[choice.oldest], newest=ends[choice.newest] - 1)


def _choose_of_rows(
    runs: Sequence[Run], part_bytes: int, dropped: Keys, tombstones: Sequence[Part]
) -> Choice | None:
    """Return the next merge of runs of rows; `tombstones` hide some of their rows."""
    if not runs:
        return None
    bottom = sum(part.bytes for part in runs[0])
    if (choice := _like_sized(runs, bottom, part_bytes)) is not None:
        return choice
    is_large = _file_bytes(runs) > SPACE * _file_bytes(runs[:1])
    hidden = _hidden(runs[0], tombstones)
    if is_large or _dead(runs[0], dropped) + hidden.sum() > (SPACE - 1) * bottom:
        return _densest(runs, part_bytes, dropped, hidden)
    return None


def _neighbours(runs: Sequence[Run]) -> Choice | None:
    """Return consecutive runs of tombstones if there are at least _FAN of them."""
    first = 0
    for at, run in enumerate(runs):
        if not has_tombstones(run):
            first = at + 1
        elif at - first + 1 >= _FAN:
            return Choice(first, at)
    return None


def arranged(runs: Sequence[Run], part_bytes: int) -> tuple[Run, ...]:
    """Return the runs after moving parts to the bottom where this is possible without reading the
    parts. No returned run is empty."""
    kept: list[Run] = []
    bottom = -1
    for run in filter(None, runs):
        if bottom < 0 or has_tombstones(run):
            bottom = len(kept) if bottom < 0 and not has_tombstones(run) else bottom
            kept.append(run)
            continue
        stays: list[Part] = []
        for part in run:
            low, high = part.entry.low, part.entry.high
            older = (p.entry for r in kept for p in r)
            is_alone = all(high <= other.low or other.high <= low for other in older)
            if is_alone and 4 * part.bytes >= part_bytes:
                kept[bottom] = tuple(sorted((*kept[bottom], part), key=lambda p: p.entry.low))
            else:
                stays.append(part)
        kept.append(tuple(stays))
    return tuple(run for run in kept if run)


def _file_bytes(runs: Sequence[Run]) -> int:
    """Return the bytes of the files of some runs, including dead records."""
    return sum({part.entry.path: part.entry.bytes for run in runs for part in run}.values())


def _like_sized(runs: Sequence[Run], bottom: int, part_bytes: int) -> Choice | None:
    """Return the newest group of deltas of similar size; None if there is none. If there are too
    many runs, return the _FAN consecutive deltas that have the fewest bytes instead."""
    sizes = [sum(part.bytes for part in run) for run in runs]
    if len(runs) > _RUNS_MAX:
        totals = [sum(sizes[at : at + _FAN]) for at in range(1, len(runs) - _FAN + 1)]
        at = 1 + totals.index(min(totals))
        return Choice(at, at + _FAN - 1)
    for newest in range(len(runs) - 1, _FAN - 1, -1):
        for oldest in range(newest - _FAN + 1, 0, -1):
            group = sizes[oldest : newest + 1]
            largest, total = max(group), sum(group)
            if total > max(_SHARE * bottom, part_bytes):
                break
            if largest <= _LIKE * (total - largest):
                return Choice(oldest, newest)
    return None


def _dead(run: Run, dropped: Keys) -> int:
    if not len(dropped):
        return 0
    gone = set(dropped.tolist())
    tables = {part.entry.path: part.file.table_bytes for part in run}
    return sum(size for by_id in tables.values() for i, size in by_id.items() if i in gone)


def _cuts(bottom: Run) -> Keys:
    """Return the keys at which the ranges of the bottom's parts begin, and the key at which the
    last range ends."""
    return np.array([0, *(part.entry.low for part in bottom[1:]), _KEY_END], np.int64)


def _hidden(bottom: Run, tombstones: Sequence[Part]) -> NDArray[np.float64]:
    """Estimate how many bytes of rows are hidden by tombstones in the range of each part,
    (parts,)."""
    cuts, counts = _cuts(bottom), np.zeros(len(bottom))
    for part in tombstones:
        counts += part.bytes_between(cuts) / RECORD_HEADER_BYTES
    files = [part.file for part in bottom]
    sizes = [sum(file.table_bytes.values()) / file.index.count for file in files]
    hidden: NDArray[np.float64] = counts * sizes
    return hidden


def _densest(
    runs: Sequence[Run], part_bytes: int, dropped: Keys, hidden: NDArray[np.float64]
) -> Choice:
    """Return the merge of all runs in the range of one part of the bottom: the part with the most
    bytes of deltas and dead rows in its range, in proportion to its own bytes."""
    bottom = runs[0]
    cuts = _cuts(bottom)
    own = np.array([part.bytes for part in bottom], np.float64)
    gain = hidden.copy()
    for part in (part for run in runs[1:] for part in run):
        gain += part.bytes_between(cuts)
    gain += [_dead((part,), dropped) for part in bottom]
    at = int(np.argmax(gain / np.maximum(own, 1)))
    first, last = at, at + 1  # extended by neighbouring parts if the parts are small
    while own[first:last].sum() < part_bytes / 2 and last - first < len(bottom):
        if last < len(bottom):
            last += 1
        else:
            first -= 1
    return Choice(0, len(runs) - 1, int(cuts[first]), int(cuts[last]))
