"""The base class of the modules: it holds tables of a store (`frameworks.backed`), computes
forwards, and sends gradients by `step`.

A program must not use a module in several threads at a time. Torch may run backward passes in
threads of its own.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Self

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.commands import LearningRate, OnNonfinite
from embstore.handles.store import Store
from embstore.results import AcknowledgedUpdate
from embstore_client.frameworks.backed import StoreBackedModule
from embstore_client.frameworks.steps import Announced, Ranks, Steps
from embstore_client.frameworks.tables import Ids, checked
from embstore_client.torch import saving
from embstore_client.torch.announced import Read
from embstore_client.torch.clipping import norm_of_rows
from embstore_client.torch.forwards import activations_of, look_up
from embstore_client.torch.gpu import device_of, join, keys_on_host
from embstore_client.torch.ranks import by_first, ranks_of
from embstore_client.torch.scaling import scale_of, verdict_of

_LOOKS = "call eval() of the module first, which torch.no_grad() alone does not"


class StoreModule(StoreBackedModule, torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Tables of a store as a module without parameters. `modules` has the concrete classes.

    A copy of a module, also in another process, has the store's address, and the names and the
    configuration of the tables, but no rows, no gradients and no step.
    """

    _kinds: tuple[type[Ids], ...]
    _file = saving.FILE

    def __init__(self, store: Store, tables: Sequence[Ids], *, dtype: Any = None) -> None:
        """Create the tables that do not exist; see `Store.create_table`.

        Parameters
        ----------
        tables : `Bag` or `Ids` objects, as the class requires; several objects can name one table
        dtype : dtype of activations. None: float32, or the dtype of per-sample weights
        """
        super().__init__()
        self.dtype = dtype
        self._use(store, checked(tables, *self._kinds), Steps("zero_grad", _LOOKS, join=join))

    def extra_repr(self) -> str:
        """Return the tables, for `repr`, with the learning rates that the store has now."""
        return "\n".join(map(repr, self._tables_now()))

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze the tables (False), or train them again; return the module.

        The outputs of frozen tables require no gradient, so `step` does not update these tables,
        and their t stays. To freeze only some tables, call `freeze`, or create them with
        `trainable=False`. A loop that freezes the parameters of a model has no effect here, because
        this module has no parameters: call this method.
        """
        super().requires_grad_(requires_grad)
        (self.unfreeze if requires_grad else self.freeze)()
        return self

    def _apply(self, fn: Callable[[Any], Any], *arguments: Any, **options: Any) -> Self:
        """Give activations the dtype to which a surrounding model is being converted, for instance
        by `double()`; return the module. Rows stay float32."""
        before = self.dtype or torch.float32
        now = fn(torch.empty(0, dtype=before)).dtype
        self.dtype = self.dtype if now == before else now
        applied: Self = super()._apply(fn, *arguments, **options)
        return applied

    # Forward

    def _activations(self, *arguments: Any) -> dict[str, Any]:
        """Return the activations of every lookup, in the order of the lookups, for the arguments of
        `forward`."""
        step = self._steps.at_hand if self.training else None
        with nullcontext() if step is None else step.given:
            given: Any = self._given(*arguments)
        found = look_up(self.store, step, self.tables, given, admit=self.training)
        gradients = self._steps.gradients if self.training else None
        return activations_of(given, found, gradients=gradients, dtype=self.dtype)

    # Step

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def step(
        self,
        scaler: Any = None,
        *,
        learning_rate: LearningRate | None = None,
        on_nonfinite: OnNonfinite | None = None,
        gradient_scale: float = 1.0,
        max_norm: float | None = None,
        group: Any = None,
    ) -> AcknowledgedUpdate | None:
        """Send the gradients that backward passes have left, as one update of all tables that have
        gradients.

        A table without gradients is not updated, and its t stays. In a loop of `ahead` this method
        finishes the step. If there are several ranks, every rank calls it.

        Parameters
        ----------
        scaler : a `torch.amp.GradScaler`; call this method between the scaler's `step` and its
            `update`. The store's part is skipped if the dense part was skipped. If only the store's
            gradients overflow, only the store's part is skipped, and the scaler lowers its scale
        learning_rate : the rate for this update only, of all tables or by table, {name: rate}.
            None: the learning rates of the tables
        on_nonfinite : if gradients are not finite, "refuse" raises an error, and "skip" skips the
            update. None: "skip" with a scaler, otherwise "refuse"
        gradient_scale : the factor by which sums of gradients are multiplied
        max_norm : the bound of the norm of the sent gradients. Only this module's gradients are
            clipped, by their `grad_norm` times `gradient_scale`. `clip_grad_norm_` clips them
            together with other gradients
        group : group of torch.distributed. None: the group of the loop; outside a loop this trainer
            is alone. Gradients are divided by the number of ranks, as DistributedDataParallel does
            in the dense part. In a loop of `ahead` the mean of the ranks' gradients is one update.
            Outside such a loop, each rank sends a separate update, in any order; for `Sgd` the
            effect is the same.

        Returns
        -------
        The store's answer. None: there were no gradients, or the dense part was skipped, and no
        step had to be finished.

        Raises
        ------
        InvalidArgumentError : a gradient is not finite, and such updates are not skipped; or the
            scaler has looked at no optimizer. Gradients are kept, so that `step` or `zero_grad` can
            be called again.
        """
        return self._sent(
            verdict_of(scaler),
            self._ranks(group),
            learning_rate=learning_rate,
            on_nonfinite=on_nonfinite,
            gradient_scale=gradient_scale,
            max_norm=max_norm,
        )

    def grad_norm(self, scaler: Any = None, *, group: Any = None) -> float:
        """Return the L2 norm of the gradients that backward passes have left, over the rows of all
        tables. A row's gradient is the sum over its occurrences. Return 0 if there are no
        gradients.

        Parameters
        ----------
        scaler : a `torch.amp.GradScaler`; the gradients are divided by its scale
        group : group of torch.distributed; all its ranks call this method, which returns the norm
            of the mean of their gradients. None: the group of the loop; outside a loop this trainer
            is alone
        """
        return float(self._norm_tensor(group)) / scale_of(scaler)

    def _norm_tensor(self, group: Any) -> Any:
        return norm_of_rows(self._steps, self._ranks(group))

    def _norm(self, ranks: Ranks) -> float:
        return float(norm_of_rows(self._steps, ranks))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the gradients that backward passes have left. `step` also discards them."""
        self._steps.clear()

    # Look-ahead

    def ahead(
        self,
        loader: Iterable[Any],
        *,
        features: Callable[[Any], Any],
        name: str | None = None,
        lookahead: int = 16,
        accumulate: int = 1,
        group: Any = None,
        **session: Any,
    ) -> Iterator[Any]:
        """Yield the batches of a loader; the store reads their rows into its cache ahead of the
        loop.

        The loop's body computes forwards of announced features, and calls `step` once. If the body
        does not finish a step, the step is released, with a warning if its rows were used.

        Parameters
        ----------
        loader : any iterable; a separate thread iterates over it
        features : function that returns the arguments of `forward` for a batch: one argument, a
            tuple of several, or a list of these for several forwards. It is called in the loader's
            thread
        name : name of the session, by which the loop resumes after `load`, and by which ranks find
            each other
        lookahead : number of steps that are announced ahead
        accumulate : number of batches per step. `step` is called after the last of these batches,
            and after the last batch of the loader
        group : group of torch.distributed; its ranks share each step. None: this trainer is alone.
            A rank with fewer batches does not wait at the end of its loop, and the other ranks
            continue without it
        session : further arguments of `Store.session`

        Raises
        ------
        InvalidArgumentError : there are gradients that `step` has not sent, at the beginning or
            when the loop takes its next batch; or the call is within another loop.
        The errors of `Store.session` and its `Run`.
        """
        how: dict[str, Any] = {"lookahead": lookahead, "name": name, "ranks": ranks_of(group)}
        yield from self._batches(loader, features, accumulate=accumulate, **how, **session)

    def _announced(self, batch: Any, features: Any) -> Announced:
        with Read() as read:
            given = self._given_of(features)
        device = device_of(self.store, *given)
        prepare = partial(read.prepare, given, device)
        keys = keys_on_host(*given)
        return Announced(batch, keys, read, None if device is None else prepare)

    def _ranks(self, group: Any) -> Ranks:
        """Return the ranks of a group; None: the ranks of the loop."""
        return self._steps.ranks if group is None else ranks_of(group)

    # Saving

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        saving.warn_of_rows(self.tables)
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def get_extra_state(self) -> Any:
        """Return the marker that `state_dict()` has in place of rows: the store's id, and t of each
        table.

        The marker is a uint8 tensor, (n,), because code that handles states expects tensors.
        """
        return torch.frombuffer(bytearray(self._marker()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Warn if t shows that the store's rows have changed since a state was saved."""
        if not saving.has_rows():
            self._compare(bytes(state.to(torch.uint8).tolist()))

    def save(
        self,
        label: str,
        *,
        directory: str | os.PathLike[str] = ".",
        replace: bool = False,
        protect: bool = False,
        group: Any = None,
        **parts: Any,
    ) -> None:
        """Save the store and the parts as `StoreBacked.save` does. Every rank of a group calls this
        method, and rank 0 saves; dense parts are equal on all ranks.

        Parameters
        ----------
        directory, replace, protect : as in `StoreBacked.save`
        group : group of torch.distributed. None: the group of the loop; outside a loop this trainer
            is alone
        parts : objects with `state_dict()`, by name: dense=..., optimizer=..., scaler=...; and
            dicts of plain Python values

        Raises
        ------
        InvalidArgumentError : there are gradients that `step` has not sent; or a part has no state.
        The errors of `Store.checkpoint`; see `StoreBacked.save`.
        RankFailedError : raised on the other ranks if rank 0 has failed.
        """
        self._steps.synchronize()  # on every rank
        how: dict[str, Any] = {"directory": directory, "replace": replace, "protect": protect}
        save = partial(super().save, label, **how, **parts)
        by_first(self._ranks(group), save)

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
        """Go back to a checkpoint of `save` as `StoreBackedModule.load` does, and return the resume
        position, the number of finished steps. Every rank of a group calls this method; rank 0
        restores the store, and the other ranks wait.

        Parameters
        ----------
        group : group of torch.distributed. None: this trainer is alone
        directory, wait_s, force, parts : as in `StoreBackedModule.load`

        Raises
        ------
        The errors of `StoreBackedModule.load`.
        RankFailedError : raised on the other ranks if rank 0 has failed.
        """
        restore = partial(self.store.restore, label, wait_s=wait_s, force=force)
        self._rolled_back(label, directory, parts, partial(by_first, ranks_of(group), restore))
        return self.last_step
