"""The end of a loop of several ranks; a thread waits for the other ranks.

A rank with fewer batches has to wait until the other ranks have finished their batches. Before
that, the place of the session (its last finished step) is not the last step of all ranks, and the
session still holds the tables. But the rank must not wait within its loop: the dense part of the
other ranks is still being trained, and needs this rank to reach the end of its block of
`DistributedDataParallel.join()`. So a thread waits. The program is blocked only where it needs the
place or the tables: at the next loop, at `save` and `load`, and at an update outside of loops.
"""

import threading
from contextlib import AbstractContextManager
from typing import Any


class Ending:
    """A run that has finished its batches, and waits for the other ranks."""

    def __init__(self, run: Any, within: AbstractContextManager[Any]) -> None:
        """Wait in a thread for the other ranks; then leave `within`, the with block of the run."""
        self._run, self._within = run, within
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._join, name="embstore-join", daemon=True)
        self._thread.start()

    def _join(self) -> None:
        try:
            with self._within:
                self._run.join()
        except BaseException as exc:
            self._failure = exc

    @property
    def last_step(self) -> int:
        """The last step that is known to be finished. After all ranks have ended, this is the last
        step of all ranks."""
        step: int = self._run.last_step
        return step

    def wait(self) -> int:
        """Wait until no rank has more steps, and return the last step of all ranks.

        Raises
        ------
        RankFailedError : a rank has failed, has never joined, or has left before its last step.
        """
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self.last_step
