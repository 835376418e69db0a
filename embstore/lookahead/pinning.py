"""Pins of coming steps, which keep the rows of a planned step in the cache until it is finished.

`embstore.cache.prefetch` reads a step's rows into the cache. This module decides which steps' rows
are pinned there.

**No room.** A step without room waits until another step is finished; in this time its session
reports *held back*. A step also waits if waiting gives it better rows to evict: rows that are
needed later than the rows that it could evict at once. A step whose **turn** has come, because all
earlier steps are finished, does not wait. It takes the pins of the steps whose turns are farthest
ahead, in whatever session; these steps are planned again later. If a step at its turn still does
not fit, it is done *in parts*, as any call that is larger than the cache.

**Several owners.** Ahead of their turns, the steps of one owner's sessions (`tables.owners`) can
pin only the owner's part of a pool's slots; all owners have equal parts. A step whose turn has come
can pin more slots than that.
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
from embstore.errors import CapacityError, EmbstoreError
from embstore.lookahead.foresight import Foresight
from embstore.lookahead.session import Session
from embstore.lookahead.step import Event, Part, State, Step
from embstore.tables.tables import Tables


class Pinning:
    """Pins the steps of all live sessions of a store, and takes pins back. Engine thread only.

    `ended` contains the sessions whose pins are still to be released. `notify` is called under the
    lock.
    """

    def __init__(
        self,
        tables: Tables,
        sessions: Mapping[str, Session],
        ended: list[Session],
        lock: threading.RLock,
        notify: Callable[[], None],
    ) -> None:
        self.work = Work()
        self.foresight = Foresight(self.prefetch)
        self.releases = 0
        """A number that grows whenever pins are released."""
        self._tables = tables
        self._sessions = sessions
        self._ended = ended
        self._lock = lock
        self._notify = notify
        self._prefetches: dict[int, Prefetch] = {}  # by id of the pool

    # Pools

    def close(self) -> None:
        """Drop references to the objects that refer to this object, so that no cycle keeps closed
        objects alive."""
        self.foresight.close()
        self._notify = _nothing

    @property
    def prefetches(self) -> list[Prefetch]:
        """A list of the prefetches of all pools in which steps are planned."""
        return list(self._prefetches.values())

    def prefetch(self, pool: Pool) -> Prefetch:
        """Return the prefetch of a pool. Engine thread only."""
        prefetch = self._prefetches.get(id(pool))
        if prefetch is None or prefetch.pool is not pool:
            prefetch = self._prefetches[id(pool)] = Prefetch(pool, self.work)
            pool.pins.add_reclaimer(self)
        return prefetch

    def forget_pools(self) -> None:
        """Drop the references to pools in which no session plans steps any more."""
        used = {id(t.pool) for s in self._sessions.values() for t in s.tables.values()}
        for key, prefetch in list(self._prefetches.items()):
            if key not in used and not prefetch.pool.finder.arriving:
                prefetch.pool.pins.remove_reclaimer(self)
                del self._prefetches[key]

    # Room

    def clear(self, session: Session, step: Step, before: list[Step]) -> None:
        """Free slots for a step, piece by piece, before it is planned. Planning frees the remaining
        slots.

        Calls in between can take freed slots. Therefore no more slots are freed than the step
        needed at first: a step must not compete with calls. If the step, together with the steps
        planned with it, exceeds its owner's share, no slots are freed: rows of other owners would
        leave in vain.
        """
        for part in step.parts:
            left = self._ahead(session, step, partial(self._cleared, session, step, part, before))
            while left > 0:
                left = self._ahead(session, step, partial(self._evicted, part, left))

    def _ahead(self, session: Session, step: Step, work: Callable[[], int]) -> int:
        """Run a piece of `clear`, unless the step is done or its session has ended: in these cases
        the pools may no longer exist."""
        with self._tables.background():
            is_over = session.error is not None or step.number <= session.last_step
            return 0 if is_over or step.is_in_parts else work()

    def _cleared(self, session: Session, step: Step, part: Part, before: list[Step]) -> int:
        if step.number > session.last_step + 1 and not self._has_share(session, step, before):
            return 0
        prefetch = self.prefetch(part.pool)
        if not prefetch.can_fit(step.keys_in(part.pool)):
            self._do_in_parts(session, step)
            return 0
        return prefetch.clear(part.batch(), self.foresight.use(session, step, part.pool))

    def _evicted(self, part: Part, rows: int) -> int:
        try:
            return self.prefetch(part.pool).evict(rows)
        except EmbstoreError:
            return 0  # planning the step will raise the same error

    def _has_share(self, session: Session, step: Step, before: list[Step]) -> bool:
        """Return whether the owner's part of each pool has room for the pins of a step and of the
        session's steps `before` it, which may not be pinned yet."""
        with self._lock:
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

    # Pins

    def pin_steps(self, session: Session, steps: list[Step]) -> list[Collection]:
        """Pin steps in order, as far as there is room; return the collections of rows to read."""
        if session.planned_step + 1 < steps[0].number:
            return []  # an earlier step has lost its pins, and is planned first
        self._tables.storage.begin_change()
        planned = []
        self._tables.arena.is_fixed = True  # no slab moves to another pool while steps are pinned
        try:
            for step in steps:
                if session.error is not None:
                    break
                if step.number <= session.last_step or step.state is State.ANNOUNCED:
                    continue  # already finished, by a trainer that did not look it up
                if not step.is_planned and not self._plan_step(session, step):
                    break
                planned.append(step)
            pools = {id(part.pool): part.pool for step in steps for part in step.parts}
            begun = {key: self.prefetch(pool).begin() for key, pool in pools.items()}
        finally:
            self._tables.arena.is_fixed = False
        with self._lock:
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
        """Pin a step's rows; return False if the step must wait for room."""
        is_turn = step.number == session.last_step + 1
        while not step.is_in_parts:
            has_share = is_turn or self._has_share(session, step, [])
            full = self._pin(session, step) if has_share else None
            if has_share and full is None:
                break
            if not is_turn:
                with self._lock:
                    session.waits_at = self.releases
                    session.waiting_since = session.waiting_since or monotonic()
                return False
            if full is None or not self._take_farthest(full, step):
                self._do_in_parts(session, step)
        with self._lock:
            session.waited_s = session.held_back_s
            session.waiting_since, session.waits_at = None, -1
        return True

    def _pin(self, session: Session, step: Step) -> Pool | None:
        """Pin all parts of a step, or none; return the pool without room, or None."""
        try:
            for part in step.parts:
                use = self.foresight.use(session, step, part.pool)
                part.pins = self.prefetch(part.pool).plan(part.batch(), use)
                if part.pins is None:
                    self.unpin(step)
                    return part.pool
        except EmbstoreError:  # for example, no room in the log: the step's call will raise it
            self.unpin(step)
            self._do_in_parts(session, step)
        return None

    def _do_in_parts(self, session: Session, step: Step) -> None:
        """Mark a step to be done in parts, and count it, unless its trainer has finished the step
        meanwhile."""
        with self._lock:
            was_in_parts = step.is_in_parts
            step.move(Event.DO_IN_PARTS)
            session.counts.steps_in_parts += step.is_in_parts and not was_in_parts

    # Taken back

    def _take_farthest(self, pool: Pool, step: Step) -> bool:
        """Take the pins of the planned step that is farthest from its turn; return False if no step
        has pins."""
        with self._lock:
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
        """Take back pins in a pool. Steps that lose pins are planned again. Engine thread only."""
        with self._lock:
            for session in [*self._sessions.values(), *self._ended]:
                for step in list(session.steps.values()):
                    if _has_pins(step, pins, pinned):
                        owns = [part.pins.own for part in step.parts if part.pins is not None]
                        failed = any(own is not None and own.has_failed for own in owns)
                        self._plan_again(session, step)
                        if failed:  # a row of the collection cannot be read
                            self._do_in_parts(session, step)

    def _plan_again(self, session: Session, step: Step) -> None:
        self._tables.storage.begin_change()
        with suppress(CapacityError):
            self.foresight.rank_again(session, step)
        self.unpin(step)
        with self._lock:
            if step.is_planned:
                session.counts.steps_planned_again += 1
                session.planned_step = min(session.planned_step, step.number - 1)
            step.move(Event.UNPIN)
            self._notify()

    def unpin(self, step: Step) -> None:
        """Release the pins of a step. Its rows stay in the cache until they are victims."""
        for part in step.parts:
            pins, part.pins = part.pins, None
            if pins is not None:
                self.prefetch(part.pool).release(pins)
                self.releases += 1


def _pinned_parts(session: Session, pool: Pool) -> Iterator[Part]:
    for step in session.steps.values():
        yield from (part for part in step.parts if part.pool is pool and part.pins is not None)


def _unpinned_parts(steps: list[Step], pool: Pool) -> Iterator[Part]:
    for step in steps:
        if step.state is State.NOTED:
            yield from (part for part in step.parts if part.pool is pool and part.pins is None)


def _pins_max(pool: Pool) -> int:
    """Return the most slots of a pool that can be pinned once the pool has grown to its full
    size."""
    slots = pool.slots
    grown = slots.sizes.slots_max if slots.may_grow else slots.count
    return pool.pins.most * grown // max(slots.count, 1)


def _new_rows(part: Part, session: Session) -> int:
    """Return the number of rows of a part that no earlier unfinished step uses."""
    assert part.previous is not None, "a step is noted before it is planned"
    return int(np.count_nonzero(part.previous <= session.last_step))


def _has_pins(step: Step, pins: PoolPins, pinned: PinnedSlots | None = None) -> bool:
    """Return whether a step has pins in a pool, or, if `pinned` is given, pins in these slots."""
    own = [part for part in step.parts if part.pool.pins is pins and part.pins is not None]
    if pinned is None:
        return bool(own)
    return any(_is_pinned(part, pinned) for part in own)


def _is_pinned(part: Part, pinned: PinnedSlots) -> bool:
    assert part.pins is not None
    slots = part.pool.device.memory.download(part.pins.slots)
    return bool((slots >= pinned.first_slot).any())


def _nothing() -> None:
    pass
