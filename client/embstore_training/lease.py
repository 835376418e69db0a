"""A rank's lease, renewed in a background thread while its loop computes or waits.

When a call of a rank begins, it renews the rank's lease. But a step may compute or wait for other
ranks for longer than the lease. The thread begins a renewal after every third of the lease, and
abandons it after another third. Thus two renewals fit into a lease, and the lease survives if one
renewal is not answered. After a failure the thread tries again, unless the session has ended. If
failures of the same type follow one another, only the first is logged, in one line; an error other
than an EmbstoreError is logged with its traceback.

A restarted server has no sessions: the renewal opens the session again (`rank_session`).
"""

import logging
import threading
from collections.abc import Callable
from time import monotonic

from embstore.errors import EmbstoreError, RankFailedError, SessionExpiredError, StoreClosedError

_LOG = logging.getLogger(__name__)
_STOP_S = 1.0
"""Seconds for which the end of a run waits for a running renewal, which is of no use any more."""


class Lease:
    """Renews a rank's lease until it is stopped, or the session has ended."""

    def __init__(self, renew: Callable[[float], object], lease_ms: int) -> None:
        """Start the thread, which calls `renew` with a timeout in seconds."""
        self._renew = renew
        self._interval_s = lease_ms / 3000
        self._stopped = threading.Event()
        self.is_answered = True
        """Whether the last renewal was answered; False while a renewal is running."""
        self._thread = threading.Thread(target=self._run, name="embstore-lease", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop renewing."""
        self._stopped.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        begun = monotonic()
        failed_by: type | None = None  # the type of the last failure since the last answer
        while not self._stopped.wait(max(begun + self._interval_s - monotonic(), 0.0)):
            begun = monotonic()
            self.is_answered = False
            try:
                self._renew(self._interval_s)
                self.is_answered, failed_by = True, None
            except (SessionExpiredError, RankFailedError, StoreClosedError):
                return  # The loop's next call gets the same error.
            except Exception as exc:
                if self._stopped.is_set():
                    return
                if type(exc) is not failed_by:
                    trace = None if isinstance(exc, EmbstoreError) else exc
                    _LOG.warning(
                        "the lease of a session could not be renewed, trying again: %s",
                        exc,
                        exc_info=trace,
                    )
                failed_by = type(exc)
