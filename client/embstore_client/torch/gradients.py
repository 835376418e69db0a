"""What backward passes have left, until `step` sends it.

Each feature of each forward has a number, given when the forward was computed: forwards in order,
and in each the features in the order of the module. A gradient is kept under that number, whenever
it comes: backward passes go through features in an order of their own. One that comes again is
added to what is there, as to `.grad`. A forward that is computed again for its backward pass
(torch.utils.checkpoint with use_reentrant=True) is one more forward.

A feature without a gradient leaves nothing here, so there is no update of it: under Adam a zero
would be one.
"""

import threading
from typing import Any, NamedTuple

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from embstore.arithmetic import bag_gradients
from embstore.arrays import Keys, Rows

Number = tuple[int, int]
"""Of the forward, and of the feature within it."""


class Looked(NamedTuple):
    """One feature of one forward, as far as its gradient needs it."""

    number: Number
    table: str
    keys: Keys
    offsets: NDArray[np.int64] | None
    mode: str
    weights: NDArray[np.float32] | None

    def by_key(self, gradient: Any) -> Rows:
        """Return the gradient of each id, (n, dim), from that of the output."""
        rows: Rows = gradient.numpy()
        if self.offsets is None:
            return rows
        mode: Any = self.mode
        return bag_gradients(rows, self.offsets, mode, self.weights)


class KeptGradients:
    """The gradients of a module's forwards. Any thread: Torch has one for each device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forwards = 0
        self._kept: dict[Number, tuple[Looked, Any]] = {}

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

    def keep(self, looked: Looked, gradient: Any) -> None:
        """Keep a copy of the gradient of a feature's output, or add it to the one before."""
        shape = (-1, gradient.shape[-1])
        copied = torch.empty(gradient.reshape(shape).shape, dtype=torch.float32)
        copied.copy_(gradient.detach().reshape(shape))
        with self._lock:
            before = self._kept.get(looked.number)
            total = copied if before is None else before[1] + copied
            self._kept[looked.number] = (looked, total)

    def by_table(self) -> dict[str, tuple[Keys, Rows]]:
        """Return keys (n,) and their gradients (n, dim) by table, in the order of the forwards."""
        parts: dict[str, list[tuple[Keys, Rows]]] = {}
        with self._lock:
            kept = [self._kept[number] for number in sorted(self._kept)]
        for looked, gradient in kept:
            parts.setdefault(looked.table, []).append((looked.keys, looked.by_key(gradient)))
        return {table: _joined(of_table) for table, of_table in parts.items()}

    def clear(self) -> None:
        """Forget them."""
        with self._lock:
            self._kept.clear()


def _joined(parts: list[tuple[Keys, Rows]]) -> tuple[Keys, Rows]:
    if len(parts) == 1:
        return parts[0]
    keys, gradients = zip(*parts, strict=True)
    return np.concatenate(keys), np.concatenate(gradients)
