"""Hot/cold training: a loop whose all-hot batches need no store.

    chunks -> packer -> phases:   mixed   steps of a look-ahead session, at the store
                                  hot     steps on the replica, here

One look-ahead session stays open over all phases, so that the run is the only writer of its tables.
In a mixed phase the session's steps are announced ahead. In a hot phase only the thread that renews
the session's lease calls the store. Meanwhile learning rates could not be set and rows could not be
deleted between two hot steps, so the store refuses both: the session has waits="mixed". Between
phases rows are exchanged; meanwhile no step is announced:

    mixed -> hot   the hot rows that mixed batches touched are pulled (their keys are known here)
    hot -> mixed   the rows of hot steps are pushed, in one command, with the number of updates

A mixed batch may touch hot rows, too, so both exchanges are needed. At every exchange, the rows,
their state and t are the same as after plain updates in the order of the steps, bit for bit. In a
hot phase the store has exactly the state of the last exchange.

One push is one call, so it may not be larger than a call. Before a hot step that could make the
next push too large, the dirty rows are pushed. If the rows of a batch alone are more than a push
can send, the batch is trained like a mixed batch.

`stats()["stored_batches"]` is the number of the stream's batches that the store has. t does not
show this number, as skipped or released batches add nothing to t. With the same chunks, batch size,
window and rate, `steps(chunks, skip=...)` continues after that many batches.

If the loop is left in a hot phase, by break, an exception or Ctrl-C, the dirty rows are pushed. If
the store does not answer, or the session has ended, these rows are lost, and the store has the
state of the last exchange. If the loop is left during the update of a mixed step, the step is not
counted. The update may have been applied nevertheless, as with any call whose answer is lost.

Several ranks share every step, as in any session. In hot phases they exchange sums by the caller's
`all_gather` hook (`replicas.ranks`). Rank 0 alone pushes, and the other ranks wait for the push in
the hook. The last push, which rank 0 makes when it leaves the run, does not involve the other
ranks. If a rank fails, the other ranks wait in the hook. The caller must end this wait, as it must
end the wait for the gradients of the rest of the model. Only a failed push is reported to all
ranks.

The store's own counts of accesses do not include accesses to a replica.

FAE (Adnan et al., VLDB 2022) exchanges whole hot tables, without their optimizer state, at every
switch; here only changed rows are exchanged, with their state.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from embstore.arrays import Keys
from embstore.checks.arguments import integer
from embstore.errors import EmbstoreError, InvalidArgumentError
from embstore.handles.sessions import Sessions
from embstore.profiles.hotset import HotSet
from embstore_training.hotcold.classifier import Chunk, Classifier
from embstore_training.hotcold.device_replica import on_the_stores_device
from embstore_training.hotcold.packer import Batch, Packer
from embstore_training.hotcold.phases import Phase, Phases, PushCapacity, push_bytes_of
from embstore_training.hotcold.ragged import keys_of
from embstore_training.hotcold.replica import Replica
from embstore_training.hotcold.same_hot_set import check_hot_set
from embstore_training.hotcold.scheduler import RateController
from embstore_training.hotcold.steps import HotColdStep, HotExchange
from embstore_training.hotcold.tally import Tally
from embstore_training.replicas.ranks import AllGather, CheckedGather, Verb, meet
from embstore_training.run import Run


class HotColdRun:
    """The hot/cold training of one rank, inside a with block. Threads must not share it.

        with HotColdRun(store, hot_set, {"site": "sites", "ad": "ads"}, batch_size=2048) as run:
            for step in run.steps(chunks):
                rows = step.lookup()
                ...
                step.update({"sites": site_gradients, "ads": ad_gradients})

    `HotColdStep` describes a step, and the order of its rows.
    """

    def __init__(
        self,
        store: Any,
        hot_set: HotSet | Mapping[str, ArrayLike],
        columns: Mapping[str, str],
        *,
        batch_size: int,
        window_batches: int = 64,
        rate: int | RateController = 50,
        lookahead: int = 16,
        name: str | None = None,
        rank: int = 0,
        world_size: int = 1,
        all_gather: AllGather | None = None,
        replica: Callable[..., Replica] = Replica,
        **session: Any,
    ) -> None:
        """Prepare a run; nothing is opened before the with block.

        Parameters
        ----------
        store : an `embstore.Store`, embedded or of a server
        hot_set : a hot set, or lists of keys by table; the same at all ranks
        columns : the table of each column of ids; no other client may write to these tables
        batch_size, window_batches, rate : see `Packer`
        lookahead, name, rank, world_size, session : see `Store.session`; `session` stands for the
            arguments `planner`, `lease_ms`, `rank_timeout_ms`, `wait_s` and `rows`
        all_gather : for several ranks, a function that gets this rank's message, and returns the
            messages of all ranks, in rank order (`replicas.ranks`)
        replica : function that makes the replica from (store, hot_set, tables=...): `Replica`, or
            `partial(TorchReplica, device=...)`, with which rows are tensors. With rows="device" the
            replica is in the memory of the store's device, and rows and gradients of every step are
            there, too

        Raises
        ------
        InvalidArgumentError : an argument is wrong; there are several ranks without a hook; or the
            hot set lacks the table of a column.
        """
        self.hot_set = HotSet.of(hot_set)
        """The hot set of the run; it does not change."""
        classifier = Classifier(
            self.hot_set, columns, rows=_sparse_rows(store, self.hot_set, columns)
        )
        packer = partial(Packer, classifier, batch_size)
        self._make_packer = partial(packer, window_batches=window_batches, rate=rate)
        self._make_packer()  # Raises errors for wrong arguments now.
        self._columns = dict(columns)
        self._store, self._make_replica = store, _checked(session, store, replica)
        self._tables = tuple(dict.fromkeys(columns.values()))
        self._sessions = _CountedSessions(store.sessions)
        session |= {"lookahead": lookahead, "name": name, "rank": rank, "world_size": world_size}
        self._session = Run(cast(Sessions, self._sessions), self._tables, resume=False, **session)
        self._rank, self._world_size = rank, world_size
        self._all_gather = _gathering(all_gather, rank, world_size)
        self._replica: Replica | None = None  # None until the with block.
        self._tally = Tally()
        self._is_hot = False  # Whether the replica may have trained rows that the store lacks.
        self._has_refreshed = False
        self._may_loop = False

    def __enter__(self) -> Self:
        """Open the session, new or existing; see `embstore_training.run.Run` and `Replica`."""
        self._replica = self._make_replica(self._store, self.hot_set, tables=self._tables)
        self._session.__enter__()
        self._is_hot = self._has_refreshed = False
        self._tally.begin()
        self._may_loop = True
        self._store.unsent.append(self._unsent)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Push the dirty rows, and leave the session.

        After a failure, an error of the push is only added to the failure as a note.
        """
        reason = failure
        try:
            self._push_at_last(failure)
        except BaseException as exc:
            reason = exc
            raise
        finally:
            self._store.unsent.remove(self._unsent)
            self._session.__exit__(None if reason is None else type(reason), reason, None)

    def _push_at_last(self, failure: BaseException | None) -> None:
        _ = self._tally.finished
        if self._rank:
            return
        try:
            self._session.in_session(self._joined().push)
            self._tally.note_stored()
        except EmbstoreError as exc:
            if failure is None:
                raise
            failure.add_note(
                "the training of hot rows since the last exchange is lost, because pushing them "
                f"failed as well: {exc}"
            )

    def _joined(self) -> Replica:
        """Return the replica; raise InvalidArgumentError outside the with block."""
        _ = self._session.member
        assert self._replica is not None
        return self._replica

    # Statistics

    def stats(self) -> dict[str, int]:
        """Return the counts of the run so far.

        "hot_batches", "mixed_batches", "hot_samples" and "mixed_samples" are counted by where the
        batches and samples were trained. "stored_batches" is the number of the present loop's
        batches that the store has, including the batches that `skip` left out; between two loops,
        the number of the last loop in the with block. "switches" counts changes between phases.
        "store_calls" leaves out renewals of the lease, which a thread makes independently of
        phases. "pulled_rows", "pushed_rows" and "bytes" are counts of the exchanges. "hot_rows" and
        "hot_set_version" describe the hot set.
        """
        stored, replica = self._tally.stored(self._is_hot), self._replica
        return self._tally.counts | {
            "stored_batches": stored,
            "store_calls": self._sessions.calls + (replica.store_calls if replica else 0),
            "pulled_rows": replica.pulled_rows if replica else 0,
            "pushed_rows": replica.pushed_rows if replica else 0,
            "bytes": replica.pulled_bytes + replica.pushed_bytes if replica else 0,
            "hot_rows": replica.row_count if replica else self.hot_set.row_count,
            "hot_set_version": self.hot_set.version,
        }

    @property
    def last_step(self) -> int:
        """The last finished step of the session, which is the number of mixed batches in all runs
        with its name; 0: no step is finished. Hot batches are no steps of the session, so use the
        result of `exchange` as a loop's `skip`."""
        return self._session.last_step

    # The loop

    def steps(self, chunks: Iterable[Chunk], *, skip: int = 0) -> Iterator[HotColdStep]:
        """Yield a step for each packed batch, in the order in which they are trained.

        A step that the loop neither updates, releases nor skips is released when the loop takes the
        next step. When the loop has ended, the store has all updates. Before that, while steps are
        hot, the store has the state of the last exchange (`exchange`).

        Parameters
        ----------
        chunks : samples in columns, any number per chunk; a background thread may iterate over
            them. A sample has one id per column, or several ids in a two-dimensional array, or any
            number of ids in `Ragged`
        skip : the number of batches to leave out at the beginning, because the store has them
            already: "stored_batches" of the earlier run's `stats`

        Raises
        ------
        InvalidArgumentError : called outside the with block, within another loop, or after a loop
            that was left early; a chunk is wrong; or ranks have different hot sets, or one rank has
            no chunk.
        Errors of `chunks`, and of the store.
        """
        self._joined()
        if not self._may_loop:
            raise InvalidArgumentError(
                "expected the loop before to have finished all its steps; open another run"
            )
        skip = integer(skip, "skip", 0)
        self._may_loop = False
        self._tally.begin(skip)
        check_hot_set(self._all_gather, self.hot_set, self._tables)
        packer = self._make_packer()
        packed = itertools.islice(packer.pack(chunks), skip, None)
        bytes_max, ranks = self._store.limits.call_bytes_max, self._world_size
        bytes_of = partial(push_bytes_of, self._joined(), self._columns, ranks, bytes_max)
        room = PushCapacity(bytes_max, bytes_of)
        phases = Phases(packed, lambda: packer.empty_batch, room, self._all_gather)
        while (phase := phases.following()) is not None:
            self._switch(phase.is_hot)
            yield from self._hot_steps(phase) if phase.is_hot else self._mixed_steps(phase)
        self._switch(is_hot=False)
        self._may_loop = True

    def _hot_steps(self, phase: Phase) -> Iterator[HotColdStep]:
        exchange = HotExchange(self._joined, self._all_gather)
        for batch, push_bytes in phase.batches:
            if self._joined().unsent_bytes + push_bytes > self._store.limits.call_bytes_max:
                self._push()
            yield from self._trained(HotColdStep.hot(exchange, batch, self._columns))

    def _mixed_steps(self, phase: Phase) -> Iterator[HotColdStep]:
        batches = (batch for batch, _ in phase.batches)
        for step in self._session.steps(batches, self._touched_keys):
            yield from self._trained(HotColdStep.mixed(self._joined, step, self._columns))

    def _trained(self, step: HotColdStep) -> Iterator[HotColdStep]:
        """Yield a step to the body of the loop, and release it afterwards if it is not finished."""
        self._tally.at_hand = step
        yield step
        if not step.is_finished:
            step.release()
        _ = self._tally.finished

    def _touched_keys(self, batch: Batch) -> dict[str, Keys]:
        """Return a mixed batch's keys by table, and note that their rows will change.

        Runs in the reader's thread, which has ended before rows are exchanged.
        """
        keys = keys_of(batch, self._columns)
        self._joined().mark_stale(keys)
        return keys

    # Exchanging rows

    def exchange(self) -> int:
        """Push the dirty rows, so that the store has every batch that is finished by now.

        Call this before a checkpoint within the loop. All ranks must call it at the same step.

        Returns
        -------
        "stored_batches" of `stats`. Keep this number with the checkpoint: it is the argument `skip`
        of a loop that continues from the checkpoint.

        Raises
        ------
        InvalidArgumentError : this was called outside the with block, or other ranks have called
            another method.
        EmbstoreError : the store's error. The rows stay in the replica, and can be pushed again.
        """
        self._joined()
        if self._is_hot:
            meet(self._all_gather, Verb.EXCHANGE)
            self._push()
        return self._tally.stored(self._is_hot)

    def _unsent(self) -> str:
        """Return a text about the updates that a checkpoint of the store would lack now; "" if it
        would lack no updates. Only rank 0 returns a text, because only rank 0 pushes; other ranks
        may have continued."""
        if self._rank or self._replica is None or not self._replica.is_ahead:
            return ""
        return "the training of hot rows since the last exchange: call the run's exchange() first"

    def _switch(self, is_hot: bool) -> None:
        """Move rows to the place where the next phase trains them."""
        if is_hot == self._is_hot:
            return
        if is_hot:
            self._refresh()
            self._tally.note_stored()
        else:
            self._push()
        self._is_hot = is_hot
        self._tally.counts["switches"] += 1

    def _refresh(self) -> None:
        replica = self._joined()
        if self._has_refreshed:  # Until the first refresh all rows are stale at all ranks.
            rows = {t: (k, np.empty((len(k), 0), "f4")) for t, k in replica.stale_keys.items()}
            for message in meet(self._all_gather, Verb.REFRESH, share=rows):
                replica.mark_stale({table: keys for table, (keys, _) in message.share.items()})
        replica.refresh()
        self._has_refreshed = True

    def _push(self) -> None:
        """Push the dirty rows: rank 0 sends them, while the other ranks wait for the push."""
        replica = self._joined()
        if self._rank == 0:
            try:
                self._session.in_session(replica.push)
            except EmbstoreError:
                if self._all_gather is not None:
                    meet(self._all_gather, Verb.FAILED)
                raise
        meet(self._all_gather, Verb.PUSHED)
        replica.note_pushed()
        self._tally.note_stored()


def _sparse_rows(store: Any, hot_set: HotSet, columns: Mapping[str, str]) -> dict[str, int]:
    """Return the number of rows of the tables with sparse keys. The number of rows of other tables
    may grow during a run."""
    names = hot_set.tables.keys() & set(columns.values())
    configs = {name: store.table(name).config for name in sorted(names)}
    return {name: config.rows for name, config in configs.items() if config.is_sparse}


def _checked(
    session: dict[str, Any], store: Any, replica: Callable[..., Replica]
) -> Callable[..., Replica]:
    """Make a session's options those of a hot/cold run, and refuse options that do not fit. Return
    the function that makes the replica."""
    if session.pop("shared", False):
        raise InvalidArgumentError(
            "expected the run to be the only writer of its tables, found shared=True"
        )
    if session.get("waits", "late") != "late":
        raise InvalidArgumentError(
            'expected a hot/cold run to wait for late rows, found waits="none"'
        )
    session["waits"] = "mixed"
    if store.sessions.rounds_rows:
        raise InvalidArgumentError(
            'expected a connection with wire_dtype="float32" for a hot/cold run, found one that '
            "rounds rows and gradients: it would round those of mixed batches only"
        )
    if session.get("rows", "host") == "device":
        if not store.sessions.is_embedded or replica is not Replica:
            raise InvalidArgumentError(
                "expected rows='device' of a hot/cold run with a store in this process and "
                "without `replica`, found another; elsewhere give rows='host', and a "
                "TorchReplica on a device as `replica`"
            )
        replica = on_the_stores_device
    if session.pop("resume", False):  # only mixed batches are steps of the session
        raise InvalidArgumentError(
            "a hot/cold run resumes by steps(..., skip=N): expected no resume, found resume=True"
        )
    return replica


def _gathering(all_gather: AllGather | None, rank: int, world_size: int) -> AllGather | None:
    """Return the all-gather hook with a check of its answers; None: there is one rank."""
    if world_size == 1:
        return None
    if all_gather is None:
        raise InvalidArgumentError(
            f"expected all_gather, by which the {world_size} ranks exchange updates of hot rows, "
            "found none"
        )
    return CheckedGather(all_gather, rank, world_size)


class _CountedSessions:
    """A store's sessions, whose calls are counted, except renewals of the lease."""

    def __init__(self, sessions: Any) -> None:
        self._sessions = sessions
        self._lock = threading.Lock()
        self.calls = 0

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._sessions, verb)
        if verb == "renew" or not callable(call):  # not counted; a property is no call
            return call

        def counted(*args: Any, **options: Any) -> Any:
            with self._lock:
                self.calls += 1
            return call(*args, **options)

        return counted
