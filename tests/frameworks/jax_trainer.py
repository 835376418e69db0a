"""A small training in JAX, saved behind every third step: what test_jax_saving starts, and kills.

    python -m tests.frameworks.jax_trainer ADDRESS DIRECTORY

It goes on behind the last label that is kept. Before the update of a step that may follow a save it
says so on its output, and waits for a line on its input: there it can be killed.
"""

import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from embstore import Adam, Uniform
from embstore.handles.store import Store
from embstore_client.jax import Bag, Embeddings
from tests.serving import patient

ROWS, EVERY = 90, 3
BATCHES = [np.random.default_rng(n).zipf(1.3, (5, 3)) % ROWS for n in range(10)]


def loss_of(dense: Any, activations: Any, noise: Any) -> Any:
    return jnp.square(activations["x"] @ dense["w"] + dense["b"] + noise).mean()


@jax.jit
def gradients_of(dense: Any, activations: Any, noise: Any) -> Any:
    return jax.value_and_grad(loss_of, argnums=(0, 1))(dense, activations, noise)


def _moved(momentum: Any, gradient: Any) -> Any:
    return (0.9 * momentum + gradient).astype(momentum.dtype)


def _stepped(rate: float, part: Any, momentum: Any) -> Any:
    return (part - rate * momentum).astype(part.dtype)


class Trainer:
    """A model, its dense optimizer (momentum), random numbers and a rate that falls."""

    def __init__(self, store: Store) -> None:
        table = Bag(
            "t", dim=4, rows=ROWS, features=["x"], optimizer=Adam(0.1), initializer=Uniform(-1, 1)
        )
        self.embeddings = Embeddings(store, [table])
        dense = {"w": jnp.full(4, 0.3, jnp.float32), "b": jnp.zeros((), jnp.bfloat16)}
        self.parts: dict[str, Any] = {
            "dense": dense,
            "optimizer": (jax.tree.map(jnp.zeros_like, dense), 0.1, np.zeros(2, np.int64)),
            "random": jax.random.key(3),
        }
        self.losses: list[float] = []

    def train(
        self, batches: Any, before: Callable[[int], Any], after: Callable[[int], Any]
    ) -> None:
        """Train on batches, calling `before` and `after` each update with the step's number."""
        loop = self.embeddings.ahead(
            batches, features=lambda ids: {"x": ids}, name="job", lookahead=3
        )
        for step in loop:
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

    def save(self, label: str, directory: Path) -> None:
        self.embeddings.save(label, directory=directory, **self.parts)

    def load(self, label: str, directory: Path) -> int:
        place, self.parts = self.embeddings.load(
            label, directory=directory, wait_s=300, **self.parts
        )
        return place

    def resume(self, directory: Path, before: Callable[[int], Any]) -> None:
        """Train on what is left behind the last label, saving behind every third step."""
        kept = [checkpoint.label for checkpoint in self.embeddings.store.checkpoints()]
        place = self.load(max(kept), directory) if kept else 0

        def after(number: int) -> None:
            if number % EVERY == 0:
                self.save(f"step-{number}", directory)

        self.train(itertools.islice(BATCHES, place, None), before, after)

    def state(self) -> Any:
        """Return what must be equal: the table, and every leaf."""
        leaves = [str(leaf) for leaf in jax.tree.leaves(self.parts)]
        return self.embeddings.store.table("t").digest(), leaves


def main(address: str, directory: Path) -> None:
    def wait(number: int) -> None:
        print(f"before {number}", flush=True)  # noqa: T201
        sys.stdin.readline()

    with patient(address) as store:
        trainer = Trainer(store)
        trainer.resume(directory, wait)
        print(f"done {trainer.state()}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
