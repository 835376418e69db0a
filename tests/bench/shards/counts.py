"""Calls and bytes of a step, as the servers count them: gRPC messages, without the framing of gRPC.

A step is a lookup and an update of the same keys. In a session the keys are sent once, in the
announcement, which may be of several steps. With waits="none", only rows that no earlier step had
are read, here together with their state.
"""

import pathlib
from typing import Any

from tests.bench.serving import Verbs, grown
from tests.bench.shards.clusters import TABLE, Cluster
from tests.bench.shards.scale import Scale
from tests.bench.stores import trainer


def measure(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Return, for each number of shards, what a step takes by plain calls, and by a session of
    each kind."""
    found = {}
    for shards in scale.shards:
        cluster = Cluster(folder / f"counts-{shards}", shards, scale)
        try:
            found[str(shards)] = {
                "calls": _plain(cluster, scale),
                "late": _run(cluster, scale, "late"),
                "none": _run(cluster, scale, "none"),
            }
        finally:
            cluster.close()
    return found


def _plain(cluster: Cluster, scale: Scale) -> dict[str, Any]:
    batches = scale.batches(scale.counted_steps)
    step = trainer(cluster.store.table(TABLE), batches, [scale.gradients()])
    before = cluster.counts()
    for _ in batches:
        step()
    return _a_step(before, cluster.counts(), scale.counted_steps)


def _run(cluster: Cluster, scale: Scale, waits: Any) -> dict[str, Any]:
    gradients = scale.gradients()
    with cluster.store.session([TABLE], waits=waits) as run:
        before = cluster.counts()
        batches = scale.batches(scale.counted_steps)
        for step in run.steps(batches, keys=lambda keys: {TABLE: keys}):
            step.lookup()
            step.update({TABLE: gradients})
        run.synchronize()
        after = cluster.counts()
    return _a_step(before, after, scale.counted_steps)


def _a_step(before: Verbs, after: Verbs, steps: int) -> dict[str, Any]:
    """Return what was counted between, by step: in all, and the calls by verb."""
    between = grown(before, after)
    names = ("calls", "up_bytes", "down_bytes")
    whole: dict[str, Any] = {n: sum(one[n] for one in between.values()) / steps for n in names}
    verbs = {verb: one["calls"] / steps for verb, one in sorted(between.items()) if one["calls"]}
    return whole | {"verbs": verbs}
