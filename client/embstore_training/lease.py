"""A rank's lease, renewed in a thread of its own while its loop computes or waits.

A call of a rank renews its lease as it begins, but a step may compute, or wait for other ranks, for
longer than the lease lasts. The thread begins a renewal with every third of it, and abandons one
after as long: two fit into a lease, so that one may go without an answer. After any failure the
next renewal is tried, unless the session has ended. Of equal failures in a row the first is logged,
in a line; where the error is none of the tree, with its trace.

A server that was started again has no sessions: the renewal opens it anew (`rank_session`).
"""

import logging
import threading
from collections.abc import Callable
from time import monotonic

from embstore.errors import EmbstoreError, RankFailedError, SessionExpiredError, StoreClosedError

_LOG = logging.getLogger(__name__)
_STOP_S = 1.0
"""How long the end of a run waits for a renewal that is out: its answer is of no use by then."""


class Lease:
    """Keeps a rank's lease until it is stopped, or the session has ended."""

    def __init__(self, renew: Callable[[float], object], lease_ms: int) -> None:
        """Begin; `renew` is called with the seconds that it may take."""
        self._renew = renew
        self._interval_s = lease_ms / 3000
        self._stopped = threading.Event()
        self.is_answered = True
        """Whether the last renewal was; while one is out, it is not."""
        self._thread = threading.Thread(target=self._run, name="embstore-lease", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether renewing has ended."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop renewing."""
        self._stopped.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        begun = monotonic()
        failed_by: type | None = None  # since one was answered
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
