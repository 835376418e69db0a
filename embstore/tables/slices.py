"""Long work in slices: pieces of work, between which other calls use the engine.

Work on many rows is done in slices, in the calling thread: other calls wait only a few milliseconds
for the running slice, and not for the whole work. Before each slice the caller is notified of the
progress, and can end the work by raising an error, for example because its client has gone or its
server stops. Closing the store ends the work too. Therefore the work must leave everything
unchanged, whichever slice raises.

As long as no call waits, a slice need not be short, and short slices take 1.5 times as long in
total. Therefore `halvings`, the number of times that a slice is cut in half, adapts: it is largest
when the work begins, and after a slice for which a call has waited; it falls by one after sixteen
slices without a waiting call.

The code that does the work bounds a slice, in rows, bytes or slots. The time of slices is measured
by `python -m tests.bench --only stalls`.
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
    """The slices of one long work, for the thread that does the work.

    Parameters
    ----------
    progress : function called before each slice, without the engine. Its arguments are the amount
        of work done and the total; an exception ends the work
    check : function called at the beginning of each slice, with the engine; an exception ends the
        work
    """

    def __init__(
        self,
        frame: Frame,
        progress: Progress | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.done = self.of = 0
        self.halvings = HALVINGS_MAX
        """The number of times that the next slice should be cut in half, if the work can be
        divided."""
        self._unwaited = 0  # slices since the last slice for which a call waited
        self._frame = frame
        self._progress = progress or _nobody
        self._check = check

    @contextmanager
    def one(self) -> Iterator[None]:
        """Take the engine for one slice; calls that wait for it go first."""
        self._progress(self.done, self.of)
        with self._frame.background():
            self._check()
            yield
            waited = self._frame.is_waited_for
        self._unwaited = 0 if waited else self._unwaited + 1
        self.halvings = max(HALVINGS_MAX - self._unwaited // _UNWAITED, 0)

    def wanted(self) -> None:
        """Check, between pieces that need no engine, whether the work is still wanted."""
        self._frame.check_open()
        self._progress(self.done, self.of)

    def last(self) -> AbstractContextManager[None]:
        """Take the engine for the end of the work, also after an error."""
        return self._frame.looking()

    @contextmanager
    def after_others(self, lock: threading.Lock) -> Iterator[None]:
        """Take a lock that lets only one long work of a kind run at a time. It is not the engine's
        lock. The wait for the lock can be ended in the same way as the work between slices.

        This must not be called with the engine: the owner of the lock waits for the engine before
        its next slice.
        """
        while not lock.acquire(timeout=_PATIENCE_S):
            self._frame.check_open()
            self._progress(self.done, self.of)
        try:
            yield
        finally:
            lock.release()
