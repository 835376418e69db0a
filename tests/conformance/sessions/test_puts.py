"""Rows that were trained elsewhere, put into the tables of a session: by its members, whole."""

from typing import Any

import numpy as np
import pytest

from embstore.config import RowWiseAdagrad
from embstore.errors import InvalidArgumentError, SessionExpiredError, TableHeldError
from tests.conformance.cases import assert_same, config, each, generator, normal, ones
from tests.conformance.sessions.training import PATIENCE_S, await_planned, refused_step

STATE = ones(1, 1)
PUT = {"a": ([1], ones(1), STATE, 1)}


class Replica:
    """A twin with a session of one rank on two tables, beside a table "free"."""

    def __init__(self, twin: Any, *, shared: bool = False) -> None:
        for name in ("a", "b", "free"):
            twin.create_table(name, **config(optimizer=RowWiseAdagrad(0.1)))
        self.twin, self.store, self.sessions = twin, twin.store, twin.store.sessions
        self.sessions.open("run", ["a", "b"], shared=shared)
        self.member = self.sessions.join("run", 0).member

    def put(self, puts: dict[str, Any]) -> Any:
        """Put rows here and there, as one command."""
        done = self.sessions.put_rows(self.member, puts)
        reference = self.twin.reference
        number = reference.command_number
        for name, rows in puts.items():
            reference.table(name).put_rows(*rows)
        reference.command_number = number + 1
        assert done.command == number + 1
        return done


@pytest.fixture
def replica(open_twin: Any) -> Replica:
    return Replica(open_twin())


def test_rows_of_several_tables_are_one_command(replica):
    rng = generator(31)
    rows = np.array([5, 1, 999]), normal(rng, 3, 4), rng.random((3, 1), np.float32), 4
    nothing = np.array([], np.int64), ones(0), ones(0, 1), 2
    assert replica.put({"a": rows, "b": nothing}).t == {"a": 4, "b": 2}
    with refused_step(replica.store, TableHeldError):
        replica.store.table("a").put_rows(*rows)


def test_they_wait_for_no_step_but_are_refused(replica):
    sessions, member = replica.sessions, replica.member
    sessions.announce(member, {1: {"a": [1, 2]}})
    await_planned(replica.store, 1)
    with refused_step(replica.store, InvalidArgumentError, "not finished"):
        sessions.put_rows(member, PUT)
    sessions.release_step(member, 1, timeout_s=PATIENCE_S)
    replica.twin.reference.command_number += 1
    replica.put(PUT)
    sessions.announce(member, {2: {"a": [1, 2]}})
    rows = sessions.lookup_step(member, 2, timeout_s=PATIENCE_S)["a"]
    assert_same(rows, replica.twin.reference.table("a").lookup([1, 2]))


def test_they_are_of_members_alone(replica):
    replica.sessions.close(replica.member)
    for member in ("0" * 32, replica.member):
        with refused_step(replica.store, SessionExpiredError):
            replica.sessions.put_rows(member, PUT)


def test_a_shared_session_takes_none(open_twin):
    replica = Replica(open_twin(), shared=True)
    with refused_step(replica.store, InvalidArgumentError, "shared"):
        replica.sessions.put_rows(replica.member, PUT)


BAD: dict[str, Any] = {
    "no mapping": [("a", [1])],
    "no name": {7: PUT["a"]},
    "three parts": {"a": ([1], ones(1), STATE)},
    "no parts": {"a": 5},
    "another dim": {"a": ([1], ones(1, 2), STATE, 1)},
    "fewer rows than keys": {"a": ([1, 2], ones(1), STATE, 1)},
    "no state": {"a": ([1], ones(1), STATE[:, :0], 1)},
    "flat weights": {"a": ([1], ones(1)[0], STATE, 1)},
    "a key beyond the table": {"a": ([1000], ones(1), STATE, 1)},
    "a negative key": {"a": ([-1], ones(1), STATE, 1)},
    "a negative add_t": {"a": ([1], ones(1), STATE, -1)},
    "an add_t that is none": {"a": ([1], ones(1), STATE, 1.5)},
    "an add_t beyond 64 bits": {"a": ([1], ones(1), STATE, 1 << 64)},
    "a table that is not the session's": {"free": PUT["a"]},
    "one good and one bad": PUT | {"b": ([1000], ones(1), STATE, 1)},
}


@pytest.mark.needs("plain_keys")
def test_what_cannot_be_put_changes_nothing(replica):
    for puts in each(BAD.values()):
        with refused_step(replica.store, InvalidArgumentError):
            replica.sessions.put_rows(replica.member, puts)
