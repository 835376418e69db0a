"""Small trainings whose runs are saved and resumed, one in each framework and all used alike; and
the program that tests start, and kill.

    python -m tests.frameworks.trainers FRAMEWORK ADDRESS DIRECTORY

It goes on behind the last label that is kept. Before the update of a step it says so on its output,
and waits for a line on its input: there it can be killed.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from embstore import Adam, Uniform
from tests.serving import patient

STEPS, SAVED_EVERY, ROWS = 10, 3, 90
TABLE: dict[str, Any] = {
    "dim": 4,
    "rows": ROWS,
    "features": ["x"],
    "optimizer": Adam(0.1),
    "initializer": Uniform(-1, 1),
}
LOOP: dict[str, Any] = {"features": lambda ids: {"x": ids}, "name": "job", "lookahead": 3}
WAIT_S = 300


def nothing(number: int) -> None:
    """Do nothing before or after a step."""


def batches_of(count: int) -> list[Any]:
    """Return ids (5, 3) of so many steps."""
    return [np.random.default_rng(n).zipf(1.3, (5, 3)) % ROWS for n in range(count)]


class Saving:
    """What trainers do alike. Each has a `state()`: what must be equal where runs are equal."""

    embeddings: Any
    parts: dict[str, Any]
    losses: list[float]

    def train(
        self,
        batches: Any,
        before: Callable[[int], Any] = nothing,
        after: Callable[[int], Any] = nothing,
    ) -> None:
        """Train on batches; call `before` and `after` each update with the step's number."""
        raise NotImplementedError

    def save(self, label: str, directory: Path, **options: Any) -> None:
        self.embeddings.save(label, directory=directory, **options, **self.parts)

    def load(self, label: str, directory: Path, **options: Any) -> int:
        place: int = self.embeddings.load(label, directory=directory, **options, **self.parts)
        return place

    def resume(
        self,
        directory: Path,
        before: Callable[[int], Any] = nothing,
        after: Callable[[int], Any] = nothing,
        steps: int = STEPS,
        **how: Any,
    ) -> None:
        """Train on what is left behind the last label, saving behind every third step."""
        labels = [kept.label for kept in self.embeddings.store.checkpoints()]
        place = 0
        if labels:
            place = self.load(labels[-1], directory, **how)
        else:
            self.save("step-0", directory)

        def save_and_go_on(number: int) -> None:
            if number % SAVED_EVERY == 0:
                self.save(f"step-{number}", directory)
            after(number)

        self.train(batches_of(steps)[place:], before, save_and_go_on)


def trainer_in(framework: str) -> Any:
    """Return the class of a framework's trainer."""
    return importlib.import_module(f"tests.frameworks.{framework}_trainer").Trainer


def main(framework: str, address: str, directory: Path) -> None:
    def wait(number: int) -> None:
        print(f"before {number}", flush=True)  # noqa: T201
        sys.stdin.readline()

    with patient(address) as store:
        trainer = trainer_in(framework)(store)
        trainer.resume(directory, wait, wait_s=WAIT_S)
        print(f"done {trainer.state()}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
