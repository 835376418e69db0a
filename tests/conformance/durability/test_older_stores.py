"""A store that version 0.1.0 wrote opens with the digests that it was closed with.

The archive holds base, log and two checkpoints of tables of four optimizers, a session's place, a
profile and a hot set; the document beside it says what the store was, by the version that wrote it.
"""

import json
import tarfile
from pathlib import Path

import pytest

from tests.conformance.twin import digests

pytestmark = pytest.mark.needs("one_store")

DATA = Path(__file__).parents[2] / "data"
WRITTEN = json.loads((DATA / "store-0.1.0.json").read_text())


@pytest.fixture
def store(backend):
    with tarfile.open(DATA / "store-0.1.0.tar.gz") as archive:
        archive.extractall(backend.path(), filter="data")
    return backend.open_store(policy="rank", checkpoints_keep=2)


def test_an_older_store_opens_as_it_was_closed(store):
    assert digests(store) == WRITTEN["digests"]["head"]
    assert (store.command, store.epoch) == (WRITTEN["command"], WRITTEN["epoch"])
    assert {name: store.table(name).t for name in store.tables()} == WRITTEN["t"]
    assert [kept.label for kept in store.checkpoints()] == WRITTEN["labels"]
    assert not any(kept.protected for kept in store.checkpoints())
    assert store.table("adagrad").learning_rate == WRITTEN["rate"]
    assert store.table("sgd").rows == WRITTEN["rows"]


def test_an_older_store_has_its_profile_hot_set_and_place(store):
    assert store.export_profile(source="imported").tables["sgd"].accesses == 5050
    assert store.hot_set().tables["adam"].tolist() == list(range(20))
    with store.session(["sgd", "adam"], name="job") as run:
        assert run.last_step == 5


def test_an_older_checkpoint_is_restored(store):
    store.restore("second")
    assert digests(store) == WRITTEN["digests"]["second"]
