"""The planner: a thread that has the rows of announced steps in the cache before their turn.

A step is **noted** as soon as every rank has announced it: the uses of its rows are known then
(noting.py). Steps of a session are planned in order, when they are near enough and
there is room for their pins (prefetch.py says what planning is). The planner's thread notes, plans
and inserts, for short whiles with the engine; collectors read in between, without it. So several
steps are on their way at once:

    engine       plan 5 | insert 3 | (calls) | plan 6 | insert 4 | (calls) ...
    collectors   read 4 ....... read 5 ........ read 6 ...

**No room.** Then planning waits until a step is finished (*held back*, which the session reports);
and so it does where rows would have to leave that are needed sooner than others will be free to.
The step whose **turn** has come does not wait: it takes the pins of the steps that are farthest
from theirs, of any session, which are planned again later; if it does not fit even so, it is done
*in parts*, as any call that is larger than the cache.

**Several owners.** Sessions of one owner (`tables.owners`) may pin ahead of their turns what their
part of a pool's slots is, all owners having equal parts. A step whose turn has come may have more.

**Manners.** At most `COLLECTIONS_MAX` collections are under way, victims leave a few at a time, and
the planner lets calls that wait for the engine go first: look-ahead must not starve lookups that
nobody announced. Between the update of one step and the lookup of the next the trainer waits for
the store, and computes afterwards; so for a moment the planner leaves the engine to it.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic

import numpy as np

from embstore.cache.pins import PinnedSlots, PoolPins
from embstore.cache.pool import Pool
from embstore.cache.prefetch import Collection, Prefetch, Work
from embstore.errors import CapacityError, EmbstoreError, StoreClosedError
from embstore.lookahead.foresight import Foresight
from embstore.lookahead.noting import Noting
from embstore.lookahead.session import Session
from embstore.lookahead.stats import Planning
from embstore.lookahead.step import Event, Part, State, Step
from embstore.lookahead.threads import Threads
from embstore.tables.tables import Tables

COLLECTIONS_MAX = 4

Job = Callable[[], None]


class Planner:
    """Plans the steps of all live sessions of a store.

    One class, because planning, waiting for room and taking pins back decide about the same steps
    under one lock.
    """

    def __init__(self, tables: Tables, sessions: dict[str, Session]) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        """Of everything here and in the sessions; taken after the engine, never before."""
        self.work = Work()
        self.watchers: list[Callable[[], None]] = []
        self.ended: list[Session] = []  # have pins and holds to give back
        self.end_expired: Callable[[], float | None] = lambda: None
        """Ends sessions whose lease has run out; returns seconds to the next one's end."""
        self._tables = tables
        self._sessions = sessions
        self._prefetches: dict[int, Prefetch] = {}  # by id of the pool
        self._collecting = 0
        self._foresight = Foresight(self.prefetch)
        self._noting = Noting(tables, self._foresight, self.work, self.lock)
        self._releases = 0  # grows whenever pins are released
        self._threads = Threads(self.changed)

    # Life

    def start(self) -> None:
        """Start the threads, if they have not been. Under the lock."""
        self._threads.start(self._run, self._collect)

    def stop(self) -> None:
        """Begin no more work. `join` waits for what is under way."""
        if not self._threads.are_here:
            return  # the lock may be its parent's too
        self._threads.stopping.set()
        with self.changed:
            self.notify()

    def join(self) -> None:
        """Wait for the threads to end. Not on one of them, nor with the engine."""
        self._threads.join()
        self.end_expired = lambda: None  # no circle keeps what is closed
        self._foresight.close()

    def notify(self) -> None:
        """Say that something has changed. Under the lock."""
        self.changed.notify_all()
        for callback in self.watchers:
            with suppress(RuntimeError):  # an event loop that has ended needs no more waking
                callback()

    # The thread

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            try:
                job()
            except StoreClosedError as exc:  # closed, or failed for good
                self._fail(exc)
                break
            except BaseException as exc:  # those who wait are told, or they would wait for ever
                self._fail(exc)

    def _next_job(self) -> Job | None:
        with self.changed:
            while not self._threads.stopping.is_set():
                until_next_lease = self.end_expired()
                # Before the look for what is due: a pause may end meanwhile, and nobody says so.
                pauses = [s.pause_s for s in self._sessions.values() if s.is_between_steps]
                job = self._due()
                if job is not None:
                    return job
                times = [t for t in (until_next_lease, *pauses) if t is not None]
                self.changed.wait(min(times, default=None))
        return None

    def _due(self) -> Job | None:
        if self.ended:
            return self._release_ended
        if any(self._collected_collections()):
            return self._insert
        if self._noting.has_stale:
            return self._noting.forget
        to_plan, to_note = self._next_to_plan(), self._noting.next(self._sessions.values())
        if to_plan is not None and (to_note is None or self._is_turn(to_plan)):
            return partial(self._do_or_end, self._plan, to_plan)
        if to_note is not None:
            return partial(self._do_or_end, self._noting.note, to_note)
        return None

    def _do_or_end(self, work: Callable[[Session], None], session: Session) -> None:
        try:
            work(session)
        except StoreClosedError:
            raise
        except BaseException as exc:  # a mistake of ours in one session is no other's
            with self.changed:
                self.end(session, _session_error(exc))

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            for session in self._sessions.values():
                self.end(session, _session_error(error))

    def end(self, session: Session, error: EmbstoreError) -> None:
        """End a session; what it has is given back later. Under the lock."""
        if session.error is None:
            session.error = error
            self.ended.append(session)
            self.notify()

    # Insert

    def _collected_collections(self) -> Iterator[Collection]:
        for prefetch in list(self._prefetches.values()):
            for collection in prefetch.pool.finder.arriving[:1]:
                if isinstance(collection, Collection) and collection.is_collected:
                    yield collection

    def _insert(self) -> None:
        with self._tables.background():
            for collection in list(self._collected_collections()):
                collection.finish()
        self._tables.storage.files.reached("lookahead:insert")
        with self.changed:
            self.notify()

    def _collect(self, collection: Collection) -> None:
        self._tables.storage.files.reached("lookahead:collect")
        collection.collect()
        with self.changed:
            self._collecting -= 1
            self.notify()

    # Plan

    def _next_to_plan(self) -> Session | None:
        """Return the session whose next step is nearest to its turn."""
        due = [s for s in self._sessions.values() if self._is_due(s)]
        return min(due, key=lambda s: s.planned_step - s.last_step, default=None)

    @staticmethod
    def _is_turn(session: Session) -> bool:
        return session.planned_step == session.last_step

    def _is_due(self, session: Session) -> bool:
        number = session.planned_step + 1
        if session.error is not None or session.noted_step < number:
            return False
        is_turn = self._is_turn(session)
        if not is_turn and (session.is_between_steps or not self._is_near(session, number)):
            return False
        if self._collecting >= COLLECTIONS_MAX and not is_turn:
            return False
        if session.waits_at == self._releases and not is_turn:
            return False
        return is_turn or self._group_is_complete(session, number)

    def _is_near(self, session: Session, number: int) -> bool:
        """Whether a step, or the group that it is of, is near enough to its turn."""
        first = number - (number - 1) % session.mode.group
        return first <= session.near_step

    def _group_is_complete(self, session: Session, number: int) -> bool:
        group = session.mode.group
        last = number + (-number % group)
        window_end = session.last_step + session.facts.lookahead_steps_max
        return session.noted_step >= min(last, window_end)

    def _plan(self, session: Session) -> None:
        with self.lock:
            steps = self._next_steps(session)
        if not steps:
            return  # finished meanwhile, by a trainer that did not look it up
        for prefetch in list(self._prefetches.values()):
            prefetch.forget_cleared()
        for n, step in enumerate(steps):
            self._clear(session, step, before=steps[:n])
        self._tables.storage.files.reached("lookahead:plan")
        with self._tables.background():
            begun = self._plan_steps(session, steps)
        with self.changed:
            self._collecting += len(begun)
            self.notify()
        for collection in begun:
            self._threads.put(collection)

    def _next_steps(self, session: Session) -> list[Step]:
        first = session.planned_step + 1
        numbers = range(first, first + (-first % session.mode.group) + 1)
        return [session.steps[n] for n in numbers if n in session.steps and n <= session.noted_step]

    def _clear(self, session: Session, step: Step, before: list[Step]) -> None:
        """Free slots for a step, piece by piece; what then is missing, its planning frees.

        Calls in between may take what was freed. So no more is freed than the step needed at first:
        it shall not run after them. And nothing is freed for a step that its owner's share keeps
        waiting, after those that are planned with it: others' rows would leave for nobody.
        """
        for part in step.parts:
            left = self._ahead(session, step, partial(self._cleared, session, step, part, before))
            while left > 0:
                left = self._ahead(session, step, partial(self._evicted, part, left))

    def _ahead(self, session: Session, step: Step, work: Callable[[], int]) -> int:
        """Do a piece of that, unless the step is done, or its session, whose pools may be gone."""
        with self._tables.background():
            is_over = session.error is not None or step.number <= session.last_step
            return 0 if is_over or step.is_in_parts else work()

    def _cleared(self, session: Session, step: Step, part: Part, before: list[Step]) -> int:
        if step.number > session.last_step + 1 and not self._has_share(session, step, before):
            return 0
        prefetch = self.prefetch(part.pool)
        if not prefetch.can_fit(step.keys_in(part.pool)):
            self._do_in_parts(step)
            return 0
        return prefetch.clear(part.batch(), self._foresight.use(session, step, part.pool))

    def _evicted(self, part: Part, rows: int) -> int:
        try:
            return self.prefetch(part.pool).evict(rows)
        except EmbstoreError:
            return 0  # the step's planning will find the same

    def _plan_steps(self, session: Session, steps: list[Step]) -> list[Collection]:
        if session.planned_step + 1 < steps[0].number:
            return []  # a step before them has lost its pins meanwhile, and comes first
        self._tables.storage.begin_change()
        planned = []
        with self._tables.arena.fixed():
            for step in steps:
                if session.error is not None:
                    break
                if step.number <= session.last_step or step.state is State.ANNOUNCED:
                    continue  # finished meanwhile, by a trainer that did not look it up
                if not step.is_planned and not self._plan_step(session, step):
                    break
                planned.append(step)
            pools = {id(part.pool): part.pool for step in steps for part in step.parts}
            begun = {key: self.prefetch(pool).begin() for key, pool in pools.items()}
        with self.lock:
            for step in planned:
                self._note_planned(session, step, begun)
        return [collection for collection in begun.values() if collection is not None]

    def _note_planned(
        self, session: Session, step: Step, begun: Mapping[int, Collection | None]
    ) -> None:
        if step.state is State.NOTED:
            for part in step.parts:
                assert part.pins is not None, "no slab has changed hands since it was pinned"
                own = begun[id(part.pool)]
                self.prefetch(part.pool).await_arrivals(part.pins, own)
            step.move(Event.PLAN)
        session.planned_step = max(session.planned_step, step.number)

    def _plan_step(self, session: Session, step: Step) -> bool:
        """Pin a step's rows; say False if it must wait for room."""
        is_turn = step.number == session.last_step + 1
        while not step.is_in_parts:
            has_share = is_turn or self._has_share(session, step, [])
            full = self._pin(session, step) if has_share else None
            if has_share and full is None:
                break
            if not is_turn:
                with self.lock:
                    session.waits_at = self._releases
                    session.waiting_since = session.waiting_since or monotonic()
                return False
            if full is None or not self._take_farthest(full, step):
                self._do_in_parts(step)
        if step.is_in_parts:
            session.counts.steps_in_parts += 1
        with self.lock:
            session.waited_s = session.held_back_s
            session.waiting_since, session.waits_at = None, -1
        return True

    def _has_share(self, session: Session, step: Step, before: list[Step]) -> bool:
        """Tell whether an owner's part of each pool has room for the pins of a step, beside those
        of the session's steps `before`, which may not be pinned yet."""
        with self.lock:
            live = list(self._sessions.values())
            for pool in {id(part.pool): part.pool for part in step.parts}.values():
                here = [s for s in live if any(t.pool is pool for t in s.tables.values())]
                owners = len({s.owner for s in here} | {session.owner})
                if owners == 1:
                    continue
                own = [s for s in here if s.owner == session.owner]
                rows = sum(_new_rows(p, s) for s in own for p in _pinned_parts(s, pool))
                rows += sum(_new_rows(p, session) for p in _unpinned_parts([*before, step], pool))
                if rows > _pins_max(pool) // owners:
                    return False
        return True

    def _pin(self, session: Session, step: Step) -> Pool | None:
        """Pin all parts of a step, or none; return the pool that had no room."""
        try:
            for part in step.parts:
                use = self._foresight.use(session, step, part.pool)
                part.pins = self.prefetch(part.pool).plan(part.batch(), use)
                if part.pins is None:
                    self._unpin(step)
                    return part.pool
        except EmbstoreError:  # no room in the log, say: the step's own call will be told
            self._unpin(step)
            self._do_in_parts(step)
        return None

    def _do_in_parts(self, step: Step) -> None:
        with self.lock:
            step.move(Event.DO_IN_PARTS)

    def prefetch(self, pool: Pool) -> Prefetch:
        """Return what plans in a pool. Engine thread."""
        prefetch = self._prefetches.get(id(pool))
        if prefetch is None or prefetch.pool is not pool:
            prefetch = self._prefetches[id(pool)] = Prefetch(pool, self.work)
            pool.pins.add_reclaimer(self)
        return prefetch

    def _forget_pools(self) -> None:
        """Let pools go that no session plans in any more."""
        used = {id(t.pool) for s in self._sessions.values() for t in s.tables.values()}
        for key, prefetch in list(self._prefetches.items()):
            if key not in used and not prefetch.pool.finder.arriving:
                prefetch.pool.pins.remove_reclaimer(self)
                del self._prefetches[key]

    # No room

    def _take_farthest(self, pool: Pool, step: Step) -> bool:
        """Take the pins of the planned step farthest from its turn; False: there is none."""
        with self.lock:
            planned = [
                (other.number - session.last_step, session, other)
                for session in self._sessions.values()
                for other in session.steps.values()
                if other is not step and other.is_planned and _has_pins(other, pool.pins)
            ]
        if not planned:
            return False
        _, session, farthest = max(planned, key=lambda entry: entry[0])
        self._plan_again(session, farthest)
        return True

    def reclaim(self, pins: PoolPins, pinned: PinnedSlots | None) -> None:
        """Take pins of a pool back; the steps that had them are planned again. Engine thread."""
        with self.lock:
            for session in [*self._sessions.values(), *self.ended]:
                for step in list(session.steps.values()):
                    if _has_pins(step, pins, pinned):
                        owns = [part.pins.own for part in step.parts if part.pins is not None]
                        failed = any(own is not None and own.has_failed for own in owns)
                        self._plan_again(session, step)
                        if failed:  # a row that was to be collected cannot be read
                            step.move(Event.DO_IN_PARTS)

    def _plan_again(self, session: Session, step: Step) -> None:
        self._tables.storage.begin_change()
        with suppress(CapacityError):
            self._foresight.rank_again(session, step)
        self._unpin(step)
        with self.lock:
            if step.is_planned:
                session.counts.steps_planned_again += 1
                session.planned_step = min(session.planned_step, step.number - 1)
            step.move(Event.UNPIN)
            self.notify()

    def _unpin(self, step: Step) -> None:
        for part in step.parts:
            pins, part.pins = part.pins, None
            if pins is not None:
                self.prefetch(part.pool).release(pins)
                self._releases += 1

    # Finished steps

    def retire(self, session: Session, step: Step) -> None:
        """Take back the pins of a finished step. Engine thread."""
        try:
            with suppress(CapacityError):  # ranks are hints
                self._foresight.finish(session, step)
        finally:
            self._unpin(step)
        with self.lock:
            step.move(Event.FINISH)
        with session.uses_lock:
            session.uses.forget(step.number)

    def _release_ended(self) -> None:
        """Take back what sessions had that have ended."""
        with self._tables.background():
            self.release_ended()

    def release_ended(self) -> None:
        """The same. Engine thread."""
        if not self.ended:
            return
        self._tables.storage.begin_change()
        with self.lock:
            ended, self.ended = self.ended, []
        for session in ended:
            for step in list(session.steps.values()):
                self._unpin(step)
            self._noting.end(session)
        with self.changed:
            for session in ended:
                session.steps.clear()
                for table in session.tables.values():
                    table.sessions.discard(session.name)
                    table.writer = "" if table.writer == session.name else table.writer
            self._forget_pools()
            self._releases += 1  # there are fewer owners, maybe
            self.notify()

    # Looking

    def planning(self) -> Planning:
        """Return what planning costs, and how much is under way. Under the lock."""
        return Planning(self.work, self._collecting, list(self._tables.pools.values()))


def _pinned_parts(session: Session, pool: Pool) -> Iterator[Part]:
    for step in session.steps.values():
        yield from (part for part in step.parts if part.pool is pool and part.pins is not None)


def _unpinned_parts(steps: list[Step], pool: Pool) -> Iterator[Part]:
    for step in steps:
        if step.state is State.NOTED:
            yield from (part for part in step.parts if part.pool is pool and part.pins is None)


def _pins_max(pool: Pool) -> int:
    """Return how many slots of a pool can be pinned, once it has those that it may have."""
    slots = pool.slots
    grown = slots.sizes.slots_max if slots.may_grow else slots.count
    return pool.pins.most * grown // max(slots.count, 1)


def _new_rows(part: Part, session: Session) -> int:
    """Return how many rows of a part no unfinished step before it has."""
    assert part.previous is not None, "a step is noted before it is planned"
    return int(np.count_nonzero(part.previous <= session.last_step))


def _has_pins(step: Step, pins: PoolPins, pinned: PinnedSlots | None = None) -> bool:
    """Tell whether a step has pins in a pool, in some slots or in any."""
    own = [part for part in step.parts if part.pool.pins is pins and part.pins is not None]
    if pinned is None:
        return bool(own)
    return any(_is_pinned(part, pinned) for part in own)


def _is_pinned(part: Part, pinned: PinnedSlots) -> bool:
    assert part.pins is not None
    slots = part.pool.device.memory.download(part.pins.slots)
    return bool((slots >= pinned.first_slot).any())


def _session_error(error: BaseException) -> EmbstoreError:
    if isinstance(error, EmbstoreError):
        return error
    failed = EmbstoreError(f"look-ahead failed: {error!r}")
    failed.__cause__ = error
    return failed
