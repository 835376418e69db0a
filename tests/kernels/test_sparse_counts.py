"""What calls of a table of sparse keys cost on a GPU, beside those of a dense table.

Row keys of either kind are int64, so both have the same kernels; what differs is which slots there
are in a small cache, as slabs are of other sizes.
"""

from collections import Counter
from functools import partial

import numpy as np
import pytest

import embstore
from embstore import RowWiseAdagrad, Uniform
from embstore.device.gpu import GpuDevice
from tests.kernels.emulation.counting import CountingRuntime

ROWS, DIM, KEYS, FEW_KEYS = 4_000, 8, 300, 30
CALLS, FIRST = 30, 10
RATIO_MAX = 1.2
KEY_SPACES = {"dense": {"rows": ROWS}, "sparse": {"key_space": "sparse"}}
CACHES = {"resident": (1 << 24, 0), "missing": (90_000, 0), "level two": (400_000, 1 << 24)}
"""By what happens to the rows of a call: `cache_bytes` and `host_cache_bytes`."""


def costs(path, key_space, cache, durability):
    """Return what lookups and updates cost together: launches, copies, waits and bytes."""
    runtime, (cache_bytes, host_cache_bytes) = CountingRuntime(), CACHES[cache]
    rng = np.random.default_rng(7)
    ids = np.arange(ROWS)
    if key_space == "sparse":
        ids = np.random.default_rng(1).integers(-(2**63), -1, ROWS)
    found = {"lookup": Counter(), "update": Counter()}
    with embstore.open(
        path, device=GpuDevice(runtime, 1), cache_bytes=cache_bytes,
        host_cache_bytes=host_cache_bytes, durability=durability,
    ) as store:  # fmt: skip
        table = store.create_table(
            "t", dim=DIM, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(-1, 1),
            **KEY_SPACES[key_space],
        )  # fmt: skip
        for part in np.split(ids, 20):
            table.update(part, np.ones((len(part), DIM), np.float32))
        count = KEYS if cache == "resident" else FEW_KEYS
        for call in range(FIRST + CALLS):
            looked_up, updated = ids[rng.integers(0, ROWS, (2, count))]
            gradients = np.ones((count, DIM), np.float32)
            verbs = {
                "lookup": partial(table.lookup, looked_up),
                "update": partial(table.update, updated, gradients),
            }
            for name, verb in verbs.items():
                before = runtime.uploaded_bytes, runtime.downloaded_bytes
                cost = Counter(runtime.counted(verb))
                cost["uploaded_bytes"] = runtime.uploaded_bytes - before[0]
                cost["downloaded_bytes"] = runtime.downloaded_bytes - before[1]
                if call >= FIRST:  # packs have their sizes
                    found[name] += cost
        pool = store.stats()["cache"]["pools"][0]
    assert (pool["evictions_dirty"] > 0) == (cache == "missing")
    assert (pool["evictions_host"] > 0) == (cache == "level two")
    return found


@pytest.mark.parametrize("durability", ["checkpoint", "interval"])
@pytest.mark.parametrize("cache", CACHES)
def test_a_call_of_sparse_keys_costs_about_what_one_of_dense_keys_does(tmp_path, cache, durability):
    dense, sparse = (
        costs(tmp_path / key_space, key_space, cache, durability) for key_space in KEY_SPACES
    )
    for verb, of_dense in dense.items():
        assert sparse[verb].keys() == of_dense.keys()
        ratios = {name: cost / of_dense[name] for name, cost in sparse[verb].items()}
        assert max(ratios.values()) <= RATIO_MAX, (verb, ratios)
        if cache == "resident":
            assert sparse[verb] == of_dense, "nothing but the keys differs"
