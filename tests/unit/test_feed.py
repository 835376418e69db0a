"""The trainer's side of a session, over a port in memory that counts its calls."""

import threading

import numpy as np
import pytest

from embstore.errors import (
    DeadlineError,
    InvalidArgumentError,
    RankFailedError,
    SessionExpiredError,
    StoreClosedError,
    TableHeldError,
)
from embstore_training.run import Run
from tests.unit.memory_port import (
    DIM,
    ROWS,
    WAIT_S,
    MemoryPort,
    PrefetchingPort,
    batches_of,
    gradients_of,
    of_a,
)


def embstore_threads():
    """Those of a run: a device's workers may be left of whatever test came before."""
    here = [t for t in threading.enumerate() if t.name.startswith("embstore-")]
    return [t for t in here if not t.name.startswith("embstore-rows-")]


@pytest.fixture(autouse=True)
def join_threads():
    """Return a function that joins the threads of the run, and call it after the test: clusters
    of other tests leave theirs to the collector."""
    before = set(embstore_threads())

    def join():
        for thread in set(embstore_threads()) - before:
            thread.join(WAIT_S)

    yield join
    join()
    assert not set(embstore_threads()) - before


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
                ({"a": [0, 3]}, {"a": "max"}, None),
                ({"a": [0, 3]}, {"b": "sum"}, None),
                ({"a": [0, 3], "b": None}, {"b": "sum"}, None),
                ({"a": [0, 3], "b": None}, "sum", {"b": ones}),
            ):
                with pytest.raises(InvalidArgumentError):
                    step.lookup_pooled(offsets, mode, weights)
            with pytest.raises(InvalidArgumentError, match=r"'a': expected .* shape \(3, dim\)"):
                step.update_pooled({"a": np.ones((1, DIM), np.float32)})
            step.update({"b": np.ones((3, DIM), np.float32)})
    assert [*port.updates[0]] == ["b"]


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


def test_the_lease_is_renewed_through_failures_until_the_run_ends(caplog):
    port = MemoryPort()
    port.refuses["renew"] = [DeadlineError("no answer"), RuntimeError("of whatever kind")]
    with Run(port, ["a"], lease_ms=30):
        port.wait_until(lambda: port.count("renew") >= 4)
    assert [record.name for record in caplog.records] == ["embstore_training.lease"] * 2
    assert set(port.timeouts_s["renew"]) == {0.01}, "a third of the lease"
    assert port.timeouts_s["close"] == [None]


@pytest.mark.parametrize("ended", [SessionExpiredError, RankFailedError, StoreClosedError])
def test_the_lease_of_a_session_that_has_ended_is_renewed_no_more(ended, join_threads):
    port = MemoryPort()
    port.refuses["renew"] = [ended("gone")]
    with Run(port, ["a"], lease_ms=30):
        port.wait_until(lambda: port.count("renew"))
        join_threads()
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


@pytest.mark.parametrize("name", ["job", None])
def test_a_run_waits_for_a_place_that_is_leased(name):
    port = MemoryPort()
    port.refuses["join"] = [TableHeldError("leased"), SessionExpiredError("has just ended")]
    with Run(port, ["a"], name=name) as run:
        assert run.last_step == 0
    assert [call[0] for call in port.calls] == ["open", "join"] * 3 + ["close"]


@pytest.mark.parametrize(
    ("options", "joins_max"),
    [
        ({"name": "job", "wait_s": 0}, 1),
        ({"name": "job", "wait_s": 0.1}, 4),
        ({"name": "job", "lease_ms": 60}, 4),
        ({"name": None, "wait_s": 0.1}, 4),
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


# Resuming


def trained(port, batches, **options):
    """Train all batches in two loops of one run, as two epochs; return the steps, and its stats."""
    numbers = []
    with Run(port, ["a"], name="job", **options) as run:
        for epoch in (batches[:4], batches[4:]):
            for step in run.steps(iter(epoch), of_a):
                numbers.append(step.number)
                step.update({"a": gradients_of(step.batch)})
    return numbers, run.stats()


def test_a_stream_that_ends_before_the_place_is_left_out_whole():
    port = MemoryPort()
    port.last_step = 12
    numbers, stats = trained(port, batches_of(9), resume=True)
    assert (numbers, stats.skipped) == ([], 9)


def test_the_stream_of_a_run_that_resumes_may_fail_at_a_finished_step():
    port = MemoryPort()
    port.last_step = 3

    def stream():
        yield from batches_of(2)
        raise ValueError("of the stream")

    with pytest.raises(ValueError, match="of the stream"):
        with Run(port, ["a"], name="job", resume=True) as run:
            next(run.steps(stream(), of_a))


def test_a_session_that_goes_on_says_so_once_if_nobody_has_asked():
    port, batches = MemoryPort(), batches_of(4)
    port.last_step = 5
    with pytest.warns(UserWarning, match="'job' goes on after step 5.*resume=True") as warned:
        trained(port, batches)
    assert [w.filename for w in warned] == [__file__]


@pytest.mark.parametrize("how", ["sliced", "asked facts", "resumed", "resume=False", "new name"])
def test_a_session_that_goes_on_as_its_caller_knows_is_silent(how):
    port, batches = MemoryPort(), batches_of(5)
    port.last_step = 0 if how == "new name" else 2
    resume = {"resumed": True, "resume=False": False}.get(how)
    with Run(port, ["a"], name="job", resume=resume) as run:
        if how == "sliced":
            batches = batches[run.last_step :]
        elif how == "asked facts":
            assert run.facts.last_step == 2
        for step in run.steps(batches, of_a):
            step.release()
    assert run.last_step == {"sliced": 5, "resumed": 5, "new name": 5}.get(how, 7)


def test_who_has_no_name_resumes_nothing():
    with pytest.raises(InvalidArgumentError, match="expected a name, by which a session is res"):
        Run(MemoryPort(), ["a"], resume=True)


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
