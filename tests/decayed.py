"""Optimizers with weight decay, of both kinds, and names that tell them apart."""

from dataclasses import replace
from typing import Any

from embstore.config import Adagrad, Adam, Optimizer, RowWiseAdagrad, Sgd

DECAYING: tuple[Any, ...] = (
    Sgd(0.05),
    Adagrad(0.05, initial_accumulator=0.1),
    RowWiseAdagrad(0.05, initial_accumulator=0.1),
    Adam(0.01),
)
"""Of each kind that may have weight decay, one that has none."""
DECAYED: tuple[Any, ...] = tuple(
    replace(optimizer, weight_decay=0.3, decoupled_weight_decay=is_decoupled)
    for optimizer in DECAYING
    for is_decoupled in (False, True)
)


def name_of(optimizer: Optimizer) -> str:
    """Return the kind, and which weight decay there is."""
    if not getattr(optimizer, "weight_decay", 0.0):
        return optimizer.kind
    is_decoupled = getattr(optimizer, "decoupled_weight_decay", False)
    return f"{optimizer.kind}-{'decoupled' if is_decoupled else 'decayed'}"
