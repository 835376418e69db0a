"""A rank's lease, renewed in a thread of its own while its loop computes.

Every call of a rank renews its lease, but a step may compute for longer than the lease lasts. The
thread renews it three times in its length, so that two attempts may go without an answer.
"""

import threading

from embstore.errors import EmbstoreError, SessionExpiredError, StoreClosedError
from embstore.feed.port import SessionPort

_STOP_S = 1.0
"""How long the end of a run waits for a renewal that is out: its answer is of no use by then."""


class Lease:
    """Keeps a rank's lease until it is stopped, or the session has ended."""

    def __init__(self, port: SessionPort, member: str, lease_ms: int) -> None:
        self._port, self._member = port, member
        self._interval_s = lease_ms / 3000
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embstore-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Renew no more."""
        self._stopped.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self._port.renew(self._member)
            except (SessionExpiredError, StoreClosedError):
                return  # The loop's next call is told the same.
            except EmbstoreError:
                continue  # No answer this time; the lease lasts for two attempts more.
