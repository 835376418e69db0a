"""The GPU benchmark still runs, every part of it, tiny, on the emulated device."""

import pathlib
import shutil

import numpy as np
import pytest

from tests.bench.gpu.law import Zipf
from tests.bench.gpu.scale import full
from tests.unit.bench_runs import quick_results, reached


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulated device needs g++")
def test_every_part_runs_on_the_emulated_device(tmp_path: pathlib.Path) -> None:
    results = quick_results("tests.bench.gpu", tmp_path, size="emulated")
    assert results["skipped"] == {"torch": "the emulated device is not torch's"}
    (found,) = results["kernels"].values()
    assert all(verb["ms"] > 0 and verb["bytes"] > 0 for verb in found["verbs"].values())
    assert results["step"]["missing_keys"] == 0
    assert results["tiers"]["cached"]["missing_keys"] > 0
    assert all(results["host"][verb] > 0 for verb in ("lookup", "its_update", "update"))
    assert results["tiers"]["host_tier"]["came"] >= results["tiers"]["host_tier"]["rows"]
    assert results["tiers"]["storage"]["origins"]["initializer"] == 0
    assert results["shared"]["same"]
    for level, ways in (("checkpoint", 3), ("a server's defaults", 2)):
        found = results["public"][level].values()
        assert len(found) == ways
        assert all(way[keys]["step_ms"] > 0 for way in found for keys in ("40", "300"))
    assert all(one["same"] for one in results["digests"].values())
    goals = reached(results["goals"])
    assert goals["optimizers with one digest on CPU and device"]
    assert goals["probe of a call's unique keys"] is None  # of dim 128


def test_a_yardstick_call_has_about_350000_unique_keys() -> None:
    keys = Zipf(full()).batch(full().keys)
    assert 340_000 < len(np.unique(keys)) < 360_000
    assert 0 <= keys.min() and keys.max() < full().ranks
    assert 0.07 < np.unique(keys, return_counts=True)[1].max() / len(keys) < 0.08
