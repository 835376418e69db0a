"""The clock of leases, which stops while the process does not run.

A server that was stopped (by SIGSTOP, the migration of a virtual machine, the sleep of a laptop)
has received no renewals while it was stopped, although clients were not silent. Therefore the clock
advances by at most `STEP_MAX_S` between two readings. As long as sessions are open, the planner
reads the clock at least twice in this time.
"""

import threading
from time import monotonic

STEP_MAX_S, _STEP_MIN_S = 1.0, 0.05
_STEPS = 4
"""The number of the clock's steps in the shortest lease. Between two readings the clock advances by
at most one step. Therefore a stop of the process costs at most a quarter of the lease. A trainer
renews its lease after a third of the lease, so at least two thirds of it are left when a stop
begins."""


class Clock:
    """The seconds in which this process ran. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step_s = STEP_MAX_S
        self._read_at = self._now = monotonic()

    @property
    def pause_s(self) -> float:
        """Seconds after which the clock must be read again at the latest."""
        return self._step_s / 2

    def keeps(self, lease_s: float | None) -> None:
        """Set the duration of the shortest lease; None: no lease runs."""
        step_s = STEP_MAX_S if lease_s is None else lease_s / _STEPS
        self._step_s = max(min(step_s, STEP_MAX_S), _STEP_MIN_S)

    def now(self) -> float:
        """Read the clock."""
        with self._lock:
            at = monotonic()
            self._now += min(at - self._read_at, self._step_s)
            self._read_at = at
            return self._now
