"""Background work of a store: jobs one after the other, on a thread that exists only during a job.

A store that has no rows to load in the background has no such thread.
"""

import threading
from collections.abc import Callable


class Background:
    """Jobs of one kind, which run one after the other. Any thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._is_asked = False  # whether a started job has not begun yet

    @property
    def is_stopping(self) -> bool:
        """Whether jobs must end soon."""
        return self._stopping.is_set()

    def start(self, job: Callable[[], None]) -> None:
        """Run a job once the present job has ended. Do nothing if another started job is already
        waiting."""
        with self._lock:
            if self._is_asked or self._stopping.is_set():
                return
            before, self._is_asked = self._thread, True
            self._thread = threading.Thread(
                target=self._run, args=(job, before), name=self._name, daemon=True
            )
            self._thread.start()

    def _run(self, job: Callable[[], None], before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        with self._lock:
            self._is_asked = False
        if not self.is_stopping:
            job()

    def stop(self) -> None:
        """Ask the running job to end soon, and start no more jobs."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the end of the last job. The caller must not have the engine."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
