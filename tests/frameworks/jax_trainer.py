"""A model of one table in JAX, momentum for its dense part, random numbers, a rate that falls."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from embstore.handles.store import Store
from embstore_client.jax import Bag, Embeddings
from tests.frameworks.trainers import LOOP, TABLE, Saving, nothing


def loss_of(dense: Any, activations: Any, noise: Any) -> Any:
    return jnp.square(activations["x"] @ dense["w"] + dense["b"] + noise).mean()


@jax.jit
def gradients_of(dense: Any, activations: Any, noise: Any) -> Any:
    return jax.value_and_grad(loss_of, argnums=(0, 1))(dense, activations, noise)


def _moved(momentum: Any, gradient: Any) -> Any:
    return (0.9 * momentum + gradient).astype(momentum.dtype)


def _stepped(rate: float, part: Any, momentum: Any) -> Any:
    return (part - rate * momentum).astype(part.dtype)


class Trainer(Saving):
    UNSAVEABLE = (({"f": object()}, r"dense\['f'\].*object"), ("text", "dense.*str"))

    def __init__(self, store: Store) -> None:
        self.embeddings = Embeddings(store, [Bag("t", **TABLE)])
        dense = {"w": jnp.full(4, 0.3, jnp.float32), "b": jnp.zeros((), jnp.bfloat16)}
        self.parts = {
            "dense": dense,
            "optimizer": (jax.tree.map(jnp.zeros_like, dense), 0.1, np.zeros(2, np.int64)),
            "random": jax.random.key(3),
        }
        self.losses = []

    def train(
        self,
        batches: Any,
        before: Callable[[int], Any] = nothing,
        after: Callable[[int], Any] = nothing,
    ) -> None:
        for step in self.embeddings.ahead(batches, **LOOP):
            dense, (momentum, rate, seen) = self.parts["dense"], self.parts["optimizer"]
            random, key = jax.random.split(self.parts["random"])
            noise = jax.random.normal(key, (5,))
            loss, (of_dense, of_rows) = gradients_of(dense, step.activations, noise)
            before(step.number)
            step.update(of_rows)
            momentum = jax.tree.map(_moved, momentum, of_dense)
            dense = jax.tree.map(partial(_stepped, rate), dense, momentum)
            self.parts = {
                "dense": dense,
                "optimizer": (momentum, rate * 0.9, seen + 1),
                "random": random,
            }
            self.losses.append(float(loss))
            after(step.number)

    def load(self, label: str, directory: Path, **options: Any) -> int:
        found = self.embeddings.load(label, directory=directory, **options, **self.parts)
        self.parts = found.parts
        return found.last_step

    def state(self) -> Any:
        leaves = [str(leaf) for leaf in jax.tree.leaves(self.parts)]
        return self.embeddings.store.table("t").digest(), leaves
