"""Lives tell how far two histories are the same, whatever their numbers; and they are a fold."""

import shutil
from itertools import combinations
from random import Random

import numpy as np
import pytest

import embstore
from embstore.config import Constant, Sgd
from embstore.storage.backup import catalogue_of
from embstore.storage.lives import LIVES_MAX, Life, last_common, new_id, numbered, up_to

OPTIONS = {"device": "cpu", "cache_bytes": 1 << 20}


class History:
    """A store whose commands are all different. `opened` begins a life with a copy of it."""

    def __init__(self, commands=(), lives=()):
        self.commands, self.lives, self.life = commands, lives, new_id()

    def give(self, command):
        self.commands = (*self.commands, command)
        self.lives = numbered(self.lives, self.life, len(self.commands))

    def opened(self, upto):
        kept = tuple(one for one in self.lives if one.first <= upto)
        return History(self.commands[:upto], kept)

    def common(self, other):
        return last_common(self.lives, len(self.commands), other.lives, len(other.commands))


def same(one, other):
    """Return how many first commands are the same."""
    pairs = enumerate(zip(one.commands, other.commands, strict=False))
    shorter = min(len(one.commands), len(other.commands))
    return next((n for n, (mine, its) in pairs if mine != its), shorter)


@pytest.mark.parametrize("seed", range(20))
def test_lives_tell_how_far_two_histories_are_the_same(seed):
    rng, stores = Random(seed), [History()]
    for command in range(400):
        if rng.random() < 0.1:  # a copy, a crash that loses commands, a restart
            store = rng.choice(stores)
            stores.append(store.opened(rng.randint(0, len(store.commands))))
        rng.choice(stores).give(command)
    for one, other in combinations(stores, 2):
        assert one.common(other) == other.common(one) == same(one, other)


def test_a_follower_has_the_lives_of_its_leader():
    leader = History()
    follower = leader.opened(0)
    for command in range(50):
        leader = leader.opened(command) if command % 7 == 0 else leader
        leader.give(command)
        follower.life = leader.life
        follower.give(command)
    assert follower.lives == leader.lives
    assert len(follower.lives) == 8


def test_the_oldest_lives_are_forgotten():
    lives = ()
    for n in range(LIVES_MAX + 5):
        lives = numbered(lives, n, 10 * n + 1)
    assert len(lives) == LIVES_MAX
    assert lives[0] == Life(5, 51)
    last = 10 * (LIVES_MAX + 5)
    assert last_common((Life(4, 41),), 45, lives, last) == 0
    assert last_common((Life(5, 51),), 60, lives, last) == 60
    assert last_common((Life(5, 51),), 61, lives, last) == 60
    assert last_common((Life(5, 50),), 60, lives, last) == 0
    assert up_to(lives, 75) == lives[:3]
    (one,) = up_to(lives, 40)
    assert one.first == 40
    assert up_to(lives, 40) != (one,)


@pytest.mark.parametrize("durability", ["checkpoint", "interval", "commands"])
def test_a_store_has_the_lives_of_its_commands(tmp_path, durability):
    """With the command log too, of a process that has made no commit. A process that gives no
    number has no life."""

    def lives():
        return store.executor.tables.frame.lives

    path, copy = tmp_path / "store", tmp_path / "copy"
    options = OPTIONS | {"durability": durability}
    with embstore.open(path, **options) as store:
        assert lives() == ()
        table = store.create_table(
            "a", dim=2, rows=9, optimizer=Sgd(1.0), initializer=Constant(0.0)
        )
        table.assign([1], np.ones((1, 2), np.float32))
        first = lives()
        assert [one.first for one in first] == [1]
        store.checkpoint("one")
    with embstore.open(path, **options) as store:
        assert lives() == first
        store.table("a").assign([2], np.ones((1, 2), np.float32))
        store.restore("one")
        second = lives()
        assert (second[0], [one.first for one in second]) == (first[0], [1, 3])
        store.table("a").assign([3], np.ones((1, 2), np.float32))
        assert lives() == second
        store.flush()
        shutil.copytree(path, copy)  # as after a kill
    with embstore.open(path, **options) as store:
        assert (store.command, lives()) == (5, second)
    with embstore.open(copy, **options) as store:
        assert (store.command, lives()) == (4 if durability == "checkpoint" else 5, second)


def test_a_backup_has_the_lives_of_its_state(tmp_path):
    path = tmp_path / "store"
    for n in range(3):
        with embstore.open(path, **OPTIONS) as store:
            if not n:
                store.create_table(
                    "a", dim=2, rows=9, optimizer=Sgd(1.0), initializer=Constant(0.0)
                )
            store.table("a").assign([n], np.ones((1, 2), np.float32))
            store.checkpoint(f"label-{n}")
            catalogue = store.executor.storage.catalogue
    assert [one.first for one in catalogue.lives] == [1, 3, 4]
    for n, kept in enumerate(catalogue.checkpoints):
        assert catalogue_of(catalogue, kept).lives == catalogue.lives[: n + 1]
    assert catalogue_of(catalogue, None).lives == catalogue.lives


def test_a_store_that_goes_on_elsewhere_begins_a_life(tmp_path):
    """It may have given these numbers before."""
    with embstore.open(tmp_path / "store", **OPTIONS) as store:
        frame = store.executor.tables.frame
        make = {"dim": 2, "optimizer": Sgd(1.0), "initializer": Constant(0.0)}
        for n in range(5):
            store.create_table(f"a{n}", rows=9, **make)
        before = frame.lives
        frame.stand_at(3)
        store.create_table("b", rows=9, **make)
        after = frame.lives
        assert (after[0], [one.first for one in after]) == (before[0], [1, 3])
        assert last_common(before, 5, after, 4) == 2
        frame.stand_at(9)
        assert [one.first for one in frame.lives] == [1, 3, 9]
