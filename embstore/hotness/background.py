"""Work in the background of a store: one job after the other, on a thread while there is one.

A store whose cache has nothing to be brought in has no such thread.
"""

import threading
from collections.abc import Callable


class Background:
    """Jobs of one kind, done one after the other. Any thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._is_asked = False  # a job is to begin

    @property
    def is_stopping(self) -> bool:
        """Whether jobs are to end soon."""
        return self._stopping.is_set()

    def start(self, job: Callable[[], None]) -> None:
        """Do a job once the one before has ended; not if one like it is about to begin."""
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
        """Have the running job end soon, and begin none."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the end of the last job. Not with the engine."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
