"""Steps of a session as a trainer makes them, which computes nothing: `lookup`, then `update`.

Keys come from the host, repeated as they are in a batch; the run makes them unique and announces
them ahead. Rows and gradients are NumPy arrays, or arrays of the GPU (`rows="device"`): the ways
differ in nothing else. All rows are resident. A time is the mean of steps that follow each other,
with one wait for the GPU at the end.
"""

import pathlib
import time
from itertools import chain, repeat
from typing import Any

from tests.bench.gpu.machine import Machine, wait
from tests.bench.gpu.public import BATCHES, LEVELS, Public
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.stores import NAME, DeviceStore, arrays_of


def measure(machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    """Return milliseconds a step by level, place of the rows, and number of keys."""
    path.mkdir()
    public = Public(machine, scale)
    found: dict[str, Any] = {}
    for number, level in enumerate(LEVELS):
        with public.prepared(path / str(number), level) as store:
            found[level] = {
                where: {str(size): _step_ms(public, store, size, where) for size in public.sizes}
                for where in ("host", "device")
            }
    return found | {"dim": public.dim}


def _step_ms(public: Public, store: DeviceStore, size: int, where: Any) -> float:
    gradients: Any = public.gradients(size)
    if where == "device":
        gradients = arrays_of(store.device, public.scale)(gradients)
    warm_ups, steps = BATCHES, public.steps(size)
    keys = chain.from_iterable(repeat(public.keys(size)))
    batches = [{NAME: next(keys)} for _ in range(warm_ups + steps)]
    begin = 0.0
    with store.store.session(tables=[NAME], rows=where) as run:
        for number, step in enumerate(run.steps(batches, keys=lambda batch: batch)):
            if number == warm_ups:
                store.wait()
                begin = time.perf_counter()
            step.lookup()
            step.update({NAME: gradients})
        with store.engine.reading():
            wait(store.device)
        return 1e3 * (time.perf_counter() - begin) / steps
