"""What a shard's directory is before it is served again, and to which label a cluster goes back."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import embstore
from embstore.cluster_checkpoints import marked
from embstore.config import Constant, Sgd
from embstore.errors import CheckpointNotFoundError, StoreInUseError
from embstore_cluster.plan import Plan, RollbackPoint
from embstore_cluster.rollback import FIRST_LABEL, LOST, labels, newest, prepare, words
from tests.cluster.test_plans import plan as some_plan

CRASH = """
import os, sys
import numpy as np
import embstore
store = embstore.open(sys.argv[1], device="cpu")
store.table("a").update([1], np.ones((1, 1), np.float32))
os._exit(0)
"""


def planned(folder: Path, **changed: object) -> Plan:
    return replace(some_plan(folder), durability="checkpoint", **changed)  # type: ignore[arg-type]


def prepared(plan: Plan) -> int:
    return prepare(words(plan, 0))


def begun(plan: Plan) -> Path:
    """Start a shard, give it a table, and keep a checkpoint of the cluster."""
    assert prepared(plan) == 0
    directory = plan.directory(0)
    with embstore.open(directory, device="cpu") as store:
        store.create_table("a", dim=1, rows=9, optimizer=Sgd(1.0), initializer=Constant(0.0))
        store.checkpoint("kept", marked({}, "mark"))
    return directory


def crash(directory: Path) -> None:
    """Have a store end in the middle of things, with a command that no commit has."""
    subprocess.run([sys.executable, "-c", CRASH, str(directory)], check=True, timeout=300)


def t_of(directory: Path) -> int:
    with embstore.open(directory, device="cpu") as store:
        return store.table("a").t


def test_a_new_shard_has_a_label_to_go_back_to(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert prepared(plan) == 0
    found = labels(plan.directory(0))
    assert [*found] == [FIRST_LABEL]
    assert prepared(plan) == 0  # and keeps it
    assert labels(plan.directory(0)) == found
    assert labels(plan.directory(1)) == {}


def test_a_shard_that_has_lost_nothing_is_served(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    directory = begun(plan)
    with embstore.open(directory, device="cpu") as store:
        store.table("a").update([1], np.ones((1, 1), np.float32))
    assert prepared(plan) == 0
    assert t_of(directory) == 1


def test_a_shard_that_has_lost_commands_is_not_served_before_it_goes_back(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    directory = begun(plan)
    for _ in range(2):
        with embstore.open(directory, device="cpu") as store:
            store.table("a").update(
                [1], np.ones((1, 1), np.float32)
            )  # committed, and gone nevertheless
        crash(directory)
        assert prepared(plan) == prepared(plan) == LOST
        plan = replace(plan, back=RollbackPoint(plan.back.number + 1, "kept"))
        assert prepared(plan) == 0
        assert t_of(directory) == 0
    with embstore.open(directory, device="cpu") as store:
        store.table("a").update([1], np.ones((1, 1), np.float32))
    assert prepared(plan) == 0  # once for each time
    assert t_of(directory) == 1


def test_nothing_is_looked_at_where_every_command_is_kept(tmp_path: Path) -> None:
    assert words(replace(planned(tmp_path), durability="commands"), 0) == []


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    with embstore.open(begun(plan), device="cpu"), pytest.raises(StoreInUseError):
        prepared(plan)


def test_the_newest_label_is_that_of_all_shards() -> None:
    first = {"a": "1", "b": "2", "c": "3", "d": "4"}
    assert newest([first, {"b": "2", "a": "1", "d": "another"}]) == "b"
    assert newest([first]) == "d"
    with pytest.raises(CheckpointNotFoundError, match="found none"):
        newest([first, {"d": "another"}])
