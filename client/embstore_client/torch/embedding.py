"""The base class of modules: tables of a store (`frameworks.backed`), forwards, a step.

Not to be shared between threads; backward passes may run in Torch's own.
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
    """Tables of a store as a module without parameters. Its classes are in `modules`.

    A copy, also in another process, has address, names and configuration: no rows, no gradients,
    no step.
    """

    _kinds: tuple[type[Ids], ...]
    _file = saving.FILE

    def __init__(self, store: Store, tables: Sequence[Ids], *, dtype: Any = None) -> None:
        """Make the tables that are not there; see `Store.create_table`.

        Parameters
        ----------
        tables : each a `Bag` or an `Ids`, as the class says; several may name one table
        dtype : of activations; None: float32, or the dtype of per-sample weights
        """
        super().__init__()
        self.dtype = dtype
        self._use(store, checked(tables, *self._kinds), Steps("zero_grad", _LOOKS, join=join))

    def extra_repr(self) -> str:
        """Return the tables, for `repr`, with the learning rates that the store has now."""
        return "\n".join(map(repr, self._tables_now()))

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze the tables (False), or train them again; return the module.

        The outputs of frozen tables require no gradient, so that `step` does not update them, and t
        stays. Some tables alone are frozen by `freeze`, or made with `trainable=False`. The module
        has no parameters, so that freezing a model does not reach it: freeze it itself.
        """
        super().requires_grad_(requires_grad)
        (self.unfreeze if requires_grad else self.freeze)()
        return self

    def _apply(self, fn: Callable[[Any], Any], *arguments: Any, **options: Any) -> Self:
        """Give activations the dtype to which a model around the module is converted, as by its
        `double()`; return the module. Rows stay float32."""
        before = self.dtype or torch.float32
        now = fn(torch.empty(0, dtype=before)).dtype
        self.dtype = self.dtype if now == before else now
        applied: Self = super()._apply(fn, *arguments, **options)
        return applied

    # Forward

    def _activations(self, *arguments: Any) -> dict[str, Any]:
        """Return the activations of every lookup, in their order, for the arguments of
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
        """Send the gradients that backward passes have left, as one update of all their tables.

        A table without any is not updated, and its t stays. In a loop of `ahead` the step is
        finished by it. If there are several ranks every one calls it.

        Parameters
        ----------
        scaler : a `torch.amp.GradScaler`, between its `step` and its `update`: the store's part is
            skipped where the dense part was; where the store's own gradients overflow, only the
            store's is, and the scaler lowers its scale
        learning_rate : for this update only, of all tables or by table, {name: rate}; None: the
            tables'
        on_nonfinite : for gradients that are not finite: "refuse" raises, "skip" skips the update;
            None: "skip" with a scaler, else "refuse"
        gradient_scale : multiplies sums of gradients
        max_norm : the bound of the norm of the sent gradients: the module's gradients alone are
            clipped by their `grad_norm`, behind `gradient_scale`. `clip_grad_norm_` clips them with
            others
        group : of torch.distributed; None: the group of the loop, else this trainer is alone.
            Gradients are divided by its number of ranks, as DistributedDataParallel does in the
            dense part. In a loop of `ahead` the ranks' gradients are one update, the mean. Outside,
            each rank's is an update of its own, in any order: for `Sgd` the sum is the same.

        Returns
        -------
        The store's answer; None: there were no gradients, or the dense part was skipped, and no
        step had to be finished.

        Raises
        ------
        InvalidArgumentError : a gradient is not finite, and is not to be skipped; the scaler has
            looked at no optimizer. Gradients are kept, for another try or `zero_grad`.
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
        tables: a row's gradient is the sum over its occurrences. 0 without any.

        Parameters
        ----------
        scaler : a `torch.amp.GradScaler`, by whose scale they are divided
        group : of torch.distributed, whose ranks all call it: the norm of the mean of their
            gradients. None: the group of the loop, else this trainer is alone
        """
        return float(self._norm_tensor(group)) / scale_of(scaler)

    def _norm_tensor(self, group: Any) -> Any:
        return norm_of_rows(self._steps, self._ranks(group))

    def _norm(self, ranks: Ranks) -> float:
        return float(norm_of_rows(self._steps, ranks))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that backward passes have left. `step` does so, too."""
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
        """Yield the batches of a loader, whose rows are brought into the cache ahead of the loop.

        The body computes forwards of announced features, and calls `step` once; a step that it does
        not finish is released, with a warning if its rows were used.

        Parameters
        ----------
        loader : any iterable, which a thread of its own iterates over
        features : returns the arguments of `forward` for a batch: one argument, a tuple of several,
            or a list of such, for several forwards; called in that thread
        name : by which the session goes on after `load`, and its ranks find each other
        lookahead : steps that are announced ahead
        accumulate : so many batches of the loader are one step: `step` is called behind the last of
            them, and behind the last one of the loader
        group : of torch.distributed, whose ranks share each step; None: this trainer is alone. One
            whose batches are fewer does not wait at the end of its loop, and the others go on alone
        session : further arguments of `Store.session`

        Raises
        ------
        InvalidArgumentError : there are gradients that `step` has not sent, at the beginning or
            when the loop takes its next batch; within another loop.
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

        A uint8 tensor, (n,), which is accepted wherever the tensors of a state are.
        """
        return torch.frombuffer(bytearray(self._marker()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Warn where a state was saved with other rows than the store has, as t says."""
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
        """Keep store and parts as `StoreBacked.save` does. Every rank of a group calls it, and rank
        0 does it; dense parts are the same on all.

        Parameters
        ----------
        directory, replace, protect : as there
        group : of torch.distributed; None: the group of the loop, else this trainer is alone
        parts : objects with `state_dict()`, by name: dense=..., optimizer=..., scaler=...; and
            dicts of Python's own values

        Raises
        ------
        InvalidArgumentError : there are gradients that `step` has not sent; a part has no state.
        The errors of `Store.checkpoint`. The label can be used then.
        RankFailedError : on the other ranks, where rank 0 has failed.
        """
        self._steps.synchronize()  # of every rank
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
        """Go back to a checkpoint of `save` as `StoreBackedModule.load` does, and return the place.
        Every rank of a group calls it; rank 0 restores the store, the others wait.

        Parameters
        ----------
        group : of torch.distributed; None: this trainer is alone
        directory, wait_s, force, parts : as there

        Raises
        ------
        Its errors.
        RankFailedError : on the other ranks, where rank 0 has failed.
        """
        restore = partial(self.store.restore, label, wait_s=wait_s, force=force)
        self._rolled_back(label, directory, parts, partial(by_first, ranks_of(group), restore))
        return self.last_step
