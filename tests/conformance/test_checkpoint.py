"""checkpoint and checkpoints: labels, metadata, how many are kept."""

import pytest

from embstore.errors import CheckpointExistsError, CheckpointNotFoundError, InvalidArgumentError
from tests.conformance.cases import config, ones, refused


@pytest.fixture
def twin(open_twin):
    twin = open_twin()
    twin.create_table("a", **config())
    return twin


def labels(twin):
    return [c.label for c in twin.store.checkpoints()]


def test_none_at_first(twin):
    assert twin.store.checkpoints() == []


def test_says_what_it_holds(twin):
    twin.on("a", "update", [1], ones(1))
    made = twin.checkpoint("step-1", {"step": 1, "dense": "s3://x", "nested": {"a": [1, None]}})
    assert made.label == "step-1"
    assert made.metadata == {"step": 1, "dense": "s3://x", "nested": {"a": [1, None]}}
    assert made.state.command == 2
    assert [(t.identity["name"], t.rows, t.t) for t in made.state.tables] == [("a", 1000, 1)]
    assert twin.store.checkpoints() == [made]


def test_is_no_command(twin):
    before = twin.store.command
    twin.checkpoint("c")
    assert twin.store.command == before


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_are_kept(open_twin, keep):
    twin = open_twin(checkpoints_keep=keep)
    twin.create_table("a", **config())
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


def test_one_after_the_other_without_a_change_between(twin):
    for label in ("c1", "c2", "c3"):
        twin.checkpoint(label)
    twin.restore("c1")
    assert labels(twin) == ["c1"]


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


@pytest.mark.parametrize("label", ["a", "x" * 255, "Schritt 1", "../../etc", "шаг-1", "\\", "🙂"])
def test_labels_are_any_printable_text(twin, label):
    twin.checkpoint(label)
    twin.on("a", "update", [1], ones(1))
    twin.reopen()
    twin.restore(label)


@pytest.mark.parametrize("label", ["", "x" * 256, "a\n", "a\0", "\ud800", None, 7, b"a", ["a"]])
def test_other_labels_are_refused(twin, label):
    with refused(twin.store, InvalidArgumentError, "expected a label", f"found {label!r}"):
        twin.store.checkpoint(label)


METADATA = {
    "a list": [1],
    "text": "x",
    "bytes in it": {"a": b"x"},
    "nan": {"a": float("nan")},
    "infinity": {"a": [float("inf")]},
    "an object": {"a": object()},
    "keys that are no text": {1: 2},
    "itself": {},
    "half a surrogate pair": {"a": "\ud800"},
    "a number too long to print": {"a": 10**5000},
}
METADATA["itself"]["a"] = METADATA["itself"]


@pytest.mark.parametrize("metadata", METADATA.values(), ids=METADATA)
def test_metadata_that_json_cannot_hold_is_refused(twin, metadata):
    with refused(twin.store, InvalidArgumentError, "expected metadata"):
        twin.store.checkpoint("c", metadata)


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
