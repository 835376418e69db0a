"""The layer of a step's rows on their way: how they are joined, and the handle that waits for them.

The rows of step n + 1 that no unfinished step touches come while step n computes, if
`prefetch_step` has asked for them: a thread of its own receives them, and copies each once, from
the message that it came in to its place in the step's array. Rows that come all in one message
stay where they came.

**Deletions.** Where a member has deleted rows since early ones were sent, a second message has all
rows, and takes the place of the first. And where it was this member, after its rows had come, they
are asked for again: the trainer has not seen them yet.
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
"""A call that is made anew has a deadline, however late it is."""


class Assembly:
    """A step's rows in the receiving: the early and the late ones, joined where they belong.

    Only the client that announced the step knows how many rows it has before the last of them have
    come; for others early rows stay in their message until then. One thread at a time.
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
        """Return the rows that all messages of one answer bring; `counts` is empty if not known."""
        self._begin()
        early: list[StepTableRows] = []
        for answer, _ in answers:
            for part in answer.tables:
                if part.positions is None:
                    self._came[part.table] = 0  # all of them, whatever came before
                self._came[part.table] += len(part.rows)
                self._t[part.table] = part.t  # the last one is from the step's turn
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
    """Return the rows of a step that have come all in one message, wherever they are.

    Raises EmbstoreError: they are some of them.
    """
    if read.early or any(part.positions is not None for part in read.tables):
        raise EmbstoreError("expected all rows of a step in one message, found some of them")
    return RowsRead(tuple(TableRows(p.table, p.rows, None, p.t) for p in read.tables))


class EarlyRows:
    """The layer: rows of a step, some early, the others when its turn has come, are made one."""

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call; `out` may be the assembly itself."""
        command = call.command
        if command.reads is Reads.OF_STEP and hasattr(command, "early"):
            out, call.out = call.out, None
            assembly = out if isinstance(out, Assembly) else Assembly(out or {})
            call.take = partial(assembly.take, counts=call.counts)
        return below(call)


class StepRows:
    """The rows of a step, on their way from the server. Any thread.

    A thread asks for them with the deadline of a call of its own; if that passes, because the step
    before takes so long, `result` asks anew. A handle that is dropped costs the rows that it
    receives until the step is finished or the member closed.
    """

    def __init__(
        self,
        step: int,
        assembly: Assembly,
        fetch: Callable[[float], dict[str, Rows]],
        timeout_s: float,
        writes: Callable[[], int],
    ) -> None:
        """`writes` returns how many commands of the member, of no step, may have written rows."""
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
        """Bytes of rows that came before the step was ready."""
        return self._assembly.early_bytes

    @property
    def late_bytes(self) -> int:
        """Bytes of rows that came once it was."""
        return self._assembly.late_bytes

    def done(self) -> bool:
        """Whether `result` will not wait for them."""
        is_whole = self._over.is_set() and not isinstance(self._error, DeadlineError)
        return is_whole and self._asked_at == self._writes()

    def result(self, timeout_s: float | None = None) -> dict[str, Rows]:
        """Wait for all rows, and return them as `lookup_step` does.

        Raises DeadlineError: they did not come in time; they may still, and may be asked for again;
        EmbstoreError: the errors of `lookup_step`.
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
