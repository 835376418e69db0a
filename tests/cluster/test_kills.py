"""Two trainers of one session over three shards on Ray, while everything is killed that can be.

The digest is that of a run that nobody disturbed. For each kill the time to the next finished step
is taken, and shown as a table (`pytest -s`). In short by default; `--soak 2` and above, as
`make soak-cluster` has it: as often as docs/guide/scale-out.md says.
"""

import sys
import threading
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from embstore.handles.store import Store
from embstore_client import connect

ray = pytest.importorskip("ray", reason="needs the extra 'ray': make test-cluster")

from embstore_cluster import local  # noqa: E402
from embstore_cluster.plan import NAMESPACE, Plan  # noqa: E402
from tests.cluster.running import (  # noqa: E402
    PATIENCE_S,
    Kill,
    Trainers,
    kill_process,
    plan_of,
    running,
)
from tests.cluster.training import RANKS, assert_done_once, make_tables  # noqa: E402

SEED, SHARDS = 20_261_126, 3
SERVER, ACTOR, COORDINATOR, TRAINER = "shard's server", "shard's actor", "coordinator", "trainer"
SHORT = {SERVER: 4, ACTOR: 1, COORDINATOR: 1, TRAINER: 2}
LONG = {SERVER: 45, ACTOR: 5, COORDINATOR: 10, TRAINER: 10}
STEPS_EACH = 8
"""Steps for each kill, on average."""
_LOOK_S = 0.01
_STEP_S = 0.03
"""About as long as a step takes: kills come at any moment of one."""


class Killer:
    """Kills the processes of a cluster, and waits for none of them."""

    def __init__(self, plan: Plan, trainers: Trainers, rng: np.random.Generator) -> None:
        self._plan, self._trainers, self._rng = plan, trainers, rng
        self.kills: list[Kill] = []

    def kill(self, what: str) -> None:
        """Kill one of them."""
        finished = self._trainers.finished
        at_s = None
        while at_s is None:  # it may just have died, or be on its way
            at_s = self._killed(what) or threading.Event().wait(_LOOK_S) or None
        self.kills.append(Kill(what, at_s, finished))

    def _killed(self, what: str) -> float | None:
        if what == TRAINER:
            return self._trainers.kill(int(self._rng.integers(RANKS)))
        if what == COORDINATOR:
            coordinator = ray.get_actor(self._plan.coordinator, namespace=NAMESPACE)
            return kill_process(ray.get(coordinator.pid.remote(), timeout=PATIENCE_S))
        shard = int(self._rng.integers(SHARDS))
        actor = ray.get_actor(self._plan.actor(shard), namespace=NAMESPACE)
        try:
            state = ray.get(actor.state.remote(), timeout=PATIENCE_S)
        except ray.exceptions.RayActorError:  # it was killed before
            return None
        pid = state["pid"]
        if pid is None:
            return None
        if what == SERVER:
            return kill_process(pid)
        stat = Path(f"/proc/{pid}/stat")
        return kill_process(int(stat.read_text().rpartition(")")[2].split()[1]))


def table_of(kills: list[Kill], trainers: Trainers) -> str:
    """Return the times from each kill to the next finished step, by what was killed."""
    lines = [f"{'killed':16} {'times':>5} {'median, s':>10} {'worst, s':>10}"]
    for what in LONG:
        times = [one.until_next_s(trainers.said) for one in kills if one.what == what]
        lines.append(f"{what:16} {len(times):5} {median(times):10.2f} {max(times):10.2f}")
    said = [one.what for one in trainers.said]
    ended, back = said.count("ended"), said.count("back")
    lines.append(f"sessions that trainers opened again: {ended}; went back to a checkpoint: {back}")
    return "\n".join(lines)


@pytest.fixture
def counts(request: pytest.FixtureRequest) -> dict[str, int]:
    return LONG if request.config.getoption("--soak") > 1 else SHORT


def connected(plan: Plan) -> Store:
    return connect(plan.shard_map.shards[0], timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S)


@pytest.mark.parametrize("durability", ["commands", "checkpoint", "interval"])
def test_a_run_over_kills_ends_with_the_digest_of_one_without(
    tmp_path: Path, counts: dict[str, int], durability: str
) -> None:
    rng = np.random.default_rng(SEED)
    whats = rng.permutation([what for what, count in counts.items() for _ in range(count)])
    steps = STEPS_EACH * (len(whats) + 1)
    moments = np.sort(rng.integers(2, steps - STEPS_EACH, len(whats)))
    words = "--shards", str(SHARDS), "--durability", durability
    with running(tmp_path / "data", *words) as data:
        plan = plan_of(data)
        local.attach(data, address=None, cpus=None)
        with connected(plan) as store:
            make_tables(store)
        trainers = Trainers(plan.shard_map.shards[0], steps, RANKS, tmp_path / "trainers.log")
        try:
            killer = Killer(plan, trainers, rng)
            for what, moment in zip(whats, moments, strict=True):
                assert trainers.wait_for(int(moment)), (tmp_path / "trainers.log").read_text()
                threading.Event().wait(rng.uniform(0, _STEP_S))
                killer.kill(str(what))
            statuses = trainers.wait()
        finally:
            trainers.end()
        assert statuses == [0] * RANKS, (tmp_path / "trainers.log").read_text()
        sys.stdout.write(f"\ndurability {durability}\n{table_of(killer.kills, trainers)}\n")
        with connected(plan) as store:
            assert_done_once(store, tmp_path / "one", steps)
