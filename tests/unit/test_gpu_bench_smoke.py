"""The GPU benchmark still runs, every part of it, tiny, on the emulated device."""

import shutil
import sys
from typing import Any

import numpy as np
import pytest

from tests.bench.gpu.__main__ import PROGRAM
from tests.bench.gpu.law import Zipf
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.tiers import PROMISED, SETTINGS
from tests.unit.bench_runs import quick_results, reached


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulated device needs g++")
def test_every_part_runs_on_the_emulated_device(tmp_path):
    results = quick_results("tests.bench.gpu", tmp_path, size="emulated")
    assert results["skipped"] == {"torch": "the emulated device is not torch's"}
    (found,) = results["kernels"].values()
    assert all(verb["ms"] > 0 and verb["bytes"] > 0 for verb in found["verbs"].values())
    assert results["step"]["missing_keys"] == 0
    assert all(results["host"][verb] > 0 for verb in ("lookup", "its_update", "update"))
    check_tiers(results)
    assert all(of_steps["lines"] for of_steps in results["timeline"].values())
    assert results["shared"]["same"]
    for level, ways in (("checkpoint", 3), ("a server's defaults", 2)):
        found = results["public"][level].values()
        assert len(found) == ways
        assert all(way[keys]["step_ms"] > 0 for way in found for keys in ("40", "300"))
        session = results["sessions"][level]
        assert all(session[where][keys] > 0 for where in session for keys in ("40", "300"))
    assert all(one["same"] for one in results["digests"].values())
    goals = reached(results["goals"])
    assert goals["optimizers with one digest on CPU and device"]
    assert goals["probe of a call's unique keys"] is None  # of dim 128
    assert goals["the worst step beside a commit and a merge : median"] is not None
    assert goals["a step that computes 5 ms, with look-ahead : 5 ms"] is not None


def check_tiers(results: dict[str, Any]) -> None:
    """Check that rows come from where a setting has them, and that all windows were measured."""
    for setting in SETTINGS:
        found = results[setting.part]
        moved, plain = found["moved"]["counters"], found["plain"]["counters"]
        assert moved["unique_hits"] == 0
        assert plain["unique_keys"] > plain["unique_hits"]
        source = {"rest": "misses_host", "none": "misses_base"}.get(setting.level_two)
        assert source is None or moved[source] == found["moved"]["rows"]
        assert plain["misses_initializer"] == moved["misses_initializer"] == 0
        assert found["order"] == ["moved", "plain", "look-ahead, 5 ms", "look-ahead, 0 ms"]
        for window in (found["plain"], *found["look-ahead"].values()):
            assert window["highest_ms"] >= window["ms"] > 0 and window["device"]["launches"] > 0
    assert results[PROMISED.part]["plain"]["commits"] and results[PROMISED.part]["plain"]["merges"]


def test_tiers_stand_for_all_settings(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "tiers", "timeline", PROMISED.part])
    assert PROGRAM.chosen().only == [*(setting.part for setting in SETTINGS), "timeline"]


def test_a_yardstick_call_has_about_350000_unique_keys():
    keys = Zipf(Scale()).batch(Scale().keys)
    assert 340_000 < len(np.unique(keys)) < 360_000
    assert 0 <= keys.min() and keys.max() < Scale().ranks
    assert 0.07 < np.unique(keys, return_counts=True)[1].max() / len(keys) < 0.08
