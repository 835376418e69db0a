"""Long work in slices: pieces that take their turn with the engine, between which calls get on.

Work on many rows is done in slices, in the calling thread: other calls wait for the running slice,
a few milliseconds, and not for the whole work. Before each slice the caller gets the progress, and
may end the work by raising: its client has gone, or its server stops. A closed store ends it
likewise. Therefore the work must leave everything unchanged wherever a slice raises.

Where no call waits, a slice need not be short, and short ones take half as long again in sum.
Therefore `halvings` is the number of times that a slice is cut in half: a few when the work begins,
and after a slice for which a call has waited; one less after each sixteen slices without a waiting
call.

The work of a slice is bounded in rows, bytes or slots where it is done. Its time is measured
(`python -m tests.bench --only stalls`).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from embstore.commands import Progress
from embstore.tables.frame import Frame

_PATIENCE_S = 0.05
HALVINGS_MAX = 3
_UNWAITED = 16


def _nobody(done: int, of: int) -> None:
    """Report nothing."""


class Slices:
    """The slices of one long work. The thread that does it.

    Parameters
    ----------
    progress : called before each slice, without the engine, with the work done and its total; an
        exception ends the work
    check : called at the begin of each slice, with the engine; likewise
    """

    def __init__(
        self,
        frame: Frame,
        progress: Progress | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.done = self.of = 0
        self.halvings = HALVINGS_MAX
        """The number of times that the next slice is to be cut in half, for divisible work."""
        self._unwaited = 0  # slices since one that a call has waited for
        self._frame = frame
        self._progress = progress or _nobody
        self._check = check

    @contextmanager
    def one(self) -> Iterator[None]:
        """Have the engine for one slice; calls that wait for it go first."""
        self._progress(self.done, self.of)
        with self._frame.background():
            self._check()
            yield
            waited = self._frame.is_waited_for
        self._unwaited = 0 if waited else self._unwaited + 1
        self.halvings = max(HALVINGS_MAX - self._unwaited // _UNWAITED, 0)

    def wanted(self) -> None:
        """Find out, between pieces that need no engine, whether the work is still wanted."""
        self._frame.check_open()
        self._progress(self.done, self.of)

    def last(self) -> AbstractContextManager[None]:
        """Have the engine for the end of the work, also after an error."""
        return self._frame.looking()

    @contextmanager
    def after_others(self, lock: threading.Lock) -> Iterator[None]:
        """Hold a lock that is not the engine's, for work that is done one after the other; a wait
        for it is ended as between slices.

        Not with the engine: the holder of the lock waits for it before its next slice.
        """
        while not lock.acquire(timeout=_PATIENCE_S):
            self._frame.check_open()
            self._progress(self.done, self.of)
        try:
            yield
        finally:
            lock.release()
