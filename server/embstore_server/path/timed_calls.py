"""Calls that also keep begin and end of their stages, if the calls are traced (tracing.py).

The log of slow calls needs seconds per stage; a trace needs begin and end of each stage. The code
that counts seconds does not change: these classes replace its dict, task and caller, and also keep
each lap (`telemetry.laps`). A server without traces pays nothing for them.
"""

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from embstore_server.path.caller import TABLES_SHOWN, Caller
from embstore_server.path.worker import Task
from embstore_server.telemetry.laps import Lap, LapTimes


class TimedTask(Task):
    """A task that keeps the laps of its stages."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.stage_seconds = LapTimes()


@dataclass
class TimedCaller(Caller):
    """A caller that keeps the intervals in which its call waited or was executed."""

    laps: list[Lap] = field(default_factory=list)

    def queued(self, since: float) -> None:
        """Note that the call has waited for its turn of the engine until now."""
        super().queued(since)
        self.laps.append(Lap("queue", since, monotonic()))

    def waited(self, stage: str, since: float) -> None:
        """Note that the call was in a stage until now."""
        super().waited(stage, since)
        self.laps.append(Lap(stage, since, monotonic()))

    def worked(self, task: Task) -> None:
        """Note the times of the call's task; a task that was withdrawn or cut off has only
        waited."""
        super().worked(task)
        if not task.run_s:
            self.laps.append(Lap("queue", task.enqueued, monotonic()))
            return
        began = task.enqueued + task.wait_s
        self.laps.append(Lap("queue", task.enqueued, began))
        assert isinstance(task.stage_seconds, LapTimes)
        parts = tuple(task.stage_seconds.laps)
        self.laps.append(Lap("engine", began, began + task.run_s, parts))

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the call's span that are known about the caller and its
        request."""
        scheme = self.peer.partition(":")[0]
        transport = {"rest": "rest", "unix": "shared_memory"}.get(scheme, "grpc")
        known = {
            "rpc.system.name": "grpc" if transport == "grpc" else "",
            "embstore.transport": transport,
            "embstore.tables": [*self.tables[:TABLES_SHOWN]],
            "embstore.keys": self.keys,
            "embstore.received_bytes": self.received_bytes,
            "embstore.sent_bytes": self.sent_bytes,
            "embstore.token": self.principal.name,
            "embstore.client": self.label,
            "embstore.request": self.request,
            "embstore.session": self.session,
            "embstore.rank": self.rank,
            "embstore.step": self.step,
        }
        return {name: value for name, value in known.items() if value not in ("", None, [])}
