"""The same training in NumPy, given the gradients that a framework came to.

A twin is told what each forward was given and what gradient its output got. It keeps the order of
the contract: forwards, then features as the module has them, then ids; and it shares no arithmetic
with the store (`tests.reference`).
"""

from typing import Any, NamedTuple

import numpy as np

from tests.reference import ReferenceStore
from tests.rules import spread_bags


class Forward(NamedTuple):
    """What one forward returned, with what it was given, by the names of lookups."""

    given: dict[str, tuple[Any, Any, Any]]
    """Ids (n,) without padding, offsets (bags + 1,) or None, weights (n,) or None."""
    outputs: dict[str, Any]
    """Tensors with their `grad`; or the gradients, None for none."""


class Twin:
    """The tables of a module in the reference model."""

    def __init__(self, module: Any) -> None:
        """Make those of what has `tables` and a `store`."""
        self._module = module
        self._reference = ReferenceStore()
        for name in module.tables:
            config = module.store.table(name).config
            self._reference.create_table(
                name,
                dim=config.dim,
                rows=config.rows,
                optimizer=config.optimizer,
                initializer=config.initializer,
                seed=config.seed,
            )

    def share(self, forwards: list[Forward]) -> dict[str, tuple[Any, Any]]:
        """Return keys and gradients by table, of the features whose output got a gradient."""
        parts: dict[str, list[tuple[Any, Any]]] = {}
        for forward in forwards:
            for lookup in self._module.lookups:
                output = forward.outputs[lookup.name]
                gradient = getattr(output, "grad", output)
                if gradient is not None:
                    ids, *bags = forward.given[lookup.name]
                    rows = _of_ids(gradient, *bags, getattr(lookup.of, "mode", "sum"))
                    parts.setdefault(lookup.of.name, []).append((ids, rows))
        return {
            name: (np.concatenate([k for k, _ in of]), np.concatenate([g for _, g in of]))
            for name, of in parts.items()
        }

    def step(self, forwards: list[Forward], **options: Any) -> None:
        """Apply the gradients of some forwards as one update."""
        self._reference.update(self.share(forwards), **options)

    def step_of_ranks(self, shares: list[dict[str, tuple[Any, Any]]], **options: Any) -> None:
        """Apply those of several ranks as one update."""
        self._reference.update_ranks(shares, **options)

    def digest(self, table: str) -> str:
        """Return the twin's digest of a table."""
        digest: str = self._reference.table(table).digest()
        return digest

    def assert_same(self) -> None:
        """Check that every table of the module has the twin's digest."""
        for name in self._module.tables:
            found = self._module.store.table(name).digest()
            assert found == self.digest(name), name


def _of_ids(gradient: Any, offsets: Any, weights: Any, mode: str) -> Any:
    if hasattr(gradient, "float"):  # of Torch, which NumPy does not read in bfloat16
        gradient = gradient.float()
    rows = np.asarray(gradient, np.float32)
    if offsets is None:
        return rows.reshape(-1, rows.shape[-1])
    return spread_bags(rows, np.asarray(offsets), mode, weights)


def kept(outputs: Any) -> dict[str, Any]:
    """Have outputs keep their gradients, where they have any, and return them by feature."""
    for output in outputs.values():
        if output.requires_grad:
            output.retain_grad()
    return dict(outputs)


def bags(rng: np.random.Generator, rows: int, bag_count: int = 6) -> tuple[Any, Any]:
    """Return ids (n,) with repeats, also within a bag, and offsets (bags + 1,) with empty bags."""
    lengths = rng.integers(0, 5, bag_count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return rng.zipf(1.3, int(offsets[-1])) % rows, offsets
