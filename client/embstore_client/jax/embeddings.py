"""Tables of a store (`frameworks.backed`) for programs in JAX: batches with rows, and updates.

Rows are no parameters. A compiled function either gets the rows of a batch as a pytree and returns
their gradients, or looks up the rows itself (`callbacks`).

A program must not use an `Embeddings` in several threads at a time. JAX runs callbacks in threads
of its own.
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
    """The session's resume position: the number of its finished steps."""
    parts: dict[str, Any]
    """The loaded pytrees by name."""


class Embeddings(StoreBacked):
    """Tables of a store, looked up by features."""

    _file = trees.FILE

    def __init__(self, store: Store, tables: Sequence[Bag | Ids]) -> None:
        """Create the tables that do not exist; see `Store.create_table`.

        Parameters
        ----------
        tables : `Bag` or `Ids` objects. A feature of a `Bag` has activations (bags, dim); a feature
            of `Ids` has a row for each id, (*, dim). Several objects can name one table
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
        """Return the rows of a batch outside a session; the batch's update is a separate update of
        the store.

        Parameters
        ----------
        features : the ids of each feature, int32 or int64. For a `Bag`: (bags, length); (bags,),
            one id per bag; or a tuple (ids (n,), offsets (bags,), weights (n,) or None), where bag
            b begins at offsets[b]. For `Ids`: any shape. An id of -1 is padding, and so is the
            table's padding_idx. Other features are ignored
        admit : whether missing rows are admitted to the cache; use False to evaluate

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
        """Yield a step for each batch; the store reads the batch's rows into its cache ahead of the
        loop.

        The loop's body updates, releases or skips the step. If the body does not finish a step, the
        step is released, with a warning if its rows were used. If there are several ranks, a rank
        with fewer batches waits at the end of its loop; the other ranks continue without it.

        Parameters
        ----------
        batches : any iterable; a separate thread iterates over it
        features : function that returns the ids of a batch, in the form that `lookup` accepts; it
            is called in the thread that iterates over the batches
        name : name of the session, by which the loop resumes after `load`, and by which ranks find
            each other
        lookahead : number of steps that are announced ahead
        rank, world_size : the number of this process, and the number of processes that share each
            step: `jax.process_index()` and `jax.process_count()`
        session : further arguments of `Store.session`

        Raises
        ------
        InvalidArgumentError : there are gradients that `step` has not sent, at the beginning or
            when the loop takes its next batch; or the call is within another loop.
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

        Backward passes keep the gradients until `step`. A lookup that is differentiated admits rows
        to the cache; any other lookup only reads. In a loop of `ahead`, ids belong to the loop's
        current step. Callbacks work on one device, and not within `jax.vmap` or `jax.checkpoint`,
        which do not support ordered effects.

        Parameters
        ----------
        features : as in `lookup`, but as JAX arrays; weights get no gradient
        anchor : a float scalar that is differentiated, like the loss's parameters. JAX's backward
            pass reaches callbacks only through the anchor. Its gradient is 0

        Returns
        -------
        {feature: (bags, dim)}, or (*, dim) for ids that are not pooled, float32, in the tables'
        order.

        Raises
        ------
        InvalidArgumentError : a feature is missing, or has a wrong shape or dtype; raised when the
            function is compiled. An error in a callback is raised as a JaxRuntimeError that
            contains the error's name.
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
        """Send the gradients that backward passes through `callback` have left, as one update.

        This method waits for the callbacks of functions that were called. A table without gradients
        is not updated, and its t stays. In a loop of `ahead` this method finishes the step.

        Parameters
        ----------
        learning_rate, gradient_scale, on_nonfinite : as in `Step.update`

        Returns
        -------
        The store's answer. None: there were no gradients, and no step had to be finished.

        Raises
        ------
        InvalidArgumentError : a gradient is not finite. Gradients are kept, so that `step` or
            `zero_grad` can be called again.
        """
        scale = 1.0 / self._steps.ranks.world_size if gradient_scale is None else gradient_scale
        return self._steps.send(
            self.store,
            learning_rate=self._checked_rate(learning_rate),
            gradient_scale=scale,
            on_nonfinite=on_nonfinite,
        )

    def grad_norm(self) -> float:
        """Return the L2 norm of the gradients that backward passes through `callback` have left,
        over the rows of all tables. A row's gradient is the sum over its occurrences. If ranks
        share steps, each rank returns the norm of its own gradients."""
        return super().grad_norm()

    def zero_grad(self) -> None:
        """Discard the gradients that backward passes through `callback` have left."""
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
        """Go back to a checkpoint of `save`: the store, the session's place (its resume position),
        and the pytrees.

        Call this method outside a loop. A loop with the session's name continues after the first
        `place` steps, and has to be given the batches that follow these steps:
        `itertools.islice(batches, place, None)`.

        Parameters
        ----------
        rank : rank 0 restores the store; other ranks only read the file, and wait for rank 0 before
            their loop
        wait_s, force : what to do if a session is open, such as that of a killed trainer: see
            `Store.restore`
        parts : pytrees of the same structure as the saved pytrees; their values do not matter

        Raises
        ------
        CheckpointNotFoundError, InvalidArgumentError : there is no such checkpoint, or its parts
            are not those of `parts`. Nothing has changed.
        TableHeldError : a session is open. Nothing has changed.
        OSError : the file cannot be read.
        """
        restore = partial(self.store.restore, label, wait_s=wait_s, force=force)
        found = self._rolled_back(label, directory, parts, nothing if rank else restore)
        return Loaded(self.last_step, found)
