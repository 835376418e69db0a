"""The end of a loop of several ranks, which waits for the others in a thread.

A rank whose batches are fewer has to wait until the others have gone through theirs: only then is
the place of the session the place of all ranks, and the tables are free. But it must not wait
within its loop: the dense part of the others goes on too, and needs this rank, as in the block of
`DistributedDataParallel.join()`, whose end the rank has to reach. A thread waits, and the program
is held up where it needs the place, or the tables: at the next loop, at `save` and `load`, and at
an update outside of loops.
"""

import threading
from contextlib import AbstractContextManager
from typing import Any


class Ending:
    """A run that has gone through its batches, and waits for the other ranks."""

    def __init__(self, run: Any, within: AbstractContextManager[Any]) -> None:
        """Wait in a thread; then leave `within`, the with block of the run."""
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
        """The last step known to be finished: once the ranks have ended, the last of all ranks."""
        step: int = self._run.last_step
        return step

    def wait(self) -> int:
        """Return the last step of all ranks, when none has more.

        Raises
        ------
        RankFailedError : one has failed, has never joined, or has left with steps to come.
        """
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self.last_step
