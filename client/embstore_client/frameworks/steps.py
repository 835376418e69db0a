"""The steps of a module, within a loop of `ahead` or outside: gradients are kept until `step` sends
them.

Outside a loop, each lookup is sent to the store, and a step is a separate update. Within a loop,
lookups and updates belong to the current announced step: the step's tables have no other writer,
and the session's place (its last finished step) is part of every checkpoint. If the loop does not
finish a step, the run releases the step, and warns if the step's rows were used. A rank that has
finished its batches notifies the store, and the other ranks continue without it (`ending`).
"""

import os
import warnings
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack
from itertools import islice
from typing import Any, NamedTuple
from weakref import finalize

from embstore.arrays import Keys, on_host
from embstore.errors import InvalidArgumentError, TableHeldError
from embstore.handles.store import Store
from embstore.results import AcknowledgedUpdate
from embstore_client.frameworks.clipping import Share, summed
from embstore_client.frameworks.ending import Ending
from embstore_client.frameworks.gradients import KeptGradients, concatenated
from embstore_client.frameworks.open_loops import OpenLoop, opening, outside
from embstore_client.frameworks.rows import AnnouncedStep, Found, from_store


class Announced(NamedTuple):
    """A batch of a loop."""

    batch: Any
    keys: dict[str, Keys]
    """The keys that the batch's forwards look up, by table, (n,)."""
    given: Any = None
    """The adapter's other data of the batch."""
    prepare: Callable[[Mapping[str, Any]], object] | None = None
    """Called with the batch's distinct keys, {table: (keys (u,), inverse (n,) int32)}, in the
    thread that reads batches."""


def _warn_of_nothing(stats: Any, name: str | None) -> None:
    """Warn if a loop has skipped all of its batches. This happens in a second epoch if its loop has
    the name of the first."""
    if stats.skipped and not stats.steps:
        warnings.warn(
            f"the loop {name!r} trained nothing: all of its {stats.skipped} batches were skipped "
            "as finished steps, which resume=True counts over all loops of that name; for another "
            "epoch give resume=False, and the batches of that epoch that remain",
            stacklevel=2,
        )


def _warn_of_the_rest(name: str | None, place: int) -> None:
    """Warn if a loop resumes, but the other parts of the trainer have not been restored."""
    warnings.warn(
        f"the loop {name!r} resumes after step {place}, but load() was not called: rows are as of "
        "that step, while the dense part, optimizer and schedule are new; load() a label of "
        "save(), or, if you restore them yourself, give resume=False and the batches that remain",
        stacklevel=2,
    )


def _prepare(announced: Announced, once: Mapping[str, Any]) -> None:
    if announced.prepare is not None:
        announced.prepare(once)


class Ranks(NamedTuple):
    """The trainers that share each step, and the rank of this one."""

    rank: int = 0
    world_size: int = 1
    group: Any = None
    """The framework's object for the ranks, if it has one."""


ALONE = Ranks()


def in_groups(batches: Iterable[Any], count: int) -> Iterator[list[Any]]:
    """Yield lists of `count` batches; the last one may have fewer.

    Raises
    ------
    InvalidArgumentError : count is not an integer above 0.
    """
    if not isinstance(count, int) or count < 1:
        raise InvalidArgumentError(f"expected accumulate to be a number of batches, found {count}")
    left = iter(batches)
    while group := list(islice(left, count)):
        yield group


def nothing() -> None:
    """Do nothing: the default for `synchronize`. It suits a framework whose gradients are kept
    before a backward pass returns."""


class Steps:
    """The gradients and the current step of one module. Only one thread may use it at a time."""

    def __init__(
        self,
        forgets: str,
        looks: str = "evaluate",
        synchronize: Callable[[], object] = nothing,
        join: Callable[[Sequence[Any]], Any] = concatenated,
        accumulates: bool = True,
        last_step: int = 0,
        frozen: Collection[str] = (),
    ) -> None:
        """Begin without gradients, outside a loop.

        Parameters
        ----------
        forgets : name of the module's function that discards gradients, for messages
        looks : name of the caller's function that reads rows without training, for messages
        accumulates : whether the module's `ahead` has the argument `accumulate`, for messages
        synchronize : waits for gradients that are still being transferred
        join, frozen : see `KeptGradients`
        """
        self.gradients = KeptGradients(join, frozen)
        finalize(self, self.gradients.warn_unsent)  # called when the module or the process ends
        self.at_hand: AnnouncedStep | None = None  # None outside a loop.
        self._run: Any = None  # None outside a loop: an `embstore_training.run.Run`.
        self._ending: Ending | None = None  # Of the previous loop, until its ranks end.
        self._settings = forgets, looks, synchronize, join, accumulates
        self._last_step = last_step
        self._is_given_up = False  # Whether the kept gradients must not be sent.
        self._is_loaded = False  # Whether `load` was called.
        self._names: set[str | None] = set()  # The names of the loops so far.
        self._stats: Callable[[], Any] = nothing
        self.report: str | os.PathLike[str] | None = None
        """The file to which loops write their history. None: loops write no history."""
        self.ranks = ALONE
        """The ranks that share the steps of the loop. Outside a loop this trainer is alone."""

    def __reduce__(self) -> tuple[type["Steps"], tuple[Any, ...]]:
        """A copy of a module has neither gradients nor a current step."""
        return Steps, (*self._settings, self.last_step, self.gradients.frozen)

    @property
    def last_step(self) -> int:
        """The last finished step of the session of the current or last loop. After a loop of
        several ranks, other ranks may still be training."""
        step = self.at_hand
        if self._ending is not None:
            return self._ending.last_step
        return step.number if step is not None and step.is_finished else self._last_step

    def stats(self) -> Any:
        """Return the `RunStats` of the current or last loop. None: there was no loop."""
        return self._stats()

    def rows(self, store: Store, keys: Mapping[str, Keys], *, admit: bool) -> dict[str, Found]:
        """Return the rows of keys (n,) by table; with `admit=False` they are always read from the
        store, not from the step."""
        if admit and self.at_hand is not None:
            return self.at_hand.rows(keys)
        return from_store(store, keys, admit=admit)

    def send(
        self, store: Store, *, is_skipped: bool = False, **options: Any
    ) -> AcknowledgedUpdate | None:
        """Send the gradients as one update, or discard them. In both cases the current step is
        finished.

        If several ranks share a step, a rank without gradients sends an update without gradients.

        Returns
        -------
        None: there was neither an update nor a step to finish.
        """
        self._settings[2]()
        self.wait_for_ranks()
        step = self.at_hand
        done: AcknowledgedUpdate | None = None
        if is_skipped:
            done = None if step is None else step.skip()
        elif (gradients := self.gradients.by_table()) or (
            step is not None and self.ranks.world_size > 1
        ):
            done = self._update(store, gradients, **options)
        elif step is not None:
            done = step.release()
        self._is_given_up = False
        self.gradients.clear()
        return done

    def _update(
        self, store: Store, gradients: Mapping[str, Any], **options: Any
    ) -> AcknowledgedUpdate:
        """Send gradients, as the update of the current step, or as a separate update.

        Raises
        ------
        The store's errors. Their messages add advice about the kept gradients, or about a loop that
        holds a table.
        """
        step = self.at_hand
        try:
            return (store.update if step is None else step.update)(gradients, **options)
        except TableHeldError as exc:
            raise outside(exc) from exc
        except InvalidArgumentError as exc:
            raise InvalidArgumentError(
                f"{exc}; the gradients are kept: {self._settings[0]}() discards them"
            ) from exc

    def sums(self) -> Share:
        """Return, for each table, the distinct keys that have gradients, and for each key the sum
        of the gradients over the key's occurrences. All arrays are in host memory."""
        self._settings[2]()
        kept, step = self.gradients.by_table(), self.at_hand
        keys = {
            table: on_host(named) if step is None else step.keys_of(table, named)
            for table, (named, _) in kept.items()
        }
        return summed({table: (keys[table], on_host(rows)) for table, (_, rows) in kept.items()})

    def give_up(self) -> None:
        """Mark the gradients as not to be sent. When the loop continues, the gradients are
        discarded, and the loop's step is skipped."""
        self._is_given_up = True

    def clear(self) -> None:
        """Discard the gradients; after `give_up` also skip the current step, if it is
        unfinished."""
        self._settings[2]()
        step, is_given_up = self.at_hand, self._is_given_up
        self._is_given_up = False
        self.gradients.clear()
        if is_given_up and step is not None and not step.is_finished:
            step.skip()

    def roll_back(self, last_step: int) -> None:
        """Set the session's place to the place in a restored checkpoint. Called outside a loop."""
        self.clear()
        self._last_step = last_step
        self._is_loaded = True

    def check_outside(self, what: str) -> None:
        """Raise TableHeldError within a loop."""
        if self.at_hand is not None:
            raise TableHeldError(
                f"expected {what} outside a loop of ahead, found one open: finish it first, or, "
                "if it was left early, as by break, call loop.close()"
            )

    def wait_for_ranks(self) -> None:
        """Wait until no rank of the previous loop has more steps.

        Raises
        ------
        RankFailedError : a rank has failed, has never joined, or has left before its last step.
        """
        ending, self._ending = self._ending, None
        if ending is not None:
            self._last_step = ending.last_step
            self._last_step = ending.wait()

    def check_sent(self) -> None:
        """Raise InvalidArgumentError if there are gradients that were not sent."""
        forgets, _, synchronize, _, accumulates = self._settings
        synchronize()
        if self._is_given_up:
            self.clear()
        if len(self.gradients):
            accumulate = (
                "to accumulate over N batches give `ahead` accumulate=N, and call step() after "
                "each Nth batch and after the last; "
            )
            raise InvalidArgumentError(
                "expected step() to have sent the gradients of the batch before: call it after "
                f"each batch; {(accumulate if accumulates else '')}{forgets}() discards the "
                "gradients of a batch"
            )

    def synchronize(self) -> None:
        """Wait until the store has all steps that this trainer has finished, which a checkpoint
        must contain.

        Raises
        ------
        InvalidArgumentError : there are gradients that were not sent.
        RankFailedError : a rank of the previous loop has failed, see `wait_for_ranks`.
        """
        self.check_sent()
        self.wait_for_ranks()
        if self._run is not None:
            self._run.synchronize()

    def ahead(
        self,
        store: Store,
        tables: Iterable[str],
        batches: Iterable[Announced],
        *,
        ranks: Ranks = ALONE,
        **session: Any,
    ) -> Generator[tuple[AnnouncedStep, Announced], None, None]:
        """Yield the steps of a session with their batches. The rows of a step are read before the
        loop reaches it.

        Ranks may have unequal numbers of batches, except with waits="none", where every rank takes
        part in each step. `wait_for_ranks` waits for the other ranks.

        Parameters
        ----------
        session : further arguments of `Store.session`

        Raises
        ------
        InvalidArgumentError : the call is within another loop, or there are unsent gradients at the
            beginning or when the loop takes its next batch.
        """
        if self.at_hand is not None:
            raise InvalidArgumentError(
                "expected the loop before to have ended: if it was left early, as by break, call "
                "loop.close(); a loop within a loop needs another module"
            )
        self.check_sent()
        self.wait_for_ranks()
        rank, world_size, _ = ranks
        joins = world_size > 1 and session.get("waits") != "none"
        names = tuple(tables)
        opened = store.session(names, rank=rank, world_size=world_size, **session)
        name, shared = session.get("name"), bool(session.get("shared"))
        with ExitStack() as within:
            within.enter_context(opening(OpenLoop(store, frozenset(names), name, shared)))
            run = within.enter_context(opened)
            self._check_place(run, **session)
            self._run, self.ranks, self._stats = run, ranks, run.stats
            self.gradients.warns_of_many = False
            try:
                steps = run.steps(batches, lambda announced: announced.keys, prepare=_prepare)
                with run.reporting(store, self.report) as note:
                    for step in steps:
                        self._last_step = step.number - 1  # the store may lack this step
                        keys, given = step.batch.keys, step.batch.given
                        self.at_hand = AnnouncedStep(step, keys, given, self._settings[1])
                        yield self.at_hand, step.batch
                        self.check_sent()
                        note()
                _warn_of_nothing(run.stats(), name)
                if joins:
                    self._ending = Ending(run, within.pop_all())
            finally:
                self._last_step, self.ranks = run.last_step, ALONE
                self.at_hand = self._run = None
                self.gradients.warns_of_many = True
                self.clear()

    def _check_place(
        self, run: Any, *, name: str | None = None, resume: bool | None = None, **_: Any
    ) -> None:
        """Warn if the session resumes at a step, but this trainer has not restored its other
        parts."""
        run.expect_place(self._last_step)  # the place that `load` or the last loop has set
        if resume and run.last_step and not self._is_loaded and name not in self._names:
            _warn_of_the_rest(name, run.last_step)
        self._names.add(name)
