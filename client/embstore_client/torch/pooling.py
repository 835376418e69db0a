"""Computes activations from rows, as autograd nodes whose gradients are kept instead of passed on.

The backward pass ends at a **root**: a leaf tensor of an activation's shape, all of whose elements
share one value in memory. Torch accumulates the root's gradient as it does for a parameter, and
`keep` takes the gradient. So Torch copies the gradient only if other code uses the gradient, too.
(`_own` also looks for views of the gradient, which Torch does not do for its parameters.) The kept
gradients are those of bags, (bags, dim), however many ids the bags have. If a node is computed
again (torch.utils.checkpoint), only one of its copies is part of the backward pass, so the gradient
is kept once. If `keep` is None, no gradient is kept (evaluation).

Weights are float32 or float64, and the bags' sums have the same dtype, so that the weights'
gradient can be checked numerically. The weights' gradient needs the rows, which are saved for this
purpose alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found, unused-ignore]
from torch.autograd.function import (  # type: ignore[import-not-found, unused-ignore]
    once_differentiable,
)

Keep = Callable[[Any], None] | None
"""A function that takes the gradient of an output; no other code uses this gradient."""


_OWN_USERS = 2
"""The use count of a storage that only one tensor has: it counts the tensor, and the storage object
by which the count is read."""


class Places(NamedTuple):
    """The positions of a feature's ids among the rows of a forward. All tensors are on one
    device."""

    inverse: Any
    """(n,) int64 tensor, the row of each id. None: rows are in the order of the ids."""
    offsets: Any = None
    """(bags + 1,) int64 tensor. None: rows are not pooled."""
    mode: str = "none"


def activations(rows: Any, places: Places, weights: Any, keep: Keep) -> Any:
    """Return pooled rows (bags, dim), or one row for each id, (n, dim).

    Parameters
    ----------
    rows : (u, dim) float32 tensor that no other code uses
    weights : (n,) tensor, or None; only for sums: `shares` turns a weighted mean into a weighted
        sum
    """
    if weights is not None:
        shape = len(places.offsets) - 1, rows.shape[1]
        return _Weighted.apply(_root(shape, weights, keep), rows, weights, places)
    with torch.no_grad():
        values = _spread(rows, places.inverse) if places.offsets is None else _pooled(rows, places)
    return _Rooted.apply(_root(values.shape, values, keep), values)


def shares(weights: Any, offsets: Any) -> Any:
    """Return weights (n,), each divided by the sum of its bag's weights, or by 1 if the sum is 0.
    The sum of rows with these weights is the weighted mean, and autograd passes through division
    and sum."""
    totals = torch.segment_reduce(weights, "sum", offsets=offsets, unsafe=True, initial=0)
    totals = torch.where(totals == 0, 1, totals)
    return weights / totals.repeat_interleave(offsets.diff(), output_size=len(weights))


def _root(shape: tuple[int, ...], like: Any, keep: Keep) -> Any:
    if keep is None:
        return None
    root = torch.empty((), dtype=like.dtype, device=like.device).expand(shape).requires_grad_()

    def take(root: Any) -> None:
        gradient, root.grad = root.grad, None
        keep(_own(gradient))

    root.register_post_accumulate_grad_hook(take)
    return root


def _own(gradient: Any) -> Any:
    """Return a gradient in memory that no other tensor has.

    Torch has no public function for the number of users of a storage; Torch's CUDA graphs use the
    function that is called here.
    """
    users = getattr(torch._C, "_storage_Use_Count", None)
    is_own = users is not None and users(gradient.untyped_storage()._cdata) == _OWN_USERS
    return gradient if is_own else gradient.clone()


def _spread(rows: Any, inverse: Any) -> Any:
    return rows if inverse is None else rows.index_select(0, inverse)


def _pooled(rows: Any, places: Places, weights: Any = None) -> Any:
    inverse = places.inverse
    if inverse is None:
        inverse = torch.arange(len(rows), device=rows.device)
    if not len(inverse):  # an empty input, which embedding_bag may refuse
        return rows.new_zeros((len(places.offsets) - 1, rows.shape[1]))
    return torch.nn.functional.embedding_bag(
        inverse,
        rows,
        places.offsets,
        mode=places.mode,
        per_sample_weights=weights,
        include_last_offset=True,
    )


class _Rooted(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """Values whose gradient is passed to the root."""

    @staticmethod
    def forward(ctx: Any, root: Any, values: Any) -> Any:
        # This makes a new tensor on the same memory, because a view of an input could not be
        # changed in place.
        return torch.empty(0, dtype=values.dtype, device=values.device).set_(values)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        return gradient, None


class _Weighted(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """Weighted sums, whose gradient is passed to the root and to the weights."""

    @staticmethod
    def forward(ctx: Any, root: Any, rows: Any, weights: Any, places: Places) -> Any:
        ctx.places, ctx.count = places, len(weights)
        ctx.save_for_backward(rows)
        return _pooled(rows.to(weights.dtype), places, weights)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None, Any, None]:
        of_root = gradient if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[2]:
            return of_root, None, None, None
        (rows,) = ctx.saved_tensors
        # The size is given, so that the host does not wait for it.
        lengths = ctx.places.offsets.diff()
        of_ids = gradient.repeat_interleave(lengths, dim=0, output_size=ctx.count)
        rows = _spread(rows.to(gradient.dtype), ctx.places.inverse)
        return of_root, None, (of_ids * rows).sum(dim=1), None
