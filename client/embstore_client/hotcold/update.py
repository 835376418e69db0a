"""What one update of a replica is: its options, and the sums of all ranks.

Ranks compare before they add. Options that differ are a caller's mistake, which all may mend; a t
or a rate that differs says that their replicas are no longer alike, and nothing may be added.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from embstore.arithmetic import add_ranks, scale_sums, unique
from embstore.arrays import Keys, Rows, fp32_scalar
from embstore.errors import InvalidArgumentError
from embstore_client.hotcold.ranks import Share, Told, float_bits


class Sums(NamedTuple):
    """One table's gradients, summed by key (and over ranks), then scaled."""

    keys: Keys  # (u,) distinct
    gradients: Rows  # (u, dim)


class Options(NamedTuple):
    """An update's options, checked."""

    learning_rate: float | None  # None: the tables'
    gradient_scale: float
    skips_nonfinite: bool

    @classmethod
    def checked(cls, learning_rate: Any, gradient_scale: Any, on_nonfinite: Any) -> "Options":
        """Return the options, or raise InvalidArgumentError."""
        if on_nonfinite not in ("refuse", "skip"):
            raise InvalidArgumentError(
                f'expected on_nonfinite to be "refuse" or "skip", found {on_nonfinite!r}'
            )
        if learning_rate is not None:
            learning_rate = fp32_scalar(learning_rate, "learning_rate")
        scale = fp32_scalar(gradient_scale, "gradient_scale")
        return cls(learning_rate, scale, on_nonfinite == "skip")

    @property
    def numbers(self) -> list[int]:
        """The options as ranks compare them."""
        rate, scale = self.learning_rate, self.gradient_scale
        return [
            int(rate is None),
            float_bits(rate or 0.0),
            float_bits(scale),
            int(self.skips_nonfinite),
        ]


def check_alike(told: list[Told], options: list[int], tables: list[int]) -> None:
    """Check that all ranks update alike replicas alike.

    Raises
    ------
    InvalidArgumentError
    """
    count = len(options)
    if others := [rank for rank, t in enumerate(told) if t.numbers[:count] != options]:
        raise InvalidArgumentError(
            f"expected all ranks to update with the same options, found others of ranks {others}; "
            "all may do it again"
        )
    if others := [rank for rank, t in enumerate(told) if t.numbers[count:] != tables]:
        raise InvalidArgumentError(
            "expected all ranks to have tables of the same t and learning rate, found others of "
            f"ranks {others}: a rank left out or repeated an update, or pulled at another rate"
        )


def scaled(shares: list[Share], gradient_scale: float) -> dict[str, Sums]:
    """Add the ranks' sums of each table in rank order, and scale (contract.md, rules 6 and 4)."""
    names = dict.fromkeys(name for share in shares for name in share)
    sums = {}
    for name in names:
        parts = [share[name] for share in shares if name in share]
        keys, total = parts[0] if len(parts) == 1 else _added(parts)
        sums[name] = Sums(keys, scale_sums(total, gradient_scale))
    return sums


def _added(parts: list[tuple[Keys, Rows]]) -> tuple[Keys, Rows]:
    keys, inverse = unique(np.concatenate([keys for keys, _ in parts]))
    ids = np.split(inverse, np.cumsum([len(keys) for keys, _ in parts])[:-1])
    total = add_ranks(len(keys), [(i, sums) for i, (_, sums) in zip(ids, parts, strict=True)])
    return keys, total


def first_nonfinite(sums: Mapping[str, Sums]) -> tuple[str, int] | None:
    """Return table and key of the first gradient that is not finite (contract.md, rule 9)."""
    for name, (keys, gradients) in sums.items():
        is_finite = np.isfinite(gradients).all(axis=1)
        if not is_finite.all():
            return name, int(keys[~is_finite][0])
    return None
