"""The layer that joins the messages which contain a step's rows; and the object that waits for the
rows.

After `prefetch_step`, the rows of step n + 1 that no unfinished step touches arrive while step n
computes: these are **early** rows. The **late** rows arrive when all earlier steps are finished. A
background thread receives the rows, and copies each row once, from its message to its position in
the step's array. If one message has all rows, they are not copied.

**Deletions.** If a member has deleted rows since early rows were sent, a second message has all
rows of the step, and replaces the first message. If this member itself has deleted rows after the
step's rows had arrived, the rows are requested again: the trainer has not read them yet.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import Any

from embstore.arrays import Rows, as_out
from embstore.commands import Reads
from embstore.errors import DeadlineError, EmbstoreError
from embstore.results import RowsRead, StepTableRows, TableRows
from embstore.results import StepRows as SomeRows
from embstore_client.call import Below, Call
from embstore_client.transport import checked_seconds
from embstore_proto.verbs import Answer

_LEAST_S = 1e-3
"""The shortest deadline of a repeated request, in seconds, even if no time is left."""


class Assembly:
    """The rows of a step while they are received: early and late rows are joined in one array.

    Only the client that announced the step knows the number of the step's rows before the last rows
    arrive. In other clients early rows stay in their message until the last rows arrive. One thread
    at a time.
    """

    def __init__(self, outs: Mapping[str, Rows]) -> None:
        self._outs = outs
        self._begin()

    def _begin(self) -> None:
        self._rows: dict[str, Rows] = {}
        self._t: dict[str, int] = {}
        self._came: Counter[str] = Counter()
        self.early_bytes = self.late_bytes = 0

    def take(self, answers: Iterable[Answer], counts: Mapping[str, int]) -> RowsRead:
        """Return the rows in all messages of one answer; `counts` is empty if the numbers of rows
        are unknown."""
        self._begin()
        early: list[StepTableRows] = []
        for answer, _ in answers:
            for part in answer.tables:
                if part.positions is None:
                    self._came[part.table] = 0  # all rows, in place of earlier rows
                self._came[part.table] += len(part.rows)
                self._t[part.table] = part.t  # the last t is the one after all earlier steps
                self.early_bytes += part.rows.nbytes * answer.early
                self.late_bytes += part.rows.nbytes * (not answer.early)
            if answer.early and not counts:
                early += answer.tables
            else:
                self._place([*early, *answer.tables], counts or self._came)
                early = []
        return self._whole(counts or self._came)

    def _place(self, parts: Iterable[StepTableRows], counts: Mapping[str, int]) -> None:
        for part in parts:
            name, rows, positions = part.table, part.rows, part.positions
            if name not in self._rows:
                if positions is None and name not in self._outs:
                    self._rows[name] = rows
                    continue
                shape = (counts.get(name, 0), rows.shape[1])
                self._rows[name] = as_out(self._outs.get(name), shape, name)
            self._rows[name][slice(None) if positions is None else positions] = rows

    def _whole(self, counts: Mapping[str, int]) -> RowsRead:
        if self._came != Counter(counts) or counts.keys() != self._rows.keys():
            raise EmbstoreError(
                f"expected the rows of a step, by table {dict(counts)}, found "
                f"{dict(self._came)}; look the step up again"
            )
        parts = (TableRows(name, self._rows[name], None, self._t[name]) for name in counts)
        return RowsRead(tuple(parts))


def whole(read: SomeRows) -> RowsRead:
    """Return the rows of a step that arrived in one message, on the host or on a device.

    Raises EmbstoreError if the message has only some of the rows.
    """
    if read.early or any(part.positions is not None for part in read.tables):
        raise EmbstoreError("expected all rows of a step in one message, found some of them")
    return RowsRead(tuple(TableRows(p.table, p.rows, None, p.t) for p in read.tables))


class EarlyRows:
    """The layer that joins the early and the late rows of a step."""

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call. The call's `out` can be an `Assembly`, which then receives the rows."""
        command = call.command
        if command.reads is Reads.OF_STEP and hasattr(command, "early"):
            out, call.out = call.out, None
            assembly = out if isinstance(out, Assembly) else Assembly(out or {})
            call.take = partial(assembly.take, counts=call.counts)
        return below(call)


class StepRows:
    """The rows of a step that were requested from the server. Any thread may use it.

    A background thread requests them, with the deadline of a usual call. If the deadline passes
    because the previous step takes so long, `result` requests the rows again. If this object is
    dropped, the rows that it has received stay in memory until the step is finished or the member
    is closed.
    """

    def __init__(
        self,
        step: int,
        assembly: Assembly,
        fetch: Callable[[float], dict[str, Rows]],
        timeout_s: float,
        writes: Callable[[], int],
    ) -> None:
        """`writes` returns how many commands that may have written rows the member has sent outside
        of steps."""
        self.step = step
        self._assembly = assembly
        self._fetch = fetch
        self._timeout_s = timeout_s
        self._writes = writes
        self._asked_at = writes()
        self._rows: dict[str, Rows] = {}
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._asking = threading.Lock()
        threading.Thread(target=self._receive, name=f"rows of step {step}", daemon=True).start()

    def _receive(self) -> None:
        try:
            self._rows = self._fetch(self._timeout_s)
        except BaseException as exc:
            self._error = exc.with_traceback(None)
        finally:
            self._over.set()

    @property
    def early_bytes(self) -> int:
        """Bytes of the rows that arrived before all earlier steps were finished."""
        return self._assembly.early_bytes

    @property
    def late_bytes(self) -> int:
        """Bytes of the rows that arrived after all earlier steps were finished."""
        return self._assembly.late_bytes

    def done(self) -> bool:
        """Return whether `result` would return without waiting."""
        is_whole = self._over.is_set() and not isinstance(self._error, DeadlineError)
        return is_whole and self._asked_at == self._writes()

    def result(self, timeout_s: float | None = None) -> dict[str, Rows]:
        """Wait for all rows, and return them as `lookup_step` does.

        Raises DeadlineError if the rows did not arrive in time; they may arrive later, and can be
        requested again. Also raises the errors of `lookup_step`.
        """
        seconds = self._timeout_s
        if timeout_s is not None:
            seconds = checked_seconds(timeout_s, "timeout_s")
        deadline = monotonic() + seconds
        if not self._over.wait(seconds):
            raise DeadlineError(f"step {self.step}: its rows did not arrive within {seconds:g} s")
        with self._asking:
            now = self._writes()
            if isinstance(self._error, DeadlineError) or self._asked_at != now:
                self._asked_at = now
                self._rows = self._fetch(max(deadline - monotonic(), _LEAST_S))
                self._error = None
        if self._error is not None:
            raise self._error
        return self._rows
