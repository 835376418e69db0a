"""The coordinator: an actor that owns a cluster's plan, and keeps it in a file.

The file `coordinator.json` is replaced as a whole, and its new content is on disk before any caller
gets it. So a coordinator that is killed at any moment restarts with the same plan. Shards ask the
coordinator for the plan each time they start a server, and report lost commands to it (`rollback`).
Training continues while the coordinator is away.

The coordinator also makes shards join and leave (`changing`), and records the map of each such
change. Shards that are about to join are in a separate plan, `joining`, until they have joined.

Ray executes the coordinator's calls one after the other. Ray may repeat a call if the actor died
during the call. A repeated call has the same effect as one call, except that the count of starts
may be one too large.
"""

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from typing import Any

from embstore.errors import CorruptTableError, InvalidArgumentError
from embstore.sharding import ShardMap
from embstore.storage.files import Files
from embstore_cluster.changing import Change, Progress
from embstore_cluster.plan import NAMESPACE, Plan, RollbackPoint
from embstore_cluster.rollback import newest

PATH = "coordinator.json"
_OWN = re.compile(
    r"(coordinator\.json|ray\.(json|token|log)|shard-[0-9]+(\.(map|back)\.json)?)(\.new)?"
)
"""The pattern of the names of files and directories that belong to a cluster."""
_SHOWN = 3


def check_directory(data: str) -> None:
    """Raise InvalidArgumentError if a directory contains files that belong to no cluster."""
    others = [n for n in Files(data).list("") if not _OWN.fullmatch(n) and n != "lost+found"]
    if others:
        shown = ", ".join(map(repr, others[:_SHOWN])) + (", ..." if len(others) > _SHOWN else "")
        raise InvalidArgumentError(
            f"{data}: expected an empty directory, or that of a cluster, found other files: "
            f"{shown}; give an empty one, or one that does not exist yet"
        )


def kept_plan(data: str) -> Plan | None:
    """Return the plan in a directory, or None."""
    found = _read(Files(data))
    return None if found is None else found.plan


@dataclass
class _Kept:
    """The content of the file."""

    plan: Plan
    starts: list[int]
    joining: Plan | None = None
    """The plan that includes shards that are about to join. None: there are none."""
    is_changing: bool = False
    """Whether a change has begun and not ended. The shards' writes are possibly paused then."""


def _read(files: Files) -> _Kept | None:
    if not files.exists(PATH):
        return None
    place = files.path(PATH)
    try:
        given: Any = json.loads(files.read_all(PATH))
        text, starts = json.dumps(given["plan"]), [int(count) for count in given["starts"]]
        joining = given.get("joining")
    except (ValueError, TypeError, KeyError) as exc:
        raise CorruptTableError(f"{place}: expected the file of a coordinator: {exc}") from None
    more = None if joining is None else Plan.from_json(json.dumps(joining), place)
    return _Kept(Plan.from_json(text, place), starts, more, bool(given.get("is_changing")))


class Coordinator:
    """Owns the plan of a cluster."""

    def __init__(self, plan: Plan) -> None:
        """Begin with `plan`, unless the file contains a newer state of the same start. Ray passes
        the same arguments each time it restarts this actor."""
        Path(plan.data).mkdir(parents=True, exist_ok=True)
        self._files = Files(plan.data)
        found = _read(self._files)
        self._kept = _Kept(plan, [0] * len(plan.shard_map.shards))
        self._writing = RLock()
        self._change = Change(lambda: self._kept.plan.shard_map, self._record, self._ended)
        if found is not None and found.plan.life == plan.life:
            self._kept = found
            if found.is_changing:  # the actor died during a change
                self._change.resolve({})
        else:
            self._write()

    def _write(self) -> None:
        joining = self._kept.joining
        content = {
            "plan": json.loads(self._kept.plan.to_json()),
            "starts": self._kept.starts,
            "joining": None if joining is None else json.loads(joining.to_json()),
            "is_changing": self._kept.is_changing,
        }
        self._files.replace(PATH, json.dumps(content, indent=1).encode() + b"\n")

    def pid(self) -> int:
        """Return the process id of the actor, on its node."""
        return os.getpid()

    def plan(self) -> Plan:
        """Return the plan."""
        return self._kept.plan

    def starts(self) -> list[int]:
        """Return the number of times that each shard's server was started since the start of the
        cluster."""
        return self._kept.starts

    def starting(self, shard: int) -> Plan:
        """Record that a shard starts a server, and return the plan; a shard that is about to join
        gets the plan that includes this shard."""
        with self._writing:
            self._kept.starts += [0] * (shard + 1 - len(self._kept.starts))
            self._kept.starts[shard] += 1
            self._write()
            if self._kept.joining is not None and shard >= len(self._kept.plan.shard_map.shards):
                return self._kept.joining
            return self._kept.plan

    def lost(self, number: int) -> None:
        """Make all shards go back to one checkpoint, because a shard has lost commands. Return when
        no server runs any more that was started before. `number` is the number of times that the
        cluster had gone back when the shard's server was started; if the cluster has gone back
        since, it does not go back again.

        Raises
        ------
        CheckpointNotFoundError : there is no checkpoint that all shards have.
        """
        import ray  # imported here, as other methods do not need it

        plan = self._kept.plan
        actors = {
            shard: ray.get_actor(plan.actor(shard), namespace=NAMESPACE)
            for shard in range(len(plan.shard_map.shards))
        }
        if number == plan.back.number:
            calls = [a.labels.remote(str(plan.directory(n))) for n, a in actors.items()]
            label = newest(ray.get(calls))
            with self._writing:
                self._kept.plan = plan = replace(plan, back=RollbackPoint(number + 1, label))
                self._write()
        ray.get([a.begin_again.remote(plan.back.number) for a in actors.values()])

    # Growing and shrinking

    def joining(self, plan: Plan | None) -> Plan | None:
        """Record the plan that includes shards that are about to join, unless such a plan is
        recorded already. Return the recorded plan."""
        with self._writing:
            if self._kept.joining is None and plan is not None:
                self._kept.joining = plan
                self._write()
            return self._kept.joining

    def change(self, count: int, connecting: dict[str, Any]) -> None:
        """Begin a change to `count` shards. Additional shards must have been started before.

        Raises
        ------
        InvalidArgumentError : another change is in progress.
        """
        if self._change.is_running:
            raise InvalidArgumentError(
                "the cluster is being changed, or its coordinator has just started: see embstore "
                "cluster status, and wait until that is done"
            )
        joining = None if self._kept.joining is None else self._kept.joining.shard_map
        with self._writing:
            self._kept.is_changing = True
            self._write()
        self._change.begin(count, joining, connecting)

    def progress(self) -> tuple[bool, Progress]:
        """Return whether a change is in progress, and its progress or the error of the last
        change."""
        return self._change.is_running, self._change.progress

    def _record(self, shard_map: ShardMap) -> None:
        """Record the next map of the cluster. Runs in the thread of a change."""
        with self._writing:
            count = len(shard_map.shards)
            plan = self._kept.plan
            if count > len(plan.nodes):
                assert self._kept.joining is not None, "they have been started"
                plan = self._kept.joining
            self._kept.plan = replace(
                plan, shard_map=shard_map, admins=plan.admins[:count], nodes=plan.nodes[:count]
            )
            self._kept.joining = None
            self._write()

    def _ended(self) -> None:
        """Record that all shards use the map, and accept writes. Runs in the thread of a change."""
        with self._writing:
            self._kept.is_changing = False
            self._write()
