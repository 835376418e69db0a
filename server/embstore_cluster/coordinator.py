"""The coordinator: an actor that has a cluster's plan, and keeps it in a file of its own.

The file `coordinator.json` is replaced whole, and is on the disk before anybody is told what it
says, so the coordinator is what the file is: killed at any moment, it comes back with the same
plan. Shards ask it for the plan each time they start a server, and tell it that they have lost
commands. It is asked for nothing else, so training goes on while it is away.

Ray has one call after the other executed. A call may come twice, when the actor died in between:
each leaves the same the second time, but for the count of starts, which is then one too large.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from embstore.errors import CorruptTableError
from embstore.storage.files import Files
from embstore_cluster.going_back import newest
from embstore_cluster.plan import NAMESPACE, Back, Plan

PATH = "coordinator.json"


def kept_plan(data: str) -> Plan | None:
    """Return the plan that a directory has; None: it has none."""
    found = _read(Files(data))
    return None if found is None else found[0]


def _read(files: Files) -> tuple[Plan, list[int]] | None:
    if not files.exists(PATH):
        return None
    place = files.path(PATH)
    try:
        given: Any = json.loads(files.read_all(PATH))
        text, starts = json.dumps(given["plan"]), [int(count) for count in given["starts"]]
    except (ValueError, TypeError, KeyError) as exc:
        raise CorruptTableError(f"{place}: expected the file of a coordinator: {exc}") from None
    return Plan.from_json(text, place), starts


class Coordinator:
    """Has the plan of a cluster."""

    def __init__(self, plan: Plan) -> None:
        """Begin with `plan`; what the file has of the same start has gone on from there: Ray gives
        the same arguments each time that it starts this actor again."""
        Path(plan.data).mkdir(parents=True, exist_ok=True)
        self._files = Files(plan.data)
        found = _read(self._files)
        self._plan, self._starts = plan, [0] * len(plan.shard_map.shards)
        if found is not None and found[0].life == plan.life:
            self._plan, self._starts = found
        else:
            self._write()

    def _write(self) -> None:
        content = {"plan": json.loads(self._plan.to_json()), "starts": self._starts}
        self._files.replace(PATH, json.dumps(content, indent=1).encode() + b"\n")

    def pid(self) -> int:
        """Return the process id of the actor, on its node."""
        return os.getpid()

    def plan(self) -> Plan:
        """Return the plan."""
        return self._plan

    def starts(self) -> list[int]:
        """Return how often each shard's server was started since the cluster was."""
        return self._starts

    def starting(self, shard: int) -> Plan:
        """Note that a shard starts a server; return the plan."""
        self._starts[shard] += 1
        self._write()
        return self._plan

    def lost(self, number: int) -> None:
        """Have the cluster go back, as a shard has lost commands since it went back for the
        `number`th time; return when no server of before runs any more.

        Raises
        ------
        CheckpointNotFoundError : there is no checkpoint that all shards have.
        """
        import ray  # here: the rest does without

        plan = self._plan
        actors = {
            shard: ray.get_actor(plan.actor(shard), namespace=NAMESPACE)
            for shard in range(len(plan.shard_map.shards))
        }
        if number == plan.back.number:
            calls = [a.labels.remote(str(plan.directory(n))) for n, a in actors.items()]
            label = newest(ray.get(calls))
            self._plan = replace(plan, back=Back(number + 1, label))
            self._write()
        ray.get([a.begin_again.remote(self._plan.back.number) for a in actors.values()])
