"""Ranks that do not do their part of a step alike."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from embstore.config import Ftrl
from embstore.errors import InvalidArgumentError
from tests.conformance.cases import config, generator, normal
from tests.conformance.sessions.training import PATIENCE_S, Plan, await_planned, refused_step, send

TABLE = config()
DISAGREEMENTS = {
    "learning rate": ({"learning_rate": 0.1}, {"learning_rate": 0.2}),
    "no learning rate": ({"learning_rate": 0.1}, {}),
    "scale": ({"gradient_scale": 0.5}, {}),
    "on_nonfinite": ({}, {"on_nonfinite": "skip"}),
    "verb": ({}, {"verb": "skip"}),
    "other verb": ({"verb": "skip"}, {"verb": "release"}),
}


class Pair:
    """Two ranks with one step announced by both."""

    def __init__(self, twin, **given):
        self.twin, self.store = twin, twin.store
        twin.create_table("a", **TABLE | given)
        plan = Plan(("a",), ranks=2)
        plan.open(self.store)
        self.sessions = self.store.sessions
        self.members = [self.sessions.join("run", rank).member for rank in (0, 1)]
        rng = generator(401)
        self.gradients = [{"a": normal(rng, 3, 4)} for _ in self.members]
        self.keys = [{"a": [1, 2, 3]}, {"a": [7, 3, 2]}]
        for member, keys in zip(self.members, self.keys, strict=True):
            self.sessions.announce(member, {1: keys})
        await_planned(self.store, 1)

    def send(self, rank, verb="update", **options):
        """Send a rank's share and wait for the end of the step."""
        member = self.members[rank]
        if verb != "update":
            return getattr(self.sessions, f"{verb}_step")(member, 1, timeout_s=PATIENCE_S)
        return self.sessions.update_step(
            member, 1, self.gradients[rank], **options, timeout_s=PATIENCE_S
        )

    def apply(self, **options):
        """Do the step on the reference."""
        pairs = zip(self.keys, self.gradients, strict=True)
        shares = [{"a": (keys["a"], gradients["a"])} for keys, gradients in pairs]
        self.twin.reference.update_ranks(shares, **options)


@pytest.fixture
def pair(open_twin):
    return Pair(open_twin())


@pytest.mark.needs("process")
@pytest.mark.parametrize(("one", "other"), DISAGREEMENTS.values(), ids=DISAGREEMENTS)
def test_ranks_that_disagree(pair, one, other):
    """Both are told, as nobody can know which of them is right; both may send again."""
    first = dict(one)
    verb = first.pop("verb", "update")
    share = (verb, pair.members[0], 1, pair.gradients[0])
    outcome = send(pair.store, *share, **first)
    assert outcome.poll() is None
    with refused_step(pair.store, InvalidArgumentError, "rank 1"):
        pair.send(1, **other)
    with pytest.raises(InvalidArgumentError, match="rank 1"):
        outcome.poll()
    again = send(pair.store, *share, **first)
    assert again.poll() is None
    done = pair.send(1, **one)
    assert again.poll() == done
    if verb == "update":
        pair.apply(**{n: v for n, v in one.items() if n != "on_nonfinite"})
    else:
        pair.twin.reference.command_number += 1


@pytest.mark.needs("process")
def test_refused_share_leaves_the_step_open_for_a_resend(pair):
    outcome = send(pair.store, "update", pair.members[1], 1, pair.gradients[1])
    with refused_step(pair.store, InvalidArgumentError, "table 'a'", "key 2"):
        bad = {"a": np.array([[1] * 4, [np.inf] * 4, [1] * 4], np.float32)}
        pair.sessions.update_step(pair.members[0], 1, bad, timeout_s=PATIENCE_S)
    assert outcome.poll() is None
    assert pair.send(0) == outcome.poll()
    pair.apply()


@pytest.mark.needs("process")
def test_rate_that_ftrl_divides_by_is_refused_on_all_ranks(open_twin):
    pair = Pair(open_twin(), optimizer=Ftrl(0.1))
    share = ("update", pair.members[0], 1, pair.gradients[0])
    options = {"learning_rate": 0.0, "on_nonfinite": "skip"}
    outcome = send(pair.store, *share, **options)
    with refused_step(pair.store, InvalidArgumentError, "table 'a'", "learning_rate"):
        pair.send(1, **options)
    with pytest.raises(InvalidArgumentError, match="> 0 in fp32"):
        outcome.poll()
    again = send(pair.store, *share)
    assert pair.send(1) == again.poll()
    pair.apply()


def test_ranks_send_at_the_same_time_and_again(pair):
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(pair.send, [0, 1, 0, 1]))
    assert len(set(map(repr, done))) == 1
    pair.apply()
    assert repr(pair.send(1)) == repr(done[0])
