"""Tables of a store (`frameworks.backed`) for programs in JAX: batches with rows, and updates.

Rows are no parameters. A compiled function gets the rows of a batch as a pytree, and returns their
gradients; or it looks them up itself (`callbacks`).

Not to be shared between threads; callbacks run in JAX's own.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax  # type: ignore[import-not-found, unused-ignore]

from embstore.commands import LearningRate, OnNonfinite
from embstore.handles.store import Store
from embstore.results import AcknowledgedUpdate
from embstore_client.frameworks.backed import StoreBacked
from embstore_client.frameworks.occurrences import given_of, keys_by_table
from embstore_client.frameworks.steps import Announced, Ranks, Steps, nothing
from embstore_client.frameworks.tables import Bag, Ids, checked
from embstore_client.jax import callbacks, trees
from embstore_client.jax.padding import Sizes
from embstore_client.jax.steps import PlainStep, Step

_LOOKS = "lookup(features, admit=False) of the embeddings does"


class Loaded(NamedTuple):
    """The result of `Embeddings.load`."""

    last_step: int
    """The place: so many steps of the session are done."""
    parts: dict[str, Any]
    """The pytrees by name."""


class Embeddings(StoreBacked):
    """Tables of a store, looked up by features."""

    _file = trees.FILE

    def __init__(self, store: Store, tables: Sequence[Bag | Ids]) -> None:
        """Make the tables that are not there; see `Store.create_table`.

        Parameters
        ----------
        tables : `Bag`: a feature's activations are (bags, dim); `Ids`: a row for each id, (*, dim).
            Several of them may name one table
        """
        self._use(
            store,
            checked(tables, Bag, Ids),
            Steps("zero_grad", _LOOKS, synchronize=jax.effects_barrier, accumulates=False),
        )
        self._host = callbacks.Host(self.tables, self.lookups, self._looked_up, self._steps)
        self._sizes = Sizes()

    def __repr__(self) -> str:
        tables = "".join(f"\n  {table!r}" for table in self._tables_now())
        return f"{type(self).__name__}({tables}\n)"

    # Outside of compiled functions

    def lookup(self, features: Mapping[str, Any], *, admit: bool = True) -> Step:
        """Return the rows of a batch, without a session; each update is one of its own.

        Parameters
        ----------
        features : the ids of each feature, int32 or int64: (bags, length); (bags,), one id a bag;
            or a tuple (ids (n,), offsets (bags,), weights (n,) or None), bag b beginning at
            offsets[b]. Of `Ids` any shape. An id of -1 is padding, and so is the table's
            padding_idx. Others may be in it too
        admit : whether missing rows are brought into the cache; False to evaluate

        Raises
        ------
        InvalidArgumentError : a feature is missing, or has another shape or dtype.
        """
        given = given_of(self.lookups, features)
        source = PlainStep(self.store, keys_by_table(given), admit=admit)
        return Step(source, self.tables, given, self._sizes, frozen=self._steps.gradients.frozen)

    def ahead(
        self,
        batches: Iterable[Any],
        *,
        features: Callable[[Any], Mapping[str, Any]],
        name: str | None = None,
        lookahead: int = 16,
        rank: int = 0,
        world_size: int = 1,
        **session: Any,
    ) -> Iterator[Step]:
        """Yield a step for each batch, whose rows are brought into the cache ahead of the loop.

        The body updates the step, releases or skips it; a step that it does not finish is released,
        with a warning if its rows were used. Of several ranks, one whose batches are fewer waits at
        the end for the others, which go on alone.

        Parameters
        ----------
        batches : any iterable, which a thread of its own iterates over
        features : returns the ids of a batch, as `lookup` takes them; called in that thread
        name : by which the session goes on after `load`, and its ranks find each other
        lookahead : steps that are announced ahead
        rank, world_size : this process among those that share each step: `jax.process_index()` and
            `jax.process_count()`
        session : further arguments of `Store.session`

        Raises
        ------
        InvalidArgumentError : there are gradients that `step` has not sent, at the beginning or
            when the loop takes its next batch; within another loop.
        The errors of `Store.session` and its `Run`.
        """
        how: dict[str, Any] = {"lookahead": lookahead, "name": name}
        ranks = Ranks(rank, world_size)
        with self._loop(batches, features, ranks=ranks, **how, **session) as loop:
            for source, of in loop:
                yield Step(
                    source,
                    self.tables,
                    of.given,
                    self._sizes,
                    batch=of.batch,
                    number=source.number,
                    world_size=world_size,
                    frozen=self._steps.gradients.frozen,
                )
        self._steps.wait_for_ranks()

    def _announced(self, batch: Any, features: Any) -> Announced:
        given = given_of(self.lookups, features)
        return Announced(batch, keys_by_table(given), given)

    # Within compiled functions

    def callback(self, features: Mapping[str, Any], anchor: Any) -> dict[str, Any]:
        """Return the activations of each feature, looked up while a compiled function runs.

        The gradients are kept on the way back, until `step`. Differentiated, a lookup admits rows
        to the cache; else it only reads. In a loop of `ahead`, ids belong to its step. On one
        device; not within `jax.vmap` or `jax.checkpoint`, which have no ordered effects.

        Parameters
        ----------
        features : as `lookup` takes them, of JAX's arrays; there is no gradient of weights
        anchor : a float scalar that is differentiated, as the loss's parameters are: JAX goes back
            to callbacks through it alone. Its gradient is 0

        Returns
        -------
        {feature: (bags, dim)}, or (*, dim) of ids that are not pooled, float32, in the tables'
        order.

        Raises
        ------
        InvalidArgumentError : when the function is compiled: a feature is missing, or has another
            shape or dtype. An error in a callback is a JaxRuntimeError of JAX that names it.
        """
        names = dict.fromkeys(lookup.feature for lookup in self.lookups)
        own = {name: features[name] for name in names if name in features}
        found = callbacks.activations(self._host, anchor, own)
        return {lookup.name: found[lookup.name] for lookup in self.lookups}

    def step(
        self,
        *,
        learning_rate: LearningRate | None = None,
        gradient_scale: float | None = None,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate | None:
        """Send the gradients that passes through `callback` have left, as one update.

        Waits for the callbacks of functions that were called. A table without any is not updated,
        and its t stays. In a loop of `ahead` the step is finished by it.

        Parameters
        ----------
        learning_rate, gradient_scale, on_nonfinite : as in `Step.update`

        Returns
        -------
        The store's answer; None: there were no gradients, and no step had to be finished.

        Raises
        ------
        InvalidArgumentError : a gradient is not finite. Gradients are kept, for another try or
            `zero_grad`.
        """
        scale = 1.0 / self._steps.ranks.world_size if gradient_scale is None else gradient_scale
        return self._steps.send(
            self.store,
            learning_rate=self._checked_rate(learning_rate),
            gradient_scale=scale,
            on_nonfinite=on_nonfinite,
        )

    def grad_norm(self) -> float:
        """Return the L2 norm of the gradients that passes through `callback` have left, over the
        rows of all tables: a row's gradient is the sum over its occurrences. If ranks share steps
        each has its own."""
        return super().grad_norm()

    def zero_grad(self) -> None:
        """Forget the gradients that passes through `callback` have left."""
        self._steps.clear()

    # Saving

    def load(
        self,
        label: str,
        *,
        directory: str | os.PathLike[str] = ".",
        rank: int = 0,
        wait_s: float = 0.0,
        force: bool = False,
        **parts: Any,
    ) -> Loaded:
        """Go back to a checkpoint of `save`: the store, the session's place, and the pytrees.

        Outside a loop. A loop of the session's name continues after the place, and its batches must
        do the same: `itertools.islice(batches, place, None)`.

        Parameters
        ----------
        rank : 0 restores the store; others read the file alone, and wait for rank 0 before their
            loop
        wait_s, force : for open sessions, as a killed trainer's: see `Store.restore`
        parts : pytrees as those that were saved, whose values do not matter

        Raises
        ------
        CheckpointNotFoundError, InvalidArgumentError : no such checkpoint, or of other parts.
            Nothing has changed.
        TableHeldError : a session is open, still or again. Nothing has changed.
        OSError : the file cannot be read.
        """
        restore = partial(self.store.restore, label, wait_s=wait_s, force=force)
        found = self._rolled_back(label, directory, parts, nothing if rank else restore)
        return Loaded(self.last_step, found)
