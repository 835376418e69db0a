"""A cluster that grows or shrinks: the work of the coordinator, in a separate thread.

The coordinator still answers calls during that work, because new shards ask it for the plan. The
map is recorded in the coordinator's file, so after any crash the cluster follows that file. A
restarted coordinator sends its map to all shards, which then accept writes
(`embstore_client.moving.resolve`). The coordinator does not resume the interrupted change itself:
the caller requests the change again, and rows are copied anew.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from threading import Thread
from time import sleep
from typing import Any

from embstore import commands as c
from embstore.commands import Executor
from embstore.errors import CheckpointExistsError, EmbstoreError
from embstore.sharding import ShardMap
from embstore_client import moving
from embstore_client.connecting import connect_one
from embstore_client.shards.router import Router

_LOG = logging.getLogger(__name__)
BY = "the coordinator, which moves partitions"
LABEL = "embstore-map/{}"
"""The label of the checkpoint that is made after partitions have moved; checkpoints that were made
before can no longer be restored."""
_TRIES, _PAUSE_S = 120, 1.0
"""The number of tries to reach all shards, and the pause between tries; shards may still be
starting."""


@dataclass(frozen=True)
class Progress:
    """The progress of a change."""

    what: str = ""
    """The change in progress, as text for messages. "": no change is in progress."""
    rows: int = 0
    """Number of rows copied so far."""
    error: str = ""
    """The reason why the last change failed. "": it succeeded, or there was no change."""


class Change:
    """Makes changes of one cluster, one at a time, in a separate thread.

    Parameters
    ----------
    current : returns the recorded map
    record : records the next map
    ended : called when all shards use the map, and accept writes
    """

    def __init__(
        self,
        current: Callable[[], ShardMap],
        record: Callable[[ShardMap], None],
        ended: Callable[[], None],
    ) -> None:
        self._current, self._record, self._ended = current, record, ended
        self._thread: Thread | None = None
        self.progress = Progress()

    @property
    def is_running(self) -> bool:
        """Whether a change is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, count: int, joining: ShardMap | None, connecting: dict[str, Any]) -> None:
        """Begin a change to `count` shards. If `joining` is a map, the additional shards in that
        map join first."""
        self._start(lambda: self._change(count, joining, connecting), connecting)

    def resolve(self, connecting: dict[str, Any]) -> None:
        """Begin to send the recorded map to all shards, after which they accept writes."""
        self._start(lambda: self._resolve(connecting), connecting)

    def _start(self, work: Callable[[], None], connecting: dict[str, Any]) -> None:
        def run() -> None:
            error = ""
            try:
                work()
            except Exception as exc:  # any error is reported to the caller
                error = str(exc) or repr(exc)
                if not isinstance(exc, EmbstoreError):
                    _LOG.exception("a change of the cluster has failed by an error in embstore")
            try:
                if error:
                    self._resolve(connecting)
                self._ended()
            except Exception as exc:
                error = f"{error}; then: {exc}"
            self.progress = Progress(rows=self.progress.rows, error=error)

        self.progress = Progress("beginning")
        self._thread = Thread(target=run, name="embstore-change", daemon=True)
        self._thread.start()

    def _report(self, what: str, rows: int = 0) -> None:
        self.progress = Progress(what, rows)

    def _resolve(self, connecting: dict[str, Any]) -> None:
        self._report("all shards get the map")
        for left in reversed(range(_TRIES)):
            try:
                shard_map = self._current()
                with _connected(shard_map, connecting) as shards:
                    moving.resolve(shards, shard_map)
                return
            except EmbstoreError:
                if not left:
                    raise
            sleep(_PAUSE_S)

    def _change(self, count: int, joining: ShardMap | None, connecting: dict[str, Any]) -> None:
        self._resolve(connecting)
        now = self._current()
        if joining is not None and len(joining.shards) > len(now.shards):
            self._report("shards join")
            joined = now.joined_by(joining.shards[len(now.shards) :])
            with _connected(joined, connecting) as shards:
                first = len(now.shards)
                moving.join(shards[:first], shards[first:], joined, self._record, by=BY)
            now = joined
        after = now.evened(count)
        if after.owners != now.owners:
            with _connected(now, connecting) as shards:
                moving.move(shards, now, after, self._record, by=BY, report=self._report)
            now = after
            self._keep(now, connecting)
        if count < len(now.shards):
            self._report("shards leave", self.progress.rows)
            with _connected(now, connecting) as shards:
                left = now.left_by(len(now.shards) - count)
                moving.switch(shards, left, self._record, by=BY)

    def _keep(self, shard_map: ShardMap, connecting: dict[str, Any]) -> None:
        """Make a checkpoint on every shard, all at one barrier."""
        self._report("a checkpoint is kept", self.progress.rows)
        label, metadata = LABEL.format(shard_map.version), {"map_version": shard_map.version}
        with (
            _connected(shard_map, connecting) as shards,
            closing(Router(shards, shard_map)) as router,
            suppress(CheckpointExistsError),  # made before the coordinator's restart
        ):
            router.execute(c.Checkpoint(label, metadata))


@contextmanager
def _connected(shard_map: ShardMap, connecting: dict[str, Any]) -> Iterator[list[Executor]]:
    """Yield the executors of all shards."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(connect_one(address, **connecting)).executor
            for address in shard_map.shards
        ]
