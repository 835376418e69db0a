"""A command of a cluster that one shard refuses or loses, while the others have applied it."""

import itertools

import numpy as np
import pytest

from embstore import commands as c
from embstore.config import Sgd
from embstore.errors import CapacityError, DeadlineError, OutcomeUnknownError
from embstore.handles.store import Store
from embstore_client.barrier import pause_each
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


def failing_on(kind, nth, error):
    """Return a function that raises `error` for the nth command of a kind."""
    numbers = itertools.count(1)

    def before(command):
        if type(command).__name__ == kind and next(numbers) == nth:
            raise error

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


def test_half_updates_that_make_t_equal_are_found(cluster):
    """One that has reached the first shard only, and one that has reached the second; also after
    both shards have executed their parts again from the command log."""
    cluster.store().checkpoint("whole")
    for lost in (1, 0):
        shards = cluster.shards()
        before = failing_once("Update", DeadlineError("no answer"))
        shards[lost] = Watched(shards[lost], before)
        with pytest.raises(OutcomeUnknownError):
            Store(Router(shards, cluster.map)).table("a").update(KEYS, gradients())
    for number in range(2):
        cluster.kill(number)
        cluster.open(number)
    assert [shard.execute(c.GetTable("a")).t for shard in cluster.shards()] == [1, 1]
    a, found = cluster.store().table("a"), "an update has reached some shards only"
    for look in (a.digest, lambda: list(a.leaves()), lambda: list(a.scan())):
        with pytest.raises(OutcomeUnknownError, match=found):
            look()
    with pytest.raises(OutcomeUnknownError, match=r"t \[1, 1\], by shard, and " + found):
        pause_each(cluster.shards(), "the test", wait=[].append)
    cluster.store().restore("whole")
    a.update(KEYS, gradients())
    cluster.store().checkpoint("again")
    assert len(a.digest()) == 64


def test_a_restore_of_one_shard_alone_is_found_until_it_is_sent_again(cluster):
    """Only assigns come after the checkpoint, so t is equal."""
    a = cluster.store().table("a")
    a.update(KEYS, gradients())
    cluster.store().checkpoint("whole")
    before = a.digest()
    a.assign(KEYS, gradients(7.0))
    store = store_with(cluster, failing_on("Restore", 2, DeadlineError("no answer")))
    with pytest.raises(OutcomeUnknownError, match="Send it again"):
        store.restore("whole")
    for look in (a.digest, lambda: cluster.store().checkpoint("mixed")):
        with pytest.raises(OutcomeUnknownError, match="some shards only"):
            look()
    cluster.store().restore("whole")
    assert a.digest() == before
    cluster.store().checkpoint("again")
