"""Calls and bytes of a step, as the servers count them: messages of gRPC, without its own framing.

A step is a lookup and an update of the same keys. By a session the keys travel once, with the
announcement, which may be of several steps. With waits="none" only rows that no step before had are
read, here with their state.
"""

import pathlib
from typing import Any

from tests.bench.shards.clusters import TABLE, Cluster, Counts
from tests.bench.shards.scale import Scale


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
    table, gradients = cluster.store.table(TABLE), scale.gradients()
    before = cluster.counts()
    for keys in scale.batches(scale.counted_steps):
        table.lookup(keys)
        table.update(keys, gradients)
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


def _a_step(before: Counts, after: Counts, steps: int) -> dict[str, Any]:
    """Return what was counted between, by step: in all, and the calls by verb."""
    nothing = {"calls": 0, "up_bytes": 0, "down_bytes": 0}
    grown = {
        verb: {name: value - before.get(verb, nothing)[name] for name, value in sums.items()}
        for verb, sums in after.items()
    }
    whole: dict[str, Any] = {
        name: sum(sums[name] for sums in grown.values()) / steps for name in nothing
    }
    verbs = {verb: sums["calls"] / steps for verb, sums in sorted(grown.items()) if sums["calls"]}
    return whole | {"verbs": verbs}
