"""The actions of each contestant in a step: before the step, in the lookup, during the computation,
and in the update.

Each contestant has a store of its own and its position in the trace. All begin with the hottest
rows resident and dirty, as many as fit, so no cache has to be filled while it is measured.

**Static top-N.** The store has no cache that refuses rows: an update loads them. So LFU is used to
keep the hottest N rows: before each block they are touched again and again. All other rows arrive,
with a count of one, in the remaining room, which is large enough for one batch. A row in this room
leaves before any hot row. Rejected: lookups with admit=False for the other rows. Such rows would be
read twice in a step, once for the lookup and once for the update, which no static cache does.

**Look-ahead.** Announcing is the work of the feed, which has a thread of its own. Here, the keys
are announced during the computation, and the time of announcing is part of it. A step announces the
step that has just come into the window. The window stays full at the end of a block, and the
unmeasured steps of the next block use it up.
"""

from typing import Any

import numpy as np

from tests.bench.lookahead.scale import Scale
from tests.bench.lookahead.stores import TABLE, Opened
from tests.bench.lookahead.trace import Trace
from tests.bench.stores import CHUNK_KEYS, small_grads, update_all

_HOT_TOUCHES = 6
_NAME = "bench"
_LEASE_MS = 60_000
"""Longer than the other contestants' blocks, which come between two calls of the member."""


class Plain:
    """Calls of lookup and update, under whatever policy the store has.

    The others differ in what a step is made of. Steps come in order, each once.
    """

    def __init__(self, opened: Opened, trace: Trace, scale: Scale) -> None:
        self.opened = opened
        self._trace = trace
        self._out = np.empty((scale.batch_keys, scale.dim), np.float32)
        self._gradients = small_grads(scale.dim)
        update_all(opened.table, trace.hottest(opened.slots), self._gradients)

    def before_block(self) -> None:
        """Do what belongs to no step: here nothing."""

    def lookup(self, step: int) -> None:
        keys = self._trace.batch(step)
        self.opened.files.begin_call()
        self.opened.table.lookup(keys, out=self._out[: len(keys)])

    def beside(self, step: int) -> None:
        """Do what a trainer's other threads do while it computes: nobody knows of the next step."""

    def update(self, step: int) -> None:
        keys = self._trace.batch(step)
        self.opened.files.begin_call()
        self.opened.table.update(keys, self._gradients[: len(keys)])

    def counts(self) -> dict[str, float]:
        """Return numbers that only grow: what a block adds to them is kept beside its times."""
        return self._reads()

    def _reads(self) -> dict[str, float]:
        pool = self.opened.pool()
        origins = ("log", "base", "initializer")
        rows = sum(pool[f"misses_{origin}"] for origin in origins)
        return {"rows_read": rows, "reads": self.opened.files.reads}

    def close(self) -> None:
        self.opened.close()


class Static(Plain):
    """The hottest rows stay, but for room for one batch. The store's policy is LFU."""

    def __init__(self, opened: Opened, trace: Trace, scale: Scale) -> None:
        super().__init__(opened, trace, scale)
        self._hottest = trace.hottest(max(0, opened.slots - scale.batch_keys))
        for _ in range(_HOT_TOUCHES):
            self.before_block()

    def before_block(self) -> None:
        """Touch the hot rows, at no one's expense; what had left comes back."""
        latency_s, self.opened.files.latency_s = self.opened.files.latency_s, 0.0
        for low in range(0, len(self._hottest), CHUNK_KEYS):
            self.opened.table.lookup(self._hottest[low : low + CHUNK_KEYS])
        self.opened.files.latency_s = latency_s


class LookAhead(Plain):
    """A session, through its low-level calls, so that no feed costs anything."""

    def __init__(self, opened: Opened, trace: Trace, scale: Scale) -> None:
        super().__init__(opened, trace, scale)
        self._ahead = scale.lookahead_steps
        self._sessions: Any = opened.store.sessions
        self._sessions.open(_NAME, [TABLE], lookahead_steps_max=self._ahead, lease_ms=_LEASE_MS)
        self._member: str = self._sessions.join(_NAME, 0).member
        self._announced = 0  # steps of the session, numbered from 1: batch b is step b + 1
        self._announce(self._ahead)

    def _announce(self, last: int) -> None:
        steps = {n: {TABLE: self._trace.batch(n - 1)} for n in range(self._announced + 1, last + 1)}
        if steps:
            self._sessions.announce(self._member, steps)
            self._announced = last

    def lookup(self, step: int) -> None:
        self.opened.files.begin_call()
        out = {TABLE: self._out[: len(self._trace.batch(step))]}
        self._sessions.lookup_step(self._member, step + 1, out=out)

    def beside(self, step: int) -> None:
        """Announce as far as the window goes."""
        self._announce(step + self._ahead)

    def update(self, step: int) -> None:
        gradients = {TABLE: self._gradients[: len(self._trace.batch(step))]}
        self.opened.files.begin_call()
        self._sessions.update_step(self._member, step + 1, gradients)

    def counts(self) -> dict[str, float]:
        """Return the session's figures, seconds of each stage, and batches of cold rows."""
        facts = self._sessions.stats()[0]
        stages = {f"{stage}_s": seconds for stage, seconds in facts["stage_seconds"].items()}
        figures = {name: facts[name] for name in ("lookup_keys", "lookup_hits", "collected_rows")}
        return figures | stages | self._reads()

    def close(self) -> None:
        self._sessions.close(self._member)
        super().close()
