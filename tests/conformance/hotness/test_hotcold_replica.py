"""The hot replica alone: rows trained there are those that the store would have made."""

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError, SessionExpiredError
from embstore.profiles.hotset import HotSet
from embstore_training.hotcold.replica import Replica
from embstore_training.hotcold.rows import DENSE_KEYS_MAX
from tests.conformance.cases import OPTIMIZERS, assert_same, config, generator, normal, ones
from tests.conformance.hotness.hotcold import ROWS, TABLES, hot_keys, hotcold_twin
from tests.conformance.traces import values


@pytest.fixture
def twin(open_twin):
    return hotcold_twin(open_twin)


@pytest.mark.parametrize("seed", range(6))
def test_replica_is_the_store_s_rows_wherever_they_are_trained(twin, seed):
    """Updates here and there in turn, with values of every kind, pulls and pushes in between."""
    rng = generator(920 + seed)
    hot = hot_keys(40)
    replica = Replica(twin.store, hot)
    with twin.store.session(tables=[*TABLES], name="holder") as run:
        replica.pull()
        for _ in range(5):
            for _ in range(int(rng.integers(0, 4))):
                shares = random_shares(rng, hot.tables)
                done = replica.update(shares, gradient_scale=0.75)
                wanted = twin.reference.update(shares, gradient_scale=0.75)
                assert {t: done.t[t] for t in shares} == wanted
            replica.push(run.member)
            keys = {t: rng.integers(0, ROWS, 30) for t in TABLES}
            for step in run.steps([keys], keys=lambda batch: batch):
                gradients = {t: normal(rng, 30, TABLES[t]["dim"]) for t in TABLES}
                step.update(gradients)
                twin.reference.update({t: (keys[t], gradients[t]) for t in TABLES})
            replica.mark_stale(keys)
            count = sum(len(k) for k in replica.stale_keys.values())
            assert replica.refresh() == count <= 120
            for table, rows in replica.lookup(hot.tables).items():
                assert_same(rows, twin.reference.table(table).lookup(hot.tables[table]))


def random_shares(rng, hot):
    """Return gradients of some tables' hot keys, some tables without keys, one key very often."""
    shares = {}
    for table, keys in hot.items():
        if rng.random() < 0.8:
            drawn = rng.choice(keys, int(rng.choice([0, 1, 30])))
            drawn = np.concatenate([drawn, np.full(int(rng.choice([0, 130])), keys[0])])
            made = values(rng, len(drawn), TABLES[table]["dim"], special=True)
            shares[table] = drawn, np.where(np.abs(made) > 9, np.float32(0.5), made)
    return shares


def test_cold_keys_and_rows_not_pulled_are_refused(twin):
    hot = HotSet({"sgd": np.array([3, 9, 500])})
    replica = Replica(twin.store, hot)
    with pytest.raises(InvalidArgumentError, match=r"pulled.*key 9"):
        replica.lookup({"sgd": [9]})
    assert replica.pull({"sgd": [3, 9]}) == 2
    replica.lookup({"sgd": [9, 3, 9]})
    for key in (4, -1, ROWS, 2**40):
        with pytest.raises(InvalidArgumentError, match=f"'sgd'.*hot set, found {key}"):
            replica.lookup({"sgd": [3, key]})
        with pytest.raises(InvalidArgumentError, match=f"'sgd'.*hot set, found {key}"):
            replica.update({"sgd": ([3, key], ones(2))})
    with pytest.raises(InvalidArgumentError, match="'adam'"):
        replica.lookup({"adam": [3]})
    with pytest.raises(InvalidArgumentError, match=r"pulled.*key 500"):
        replica.update({"sgd": ([500], ones(1))})
    with pytest.raises(InvalidArgumentError, match="adam"):
        Replica(twin.store, hot, tables=["adam"])
    replica.update({"sgd": ([3], ones(1))})
    with pytest.raises(InvalidArgumentError, match="pushed before"):
        replica.pull()
    assert replica.unsent_bytes == 8 + 16


def test_rate_that_ftrl_divides_by_is_refused(twin):
    """Of all tables together, and also where the update would be skipped."""
    keys = np.array([3, 9])
    replica = Replica(twin.store, HotSet({"ftrl": keys, "sgd": keys}))
    replica.pull()
    shares = {"sgd": ([3], ones(1)), "ftrl": ([3], ones(1, 6, np.inf))}
    with pytest.raises(InvalidArgumentError, match=r"'ftrl'.*learning_rate.*> 0 in fp32"):
        replica.update(shares, learning_rate=0.0, on_nonfinite="skip")
    assert replica.t == {"ftrl": 0, "sgd": 0}
    assert replica.update({"sgd": ([3], ones(1))}, learning_rate=0.0).t["sgd"] == 1


def test_push_that_fails_may_be_repeated(twin):
    hot = HotSet({"sgd": np.array([3, 9])})
    replica = Replica(twin.store, hot)
    replica.pull()
    replica.update({"sgd": ([3], ones(1))})
    with pytest.raises(SessionExpiredError):
        replica.push("nobody's member token")
    with pytest.raises(InvalidArgumentError, match="push again"):
        replica.update({"sgd": ([3], ones(1))})
    with twin.store.session(tables=["sgd"]) as run:
        assert replica.push(run.member).t == {"sgd": 1}
        assert replica.push(run.member) is None
    twin.reference.update({"sgd": ([3], ones(1))})


def test_keys_far_apart_have_slots_too(open_twin):
    """Beyond the map's bound, and beyond what float32 and int32 count exactly."""
    rows = 2**40
    twin = hotcold_twin(open_twin, far=config(rows=rows, optimizer=OPTIMIZERS["adagrad"]))
    keys = np.unique([0, 1, 2**24, 2**24 + 1, DENSE_KEYS_MAX + 1, 2**31, 2**31 + 1, rows - 1])
    replica = Replica(twin.store, HotSet({"far": keys}))
    replica.pull()
    rng = generator(921)
    with twin.store.session(tables=["far"]) as run:
        for _ in range(3):
            drawn = rng.choice(keys, 20)
            share = {"far": (drawn, normal(rng, 20, 4))}
            replica.update(share)
            twin.reference.update(share)
        replica.push(run.member)
    for key in (2, 2**24 + 2, 2**31 - 1, rows - 2):
        with pytest.raises(InvalidArgumentError, match=f"found {key}"):
            replica.lookup({"far": [key]})
