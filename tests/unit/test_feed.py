"""The trainer's side of a session, over a port in memory that counts its calls."""

import threading
from functools import partial

import numpy as np
import pytest

from embstore.arithmetic import bag_gradients, pool_rows, sum_by_key, unique
from embstore.errors import (
    DeadlineError,
    InvalidArgumentError,
    RankFailedError,
    SessionExpiredError,
    StoreClosedError,
    TableHeldError,
)
from embstore.feed.run import Run
from embstore.results import AcknowledgedUpdate, Announced, Membership, SessionFacts

SEED = 59
ROWS, DIM = 200, 6
WAIT_S = 20


class MemoryPort:
    """One session over tables in memory; an update subtracts its gradients.

    `progress` is notified after every call, for tests that wait for one.
    """

    def __init__(self, tables=("a",)):
        rng = np.random.default_rng(SEED)
        self.tables = {t: rng.standard_normal((ROWS, DIM)).astype(np.float32) for t in tables}
        self.progress = threading.Condition()
        self.calls = []
        self.announced = {}
        self.last_step = 0
        self.facts = None
        self.member = None
        self.timeouts_s = {"renew": [], "close": []}
        self.updates = []
        self.refuses = {}
        self.announce_allowed = threading.Event()
        self.announce_allowed.set()
        self.announcing = threading.Event()

    def _called(self, *call):
        with self.progress:
            self.calls.append(call)
            self.progress.notify_all()
        if self.refuses.get(call[0]):
            raise self.refuses[call[0]].pop(0)

    def count(self, verb):
        with self.progress:
            return sum(call[0] == verb for call in self.calls)

    def wait_until(self, condition):
        with self.progress:
            assert self.progress.wait_for(condition, WAIT_S)

    def _check(self, member):
        if member is None or member != self.member:
            raise SessionExpiredError("no such member")

    def open(self, name, tables, *, lookahead_steps_max, world_size, planner, shared,
             lease_ms, rank_timeout_ms):  # fmt: skip
        self._called("open", name)
        self.facts = SessionFacts(
            name, self.last_step, tables, lookahead_steps_max, world_size, planner, shared,
            lease_ms, rank_timeout_ms,
        )  # fmt: skip
        return self.facts

    def join(self, name, rank, *, member):
        self.member = member
        self._called("join", rank)
        return Membership(member, name, rank, self.last_step)

    def announce(self, member, steps):
        self.announcing.set()
        assert self.announce_allowed.wait(WAIT_S)
        self._check(member)
        newest = max(self.announced, default=self.last_step)
        assert [*steps] == [*range(newest + 1, newest + 1 + len(steps))]
        assert max(steps) <= self.last_step + self.facts.lookahead_steps_max
        for keys in steps.values():
            for table, values in keys.items():
                assert values.dtype == np.int64 and len(np.unique(values)) == len(values)
                if (values >= ROWS).any():
                    raise InvalidArgumentError(f"table {table!r}: key out of range")
        self.announced |= steps
        self._called("announce", *steps)
        return Announced(max(steps), max(steps), False)

    def lookup_step(self, member, step):
        self._check(member)
        self._called("lookup", step)
        return {t: self.tables[t][keys] for t, keys in self.announced[step].items()}

    def lookup_step_pooled(self, member, step, bags):
        self._check(member)
        self._called("pooled", step)
        return {
            t: pool_rows(
                self.tables[t][self.announced[step][t][b.inverse]], b.offsets, b.mode, b.weights
            )
            for t, b in bags.items()
        }

    def _finish(self, member, step):
        self._check(member)
        assert step == self.last_step + 1 and step in self.announced
        self.last_step = step
        return AcknowledgedUpdate(step, {}, False)

    def update_step(self, member, step, gradients, *, learning_rate, gradient_scale, on_nonfinite):
        self._called("update", step)
        for table, values in gradients.items():
            assert values.shape == (len(self.announced[step][table]), DIM)
            self.tables[table][self.announced[step][table]] -= values
        self.updates.append({t: values.copy() for t, values in gradients.items()})
        return self._finish(member, step)

    def release_step(self, member, step):
        self._called("release", step)
        return self._finish(member, step)

    def skip_step(self, member, step):
        self._called("skip", step)
        return self._finish(member, step)

    def renew(self, member, *, timeout_s):
        self.timeouts_s["renew"].append(timeout_s)
        self._called("renew")
        return self.facts

    def close(self, member, *, forget, timeout_s):
        self._check(member)
        self.member = None
        self.timeouts_s["close"].append(timeout_s)
        self.announced = {s: k for s, k in self.announced.items() if s <= self.last_step}
        self._called("close", forget)


class PrefetchingPort(MemoryPort):
    """A port whose rows may be sent for before the loop asks."""

    def prefetch_step(self, member, step):
        self._called("prefetch", step)
        return Prefetched(self, step)


class Prefetched:
    """Rows that are read when they are waited for: after the step before is finished."""

    def __init__(self, port, step):
        self._port, self._step = port, step

    def result(self, timeout_s):
        assert self._port.last_step == self._step - 1
        return {t: self._port.tables[t][k] for t, k in self._port.announced[self._step].items()}


def batches_of(count, size=50):
    rng = np.random.default_rng(SEED)
    return [rng.zipf(1.3, size).clip(max=ROWS) - 1 for _ in range(count)]


def of_a(batch):
    return {"a": batch}


def gradients_of(batch):
    return np.random.default_rng(len(batch)).standard_normal((len(batch), DIM)).astype(np.float32)


def embstore_threads():
    """Those of a run: a device's workers may be left of whatever test came before."""
    here = [t for t in threading.enumerate() if t.name.startswith("embstore-")]
    return [t for t in here if not t.name.startswith("embstore-rows-")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    for thread in embstore_threads():
        thread.join(WAIT_S)
    assert not embstore_threads()


def test_each_step_reads_what_the_one_before_wrote_and_sums_by_rule_2():
    port, batches = MemoryPort(), batches_of(40)
    expected = port.tables["a"].copy()
    with Run(port, ["a"], lookahead=4) as run:
        for step, batch in zip(run.steps(batches, of_a), batches, strict=True):
            assert step.batch is batch
            assert step.number == run.last_step + 1
            np.testing.assert_array_equal(step.lookup()["a"], expected[batch])
            keys, inverse = unique(batch)
            sums = sum_by_key(inverse, len(keys), gradients_of(batch))
            assert step.update({"a": gradients_of(batch)}).command == step.number
            assert port.updates[-1]["a"].tobytes() == sums.tobytes()
            expected[keys] -= sums
    assert port.last_step == run.last_step == 40
    assert port.calls[-1] == ("close", True)
    np.testing.assert_array_equal(port.tables["a"], expected)


def test_unique_rows_come_with_the_way_back():
    port, batch = MemoryPort(), np.array([7, 3, 7])
    with Run(port, ["a"]) as run:
        for step in run.steps([batch], of_a):
            rows, inverse = step.lookup_unique()["a"]
            assert inverse.tolist() == [0, 1, 0]
            np.testing.assert_array_equal(rows, port.tables["a"][[7, 3]])


@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("mean", False), ("sum", True)])
def test_pooled_steps_follow_rule_8(mode, weighted):
    port, batches = MemoryPort(), batches_of(5)
    offsets = np.array([0, 0, 3, 20, 50])
    rng = np.random.default_rng(SEED)
    weights = rng.standard_normal(50).astype(np.float32) if weighted else None
    expected = port.tables["a"].copy()
    with Run(port, ["a"]) as run:
        for step in run.steps(batches, of_a):
            given = {"a": weights} if weighted else None
            pooled = step.lookup_pooled({"a": offsets}, mode, given)["a"]
            rows = expected[step.batch]
            assert pooled.tobytes() == pool_rows(rows, offsets, mode, weights).tobytes()
            step.update_pooled({"a": pooled})
            keys, inverse = unique(step.batch)
            received = bag_gradients(pooled, offsets, mode, weights)
            expected[keys] -= sum_by_key(inverse, len(keys), received)
    assert port.tables["a"].tobytes() == expected.tobytes()


def test_wrong_bags_are_refused_and_the_step_goes_on():
    port = MemoryPort(("a", "b"))
    ones = np.ones(3, np.float32)
    with Run(port, ["a", "b"]) as run:
        for step in run.steps([np.array([1, 2, 1])], lambda keys: {"a": keys, "b": keys}):
            for offsets, mode, weights in (
                ({"a": [0, 2]}, "sum", None),
                ({"c": [0, 3]}, "sum", None),
                ({"a": [0, 3]}, "max", None),
                ({"a": [0, 3]}, "mean", {"a": ones}),
                ({"a": [0, 3]}, "sum", {"b": ones}),
                ({"a": [0, 3]}, "sum", {"a": ones * np.inf}),
            ):
                with pytest.raises(InvalidArgumentError):
                    step.lookup_pooled(offsets, mode, weights)
            with pytest.raises(InvalidArgumentError, match="pooled update"):
                step.update_pooled({"a": np.ones((1, DIM), np.float32)})
            step.update({"b": np.ones((3, DIM), np.float32)})
    assert [*port.updates[0]] == ["b"]


def test_a_step_that_is_left_open_is_released_and_each_is_finished_once():
    port = MemoryPort()
    with Run(port, ["a"]) as run:
        for step in run.steps(batches_of(3), of_a):
            if step.number == 2:
                step.skip()
                for verb in (step.lookup, step.release, step.skip, partial(step.update, {})):
                    with pytest.raises(InvalidArgumentError, match="step 2 was skipped"):
                        verb()
    verbs = [call for call in port.calls if call[0] in ("release", "skip")]
    assert verbs == [("release", 1), ("skip", 2), ("release", 3)]


def test_a_refused_update_leaves_the_step_open():
    port = MemoryPort()
    port.refuses["update"] = [InvalidArgumentError("not finite"), DeadlineError("no answer")]
    batch = np.array([4, 4])
    with Run(port, ["a"]) as run:
        for step in run.steps([batch], of_a):
            for error in (InvalidArgumentError, DeadlineError):
                with pytest.raises(error):
                    step.update({"a": gradients_of(batch)})
                assert not step.is_finished
            for wrong in (np.ones((3, DIM)), np.ones(2), np.ones((2, DIM))):
                with pytest.raises(InvalidArgumentError):
                    step.update({"a": wrong})
            step.update({"a": gradients_of(batch)})
    assert run.last_step == 1


def test_no_more_steps_are_read_or_announced_than_the_session_allows():
    port, read = MemoryPort(), []

    def batches():
        for batch in batches_of(30):
            read.append(batch)
            yield batch

    with Run(port, ["a"], lookahead=3) as run:
        for step in run.steps(batches(), of_a):
            assert len(read) <= step.number - 1 + 3
            expected = min(step.number + 2, 30)
            port.wait_until(lambda newest=expected: newest in port.announced)
            assert max(port.announced) == expected


def first_alone_then_the_others(port, count):
    """Return a `keys` with which the first step is announced alone, and all others in one call."""
    port.announce_allowed.clear()
    asked = []

    def keys(batch):
        if asked:
            assert port.announcing.wait(WAIT_S)
        asked.append(batch)
        return {"a": batch}

    def batches():
        yield from batches_of(count)
        port.announce_allowed.set()

    return batches(), keys


def test_what_is_ready_is_announced_in_one_call():
    port = MemoryPort()
    with Run(port, ["a"], lookahead=9) as run:
        assert len(list(run.steps(*first_alone_then_the_others(port, 8)))) == 8
    announced = [call for call in port.calls if call[0] == "announce"]
    assert announced == [("announce", 1), ("announce", *range(2, 9))]


@pytest.mark.parametrize("at", [1, 5, 9])
@pytest.mark.parametrize("where", ["iterator", "keys", "no mapping", "other table", "dtype"])
def test_a_failure_is_raised_at_its_step(at, where):
    port = MemoryPort()
    wrong = {"no mapping": [1], "other table": {"b": [1]}, "dtype": {"a": [0.5]}}

    def batches():
        for number, batch in enumerate(batches_of(9), 1):
            if where == "iterator" and number == at:
                raise InvalidArgumentError("here")
            yield number, batch

    def keys(numbered):
        number, batch = numbered
        if number == at and where == "keys":
            raise InvalidArgumentError("here")
        return wrong[where] if number == at and where in wrong else {"a": batch}

    seen = []
    with Run(port, ["a"], lookahead=4) as run:
        with pytest.raises(InvalidArgumentError):
            seen.extend(step.number for step in run.steps(batches(), keys))
        assert seen == [*range(1, at)]
        assert run.last_step == at - 1
        again = [step.number for step in run.steps(batches_of(2), of_a)]
        assert again == [at, at + 1]


def test_an_announcement_that_is_refused_is_raised_at_its_step():
    port, batches = MemoryPort(), batches_of(6)
    batches[3] = np.array([ROWS])
    seen = []
    with Run(port, ["a"]) as run, pytest.raises(InvalidArgumentError, match="out of range"):
        seen.extend(step.number for step in run.steps(batches, of_a))
    assert seen == [1, 2, 3]


def test_a_loop_left_early_stops_reading_and_is_resumed_by_name():
    port, batches = MemoryPort(), batches_of(20)
    with Run(port, ["a"], name="job") as run:
        for step in run.steps(batches, of_a):
            if step.number == 5:
                break
            step.update({"a": gradients_of(step.batch)})
        assert not [t for t in embstore_threads() if t.name != "embstore-lease"]
        with pytest.raises(InvalidArgumentError, match="open another run"):
            next(run.steps(batches, of_a))
    assert port.last_step == run.last_step == 4
    assert port.calls[-1] == ("close", False)
    with Run(port, ["a"], name="job") as run:
        assert run.last_step == run.facts.last_step == 4
        numbers = [step.number for step in run.steps(batches[run.last_step :], of_a)]
    assert numbers == [*range(5, 21)]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError])
def test_the_session_is_closed_whatever_happens_in_the_loop(failure):
    port = MemoryPort()
    with pytest.raises(failure), Run(port, ["a"]) as run:
        for step in run.steps(batches_of(9), of_a):
            step.lookup()
            raise failure
    assert port.calls[-1] == ("close", True)
    assert port.timeouts_s["close"] == [1.0], "the lease would end it as well"
    assert port.last_step == 0


def test_a_failed_close_does_not_hide_what_ended_the_loop():
    port = MemoryPort()
    port.refuses["close"] = [SessionExpiredError("gone"), SessionExpiredError("gone")]
    with pytest.raises(KeyboardInterrupt) as caught, Run(port, ["a"]):
        raise KeyboardInterrupt
    assert "gone" in caught.value.__notes__[0]
    with pytest.raises(SessionExpiredError), Run(port, ["a"]):
        pass


def test_a_run_is_of_use_inside_its_with_block_only():
    port = MemoryPort()
    run = Run(port, ["a"])
    with pytest.raises(InvalidArgumentError):
        next(run.steps([], of_a))
    with run:
        steps = run.steps(batches_of(3), of_a)
        step = next(steps)
        with pytest.raises(InvalidArgumentError):
            next(run.steps([], of_a))
    for verb in (step.lookup, step.release):
        with pytest.raises(InvalidArgumentError, match="with block"):
            verb()
    with pytest.raises(InvalidArgumentError, match="with block"):
        next(steps)


def test_ranks_find_each_other_by_a_name():
    with pytest.raises(InvalidArgumentError, match="expected a name"):
        Run(MemoryPort(), ["a"], world_size=2)
    with pytest.raises(InvalidArgumentError, match="list of names"):
        Run(MemoryPort(), "a")


def test_epochs_go_on_in_one_run():
    port = MemoryPort()
    with Run(port, ["a"]) as run:
        for _ in range(3):
            for _ in run.steps(batches_of(4), of_a):
                pass
    assert port.last_step == 12


def test_the_lease_is_renewed_through_failures_until_the_run_ends(caplog):
    port = MemoryPort()
    port.refuses["renew"] = [DeadlineError("no answer"), RuntimeError("of whatever kind")]
    with Run(port, ["a"], lease_ms=30):
        port.wait_until(lambda: port.count("renew") >= 4)
    assert [record.name for record in caplog.records] == ["embstore.feed.lease"] * 2
    assert set(port.timeouts_s["renew"]) == {0.01}, "a third of the lease"
    assert port.timeouts_s["close"] == [None]


@pytest.mark.parametrize("ended", [SessionExpiredError, RankFailedError, StoreClosedError])
def test_the_lease_of_a_session_that_has_ended_is_renewed_no_more(ended):
    port = MemoryPort()
    port.refuses["renew"] = [ended("gone")]
    with Run(port, ["a"], lease_ms=30):
        port.wait_until(lambda: port.count("renew"))
        for thread in embstore_threads():
            thread.join(WAIT_S)
    assert port.count("renew") == 1
    assert port.timeouts_s["close"] == [1.0]


def test_leaving_does_not_wait_for_a_server_that_answers_no_renewal():
    port = MemoryPort()
    renewing, over = threading.Event(), threading.Event()

    def renew(member, *, timeout_s):
        renewing.set()
        assert over.wait(WAIT_S)

    port.renew = renew
    with Run(port, ["a"], lease_ms=30):
        assert renewing.wait(WAIT_S)
    assert port.timeouts_s["close"] == [1.0]
    over.set()


# Entering


def test_a_named_run_waits_for_a_place_that_is_leased():
    port = MemoryPort()
    port.refuses["join"] = [TableHeldError("leased"), SessionExpiredError("has just ended")]
    with Run(port, ["a"], name="job") as run:
        assert run.last_step == 0
    assert [call[0] for call in port.calls] == ["open", "join"] * 3 + ["close"]


@pytest.mark.parametrize(
    ("options", "joins_max"),
    [
        ({"name": "job", "wait_s": 0}, 1),
        ({"name": "job", "wait_s": 0.1}, 4),
        ({"name": "job", "lease_ms": 60}, 4),
        ({"name": None, "wait_s": 5.0}, 1),
    ],
    ids=["not at all", "a moment", "one and a half leases", "without a name"],
)
def test_waiting_for_a_place_has_an_end(options, joins_max):
    port = MemoryPort()
    port.refuses["join"] = [TableHeldError("leased") for _ in range(99)]
    with pytest.raises(TableHeldError), Run(port, ["a"], **options):
        pass
    assert 1 <= port.count("join") <= joins_max
    assert port.count("close") == 0


@pytest.mark.parametrize("failure", [DeadlineError("no answer"), KeyboardInterrupt()], ids=type)
@pytest.mark.parametrize("name", ["job", None])
def test_a_join_that_fails_for_good_leaves_nothing_behind(failure, name):
    port = MemoryPort()
    port.refuses["join"] = [failure]
    with pytest.raises(type(failure)), Run(port, ["a"], name=name):
        pass
    assert port.calls[-1] == ("close", name is None)
    assert (port.member, port.timeouts_s["close"]) == (None, [1.0])


@pytest.mark.parametrize("options", [{"rank": 2}, {"rank": -1}, {"rank": 0.0}, {"wait_s": -1}])
def test_what_cannot_be_entered_is_refused_before_anything_is_opened(options):
    with pytest.raises(InvalidArgumentError):
        Run(MemoryPort(), ["a"], name="job", **({"world_size": 2} | options))


def test_rows_of_the_next_step_are_sent_for_when_a_lookup_has_returned():
    port = PrefetchingPort()
    with Run(port, ["a"], lookahead=13) as run:
        for step in run.steps(*first_alone_then_the_others(port, 12)):
            rows = step.lookup()["a"]
            np.testing.assert_array_equal(rows, port.tables["a"][step.batch])
            if step.number > 1:
                assert port.calls[-1] == ("prefetch", step.number + 1) or step.number == 12
            np.testing.assert_array_equal(step.lookup()["a"], rows)
            step.update({"a": gradients_of(step.batch)})
    for step in range(3, 13):
        assert port.calls.count(("prefetch", step)) == port.calls.count(("lookup", step)) == 1


def test_a_loop_does_not_wait_for_an_iterator_that_is_stuck():
    port, stuck, over = MemoryPort(), threading.Event(), threading.Event()

    def batches():
        yield np.array([1])
        stuck.set()
        assert over.wait(WAIT_S)

    with Run(port, ["a"]) as run:
        for step in run.steps(batches(), of_a):
            assert stuck.wait(WAIT_S)
            step.release()
            break
    assert port.calls[-1] == ("close", True)
    assert embstore_threads()
    over.set()


def test_torch_tensors_are_keys_and_gradients():
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    port = MemoryPort()
    dataset = torch.arange(40).reshape(8, 5) % 7
    expected = port.tables["a"].copy()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(dataset), batch_size=2)
    with Run(port, ["a"]) as run:
        for step in run.steps(loader, lambda batch: {"a": batch[0].reshape(-1)}):
            step.update({"a": torch.ones((10, DIM))})
    counts = np.bincount(dataset.numpy().reshape(-1), minlength=ROWS)
    np.testing.assert_allclose(port.tables["a"], expected - counts[:, None], rtol=1e-5, atol=1e-5)
