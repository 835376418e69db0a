"""The gradients that backward passes leave, kept until `step` sends them.

Each feature of each forward has a number, which is assigned when the forward is computed. Forwards
are numbered in order, and features within a forward in the order of the module. A gradient is kept
under its number, because backward passes visit features in an order of their own. A second gradient
of the same number is added to the first. A forward that is computed again for its backward pass
counts as a further forward.

If a feature gets no gradient, nothing is kept for it, and its rows are not updated. A gradient of
zeros would be different: under Adam, it is an update. A frozen table is treated as if its features
got no gradients.
"""

import threading
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.denormals import kept
from embstore.arrays import Keys, Rows
from embstore_client.frameworks.occurrences import Occurrences

Number = tuple[int, int]
"""The number of the forward, and of the feature within it."""


FORWARDS_WITHOUT_STEP = 16
"""When the gradients of so many forwards are kept, the module warns that a call of `step` seems to
be missing."""


def concatenated(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate arrays. A single array is returned without a copy."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class KeptGradients:
    """The gradients of a module's forwards. Any thread may use it, because backward passes run in
    threads of the framework."""

    def __init__(
        self,
        join: Callable[[Sequence[Any]], Any] = concatenated,
        frozen: Collection[str] = (),
    ) -> None:
        """Begin without gradients.

        Parameters
        ----------
        join : concatenates the keys of several features, or their gradients. A framework passes a
            function of its own if some of its arrays are not on the host
        frozen : tables whose gradients are not kept
        """
        self.frozen = set(frozen)
        """Tables whose gradients are not kept. A change applies to later gradients."""
        self._join = join
        self._lock = threading.Lock()
        self._forwards = 0
        self._kept: dict[Number, tuple[Occurrences, Rows]] = {}
        self._of_forwards: set[int] = set()  # Numbers of the forwards that have gradients here.
        self._has_warned = False
        self.warns_of_many = True
        """Whether to warn of many forwards without a step. A loop of announced steps raises an
        error instead."""

    def __len__(self) -> int:
        return len(self._kept)

    def __reduce__(self) -> tuple[type["KeptGradients"], tuple[Any, ...]]:
        """A copy of a module has no gradients."""
        return KeptGradients, (self._join, self.frozen)

    def next_forward(self) -> int:
        """Return the number of a new forward."""
        with self._lock:
            self._forwards += 1
            return self._forwards

    def keep(self, number: Number, of: Occurrences, gradients: NDArray[Any]) -> None:
        """Keep a copy of the gradients of a feature's outputs, (*, dim) of any float dtype. If
        gradients of this number are kept already, add the new gradients to them."""
        self.take(number, of, np.array(gradients, np.float32))

    def take(self, number: Number, of: Occurrences, gradients: Rows) -> None:
        """Keep gradients as `keep` does, but without a copy; they are C-contiguous, and no other
        code uses them."""
        if of.table in self.frozen:
            return
        rows = gradients.reshape(-1, gradients.shape[-1])
        with self._lock:
            before = self._kept.get(number)
            total = rows if before is None else _sum(before[1], rows)
            self._kept[number] = (of, total)
            self._of_forwards.add(number[0])
            may_warn = self.warns_of_many and not self._has_warned
            is_forgotten = may_warn and len(self._of_forwards) >= FORWARDS_WITHOUT_STEP
            self._has_warned |= is_forgotten
        if is_forgotten:
            warnings.warn(
                f"{FORWARDS_WITHOUT_STEP} forwards have left gradients, and step() was not "
                "called: without it no row is trained, and the gradients take more and more "
                "memory; call it once a batch, after the last of its micro-batches",
                stacklevel=2,
            )

    def by_table(self) -> dict[str, tuple[Keys, Rows]]:
        """Return, for each table, keys (n,) and their gradients (n, dim). The keys and gradients of
        all features are concatenated by `join`, in the order of the forwards."""
        join = self._join
        return {
            table: (join([of.keys for of, _ in parts]), join([of.by_key(g) for of, g in parts]))
            for table, parts in self.parts().items()
        }

    def parts(self) -> dict[str, list[tuple[Any, Rows]]]:
        """Return, for each table, a list of pairs in the order of the forwards: the ids of a
        feature, and the gradients of the feature's outputs."""
        with self._lock:
            kept_ones = [self._kept[number] for number in sorted(self._kept)]
        parts: dict[str, list[tuple[Any, Rows]]] = {}
        for of, gradients in kept_ones:
            parts.setdefault(of.table, []).append((of, gradients))
        return parts

    def change(self, change: Callable[[Rows], Rows]) -> None:
        """Replace all gradients by the results of `change`."""
        with self._lock:
            self._kept = {n: (of, change(gradients)) for n, (of, gradients) in self._kept.items()}

    def warn_unsent(self) -> None:
        """Warn if gradients are still kept, because they cannot be sent any more."""
        with self._lock:
            tables = sorted({of.table for of, _ in self._kept.values()})
        if tables:
            warnings.warn(
                f"gradients of the tables {', '.join(tables)} were not applied: the module ended, "
                "and step() was not called after its last backward pass",
                stacklevel=2,
            )

    def clear(self) -> None:
        """Discard all gradients."""
        with self._lock:
            self._kept.clear()
            self._of_forwards.clear()


@kept
@np.errstate(all="ignore")
def _sum(before: Rows, after: Rows) -> Rows:
    total: Rows = before + after
    return total


@kept
@np.errstate(all="ignore")
def multiplied(gradients: Rows, factor: float) -> Rows:
    """Return gradients in host memory, multiplied by a factor."""
    product: Rows = gradients * np.float32(factor)
    return product
