"""What backward passes have left, until `step` sends it.

Each feature of each forward has a number, given when the forward was computed: forwards in order,
and in each the features in the order of the module. A gradient is kept under that number, whenever
it comes: backward passes go through features in an order of their own. One that comes again is
added to what is there. A forward that is computed again for its backward pass is one more forward.

A feature without a gradient leaves nothing here, so there is no update of it: under Adam a zero
would be one.
"""

import threading
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import bag_gradients
from embstore.arithmetic.denormals import kept
from embstore.arrays import Keys, Rows

Number = tuple[int, int]
"""Of the forward, and of the feature within it."""


FORWARDS_WITHOUT_STEP = 16
"""So many forwards with backward passes and without `step` warn: it was forgotten."""


class Looked(NamedTuple):
    """One feature of one forward, as far as its gradient needs it."""

    number: Number
    table: str
    keys: Keys
    """(n,)"""
    offsets: NDArray[np.int64] | None
    """(bags + 1,); None: a row for each key."""
    mode: str
    weights: NDArray[np.float32] | None
    """(n,), or None."""

    def by_key(self, gradients: Rows) -> Rows:
        """Return the gradient of each id, (n, dim), from those of bags or ids."""
        if self.offsets is None:
            return gradients
        mode: Any = self.mode
        return bag_gradients(gradients, self.offsets, mode, self.weights)


class KeptGradients:
    """The gradients of a module's forwards. Any thread: frameworks go back in theirs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forwards = 0
        self._kept: dict[Number, tuple[Looked, Rows]] = {}
        self._of_forwards: set[int] = set()  # Whose gradients are kept.
        self._has_warned = False

    def __len__(self) -> int:
        return len(self._kept)

    def __reduce__(self) -> tuple[type["KeptGradients"], tuple[()]]:
        """A copy of a module has no gradients."""
        return KeptGradients, ()

    def next_forward(self) -> int:
        """Return the number of a forward that begins."""
        with self._lock:
            self._forwards += 1
            return self._forwards

    def keep(self, looked: Looked, gradients: NDArray[Any]) -> None:
        """Keep a copy of the gradients of a feature's output, (*, dim) of any float dtype, or add
        them to those before."""
        self.take(looked, np.array(gradients, np.float32))

    def take(self, looked: Looked, gradients: Rows) -> None:
        """Do the same with gradients that nobody else has, C-contiguous, without a copy."""
        rows = gradients.reshape(-1, gradients.shape[-1])
        with self._lock:
            before = self._kept.get(looked.number)
            total = rows if before is None else _sum(before[1], rows)
            self._kept[looked.number] = (looked, total)
            self._of_forwards.add(looked.number[0])
            is_forgotten = len(self._of_forwards) >= FORWARDS_WITHOUT_STEP and not self._has_warned
            self._has_warned |= is_forgotten
        if is_forgotten:
            warnings.warn(
                f"{FORWARDS_WITHOUT_STEP} forwards have left gradients, and step() was not called: "
                "without it no row is trained, and the gradients take more and more memory; call "
                "it once a batch, behind the last of its micro-batches",
                stacklevel=2,
            )

    def by_table(self) -> dict[str, tuple[Keys, Rows]]:
        """Return keys (n,) and their gradients (n, dim) by table, in the order of the forwards."""
        with self._lock:
            kept_ones = [self._kept[number] for number in sorted(self._kept)]
        return joined((looked.table, looked.keys, looked.by_key(of)) for looked, of in kept_ones)

    def warn_unsent(self) -> None:
        """Warn of gradients that are still here: nobody can send them any more."""
        with self._lock:
            tables = sorted({looked.table for looked, _ in self._kept.values()})
        if tables:
            warnings.warn(
                f"gradients of the tables {', '.join(tables)} were not applied: the module ended, "
                "and step() was not called after its last backward pass",
                stacklevel=2,
            )

    def clear(self) -> None:
        """Forget them."""
        with self._lock:
            self._kept.clear()
            self._of_forwards.clear()


def joined(parts: Iterable[tuple[str, Keys, Rows]]) -> dict[str, tuple[Keys, Rows]]:
    """Return keys (n,) and gradients (n, dim) by table, of parts that name theirs, in order."""
    by_table: dict[str, list[tuple[Keys, Rows]]] = {}
    for table, keys, gradients in parts:
        by_table.setdefault(table, []).append((keys, gradients))
    return {table: _concatenated(of_table) for table, of_table in by_table.items()}


def _concatenated(parts: list[tuple[Keys, Rows]]) -> tuple[Keys, Rows]:
    if len(parts) == 1:
        return parts[0]
    keys, gradients = zip(*parts, strict=True)
    return np.concatenate(keys), np.concatenate(gradients)


@kept
@np.errstate(all="ignore")
def _sum(before: Rows, after: Rows) -> Rows:
    total: Rows = before + after
    return total
