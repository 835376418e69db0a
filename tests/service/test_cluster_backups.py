"""Backups of a cluster, by the command line: restored whole, at one state, or not at all."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import embstore
from embstore.config import Adam, Uniform
from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore.storage import shard as places
from embstore.storage.files import Files
from embstore_client import connect
from tests.clusters import Cluster, table
from tests.service.shell import Shell
from tests.service.test_shards import PATIENCE_S, Shards, next_map

KEYS = np.arange(0, 4000, 3)


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    (tmp_path / "first").mkdir()
    made = Shards(tmp_path / "first", 2)
    with made.running:
        yield made


def connected(shards: Shards) -> Store:
    return connect(shards.map.shards[0], timeout_s=PATIENCE_S, transport="grpc")


def train(store: Store, rate: float) -> str:
    """Update the table once more, and return its digest."""
    if "t" not in store.tables():
        store.create_table(
            "t", dim=4, rows=4000, optimizer=Adam(0.1), initializer=Uniform(-1, 1), seed=5
        )
    gradients = np.random.default_rng(7).normal(size=(len(KEYS), 4)).astype(np.float32)
    store.table("t").update(KEYS, rate * gradients)
    return store.table("t").digest()


def serve_all(shards: Shards) -> None:
    for shard in range(len(shards.map.shards)):
        shards.serve(shard)


@pytest.fixture
def backup(shards: Shards, tmp_path: Path, shell: Shell) -> tuple[Path, str]:
    """Return where a cluster's backups are, "one" and "two", and the digest of "one"."""
    to = tmp_path / "backups"
    for shard in range(2):
        shards.serve(shard)
    with connected(shards) as store:
        digest = train(store, 1.0)
        for label in ("one", "two"):
            store.checkpoint(label)
            words = "backup", to, "--address", shards.map.shards[1]  # of any shard
            assert shell(*words, "--label", label).status == 0
            assert "expected a label" in shell(*words).err
            train(store, 2.0)
    shards.running.close()
    return to, digest


def test_a_cluster_starts_from_its_backup(shards, backup, tmp_path, shell):
    to, digest = backup
    made = shell("restore-from", to, tmp_path / "again", "--label", "one", "--json")
    assert made.status == 0, made.err
    assert (made.document["shards"], made.document["cluster"]) == (2, "ads")
    assert places.read(Files(tmp_path / "again" / "shard-1")) == places.ShardPlace(1, shards.map)
    again = Shards(tmp_path / "again", 2)
    again.map = next_map(replace(shards.map, shards=again.map.shards))
    with again.running:
        for shard in range(2):
            again.serve(shard)
        with connected(again) as store:
            assert store.table("t").digest() == digest
            assert train(store, 2.0) != digest
            assert store.table("t").t == 2


def test_a_cluster_that_fails_to_start_from_its_backup_leaves_nothing(backup, tmp_path, shell):
    to, _ = backup
    again = tmp_path / "again"
    (again / "shard-1").mkdir(parents=True)
    for file in (to / "shard-1" / "log").iterdir():
        empty = bytes(file.stat().st_size)
        file.unlink()  # it is the shard's, too
        file.write_bytes(empty)
    failed = shell("restore-from", to, again, "--label", "one")
    assert failed.status == 1 and "the backup is damaged" in failed.err
    assert [path.name for path in again.rglob("*")] == ["shard-1"]


def test_a_shard_alone_is_restored_as_that_shard(shards, backup, tmp_path, shell):
    """Where its disk is lost, and the others wait at the label."""
    to, digest = backup
    for shard in range(2):
        shutil.rmtree(shards.data(shard))
        done = shell("restore-from", to / f"shard-{shard}", shards.data(shard), "--label", "one")
        assert done.status == 0, done.err
    with pytest.raises(InvalidArgumentError, match="is shard 0 of cluster 'ads', and not shard 1"):
        shards.serve(1, data=shards.data(0))
    with shards.running:
        for shard in range(2):
            shards.serve(shard)
        with connected(shards) as store:
            assert store.table("t").digest() == digest


def swapped(to: Path) -> None:
    (to / "shard-0").rename(to / "x")
    (to / "shard-1").rename(to / "shard-0")
    (to / "x").rename(to / "shard-1")


def of_another_map(to: Path) -> None:
    for path in (to / "shard-1" / "labels").glob("*.shard"):
        place = places.decode(path.read_bytes(), str(path))
        place = replace(place, shard_map=next_map(place.shard_map))
        path.write_bytes(places.encode(place))


def of_no_shard(to: Path) -> None:
    for path in (to / "shard-1" / "labels").glob("*.shard"):
        path.unlink()


def of_another_state(to: Path) -> None:
    """What was kept on one shard as "one" is what the other has as "two"."""
    labels = to / "shard-1" / "labels"
    (labels / "two.catalogue").replace(labels / "one.catalogue")
    name = {place.name.partition("-")[0] for place in labels.glob("*.shard")}
    for path in list(labels.glob("*.shard")):
        for other in name - {path.name.partition("-")[0]}:
            shutil.copy(path, labels / f"{other}-{path.name.partition('-')[2]}")


def without_a_label(to: Path) -> None:
    (to / "shard-1" / "labels" / "one.catalogue").unlink()


def without_a_shard(to: Path) -> None:
    shutil.rmtree(to / "shard-1")


REFUSALS = {
    "another shard's": (swapped, "give each folder the name of its shard"),
    "another map's": (of_another_map, "expected version 1 of the map"),
    "a store's": (of_no_shard, "found one of a store outside of any cluster"),
    "another state's": (of_another_state, "differ between the shards"),
    "no label": (without_a_label, "labels that all have: 'two'"),
    "no shard": (without_a_shard, "expected backups of one label of all 2 shards"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_does_not_belong_together_is_not_restored(case, backup, tmp_path, shell):
    to, _ = backup
    spoil, message = REFUSALS[case]
    spoil(to)
    done = shell("restore-from", to, tmp_path / "again", "--label", "one")
    assert done.status != 0
    assert message in " ".join(done.err.split())
    assert not (tmp_path / "again").exists()


def test_backups_of_a_label_that_was_made_again_are_not_mixed(shards, tmp_path, shell):
    """An assign changes rows, and neither t nor the number of commands of the other shards: the
    checkpoint's mark shows that one shard's backup is older."""
    to, keys = tmp_path / "backups", np.arange(4000)
    serve_all(shards)
    with connected(shards) as store:
        train(store, 1.0)
        for value in (1.0, 2.0):
            store.table("t").assign(keys, np.full((len(keys), 4), value, np.float32))
            store.checkpoint("week")
            if value == 2.0:  # and shard 1 could not write it
                shutil.copytree(to / "shard-1", tmp_path / "older")
            store.backup(str(to), "week")
            store.set_retention("week", "dropped")
    shards.running.close()
    shutil.rmtree(to / "shard-1")
    (tmp_path / "older").rename(to / "shard-1")
    done = shell("restore-from", to, tmp_path / "again", "--label", "week")
    assert done.status != 0
    assert "differ between the shards" in " ".join(done.err.split())
    assert not (tmp_path / "again").exists()


def test_backups_of_more_and_of_fewer_shards_are_in_one_folder(tmp_path, shell):
    to, cluster = tmp_path / "backups", Cluster(tmp_path / "data", 3)
    keys = np.arange(4000)

    def back_up(label: str, value: float) -> None:
        store = cluster.store()
        store.create_table("t", **table(Adam(0.1), 4000), seed=5)
        store.table("t").assign(keys, np.full((len(keys), 4), value, np.float32))
        store.checkpoint(label)
        store.backup(str(to), label)

    back_up("monday", 1.0)
    cluster.even(2)
    cluster.remove(1)
    back_up("tuesday", 2.0)
    cluster.close()
    for label, count in (("tuesday", 2), ("monday", 3), (None, 2)):
        path = tmp_path / f"of-{label}"
        done = shell("restore-from", to, path, *(("--label", label) if label else ()), "--json")
        assert (done.status, done.document["shards"]) == (0, count), done.err
    for shard in range(2):
        with embstore.open(tmp_path / "of-None" / f"shard-{shard}", read_only=True) as store:
            values = set(np.unique(store.table("t").lookup(keys)))
        assert 2.0 in values and 1.0 not in values


def test_a_backup_of_a_cluster_is_of_a_checkpoint(shards, tmp_path):
    serve_all(shards)
    with connected(shards) as store:
        train(store, 1.0)
        with pytest.raises(InvalidArgumentError, match=r"expected a label: .*store\.checkpoint"):
            store.backup(str(tmp_path / "backups"))
    assert not (tmp_path / "backups").exists()


def test_a_directory_that_has_something_is_left_alone(backup, tmp_path, shell):
    to, _ = backup
    mine = tmp_path / "again" / "shard-1" / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("x")
    done = shell("restore-from", to, tmp_path / "again")
    assert done.status != 0
    assert "expected an empty directory" in done.err
    assert not (tmp_path / "again" / "shard-0").exists()
    assert mine.read_text() == "x"
