"""What the steps of one run exchange with its session: rows, and gradients.

The rows of the next step are sent for while the loop works on this one. Calls are those of the
member that the rank has at the moment, and the time that the loop waits for them is counted.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import sum_by_key
from embstore.arrays import Rows
from embstore.commands import RowsChecksum, UpdateOptions
from embstore.handles.sessions import Sessions, StepBags
from embstore.results import AcknowledgedUpdate
from embstore_training.rank_session import RankSession
from embstore_training.read_ahead import Entry, OnceKeys, ReadAhead
from embstore_training.times import Times


class Exchange:
    """The calls that steps make. The loop's thread only."""

    def __init__(self, sessions: Sessions, session: RankSession, times: Times) -> None:
        self.sessions = sessions
        self.ahead: ReadAhead | None = None  # None but while a loop runs.
        self._session = session
        self._times = times
        self._sums: dict[str, NDArray[np.float32]] = {}  # By table, as long as the longest so far.

    def begin_loop(self) -> None:
        """A loop begins, all steps before it are finished."""

    def prepare(self, entry: Entry) -> None:
        """A step was read, the next one. The reader's thread."""

    def begin(self, entry: Entry) -> None:
        """The loop has taken a step."""

    def synchronize(self) -> None:
        """Wait until every finished step is acknowledged: each was."""

    def close(self, failure: BaseException | None) -> None:
        """The run ends."""

    @property
    def pools_here(self) -> bool:
        """Whether bags can be pooled here, to the bits of the store: rounding comes behind it."""
        return not self.sessions.rounds_rows

    def rows(self, entry: Entry) -> dict[str, Rows]:
        """Return the rows of a step's unique keys."""

        def looked_up(member: str) -> dict[str, Rows]:
            prefetched, entry.prefetched = entry.prefetched, None
            if prefetched is not None and entry.prefetched_by == member:
                return prefetched.result(None)
            return self.sessions.lookup_step(member, entry.number)

        with self._times.part("lookup"):
            return self._session.call(looked_up)

    def has_rows(self, entry: Entry) -> bool:
        """Whether a step's rows are on their way."""
        return entry.prefetched is not None

    def pooled(self, number: int, bags: dict[str, StepBags]) -> dict[str, Rows]:
        """Return the rows of bags, which the store pools."""
        look_up = self.sessions.lookup_step_pooled
        with self._times.part("lookup"):
            return self._session.call(lambda member: look_up(member, number, bags))

    def send_for_next(self, most: int | None = None) -> None:
        """Send for the rows of the next step, unless its keys, repeated or not, are more."""
        following = self.ahead.peek() if self.ahead is not None else None
        if following is None or following.prefetched is not None:
            return
        count = sum(len(once.inverse) for once in following.once.values())
        if most is None or count <= most:
            following.prefetched_by = member = self._session.member
            following.prefetched = self.sessions.prefetch_step(member, following.number)

    def sum(self, table: str, once: OnceKeys, gradients: Rows) -> Rows:
        """Return the sums by key, (u, dim), in a buffer that the table's next ones go to too."""
        if once.is_identity:
            return gradients
        count, dim = len(once.keys), gradients.shape[1]
        if table not in self._sums or len(self._sums[table]) < count * dim:
            self._sums[table] = np.empty(count * dim, np.float32)
        out = self._sums[table][: count * dim].reshape(count, dim)
        return sum_by_key(once.inverse, count, gradients, out)

    def give_up_sums(self) -> None:
        """Leave the buffers of a call that failed to whoever reads them still."""
        self._sums.clear()

    def finish(
        self,
        entry: Entry,
        verb: str,
        sums: Mapping[str, Any] | None = None,
        options: UpdateOptions | None = None,
    ) -> AcknowledgedUpdate:
        """Have a step "updated", "released" or "skipped" by a call of the member."""
        send = finishing(self.sessions, entry.number, verb, sums, options)
        with self._times.part("send"):
            done = self._session.finish(entry.number, verb, send)
        if self.ahead is not None:
            self.ahead.finish(entry.number)
        return done


class Judged(NamedTuple):
    """What a trainer knows of an update that it has applied itself."""

    rows_checksum: RowsChecksum  # of the rows before it
    is_finite: bool  # rule 9 accepts the sums of all ranks: else it is skipped


def finishing(
    sessions: Sessions,
    number: int,
    verb: str,
    sums: Mapping[str, Any] | None = None,
    options: UpdateOptions | None = None,
    *,
    judged: Judged | None = None,
) -> Callable[[str], AcknowledgedUpdate]:
    """Return the call of a member by which a step is "updated", "released" or "skipped".

    judged : of an update that has been applied here
    """
    if verb == "released":
        return lambda member: sessions.release_step(member, number)
    if verb == "skipped" or sums is None or options is None:
        return lambda member: sessions.skip_step(member, number)

    def update(member: str) -> AcknowledgedUpdate:
        more: Any = {} if judged is None else judged._asdict()
        return sessions.update_step(member, number, sums, **vars(options), **more)

    return update
