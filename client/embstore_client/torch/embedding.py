"""What all modules are: tables of a store, forwards over some features, and a step.

Outside a loop of `ahead`, a forward looks rows up in the store, and `step` is an update of its own.
Within it, both are those of the step at hand (`frameworks.rows`): its tables have no other writer,
and its place is part of every checkpoint.

Not to be shared between threads; backward passes may run in Torch's own.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, Self

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.arrays import Keys
from embstore.commands import OnNonfinite
from embstore.handles.store import Store
from embstore.results import AcknowledgedUpdate
from embstore_client.frameworks.connection import Connection
from embstore_client.frameworks.steps import Announced, Steps
from embstore_client.frameworks.tables import Ids, with_rates
from embstore_client.torch import saving
from embstore_client.torch.forwards import Given, activations_of, keys_by_table
from embstore_client.torch.ranks import by_first, rank_and_size
from embstore_client.torch.scaling import Verdict


class StoreModule(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Tables of a store as a module without parameters. Its classes are in `modules`."""

    def __init__(self, store: Store, tables: Mapping[str, Ids], dtype: Any) -> None:
        """Make the tables that are not there; see `Store.create_table`."""
        super().__init__()
        self.tables = dict(tables)
        """The tables by name."""
        self.dtype = dtype
        """Of activations; None: float32, or that of per-sample weights."""
        self._connection = Connection(store)
        self._steps = Steps("zero_grad")
        self._group: Any = None  # Of that loop.
        self._is_frozen = False
        for table in self.tables.values():
            table.create(store)

    def __getstate__(self) -> dict[str, Any]:
        """Address, names and configuration: no rows, no gradients, no step."""
        return self.__dict__ | {"_group": None}

    def extra_repr(self) -> str:
        """Return the tables, for `repr`, with the learning rates that the store has now."""
        lines = list(map(repr, with_rates(self.tables, self._connection.connected)))
        return "\n".join([*lines, *(["requires_grad=False"] if self._is_frozen else [])])

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze the tables (False), or train them again; return the module.

        Forwards of frozen tables require no gradient, so that `step` updates nothing, and t stays.
        The module has no parameters, so that freezing a model does not reach it: freeze it itself.
        """
        super().requires_grad_(requires_grad)
        self._is_frozen = not requires_grad
        return self

    @property
    def store(self) -> Store:
        """The store. A module that was sent to another process connects now.

        Raises
        ------
        InvalidArgumentError : its store was embedded in the process that it comes from.
        """
        return self._connection.store

    def attach(self, store: Store) -> None:
        """Use another store from now on, which has the tables."""
        self._connection = Connection(store)

    @property
    def last_step(self) -> int:
        """The last finished step of the loop's session: the place that `save` keeps."""
        return self._steps.last_step

    # Forward

    def _given(self, *arguments: Any) -> Given:
        """Return the ids of every feature from the arguments of `forward`."""
        raise NotImplementedError

    def _activations(self, given: Given) -> dict[str, Any]:
        """Return the activations of every feature, in the order of the tables."""
        keys = keys_by_table(self.tables, [given])
        found = self._steps.rows(self.store, keys, admit=self.training)
        is_trained = self.training and not self._is_frozen
        gradients = self._steps.gradients if is_trained else None
        return activations_of(self.tables, given, found, gradients=gradients, dtype=self.dtype)

    # Step

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def step(
        self,
        scaler: Any = None,
        *,
        learning_rate: float | None = None,
        on_nonfinite: OnNonfinite | None = None,
        group: Any = None,
    ) -> AcknowledgedUpdate | None:
        """Send the gradients that backward passes have left, as one update of all their tables.

        A table without any is not updated, and its t stays. In a loop of `ahead` the step is
        finished by it. Of several ranks every one calls it.

        Parameters
        ----------
        scaler : a `torch.amp.GradScaler`, between its `step` and its `update`: the store's part is
            skipped where the dense part was; where the store's own gradients overflow, only the
            store's is, and the scaler lowers its scale
        learning_rate : for this update only; None: the tables'
        on_nonfinite : of gradients that are not finite: "refuse" raises, "skip" skips the update;
            None: "skip" with a scaler, else "refuse"
        group : of torch.distributed; None: that of the loop, else this trainer is alone. Gradients
            are divided by its number of ranks, as DistributedDataParallel divides those of the
            dense part. In a loop of `ahead` the ranks' gradients are one update, the mean. Outside,
            each rank's is an update of its own, in any order: for `Sgd` the sum is the same.

        Returns
        -------
        What the store says; None: there were no gradients, or the dense part was skipped, and no
        step had to be finished.

        Raises
        ------
        InvalidArgumentError : a gradient is not finite, and is not to be skipped; the scaler has
            looked at no optimizer. Gradients are kept, for another try or `zero_grad`.
        """
        verdict = Verdict(scaler)
        _, world_size = rank_and_size(self._group if group is None else group)
        done = self._steps.send(
            self.store,
            is_skipped=verdict.is_overflow,
            learning_rate=learning_rate,
            gradient_scale=verdict.scale / world_size,
            on_nonfinite=on_nonfinite or verdict.on_nonfinite,
        )
        if done is not None and done.skipped and not verdict.is_overflow:
            verdict.note_skipped()
        return done

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that backward passes have left. `step` has done so too."""
        self._steps.clear()

    # Look-ahead

    def ahead(
        self,
        loader: Iterable[Any],
        *,
        features: Callable[[Any], Any],
        name: str | None = None,
        lookahead: int = 16,
        group: Any = None,
        **session: Any,
    ) -> Iterator[Any]:
        """Yield the batches of a loader, whose rows are brought into the cache ahead of the loop.

        The body computes forwards of what was announced, and calls `step` once; a step that it does
        not finish is released, with a warning if its rows were used. To accumulate over
        micro-batches, let a batch be a list of them, and `features` return a list.

        Parameters
        ----------
        loader : any iterable, which a thread of its own iterates over
        features : returns what `forward` takes, of a batch: one argument, a tuple of several, or a
            list of such, of several forwards; called in that thread
        name : by which the session goes on after `load`, and its ranks find each other
        lookahead : steps that are announced ahead
        group : of torch.distributed, whose ranks share each step; None: this trainer is alone.
            Their loaders have equally many batches
        session : further arguments of `Store.session`

        Raises
        ------
        InvalidArgumentError : there are gradients that `step` has not sent, at the beginning or
            when the loop takes its next batch; within another loop.
        What `Store.session` and its `Run` raise.
        """
        rank, world_size = rank_and_size(group)
        batches = (Announced(batch, self._announced(features(batch))) for batch in loader)
        how: dict[str, Any] = {
            "lookahead": lookahead,
            "name": name,
            "rank": rank,
            "world_size": world_size,
        }
        loop = self._steps.ahead(self.store, self.tables, batches, **how, **session)
        try:
            with closing(loop):
                for _, announced in loop:
                    self._group = group
                    yield announced.batch
        finally:
            self._group = None

    def _announced(self, features: Any) -> dict[str, Keys]:
        forwards = features if isinstance(features, list) else [features]
        arguments = [given if isinstance(given, tuple) else (given,) for given in forwards]
        return keys_by_table(self.tables, [self._given(*given) for given in arguments])

    # Saving

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        saving.warn_of_rows(self.tables)
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def save(
        self,
        label: str,
        *,
        directory: str | os.PathLike[str] = ".",
        group: Any = None,
        **parts: Any,
    ) -> None:
        """Make a checkpoint of the store, and a file of the other parts, under one label.

        Behind `step`, in a loop or outside. The place of the loop's session is part of it. Every
        rank of a group calls it, and rank 0 does it; dense parts are the same on all.

        Parameters
        ----------
        directory : of the file, which the checkpoint names
        group : of torch.distributed; None: that of the loop, else this trainer is alone
        parts : what has `state_dict()`, by name: dense=..., optimizer=..., scaler=...

        Raises
        ------
        InvalidArgumentError : there are gradients that `step` has not sent; a part has no state.
        What `Store.checkpoint` raises. The label can be used then.
        RankFailedError : on the other ranks, where rank 0 has failed.
        """
        self._steps.synchronize()
        save = partial(saving.save, self.store, label, parts, last_step=self.last_step)
        by_first(self._group if group is None else group, partial(save, directory=directory))

    def load(
        self,
        label: str,
        *,
        directory: str | os.PathLike[str] = ".",
        group: Any = None,
        wait_s: float = 0.0,
        force: bool = False,
        **parts: Any,
    ) -> int:
        """Go back to what `save` has kept: the store, the session's place, and the other parts.

        Outside a loop. Every rank of a group calls it; rank 0 restores the store, the others wait.

        Parameters
        ----------
        wait_s, force : as in `Store.restore`: the session of a trainer that was killed is waited
            for, until its lease has run out, or ended

        Returns
        -------
        The place: so many steps of the session are done, and a loop of the same name goes on behind
        them. Its batches must too: `itertools.islice(batches, place, None)`.

        Raises
        ------
        CheckpointNotFoundError, InvalidArgumentError : no such checkpoint, or of other parts.
            Nothing has changed.
        TableHeldError : a session is open, still or again. Nothing has changed.
        OSError : the file cannot be read.
        RankFailedError : on the other ranks, where rank 0 has failed.
        """
        found = saving.read(self.store, label, parts, directory=directory)
        by_first(group, partial(self.store.restore, label, wait_s=wait_s, force=force))
        self._steps.go_back(found.load(parts))
        return self.last_step
