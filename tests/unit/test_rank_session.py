"""A run whose server is started again: a port in memory that forgets its member at any call."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from embstore.errors import (
    OutcomeUnknownError,
    SessionExpiredError,
    StoreClosedError,
    TableHeldError,
    TableNotFoundError,
)
from embstore.handles.sessions import Serving
from embstore.results import AcknowledgedUpdate
from embstore_training.run import Run
from tests.unit.memory_port import WAIT_S, PrefetchingPort, batches_of, gradients_of, of_a

STEPS = 7


class RestartingPort(PrefetchingPort):
    """A port that loses its member at the calls in `kills`, one after the other, before they are
    done, and the answers of the steps in `unanswered`; its rows and place survive, as of a command
    log."""

    def __init__(self):
        super().__init__()
        self.process = self.epoch = 1
        self.kills = []
        self.unanswered = []
        self.is_skipping = False
        self._whole = threading.RLock()  # A restart comes before a call or after it.

    def restart(self, *, epoch=1):
        with self._whole:
            self.process, self.epoch = self.process + 1, epoch
            self.member, self.announced = None, {}

    def serving(self):
        return Serving(str(self.process), self.epoch)

    def t(self, tables):
        return dict.fromkeys(tables, 0 if self.is_skipping else len(self.updates))

    def _called(self, *call):
        super()._called(*call)
        if self.kills and self.kills[0][0] == call[0] and {*self.kills[0]} <= {*call}:
            self.kills.pop(0)
            self.restart()
            if call[0] != "prefetch":  # which only asks
                raise SessionExpiredError("no such member")

    def announce(self, member, steps):
        with self._whole:
            self._check(member)
            old = {*range(self.last_step + 1), *self.announced}
            new = {number: keys for number, keys in steps.items() if number not in old}
            return super().announce(member, new) if new else None

    def update_step(self, member, *args, **options):
        with self._whole:
            self._check(member)
            return super().update_step(member, *args, **options)

    def release_step(self, member, step):
        with self._whole:
            return super().release_step(member, step)

    def skip_step(self, member, step):
        with self._whole:
            return super().skip_step(member, step)

    def renew(self, member, *, timeout_s=None):
        self._check(member)
        return super().renew(member, timeout_s=timeout_s)

    def _finish(self, member, step):
        super()._finish(member, step)
        if step in self.unanswered:
            self.restart()
            raise OutcomeUnknownError("its last step shows")
        return AcknowledgedUpdate(100 + step, self.t("a"), self.is_skipping)

    def close(self, member, *, forget, timeout_s):
        self._called("close", forget)
        if member == self.member:
            self.member = None


def train(port):
    """Train all steps; return what each was answered."""
    answers = []
    with Run(port, ["a"], lookahead=3) as run:
        for step in run.steps(batches_of(STEPS), of_a):
            np.testing.assert_array_equal(step.lookup()["a"], port.tables["a"][step.batch])
            answers.append(step.update({"a": gradients_of(step.batch)}))
    assert (run.last_step, len(port.updates), port.last_step) == (STEPS, STEPS, STEPS)
    assert port.member is None
    return answers


KILLS = {
    "lookup": [("lookup", 1)],
    "update": [("update", 3)],
    "prefetch": [("prefetch", 4)],
    "announcement": [("announce", 5)],
    "coming back": [("update", 3), ("join", 0)],
    "announced again": [("update", 3), ("announce", 3)],
    "one after the other": [("update", n) for n in range(1, STEPS + 1)],
    "twice at once": [("update", 4), ("update", 4)],
}


@pytest.mark.parametrize("name", KILLS)
def test_each_step_is_done_once_whatever_was_out(name):
    port, undisturbed = RestartingPort(), RestartingPort()
    port.kills = list(KILLS[name])
    answers = train(port)
    assert [done.command for done in answers] == [100 + n for n in range(1, STEPS + 1)]
    train(undisturbed)
    np.testing.assert_array_equal(port.tables["a"], undisturbed.tables["a"])
    assert not port.kills or name == "prefetch", "it is asked for if it is announced in time"


@pytest.mark.parametrize("lost", [[1], [4], [1, 2, 3], [STEPS]], ids=str)
def test_a_step_whose_answer_was_lost_is_not_sent_again(lost):
    port = RestartingPort()
    port.unanswered = lost
    for number, done in enumerate(train(port), 1):
        expected = 0 if number in lost else 100 + number
        assert (done.command, done.t, done.skipped) == (expected, {"a": number}, False)


@pytest.mark.parametrize("verb", ["released", "skipped", "updated"])
def test_a_lost_answer_says_whether_the_update_was_skipped(verb):
    port = RestartingPort()
    port.unanswered, port.is_skipping = [2], True
    with Run(port, ["a"]) as run:
        for step in run.steps(batches_of(3), of_a):
            if step.number != 2 or verb == "updated":
                done = step.update({"a": gradients_of(step.batch)}, on_nonfinite="skip")
            else:
                done = step.release() if verb == "released" else step.skip()
            if step.number == 2:
                assert (done.t, done.skipped) == ({"a": 0}, verb != "released")


def test_rows_that_were_asked_for_before_are_asked_for_again():
    port = RestartingPort()
    with Run(port, ["a"]) as run:
        steps = run.steps(batches_of(3), of_a)
        step = next(steps)
        port.wait_until(lambda: 2 in port.announced)
        while ("prefetch", 2) not in port.calls:
            step.lookup()
        port.restart()
        step.update({"a": gradients_of(step.batch)})
        step = next(steps)
        step.lookup()
        assert port.calls.count(("lookup", 2)) == 1
        step.release()
        next(steps).release()


@pytest.mark.parametrize(
    ("place", "epoch", "message"),
    [
        (2, 1, "steps 3 to 4, which were finished, are lost.*goes on after step 2"),
        (3, 2, "step 4, which was finished, is lost.*goes on after step 3"),
        (4, 2, "commands since the last commit may be gone.*goes on after step 4"),
        (6, 1, "another process has trained on from step 5.*goes on after step 6"),
    ],
)
def test_a_run_that_cannot_go_on_says_where_to_go_on_from(place, epoch, message):
    port = RestartingPort()
    with pytest.raises(SessionExpiredError, match=message), Run(port, ["a"]) as run:
        for step in run.steps(batches_of(9), of_a):
            if step.number == 5:
                port.restart(epoch=epoch)
                port.last_step = place
                opened = port.count("open")
                with pytest.raises(SessionExpiredError, match=message):
                    step.update({"a": gradients_of(step.batch)})
                assert port.count("open") == opened + 1
                port.refuses["open"] = [AssertionError("it is not tried again")]
            step.update({"a": gradients_of(step.batch)})
    assert (len(port.updates), port.last_step, port.member) == (4, place, None)


def test_a_step_that_ends_while_the_session_is_opened_again_is_not_lost():
    """Where only one of several shards was started again, the others go on with what is out."""
    port = RestartingPort()
    joined = port.join

    def join(*args, **options):
        membership = joined(*args, **options)
        return replace(membership, last_step=max(membership.last_step - 1, 0))

    port.join, port.kills = join, [("update", 3)]
    train(port)


def test_tables_that_were_lost_are_no_other_error():
    port = RestartingPort()
    with pytest.raises(SessionExpiredError, match="cannot be opened: no table"):
        with Run(port, ["a"]) as run:
            for step in run.steps(batches_of(3), of_a):
                port.restart(epoch=2)
                port.refuses["open"] = [TableNotFoundError("no table 'a'")]
                step.release()


def test_a_session_that_ended_otherwise_is_not_opened_again():
    port = RestartingPort()
    with pytest.raises(SessionExpiredError, match="no such member"), Run(port, ["a"]) as run:
        for step in run.steps(batches_of(3), of_a):
            port.member = "of somebody else"
            step.lookup()
    assert port.count("open") == 1


def test_a_rank_that_computes_takes_its_place_again():
    """By the renewal of its lease."""
    port = RestartingPort()
    with Run(port, ["a"], lease_ms=30) as run:
        for step in run.steps(batches_of(2), of_a):
            port.restart()
            port.wait_until(lambda: port.member is not None and port.count("renew"))
            step.update({"a": gradients_of(step.batch)})
    assert (port.count("join"), port.last_step) == (3, 2)


def test_the_lease_of_a_store_that_failed_is_renewed_again_when_it_was_started_again():
    port = RestartingPort()
    port.refuses["renew"] = [StoreClosedError("the store has failed")]
    with Run(port, ["a"], lease_ms=30) as run:
        for step in run.steps(batches_of(1), of_a):
            port.wait_until(lambda: port.count("renew"))
            for thread in lease_threads():
                thread.join(WAIT_S)
            port.restart()
            step.update({"a": gradients_of(step.batch)})
            port.wait_until(lambda: port.count("renew") > 1)


def lease_threads():
    """Return those of all runs."""
    return [thread for thread in threading.enumerate() if thread.name == "embstore-lease"]


def test_a_place_that_is_taken_meanwhile_is_waited_for():
    port = RestartingPort()
    port.kills = [("update", 2)]
    with Run(port, ["a"], name="job") as run:
        for step in run.steps(batches_of(3), of_a):
            if step.number == 2:
                port.refuses["join"] = [TableHeldError("leased")]
            step.update({"a": gradients_of(step.batch)})
    assert (port.count("join"), port.last_step) == (3, 3)


def test_a_run_that_is_left_while_it_comes_back_leaves_nothing_behind():
    """The lease's thread opens the session again while the loop ends."""
    port, opening, may_open = RestartingPort(), threading.Event(), threading.Event()
    opened = port.open

    def slow_open(*args, **options):
        opening.set()
        assert may_open.wait(WAIT_S)
        return opened(*args, **options)

    with Run(port, ["a"], lease_ms=30):
        port.open = slow_open
        port.restart()
        assert opening.wait(WAIT_S)
    threads = lease_threads()
    may_open.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert (port.count("join"), port.member) == (2, None)
