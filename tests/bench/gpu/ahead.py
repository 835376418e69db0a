"""Steps of a look-ahead session in the store's process, with a computation between lookup and
update.

A step is a lookup, a computation (`computing.py`) and an update. Its keys are those of a plain
step, each key once, because a trainer's feed prepares unique keys on the host. Rows and gradients
are arrays of the device, with one row for each key. While the device computes, the next step in the
session's window is announced. If the announcement takes longer than the computation, the step takes
longer, too.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench.gpu.computing import Computing
from tests.bench.gpu.machine import median
from tests.bench.gpu.stores import NAME, arrays_of, since
from tests.bench.gpu.window import take

if TYPE_CHECKING:
    from tests.bench.gpu.tiers import Tiers

SESSION = "bench"
LEASE_MS = 60_000
COUNTED = ("steps_in_parts", "lookup_keys", "lookup_hits", "prefetched_keys", "stalls", "stall_s")


class Ahead:
    """A session of one rank, and its steps."""

    def __init__(self, tiers: "Tiers") -> None:
        scale = tiers.scale
        self.store: Any = tiers.store.store
        self._sessions = self.store.sessions
        self._batches = [np.unique(keys) for keys in tiers.batches]
        self._steps_max = scale.lookahead_steps
        array = arrays_of(tiers.device, scale)
        rows = tiers.gradients[: max(map(len, self._batches))]
        self._out, self._gradients = array(np.zeros_like(rows)), array(rows)
        self.computing = Computing(scale, 0.0)
        self.computed_ms: list[float] = []
        self._step = self._announced = 0
        self._sessions.open(SESSION, [NAME], lookahead_steps_max=self._steps_max, lease_ms=LEASE_MS)
        self._member = self._sessions.join(SESSION, 0).member

    def _keys(self, step: int) -> Any:
        return self._batches[step % len(self._batches)]

    def _announce(self, last: int) -> None:
        steps = {n: {NAME: self._keys(n)} for n in range(self._announced + 1, last + 1)}
        if steps:
            self._sessions.announce(self._member, steps)
            self._announced = last

    def step(self) -> None:
        """Take the next step."""
        step, member = self._step + 1, self._member
        count = len(self._keys(step))
        self._announce(step)  # the session's first; all others are announced before
        self._sessions.lookup_step(member, step, out={NAME: self._out[:count]})
        self.computing.begin()
        self._announce(self._step + self._steps_max)
        self.computed_ms.append(self.computing.wait())
        self._sessions.update_step(member, step, {NAME: self._gradients[:count]})
        self._step = step

    def sums(self) -> dict[str, dict[str, float]]:
        """Return what only grows: of the session, and of planning by stage."""
        stats = self._sessions.stats()[0]
        planning = {name: 1e3 * seconds for name, seconds in stats["stage_seconds"].items()}
        counts = {name: stats[name] for name in COUNTED}
        return {"session": counts, "planning_ms": planning}

    def close(self) -> None:
        self._sessions.close(self._member)


def measure_ahead(tiers: "Tiers") -> dict[str, Any]:
    """Return the figures of a window for each computing, by its milliseconds."""
    session = Ahead(tiers)
    found = {f"{ms:g} ms": _window(tiers, session, ms) for ms in tiers.scale.computations_ms}
    session.close()
    return found


def _window(tiers: "Tiers", session: Ahead, wanted_ms: float) -> dict[str, Any]:
    scale, store = tiers.scale, tiers.store
    session.computing = computing = Computing(scale, wanted_ms)
    for _ in range(1 + scale.lookahead_steps):  # planning comes to the pace of its steps
        session.step()
    session.computed_ms.clear()
    before = session.sums()
    found = take(store, session.step, scale.tier_steps, scale.lookahead_window_s)
    sums = {k: since(before[k], after, found["steps"]) for k, after in session.sums().items()}
    beside_ms = median(session.computed_ms)
    return found | sums | {"computing_beside_ms": beside_ms} | _ratios(found, computing.ms)


def _ratios(found: dict[str, Any], computing_ms: float) -> dict[str, Any]:
    """Return how much longer a step takes than its computing does on an idle device."""
    ratios = {"computing_ms": computing_ms, "beyond_ms": found["ms"] - computing_ms}
    for name, ms in (("ratio", found["ms"]), ("quiet_ratio", found["quiet_ms"])):
        ratios[name] = ms / computing_ms if ms and computing_ms else None
    return ratios
