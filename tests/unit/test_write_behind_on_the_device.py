"""A run with waits="none" and rows="device": its rows in flight are in the device's memory, and the
digest is that of a run that waits, with arrays of the host."""

import numpy as np
import pytest

from embstore import ReplicaMismatchError
from embstore.handles.sessions import Sessions
from tests.conformance.meeting import Meeting
from tests.kernels.emulation.callers import CallersArray
from tests.unit import device_trainers
from tests.unit.device_trainers import (
    FORMS,
    ROWS,
    TABLES,
    Arrays,
    check_misfits,
    check_rule_9,
    digests,
    in_ranks,
    trained,
)

KEYS, STEPS = 80, 10
OFFSETS = {"a": np.linspace(0, KEYS, 9).astype(np.int64), "b": None}


def opened(path, device="gpu", cache_bytes=60_000, **how):
    return device_trainers.opened(path, device, cache_bytes=cache_bytes, **how)


def batches(rank=0):
    rng = np.random.default_rng([4, rank])
    return [{n: np.minimum(rng.zipf(1.3, KEYS), ROWS) - 1 for n in TABLES} for _ in range(STEPS)]


def finished(step, form, array, options):
    return trained(step, form, array, OFFSETS, **options)


def train(store, where, form="keys", *, rank=0, options=None, body=finished, **session):
    array, kinds = Arrays(store, where), set()
    how = {"rows": "device", "waits": "none", "rank": rank} | session
    with store.session(tables=[*TABLES], **how) as run:
        for step in run.steps(batches(rank), keys=lambda batch: batch):
            kinds |= body(step, form, array, options or {})
    return kinds


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """The digests on the CPU, of arrays of the host, in a session that waits, by form."""
    found = {}
    for form in FORMS:
        with opened(tmp_path_factory.mktemp(form), "cpu") as store:
            train(store, "host", form, rows="host", waits="late")
            found[form] = digests(store)
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["device", "host", "mixed"])
def test_one_digest_wherever_gradients_are(tmp_path, wanted, where, form):
    with opened(tmp_path) as store:
        assert train(store, where, form) == {CallersArray}
        assert digests(store) == wanted[form]


@pytest.mark.parametrize(
    "how",
    [{"depth": 1}, {"lookahead": 2}, {"planner": "group:3"}, {"planner": "window", "depth": 6}],
    ids=str,
)
def test_one_digest_however_far_it_runs_ahead(tmp_path, wanted, how):
    with opened(tmp_path) as store:
        train(store, "device", "occurrences", **how)
        assert digests(store) == wanted["occurrences"]


def test_what_is_logged_is_the_same_update(tmp_path, wanted):
    with opened(tmp_path, durability="commands") as store:
        train(store, "device", "bags")
        assert digests(store) == wanted["bags"]


def test_rates_and_scales_are_applied_to_the_same_bits(tmp_path):
    options, found = {"learning_rate": 0.3, "gradient_scale": 0.7}, []
    for device, how in (("cpu", {"rows": "host", "waits": "late"}), ("gpu", {})):
        with opened(tmp_path / device, device) as store:
            where = "host" if device == "cpu" else "device"
            train(store, where, options=options, **how)
            found.append(digests(store))
    assert found[0] == found[1]


def test_on_the_cpu_the_devices_memory_is_the_hosts(tmp_path, wanted):
    with opened(tmp_path, "cpu") as store:
        assert train(store, "host") == {np.ndarray}
        assert digests(store) == wanted["keys"]


def train_ranks(store, where, **session):
    meeting, how = Meeting(2), {"name": "job", "world_size": 2} | session

    def train_rank(rank):
        hook = {"all_gather": meeting.of(rank)} if "waits" not in session else {}
        train(store, where[rank], "occurrences", rank=rank, **how, **hook)

    in_ranks(train_rank)


@pytest.mark.parametrize("where", ["device", "host"])
def test_ranks_meet_in_their_hook(tmp_path, where):
    with opened(tmp_path / "cpu", "cpu") as store:
        train_ranks(store, ["host"] * 2, rows="host", waits="late")
        wanted = digests(store)
    with opened(tmp_path / "gpu") as store:
        train_ranks(store, ["device", where])
        assert digests(store) == wanted


@pytest.mark.parametrize("bad", [np.nan, 3e38])
def test_what_rule_9_refuses_changes_nothing(tmp_path, bad):
    def refused(step, form, array, options):
        check_rule_9(step, step.batch, array, bad)
        return set()

    with opened(tmp_path) as store:
        train(store, "device", body=refused)
        assert {store.table(name).t for name in TABLES} == {0}


def test_the_store_is_sent_the_checksum_of_the_rows(tmp_path, monkeypatch):
    """It compares it; and where another rank's row is here, it refuses the step."""
    sent, update_step = [], Sessions.update_step

    def noted(sessions, member, step, *args, rows_checksum=None, **how):
        sent.append(rows_checksum)
        wrong = int(rows_checksum) ^ (step == STEPS)
        return update_step(sessions, member, step, *args, rows_checksum=wrong, **how)

    monkeypatch.setattr(Sessions, "update_step", noted)
    with opened(tmp_path) as store:
        with pytest.raises(ReplicaMismatchError):
            train(store, "device")
        assert {store.table(name).t for name in TABLES} == {STEPS - 1}
    assert len(sent) == STEPS


def test_a_step_of_rows_that_are_here_downloads_nothing_in_the_loop(tmp_path):
    """Its rows are taken, and its gradients summed and applied, where they are."""
    seen = []

    def counted(step, form, array, options):
        given = {n: array(np.ones((KEYS, dim), np.float32)) for n, (dim, _) in TABLES.items()}
        step.lookup_unique()  # all new rows have come
        before = runtime.downloaded_bytes
        step.lookup()
        seen.append(runtime.downloaded_bytes - before)
        step.update(given)
        return set()

    with opened(tmp_path, cache_bytes=1 << 20) as store:
        runtime = store.executor.device.runtime
        train(store, "device", body=counted, depth=1, lookahead=1)
    assert max(seen) < KEYS * 4, seen


def test_gradients_that_do_not_fit_are_refused(tmp_path):
    def refused(step, form, array, options):
        check_misfits(step, KEYS, array)
        return set()

    with opened(tmp_path) as store:
        train(store, "device", body=refused)
