"""set_retention: a checkpoint is protected, made routine again, or dropped."""

import threading

import numpy as np
import pytest

from embstore.errors import (
    CapacityError,
    CheckpointNotFoundError,
    CheckpointProtectedError,
    InvalidArgumentError,
    PermissionDeniedError,
)
from embstore.storage import labels as rule
from tests.conformance.backends import TINY
from tests.conformance.cases import batch, config, generator, normal, ones, refused
from tests.conformance.twin import digests


@pytest.fixture
def twin(open_twin):
    """A store with three checkpoints, each of which has other rows."""
    twin = open_twin(checkpoints_keep=3, a=config())
    for n in range(3):
        twin.on("a", "update", [n, 10 + n], ones(2))
        twin.checkpoint(f"c{n}", {"n": n})
    twin.on("a", "update", [5], ones(1))
    return twin


def labels(twin):
    return [one.label for one in twin.store.checkpoints()]


def protected(twin):
    return [one.label for one in twin.store.checkpoints() if one.protected]


def test_a_protected_one_outlasts_every_retention_and_restart(twin):
    kept = twin.set_retention("c0", "protected")
    assert (kept.label, kept.protected, kept.metadata) == ("c0", True, {"n": 0})
    assert protected(twin) == ["c0"]
    for n in range(3, 9):
        twin.on("a", "update", [n], ones(1))
        twin.checkpoint(f"c{n}")
        (twin.reopen, twin.crash, twin.settle)[n % 3]()
    assert labels(twin) == ["c0", "c6", "c7", "c8"]  # as many routine ones as without it
    assert twin.store.stats()["storage"]["checkpoints_protected"] == ["c0"]
    twin.restore("c0")
    twin.check()
    assert protected(twin) == ["c0"]


def test_a_routine_one_is_pushed_out_again(twin):
    twin.set_retention("c0", "protected")
    assert not twin.set_retention("c0", "routine").protected
    assert protected(twin) == []
    twin.checkpoint("c3")
    assert labels(twin) == ["c1", "c2", "c3"]


def test_said_twice_it_is_so_once(twin):
    for retention in ("protected", "protected", "routine", "routine"):
        assert twin.set_retention("c1", retention).protected == (retention == "protected")
    assert labels(twin) == ["c0", "c1", "c2"]


@pytest.mark.parametrize(
    ("between", "order"),
    [("nothing", (1, 0, 2)), ("reopen", (0, 1, 2)), ("crash", (2, 1, 0)), ("settle", (1, 0, 2))],
)
def test_a_dropped_one_is_gone_and_nothing_else(twin, order, between):
    """The newest too, and the last one: nothing needs a label."""
    before, command = digests(twin.store), twin.store.command
    left = ["c0", "c1", "c2"]
    for n in order:
        assert twin.set_retention(f"c{n}", "dropped").metadata == {"n": n}
        left.remove(f"c{n}")
        assert labels(twin) == left
        assert (digests(twin.store), twin.store.command) == (before, command)
        if between == "settle":
            twin.settle()
        for label in reversed(left):
            assert twin.store.checkpoints()[left.index(label)].command > 0
    if between in ("reopen", "crash"):
        getattr(twin, between)()
    assert labels(twin) == []
    twin.check()
    with refused(twin.store, CheckpointNotFoundError, "no checkpoint 'c0'"):
        twin.store.restore("c0")


@pytest.mark.parametrize("limits", [None, TINY], ids=["plain", "merging"])
@pytest.mark.parametrize(
    ("between", "dropped"), [("nothing", "c1"), ("reopen", "c2"), ("settle", "c0")]
)
def test_the_others_are_restored_to_the_bit(open_twin, limits, between, dropped):
    twin, rng = open_twin(limits=limits, cache_bytes=128 << 10), generator(740)
    twin.create_table("a", **config(dim=16))
    for n in range(3):
        for _ in range(3):
            twin.on("a", "update", *batch(rng, 200, dim=16))
            twin.store.flush()
        twin.checkpoint(f"c{n}")
    twin.on("a", "update", *batch(rng, 200, dim=16))
    twin.set_retention(dropped, "dropped")
    if between != "nothing":
        getattr(twin, between)()
    for label in reversed(labels(twin)):
        twin.restore(label)
        twin.check()
        twin.on("a", "update", *batch(rng, 50, dim=16))


def test_a_dropped_label_may_be_used_again(twin):
    twin.set_retention("c1", "dropped")
    twin.checkpoint("c1", {"n": "anew"})
    assert labels(twin) == ["c0", "c2", "c1"]
    twin.restore("c1")
    twin.check()


def test_a_dropped_one_gives_its_space_back(open_twin, backend):
    """What only it had: a table that was dropped since, and rows that were written since."""
    twin, rng = open_twin(limits=TINY, checkpoints_keep=9), generator(741)
    twin.create_table("a", **config(dim=64, rows=300))
    twin.create_table("b", **config(dim=64, rows=300))
    for name in "ab":
        twin.on(name, "update", np.arange(300), normal(rng, 300, 64))
    twin.checkpoint("old")
    twin.settle()
    twin.drop_table("b")
    for _ in range(4):
        twin.on("a", "update", np.arange(300), normal(rng, 300, 64))
        twin.checkpoint("new")
        twin.settle()
        twin.set_retention("new", "dropped")
    twin.settle()

    def size():
        twin.settle()
        paths = (p for room in ("log", "base") for p in (backend.path() / room).iterdir())
        return sum(path.stat().st_size for path in paths)

    before, waiting = size(), twin.store.stats()["storage"]["checkpoints_bytes"]
    twin.set_retention("old", "dropped")
    assert size() <= before / 2
    assert waiting > 0 == twin.store.stats()["storage"]["checkpoints_bytes"]
    twin.check()


def test_what_reads_one_goes_on_when_it_is_dropped(twin):
    """Scans have its files open; so has whoever was restored from it, as its head."""
    wanted = twin.store.table("a").read_rows(np.arange(20))[0]
    twin.checkpoint("now")
    with twin.store.table("a").scan("now") as scan:
        twin.on("a", "update", np.arange(20), ones(20))
        twin.set_retention("now", "dropped")
        twin.settle()
        found = {k: row for keys, rows in scan for k, row in zip(keys, rows, strict=True)}
    for key, row in found.items():
        assert (row == wanted[key]).all()
    assert set(found) == {0, 1, 2, 5, 10, 11, 12}
    twin.restore("c1")
    twin.set_retention("c1", "dropped")
    twin.reopen()
    twin.check()


def test_threads_that_drop_and_make_labels(backend):
    """Each call has its turn; whatever the order, what is kept can be restored."""
    store = backend.open_store()
    store.create_table("a", **config()).update([1], ones(1))
    before = store.table("a").digest()

    def drop_and_make(n):
        for k in range(4):
            store.checkpoint(f"t{n}/{k}")
            store.set_retention(f"t{n}/{k}", "protected")
            store.set_retention(f"t{n}/{k}", "routine")
            if k % 2:
                store.set_retention(f"t{n}/{k}", "dropped")

    threads = [threading.Thread(target=drop_and_make, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {one.label for one in store.checkpoints()}
    assert found == {f"t{n}/{k}" for n in range(3) for k in (0, 2)}
    store.restore("t1/2")
    assert store.table("a").digest() == before


# Refusals


def test_one_that_is_not_kept(twin):
    for label in ("none", "", "a\nb", None, 5):
        for retention in ("protected", "routine", "dropped"):
            with refused(twin.store, CheckpointNotFoundError, "no checkpoint"):
                twin.store.set_retention(label, retention)
    with refused(twin.store, CheckpointNotFoundError, "'c9'", "'c0', 'c1', 'c2'"):
        twin.store.set_retention("c9", "dropped")


def test_what_is_no_retention(twin):
    for retention in ("", "unspecified", "no", None, True, ["dropped"]):
        with refused(twin.store, InvalidArgumentError, "protected", "routine", "dropped"):
            twin.store.set_retention("c0", retention)
    assert labels(twin) == ["c0", "c1", "c2"]


def test_a_protected_one_is_not_dropped(twin):
    twin.set_retention("c1", "protected")
    with refused(twin.store, CheckpointProtectedError, "'c1'", "routine first"):
        twin.store.set_retention("c1", "dropped")
    twin.set_retention("c1", "routine")
    twin.set_retention("c1", "dropped")
    assert labels(twin) == ["c0", "c2"]


@pytest.mark.parametrize("force", [False, True])
def test_a_restore_that_would_lose_a_protected_one(twin, force):
    twin.set_retention("c2", "protected")
    with twin.store.session(["a"], name="job") as run:
        if force:
            with refused(twin.store, CheckpointProtectedError, "'c1'", "'c2'"):
                twin.store.restore("c1", force=True)
        assert [one["name"] for one in twin.store.stats()["sessions"]["open"]] == ["job"]
        assert run.last_step == 0
    with refused(twin.store, CheckpointProtectedError, "'c1'", "'c2'"):
        twin.store.restore("c1", force=force)
    twin.restore("c2")
    twin.set_retention("c2", "routine")
    twin.restore("c1")
    assert labels(twin) == ["c0", "c1"]


def test_too_many_protected_ones(twin, monkeypatch):
    monkeypatch.setattr(rule, "PROTECTED_MAX", 2)
    for label in ("c0", "c1", "c1"):
        twin.set_retention(label, "protected")
    with refused(twin.store, CapacityError, "2 checkpoints are protected", "'c2'"):
        twin.store.set_retention("c2", "protected")
    twin.set_retention("c0", "routine")
    twin.set_retention("c2", "protected")
    assert protected(twin) == ["c1", "c2"]


def test_a_store_that_is_read_only(twin):
    twin.settle()
    twin.reopen(read_only=True)
    for retention in ("protected", "routine", "dropped"):
        with refused(twin.store, PermissionDeniedError, "read_only"):
            twin.store.set_retention("c0", retention)
