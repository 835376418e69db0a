"""Hot/cold training: a loop whose all-hot batches need no store.

    chunks -> packer -> phases:   mixed   steps of a look-ahead session, at the store
                                  hot     steps on the replica, here

One look-ahead session is held over all phases, so that it is the only writer of its tables. In a
mixed phase its steps are announced ahead; in a hot phase nobody calls the store at all, but for the
thread that renews the session's lease. Between phases rows are exchanged, and nothing is announced
then:

    mixed -> hot   the hot rows that mixed batches touched are pulled (the keys were known here)
    hot -> mixed   the rows trained since are pushed, in one command, with the updates to count

A mixed batch may touch hot rows too, which is why both are needed. So rows, state and t are at any
exchange what plain updates in the order of the steps would have made them, bit for bit. In a hot
phase the store is as at the last exchange, exactly.

One push is one call, so it may not be larger than a call. Before a hot step that could make it so,
what was trained is pushed; a batch whose rows alone are more than a push takes is trained as a
mixed one.

How many batches of the stream the store has is `stats()["stored_batches"]`: t does not say it, as
batches that were skipped or released add nothing to it. With the same chunks, batch size, window
and rate, `steps(chunks, skip=...)` goes on behind so many. A checkpoint is of what the store has:
in the loop, `exchange()` pushes before it and returns that number, to be kept in its metadata.

Leaving the loop in a hot phase, by break, an exception or Ctrl-C, pushes what was trained. If the
store does not answer, or the session has ended, that is lost, and the store is as at the last
exchange. A mixed step that is left while its update is out is not counted, and may be done
nevertheless, as any call whose answer is lost.

Several ranks share every step, as they do in a session. In hot phases their gradients meet in the
caller's `all_gather` hook, and each rank trains its own replica alike; rank 0 alone pushes, and the
others wait for that in the hook; what it pushes as it leaves, it alone knows of. Which phases come
next they agree on in the same way (`phases.py`). A rank that fails leaves the others waiting in the
hook, which is the caller's to end, as it is for the gradients of the rest of the model; only a push
that fails is told to all.

The store's own counts of accesses know nothing of those to a replica.

FAE exchanges whole hot tables, without their optimizer state, at every switch (seeds.md, sections 4
and 7); here only what has changed travels, with it.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from embstore.arrays import Keys
from embstore.errors import EmbstoreError, InvalidArgumentError
from embstore.feed.run import Run
from embstore.frequency.hotset import HotSet
from embstore_client.hotcold.classifier import Chunk, Classifier
from embstore_client.hotcold.packer import Batch, Packer
from embstore_client.hotcold.phases import Phase, Phases, PushRoom
from embstore_client.hotcold.ranks import AllGather, CheckedGather, Verb, check_hot_set, meet
from embstore_client.hotcold.replica import Replica
from embstore_client.hotcold.scheduler import RateController
from embstore_client.hotcold.steps import HotColdStep, HotStep, MixedStep


class _Latest(NamedTuple):
    """The last step that was given to the body of a loop."""

    step: HotColdStep
    place: int  # Of its batch in the loop's stream, from 1.


class HotColdRun:
    """One rank's hot/cold training, inside a with block. Not to be shared between threads.

        with HotColdRun(store, hot_set, {"site": "sites", "ad": "ads"}, batch_size=2048) as run:
            for step in run.steps(chunks):
                rows = step.lookup()
                ...
                step.update({"sites": site_gradients, "ads": ad_gradients})

    What a step is, and in which order its rows are: see `HotColdStep`.
    """

    def __init__(
        self,
        store: Any,
        hot_set: HotSet,
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
        store : an `embstore.Store` or a `RemoteStore`
        columns : the table of each column of ids; the tables' only writer is this run
        batch_size, window_batches, rate : see `Packer`
        lookahead, name, rank, world_size, session : see `Store.session`, of which `planner`,
            `lease_ms`, `rank_timeout_ms` and `wait_s` may be given as well
        all_gather : of several ranks: returns what each rank gave it, in rank order (`ranks.py`)
        replica : makes the replica, of (store, hot_set, tables=...): `Replica`, or
            `partial(TorchReplica, device=...)`, by which rows are tensors

        Raises
        ------
        InvalidArgumentError : an argument is wrong; several ranks without a hook; the hot set does
            not name a column's table.
        """
        self._make_packer = partial(
            Packer,
            Classifier(hot_set, columns),
            batch_size,
            window_batches=window_batches,
            rate=rate,
        )
        self._make_packer()  # What is wrong with its arguments is to be said here.
        self._columns = dict(columns)
        if session.pop("shared", False):
            raise InvalidArgumentError(
                "expected the run to be the only writer of its tables, found shared=True"
            )
        self._store, self._hot_set, self._make_replica = store, hot_set, replica
        self._tables = tuple(dict.fromkeys(columns.values()))
        self._port = _CountedPort(store.sessions)
        self._session = _Session(
            self._port,
            self._tables,
            lookahead=lookahead,
            name=name,
            rank=rank,
            world_size=world_size,
            **session,
        )
        self._rank, self._world_size = rank, world_size
        self._all_gather = _hook(all_gather, rank, world_size)
        self._replica: Replica | None = None  # None until the with block.
        self._figures = dict.fromkeys(
            ("hot_batches", "mixed_batches", "hot_samples", "mixed_samples", "switches"), 0
        )
        self._latest: _Latest | None = None  # Of the loop at hand, or the last one.
        self._counted_place = 0  # Of the last step in the figures.
        self._skipped_batches = 0  # By the loop's `skip`.
        self._pushed_batches = 0  # Batches of its stream that the store had at the last exchange.
        self._is_hot = False  # Rows may be trained here that the store has not.
        self._has_refreshed = False
        self._may_loop = False

    def __enter__(self) -> Self:
        """Open the session, or go on with it; see `embstore.feed.run.Run`.

        Raises
        ------
        TableNotFoundError : the store has not all the tables.
        InvalidArgumentError : the hot set has keys beyond a table.
        TableHeldError : another trainer keeps the place, or other sessions the tables.
        """
        self._replica = self._make_replica(self._store, self._hot_set, tables=self._tables)
        self._session.__enter__()
        self._is_hot = self._has_refreshed = False
        self._begin_stream(0)
        self._may_loop = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Push what was trained and is not at the store, and leave the session.

        After a failure, that the push failed as well is only noted on it.
        """
        reason = failure
        try:
            self._count_finished()
            self._push_at_last(failure)
        except BaseException as exc:
            reason = exc
            raise
        finally:
            self._session.__exit__(None if reason is None else type(reason), reason, None)

    def _push_at_last(self, failure: BaseException | None) -> None:
        if self._rank:
            return
        try:
            self._joined().push(self._session.member)
            self._pushed_batches = self._finished_batches
        except EmbstoreError as exc:
            if failure is None:
                raise
            failure.add_note(
                "what was trained on hot rows since the last exchange is lost, because pushing it "
                f"failed as well: {exc}"
            )

    def _joined(self) -> Replica:
        """Return the replica, inside the with block."""
        _ = self._session.member
        assert self._replica is not None
        return self._replica

    # Looking

    @property
    def hot_set(self) -> HotSet:
        """The hot set that the run was given, and keeps."""
        return self._hot_set

    def stats(self) -> dict[str, int]:
        """Return what the run did so far.

        "hot_batches", "mixed_batches", "hot_samples", "mixed_samples" by where they were trained;
        "stored_batches", those of the loop's stream that the store has, `skip` included, for the
        loop at hand or the last one in the with block; "switches" between phases; "store_calls",
        without the renewals of the lease, which a thread does however long a phase is;
        "pulled_rows", "pushed_rows" and "bytes" of the exchanges; "hot_rows" and "hot_set_version".
        """
        self._count_finished()
        replica = self._replica
        exchanged = {"store_calls": self._port.calls, "pulled_rows": 0, "pushed_rows": 0}
        exchanged |= {"bytes": 0, "hot_rows": self._hot_set.row_count}
        exchanged |= {"stored_batches": self._stored_batches}
        if replica is not None:
            exchanged |= {
                "store_calls": self._port.calls + replica.store_calls,
                "pulled_rows": replica.pulled_rows,
                "pushed_rows": replica.pushed_rows,
                "bytes": replica.pulled_bytes + replica.pushed_bytes,
                "hot_rows": replica.row_count,
            }
        return self._figures | exchanged | {"hot_set_version": self._hot_set.version}

    # The loop

    def steps(self, chunks: Iterable[Chunk], *, skip: int = 0) -> Iterator[HotColdStep]:
        """Yield a step for each packed batch, in the order in which they are trained.

        A step that the loop neither updates, releases nor skips is released when it takes the next
        one. When the loop has ended, the store has everything; until then, while steps are hot, it
        is as at the last exchange (`exchange`).

        Parameters
        ----------
        chunks : samples in columns, of any number; a thread may iterate over them
        skip : batches to leave out at the beginning, because the store has them already: what
            "stored_batches" of `stats` was

        Raises
        ------
        InvalidArgumentError : outside the with block, within another loop, or after one that was
            left early; a chunk is wrong; ranks have other hot sets, or one of them has no chunk.
        What `chunks` raise, and the store.
        """
        self._joined()
        if not self._may_loop:
            raise InvalidArgumentError(
                "expected the loop before to have gone through all its steps; open another run"
            )
        if isinstance(skip, bool) or not isinstance(skip, int | np.integer) or skip < 0:
            raise InvalidArgumentError(f"expected skip to be an integer >= 0, found {skip!r}")
        self._may_loop = False
        self._begin_stream(int(skip))
        check_hot_set(self._all_gather, self._hot_set, self._tables)
        packer = self._make_packer()
        packed = itertools.islice(packer.pack(chunks), skip, None)
        room = PushRoom(self._store.limits.call_bytes_max, self._push_bytes)
        phases = Phases(packed, lambda: packer.empty_batch, room, self._all_gather)
        while (phase := phases.following()) is not None:
            self._switch(phase.is_hot)
            yield from self._hot_steps(phase) if phase.is_hot else self._mixed_steps(phase)
        self._switch(is_hot=False)
        self._may_loop = True

    def _hot_steps(self, phase: Phase) -> Iterator[HotColdStep]:
        for batch, push_bytes in phase.batches:
            if self._joined().unsent_bytes + push_bytes > self._store.limits.call_bytes_max:
                self._push()
            yield from self._trained(
                HotStep(self._joined, batch, self._keys(batch), self._all_gather)
            )

    def _mixed_steps(self, phase: Phase) -> Iterator[HotColdStep]:
        batches = (batch for batch, _ in phase.batches)
        for step in self._session.steps(batches, self._touched_keys):
            yield from self._trained(MixedStep(self._joined, step, self._keys(step.batch)))

    def _trained(self, step: HotColdStep) -> Iterator[HotColdStep]:
        """Yield a step to the body of the loop, and see to it that it is finished then."""
        self._latest = _Latest(step, self._finished_batches + 1)
        yield step
        if not step.is_finished:
            step.release()
        self._count_finished()

    def _push_bytes(self, batch: Batch) -> int:
        """Return how many bytes a hot batch of this rank adds to the next push, at most.

        By its ids, repeated ones too; by its distinct keys only where such batches of all ranks
        might be too much for one push. 0 where a push takes all hot rows that there are.
        """
        replica, bytes_max = self._joined(), self._store.limits.call_bytes_max
        if replica.hot_bytes <= bytes_max:
            return 0
        counts = dict.fromkeys(self._tables, 0)
        for column, table in self._columns.items():
            counts[table] += batch[column].size
        by_ids = replica.push_bytes(counts)
        if by_ids <= bytes_max // self._world_size:
            return by_ids
        keys = self._keys(batch)
        return replica.push_bytes({table: len(np.unique(k)) for table, k in keys.items()})

    def _touched_keys(self, batch: Batch) -> dict[str, Keys]:
        """Return a mixed batch's keys by table, and note that their rows will change.

        In the reader's thread, which has ended before rows are exchanged.
        """
        keys = self._keys(batch)
        self._joined().mark_stale(keys)
        return keys

    def _keys(self, batch: Batch) -> dict[str, Keys]:
        parts: dict[str, list[Keys]] = {table: [] for table in self._tables}
        for column, table in self._columns.items():
            parts[table].append(np.asarray(batch[column], np.int64).reshape(-1))
        return {t: p[0] if len(p) == 1 else np.concatenate(p) for t, p in parts.items()}

    # Which batches are finished

    def _begin_stream(self, skip: int) -> None:
        self._latest, self._counted_place = None, skip
        self._skipped_batches = self._pushed_batches = skip

    @property
    def _finished_batches(self) -> int:
        """Batches of the loop's stream that are finished, or were left out."""
        if self._latest is None:
            return self._skipped_batches
        step, place = self._latest
        return place if step.is_finished else place - 1

    @property
    def _stored_batches(self) -> int:
        return self._pushed_batches if self._is_hot else self._finished_batches

    def _count_finished(self) -> None:
        """Count the step at hand, if it is finished, and was not counted."""
        if self._counted_place == self._finished_batches or self._latest is None:
            return
        step, self._counted_place = self._latest
        kind = "hot" if step.is_hot else "mixed"
        self._figures[f"{kind}_batches"] += 1
        self._figures[f"{kind}_samples"] += len(next(iter(step.batch.values())))

    # Exchanging rows

    def exchange(self) -> int:
        """Push what was trained on hot rows, so that the store has every batch finished by now.

        For a checkpoint within the loop. Of several ranks, all call it at the same step.

        Returns
        -------
        "stored_batches" of `stats`: to be kept with the checkpoint, as it is `skip` of the loop
        that goes on behind it.

        Raises
        ------
        InvalidArgumentError : outside the with block; or other ranks do something else.
        EmbstoreError : what the store says. What was trained is still here, to be pushed again.
        """
        self._joined()
        if self._is_hot:
            meet(self._all_gather, Verb.EXCHANGE, [], {})
            self._push()
        return self._stored_batches

    def _switch(self, is_hot: bool) -> None:
        """Bring rows to where the next phase trains them."""
        if is_hot == self._is_hot:
            return
        if is_hot:
            self._refresh()
            self._pushed_batches = self._finished_batches
        else:
            self._push()
        self._is_hot = is_hot
        self._figures["switches"] += 1

    def _refresh(self) -> None:
        replica = self._joined()
        if self._has_refreshed:  # Before, all rows are stale everywhere.
            rows = {t: (k, np.empty((len(k), 0), "f4")) for t, k in replica.stale_keys.items()}
            for told in meet(self._all_gather, Verb.REFRESH, [], rows):
                replica.mark_stale({table: keys for table, (keys, _) in told.share.items()})
        replica.refresh()
        replica.take_rates(self._all_gather)
        self._has_refreshed = True

    def _push(self) -> None:
        """Send what was trained here: rank 0, while the others wait for it."""
        replica = self._joined()
        if self._rank == 0:
            try:
                replica.push(self._session.member)
            except EmbstoreError:
                if self._all_gather is not None:
                    meet(self._all_gather, Verb.FAILED, [], {})
                raise
        meet(self._all_gather, Verb.PUSHED, [], {})
        replica.note_pushed()
        self._pushed_batches = self._finished_batches


class _Session(Run):
    """A run of steps whose member may do more."""

    @property
    def member(self) -> str:
        """What its calls name, inside the with block."""
        return self._joined()


class _CountedPort:
    """A store's sessions, their calls counted; but not those of the lease's thread."""

    def __init__(self, sessions: Any) -> None:
        self._sessions = sessions
        self._lock = threading.Lock()
        self.calls = 0

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._sessions, verb)
        if verb == "renew":
            return call

        def counted(*args: Any, **options: Any) -> Any:
            with self._lock:
                self.calls += 1
            return call(*args, **options)

        return counted


def _hook(all_gather: AllGather | None, rank: int, world_size: int) -> AllGather | None:
    """Return the hook of several ranks, whose answers are checked; of one rank none.

    Raises
    ------
    InvalidArgumentError : several ranks, and no hook.
    """
    if world_size == 1:
        return None
    if all_gather is None:
        raise InvalidArgumentError(
            f"expected all_gather, in which the {world_size} ranks meet while batches are hot"
        )
    return CheckedGather(all_gather, rank, world_size)
