"""A command of a cluster that one shard refuses or loses, while the others have applied it."""

import numpy as np
import pytest

from embstore.config import Sgd
from embstore.errors import CapacityError, OutcomeUnknownError
from embstore.handles.store import Store
from embstore_client.shards.router import Router
from tests.clusters import Cluster, Watched, table

KEYS = np.arange(1000)


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path, 2)
    made.store().create_table("a", **table(Sgd(0.1)))
    yield made
    made.close()


def store_with(cluster, before):
    """A store whose second shard does `before` ahead of each command."""
    first, second = cluster.shards()
    return Store(Router([first, Watched(second, before)], cluster.map))


def failing_once(kind, error):
    """Return a function that raises `error` for the first command of a kind."""
    left = [error]

    def before(command):
        if type(command).__name__ == kind and left:
            raise left.pop()

    return before


def gradients(value=1.0):
    return np.full((len(KEYS), 4), value, np.float32)


def test_half_an_update_is_not_to_be_sent_again(cluster):
    full = CapacityError("no room for x: free disk space, and send it again")
    a = store_with(cluster, failing_once("Update", full)).table("a")
    with pytest.raises(OutcomeUnknownError, match=r"by shards \[0\].*no room for x.*Do not send"):
        a.update(KEYS, gradients())
    assert a.t == 0  # the least of all shards
    with pytest.raises(OutcomeUnknownError, match=r"table 'a' has t \[1, 0\], by shard"):
        cluster.store().checkpoint("label")
    assert a.update(KEYS, gradients()).t == a.t == 1


def test_half_an_assignment_is_sent_again_with_the_same_result(cluster):
    a = store_with(cluster, failing_once("Assign", CapacityError("no room"))).table("a")
    with pytest.raises(CapacityError):
        a.assign(KEYS, gradients())
    a.assign(KEYS, gradients())
    assert (a.lookup(KEYS) == 1).all()


def test_a_push_that_one_shard_lost_is_put_once_on_each(cluster):
    store = store_with(cluster, failing_once("PutStepRows", OutcomeUnknownError("restarted")))

    def joined():
        store.sessions.open("run", ["a"])
        return store.sessions.join("run", 0).member

    put = {"a": (KEYS, gradients(), np.zeros((len(KEYS), 0), np.float32), 7)}
    with pytest.raises(OutcomeUnknownError):
        store.sessions.put_rows(joined(), put)
    assert store.table("a").t == 0
    store.sessions.put_rows(joined(), put)
    assert [engine.tables.find("a").t for engine in cluster.shards()] == [7, 7]
    assert (store.table("a").lookup(KEYS) == 1).all()
    assert store.table("a").digest()
