"""A step's rows in the receiving: the handle that waits for them, and how they are put together.

The rows of step n + 1 that no unfinished step touches come while step n computes, if
`prefetch_step` has asked for them: a thread of its own receives them, and copies each once, from
the message that it came in to its place in the step's array. Rows that come all in one message
stay where they came.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Rows, as_out
from embstore.errors import DeadlineError, EmbstoreError
from embstore_client.transport import checked_seconds
from embstore_proto.codec import Received, array_of
from embstore_proto.v1 import embstore_pb2 as pb

_LEAST_S = 1e-3
"""A call that is made anew has a deadline, however late it is."""


class _Part(NamedTuple):
    """Some of a table's rows, as one message brought them."""

    table: str
    rows: Rows
    positions: NDArray[np.uint32] | None  # None: all of them, in order

    @classmethod
    def of(cls, received: Received, message: pb.StepRowsReply.Table) -> "_Part":
        rows = array_of(received, message.rows, np.float32, 2, "the reply")
        positions = None
        if message.HasField("positions"):
            positions = array_of(received, message.positions, np.uint32, 1, "the reply")
        return cls(message.table, rows, positions)


class Assembly:
    """A step's rows in the receiving: the early and the late ones, joined where they belong.

    Only whoever announced the step knows how many rows it has before the last of them have come;
    for others early rows stay in their message until then. One thread at a time.
    """

    def __init__(self, outs: Mapping[str, Rows]) -> None:
        self._outs = outs
        self._begin()

    def _begin(self) -> None:
        self._rows: dict[str, Rows] = {}
        self._came: Counter[str] = Counter()
        self.early_bytes = self.late_bytes = 0

    def take(
        self,
        received: Iterable[Received],
        counts: Mapping[str, int],
        knows: Callable[[pb.Context], None],
    ) -> dict[str, Rows]:
        """Return the rows that all messages of one answer bring; `counts` is empty if not known."""
        self._begin()
        held: list[_Part] = []
        for message in received:
            header = pb.StepRowsReply.Header.FromString(message.header)
            knows(header.context)
            parts = [_Part.of(message, table) for table in header.tables]
            self._count(parts, header.early)
            if header.early and not counts:
                held += parts
            else:
                self._place(held + parts, counts or self._came)
                held = []
        return self._whole(counts or self._came)

    def _count(self, parts: Iterable[_Part], early: bool) -> None:
        for part in parts:
            self._came[part.table] += len(part.rows)
            if early:
                self.early_bytes += part.rows.nbytes
            else:
                self.late_bytes += part.rows.nbytes

    def _place(self, parts: Iterable[_Part], counts: Mapping[str, int]) -> None:
        for name, rows, positions in parts:
            if name not in self._rows:
                if positions is None and name not in self._outs:
                    self._rows[name] = rows
                    continue
                shape = (counts.get(name, 0), rows.shape[1])
                self._rows[name] = as_out(self._outs.get(name), shape, name)
            self._rows[name][slice(None) if positions is None else positions] = rows

    def _whole(self, counts: Mapping[str, int]) -> dict[str, Rows]:
        if self._came != Counter(counts) or counts.keys() != self._rows.keys():
            raise EmbstoreError(
                f"expected the rows of a step, by table {dict(counts)}, found "
                f"{dict(self._came)}; look the step up again"
            )
        return {name: self._rows[name] for name in counts}


class StepRows:
    """The rows of a step, on their way from the server. Any thread.

    A thread asks for them with the deadline of a call of its own; if that passes, because the step
    before takes so long, `result` asks anew. A handle that is dropped costs what it receives until
    the step is finished or the member closed.
    """

    def __init__(
        self,
        step: int,
        assembly: Assembly,
        fetch: Callable[[float], dict[str, Rows]],
        timeout_s: float,
    ) -> None:
        self.step = step
        self._assembly = assembly
        self._fetch = fetch
        self._timeout_s = timeout_s
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
        return self._over.is_set() and not isinstance(self._error, DeadlineError)

    def result(self, timeout_s: float | None = None) -> dict[str, Rows]:
        """Wait for all rows, and return them as `lookup_step` does.

        Raises
        ------
        DeadlineError : they did not come in time; they may still, and may be asked for again.
        EmbstoreError : what `lookup_step` raises.
        """
        seconds = self._timeout_s
        if timeout_s is not None:
            seconds = checked_seconds(timeout_s, "timeout_s")
        deadline = monotonic() + seconds
        if not self._over.wait(seconds):
            raise DeadlineError(f"step {self.step}: its rows did not come within {seconds:g} s")
        with self._asking:
            if isinstance(self._error, DeadlineError):
                self._rows = self._fetch(max(deadline - monotonic(), _LEAST_S))
                self._error = None
        if self._error is not None:
            raise self._error
        return self._rows
