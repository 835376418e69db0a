"""Rows to activations, as nodes of autograd whose gradients are kept instead of passed on.

The rows of a forward are a leaf that wants a gradient, so that Torch calls `backward`; it gives the
gradient of its output to `keep`, and none to the leaf. What is kept is that of bags, (bags, dim),
however many ids they have. A node that is computed again (torch.utils.checkpoint) is asked back
once, in whichever of its copies Torch goes through. `keep` None: nothing is (evaluation).

Weights are float32 or float64, and the bags' sums of the same dtype, so that their gradient can be
checked numerically. It needs the rows, which are saved for it alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found, unused-ignore]
from torch.autograd.function import (  # type: ignore[import-not-found, unused-ignore]
    once_differentiable,
)

Keep = Callable[[Any], None] | None


class Places(NamedTuple):
    """Where the ids of a feature are among the rows of a forward. All on one device."""

    inverse: Any
    """(n,) int64 tensor, the row of each id; None: each has the next one."""
    offsets: Any = None
    """(bags + 1,) int64 tensor; None: not pooled."""
    mode: str = "none"


def activations(rows: Any, places: Places, weights: Any, keep: Keep) -> Any:
    """Return pooled rows (bags, dim), or one row for each id, (n, dim).

    Parameters
    ----------
    rows : (u, dim) float32 tensor, a leaf that requires a gradient where `keep` is given
    weights : (n,) tensor, or None; with mode "sum" only
    """
    if places.offsets is None:
        return _Spread.apply(rows, places.inverse, keep)
    return _Pooled.apply(rows, weights, places, keep)


def _spread(rows: Any, inverse: Any) -> Any:
    return rows if inverse is None else rows.index_select(0, inverse)


class _Spread(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    @staticmethod
    def forward(ctx: Any, rows: Any, inverse: Any, keep: Keep) -> Any:
        ctx.keep = keep
        return rows.clone() if inverse is None else _spread(rows, inverse)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, gradient: Any) -> tuple[None, None, None]:
        if ctx.keep is not None:
            ctx.keep(gradient)
        return None, None, None


class _Pooled(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    @staticmethod
    def forward(ctx: Any, rows: Any, weights: Any, places: Places, keep: Keep) -> Any:
        ctx.keep, ctx.places = keep, places
        if weights is not None:
            ctx.save_for_backward(rows)
            rows = rows.to(weights.dtype)
        inverse = places.inverse
        if inverse is None:
            inverse = torch.arange(len(rows), device=rows.device)
        if not len(inverse):  # which embedding_bag may refuse
            return rows.new_zeros((len(places.offsets) - 1, rows.shape[1]))
        return torch.nn.functional.embedding_bag(
            inverse,
            rows,
            places.offsets,
            mode=places.mode,
            per_sample_weights=weights,
            include_last_offset=True,
        )

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, gradient: Any) -> tuple[Any, Any, None, None]:
        if ctx.keep is not None:
            ctx.keep(gradient)
        if not ctx.needs_input_grad[1]:
            return None, None, None, None
        (rows,) = ctx.saved_tensors
        of_ids = torch.repeat_interleave(gradient, ctx.places.offsets.diff(), dim=0)
        rows = _spread(rows.to(gradient.dtype), ctx.places.inverse)
        return None, (of_ids * rows).sum(dim=1), None, None
