"""checkpoint and checkpoints: labels, metadata, how many are kept."""

import tracemalloc

import numpy as np
import pytest

from embstore.config import Limits
from embstore.errors import CheckpointExistsError, CheckpointNotFoundError, InvalidArgumentError
from tests.conformance.cases import config, each, generator, normal, ones, refused


@pytest.fixture
def twin(open_twin):
    twin = open_twin(a=config())
    return twin


def labels(twin):
    return [c.label for c in twin.store.checkpoints()]


def test_says_what_it_holds(twin):
    assert twin.store.checkpoints() == []
    twin.on("a", "update", [1], ones(1))
    made = twin.checkpoint("step-1", {"step": 1, "dense": "s3://x", "nested": {"a": [1, None]}})
    assert made.label == "step-1"
    assert made.metadata == {"step": 1, "dense": "s3://x", "nested": {"a": [1, None]}}
    assert (made.command, made.tables) == (2, 1)
    assert twin.store.checkpoints() == [made]


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_are_kept(open_twin, keep):
    twin = open_twin(checkpoints_keep=keep, a=config())
    for i in range(7):
        twin.on("a", "update", [i], ones(1))
        twin.checkpoint(f"c{i}", {"i": i})
    assert labels(twin) == [f"c{i}" for i in range(7 - keep, 7)]
    with refused(twin.store, CheckpointNotFoundError, "'c0'", "'c6'"):
        twin.store.restore("c0")
    twin.reopen()
    assert labels(twin) == [f"c{i}" for i in range(7 - keep, 7)]


def test_closing_commits_without_a_label(twin):
    for i in range(5):
        twin.on("a", "update", [i], ones(1))
        twin.reopen()
    assert labels(twin) == []
    twin.checkpoint("c")
    for i in range(5):
        twin.on("a", "update", [i], ones(1))
        twin.reopen()
    assert labels(twin) == ["c"]


def test_a_label_is_used_once(twin):
    twin.checkpoint("c", {"n": 1})
    twin.on("a", "update", [1], ones(1))
    with refused(twin.store, CheckpointExistsError, "'c'"):
        twin.store.checkpoint("c", {"n": 2})
    assert twin.store.checkpoints()[0].metadata == {"n": 1}


def test_kept_longer_than_the_next_opening_would_keep(backend):
    """Opening with fewer to keep takes nothing away; the next checkpoint does."""
    store = backend.open_store(checkpoints_keep=3)
    for label in ("c1", "c2", "c3"):
        store.checkpoint(label)
    store.close()
    store = backend.open_store(checkpoints_keep=1)
    assert [c.label for c in store.checkpoints()] == ["c1", "c2", "c3"]
    store.checkpoint("c4")
    assert [c.label for c in store.checkpoints()] == ["c4"]


def test_labels_are_any_printable_text(open_twin):
    names = ["a", "x" * 255, "Schritt 1", "../../etc", "шаг-1", "\\", "🙂"]
    twin = open_twin(checkpoints_keep=len(names), a=config())
    for label in names:
        twin.checkpoint(label)
        twin.on("a", "update", [1], ones(1))
    twin.reopen()
    for label in each(reversed(names)):
        twin.restore(label)


def test_metadata_is_bounded(twin):
    large = {"a": "x" * twin.store.limits.metadata_bytes_max}
    with refused(twin.store, InvalidArgumentError, "limits.metadata_bytes_max", "65536", "65545"):
        twin.store.checkpoint("c", large)
    twin.checkpoint("d", {"a": large["a"][9:]})
    twin.reopen()
    assert len(twin.store.checkpoints()[0].metadata["a"]) == 65536 - 9


def test_changing_the_metadata_afterwards_changes_nothing(twin):
    metadata = {"steps": [1]}
    twin.checkpoint("c", metadata)
    metadata["steps"].append(2)
    twin.store.checkpoints()[0].metadata["steps"] = object
    twin.checkpoint("d").metadata["steps"] = object
    twin.reopen()
    assert twin.store.checkpoints()[0].metadata == {"steps": [1]}


def test_metadata_beyond_ascii(twin):
    metadata = {"кто": "🙂", "n": -(2**70), "x": 1e-320}
    twin.checkpoint("c", metadata)
    twin.reopen()
    assert twin.store.checkpoints()[0].metadata == metadata


def test_label_of_a_restored_future_may_be_used_again(twin):
    twin.checkpoint("c1")
    twin.checkpoint("c2")
    twin.restore("c1")
    twin.on("a", "update", [1], ones(1))
    twin.checkpoint("c2")
    assert labels(twin) == ["c1", "c2"]


def test_checkpoint_no_longer_kept_gives_its_room_back(open_twin, backend):
    """Source: "snapshot released" of the same case. The log is bounded by what is kept."""
    limits = Limits(segment_bytes=1 << 16, fold_bytes=1 << 16, fold_segments=3)
    twin, rng = open_twin(limits=limits, checkpoints_keep=1), generator(220)
    twin.create_table("a", **config(dim=64, rows=300))
    sizes = []
    for step in range(12):
        twin.on("a", "update", np.arange(300), normal(rng, 300, 64))
        twin.checkpoint(f"c{step}")
        twin.settle()
        sizes.append(sum(p.stat().st_size for p in (backend.path() / "log").iterdir()))
    assert max(sizes[6:]) <= 3 * max(sizes[:2])


@pytest.mark.needs("memory")
def test_checkpoint_takes_no_memory_of_the_size_of_the_cache(backend):
    """Source: "save without extra GPU memory": TFRA#371, HKV's PR on running out of it at a dump.

    On the host: dirty rows go out by pieces of a few MiB.
    """
    store = backend.open_store(cache_bytes=64 << 20)
    table = store.create_table("a", **config(dim=512, rows=20_000))
    table.assign(np.arange(9), np.ones((9, 512), np.float32))
    store.checkpoint("before")  # so that nothing is compiled while memory is traced
    table.assign(np.arange(20_000), np.ones((20_000, 512), np.float32))  # 39 MiB, all of it dirty
    tracemalloc.start()
    store.checkpoint("c")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert store.stats()["tables"]["a"]["dirty_rows"] == 0
    assert peak < 16 << 20
