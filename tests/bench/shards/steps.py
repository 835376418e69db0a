"""A step through the router beside a step without it, on the same servers: the ratio of two
measurements that take turns.

Over one shard, both steps call the same server, so the ratio is what the router adds. Over several
shards, the servers share the machine's cores with one another and with the trainer. The time that
this takes says nothing about several machines, and is reported only for the record.
"""

import pathlib
import statistics
from typing import Any

from tests.bench.shards.clusters import TABLE, Cluster
from tests.bench.shards.scale import Scale
from tests.bench.stores import trainer
from tests.bench.turns import Kind, take_turns


def measure(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Return medians of a step in seconds, and the ratios to that without a router."""
    clusters = {n: Cluster(folder / f"steps-{n}", n, scale) for n in scale.shards}
    alone = clusters[scale.shards[0]].alone()
    try:
        stores = {"alone": alone} | {str(n): cluster.store for n, cluster in clusters.items()}
        batches, gradients = scale.batches(4), [scale.gradients()]
        kinds = {
            name: Kind(trainer(store.table(TABLE), batches, gradients))
            for name, store in stores.items()
        }
        spent = take_turns(kinds, scale.rounds, scale.round_steps)
    finally:
        alone.close()
        for cluster in clusters.values():
            cluster.close()
    seconds = {name: [s for s, _ in each] for name, each in spent.items()}
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return {
        name: {
            "step_s": median,
            "ratio": median / medians["alone"],
            "ratio_of_rounds": _of_rounds(seconds[name], seconds["alone"], scale.round_steps),
        }
        for name, median in medians.items()
    }


def _of_rounds(one: list[float], other: list[float], steps: int) -> list[float]:
    """Return the quartiles of the ratios of each round's medians."""
    rounds = range(0, len(one), steps)
    ratios = [
        statistics.median(one[at : at + steps]) / statistics.median(other[at : at + steps])
        for at in rounds
    ]
    return statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
