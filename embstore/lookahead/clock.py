"""The clock of leases: it stands still while the process does not run.

A server that was stopped (SIGSTOP, a virtual machine that is moved, a laptop that sleeps) has heard
no renewal meanwhile, and must not take that for silence. So between two readings the clock moves on
by `STEP_MAX_S` at most. The planner reads it at least twice as often while sessions are open.
"""

import threading
from time import monotonic

STEP_MAX_S, _STEP_MIN_S = 1.0, 0.05
_STEPS = 4
"""Ticks of a lease, at least: a stop then costs less of the lease than the two thirds that a
trainer leaves, which renews it every third."""


class Clock:
    """Seconds in which this process ran. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step_s = STEP_MAX_S
        self._read_at = self._now = monotonic()

    @property
    def pause_s(self) -> float:
        """Seconds for which it may go without being read."""
        return self._step_s / 2

    def keeps(self, lease_s: float | None) -> None:
        """Keep leases, the shortest of which lasts so long; None: there is none."""
        step_s = STEP_MAX_S if lease_s is None else lease_s / _STEPS
        self._step_s = max(min(step_s, STEP_MAX_S), _STEP_MIN_S)

    def now(self) -> float:
        """Read it."""
        with self._lock:
            at = monotonic()
            self._now += min(at - self._read_at, self._step_s)
            self._read_at = at
            return self._now
