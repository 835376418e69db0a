"""The ceiling (the bandwidth of a copy), and the verbs of the device beside it."""

import pathlib
from functools import partial
from typing import Any

import numpy as np

from tests.bench.gpu.cases import OPTIMIZERS, Case, FullPool, apply_case, cases_of
from tests.bench.gpu.machine import Machine, median, sample_ms, timer_of, wait
from tests.bench.gpu.scale import Scale


def ceiling(machine: Machine, scale: Scale) -> dict[str, Any]:
    """Return what a device-to-device copy moves, reads and writes counted."""
    device = machine.device()
    try:
        timer = timer_of(device)
        source = timer.allocate(scale.copy_bytes, np.uint8)
        target = timer.allocate(scale.copy_bytes, np.uint8)
        spent = [
            sample_ms(timer.clock, lambda: timer.copy(source, target))
            for _ in range(scale.warm_ups + scale.repeats)
        ][scale.warm_ups :]
        ms = median(spent)
        return {
            "bytes": 2 * scale.copy_bytes,
            "ms": ms,
            "bytes_per_s": 2e3 * scale.copy_bytes / ms,
            "device": device.facts(),
        }
    finally:
        device.close()


def measure(machine: Machine, scale: Scale, _: pathlib.Path) -> dict[str, Any]:
    """Return the figures of every verb, by dim."""
    return {str(dim): verbs(machine, scale, dim) for dim in scale.dims}


def verbs(machine: Machine, scale: Scale, dim: int) -> dict[str, Any]:
    """Return the figures of every verb on rows of `dim`."""
    device = machine.device()
    try:
        device.warm_up()
        pool = FullPool(device, scale, dim)
        found = {case.name: _measured(pool, case) for case in cases_of(pool)}
        for optimizer in OPTIMIZERS:
            case = apply_case(pool, optimizer)
            found[case.name] = _measured(pool, case)
        return {
            "dim": dim,
            "keys": scale.keys,
            "unique_keys": pool.unique_count,
            "slots": scale.slots,
            "moved_rows": scale.moved_rows,
            "scratch_bytes": device.facts()["scratch_bytes"],
            "verbs": found,
        }
    finally:
        device.close()


def _measured(pool: FullPool, case: Case) -> dict[str, Any]:
    scale, timer = pool.scale, timer_of(pool.device)

    def work(call: Any) -> None:
        case.work(call)
        pool.device.work.runtime.submit()

    for number in range(max(scale.warm_ups, 1)):
        work(pool.taken(number))
    wait(pool.device)
    calls = [pool.taken(number) for number in range(scale.repeats)]
    launches = [timer.launches_ms(partial(work, call)) for call in calls]
    alone = [sum(map(sum, one.values())) for one in launches]
    whole = [sample_ms(timer.clock, partial(work, call)) for call in calls]
    ms = median(whole if case.whole else alone)
    return {
        "ms": ms,
        "measured": "the call" if case.whole else "its launches",
        "call_ms": median(whole),
        "quartiles_ms": np.percentile(whole if case.whole else alone, [25, 75]).tolist(),
        "bytes": case.bytes,
        "bytes_per_s": 1e3 * case.bytes / ms,
        "per_s": None if case.rows is None else 1e3 * case.rows / ms,
        "launches_ms": {
            name: {"count": len(spent), "ms": median([sum(one[name]) for one in launches])}
            for name, spent in launches[-1].items()
        },
    }
