"""The client library over a network that cuts its connections at any byte: applied exactly once."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import numpy as np
import pytest

from embstore.errors import OutcomeUnknownError
from embstore.handles.store import Store
from embstore_client import connect
from tests.reference import ReferenceStore
from tests.service.faults.ledger import DIM, ROWS, TABLES, digests, gradients, make_tables
from tests.service.faults.proxy import Proxy
from tests.service.faults.served import PATIENCE_S, Served
from tests.service.frequency_samples import hot_set_of, profile_of

SEED = 20_261_121
ROUNDS = 60  # of each kind; a cut costs some 60 ms until the client is connected again
CALL_BYTES = 900
"""About what one update takes in both directions; a cut falls into one of the next calls."""
STEPS, LOOKAHEAD = 30, 8
KEYS = 16
"""Of a step; some of them are in the step before."""


@pytest.fixture
def proxy(served: Served) -> Iterator[Proxy]:
    with Proxy(served.address) as made:
        yield made


@pytest.fixture
def far(proxy: Proxy) -> Iterator[Store]:
    with connect(proxy.address, timeout_s=PATIENCE_S, transport="grpc") as store:
        yield store


@pytest.fixture
def reference() -> ReferenceStore:
    made = ReferenceStore()
    make_tables(made)
    return made


@pytest.fixture
def rng() -> np.random.Generator:
    sys.stdout.write(f"seed {SEED}\n")
    return np.random.default_rng(SEED)


@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "streamed"])
def test_every_update_is_applied_once(streamed, proxy, far, ledger, rng, monkeypatch):
    if streamed:
        monkeypatch.setattr("embstore_client.grpc_wire.UNARY_BYTES", 0)
        monkeypatch.setattr("embstore_proto.frame.CHUNK_BYTES", 199)
    for n in range(ROUNDS):
        proxy.cut_after(int(rng.integers(2 * CALL_BYTES)))
        ledger.acknowledged[n] = far.update(gradients(n)).command
        if n % 8 == 0:
            read: Any = far.lookup({"marks": [n], "rows": np.arange(ROWS)})
            assert read["marks"][0, 0] == -1.0
    assert proxy.cuts > ROUNDS // 4


# Sessions


def step_keys(step: int) -> Any:
    return np.random.default_rng([SEED, step]).permutation(ROWS)[:KEYS]


def step_gradients(step: int) -> Any:
    return np.random.default_rng([SEED, step, 1]).standard_normal((KEYS, DIM), np.float32)


def join(store: Store) -> str:
    store.sessions.open("s", list(TABLES), lookahead_steps_max=LOOKAHEAD)
    return store.sessions.join("s", 0).member


def announce(store: Store, member: str, last_step: int) -> None:
    steps = range(last_step + 1, last_step + LOOKAHEAD + 1)
    store.sessions.announce(member, {n: {"rows": step_keys(n)} for n in steps})


def finish(store: Store, member: str, step: int, reference: ReferenceStore) -> None:
    """Update a step, here and there."""
    store.sessions.update_step(member, step, {"rows": step_gradients(step)})
    reference.update({"rows": (step_keys(step), step_gradients(step))})


def assert_rows(rows: Any, reference: ReferenceStore, step: int) -> None:
    assert rows["rows"].tobytes() == reference.table("rows").lookup(step_keys(step)).tobytes()


def test_every_step_is_done_once(proxy, far, reference, rng):
    member = join(far)
    for step in range(1, STEPS + 1):
        proxy.cut_after(int(rng.integers(4000)))
        announce(far, member, step - 1)
        assert_rows(far.sessions.prefetch_step(member, step).result(), reference, step)
        finish(far, member, step, reference)
    far.sessions.close(member)
    assert digests(far) == digests(reference)
    assert proxy.cuts > STEPS // 4


def test_leaving_a_server_that_has_gone_takes_a_moment(served, proxy, far):
    begun = 0.0
    with pytest.raises(KeyboardInterrupt), far.session(["rows"]):
        served.stop()
        proxy.cut()
        begun = monotonic()
        raise KeyboardInterrupt
    assert monotonic() - begun < PATIENCE_S


def test_rows_of_a_replica_are_put_once(proxy, far, reference, rng):
    member, keys = join(far), np.arange(5)
    weights = rng.standard_normal((5, DIM), np.float32)
    state = rng.random((5, 2 * DIM), np.float32)
    for _ in range(20):
        proxy.cut_after(int(rng.integers(1500)))
        far.sessions.put_rows(member, {"rows": (keys, weights, state, 4)})
        reference.table("rows").put_rows(keys, weights, state, 4)
    assert (digests(far), far.table("rows").t) == (digests(reference), 80)
    assert proxy.cuts >= 10


def test_rows_of_a_replica_that_a_restart_cut_off_are_told_to_be_in_doubt(
    serve, served, proxy, far
):
    ones = np.ones((5, DIM), np.float32)
    member, rows = join(far), {"rows": (np.arange(5), ones, np.tile(ones, 2), 4)}
    with ThreadPoolExecutor(1) as pool:
        with served.held():
            putting = pool.submit(far.sessions.put_rows, member, rows)
            served.await_queue(1)
            proxy.upstream = "127.0.0.1:1"  # nobody is there
            proxy.cut()
        served.stop()
        restarted = serve()
        proxy.upstream = restarted.address
        with pytest.raises(OutcomeUnknownError):
            putting.result()
        assert restarted.store.table("rows").t in (0, 4)


# Documents


def test_documents_pass_whole(proxy, far, rng):
    profile = profile_of({"marks": {key: 1 + key % 7 for key in range(4000)}})
    for version in range(1, 11):
        proxy.cut_after(int(rng.integers(len(profile.to_bytes()))))
        far.import_profile(profile)
        found = far.export_profile(source="imported").tables["marks"]
        assert found.counts.tolist() == profile.tables["marks"].counts.tolist()
        hot = hot_set_of(version, marks=range(version * 100))
        assert far.pin_hot_set(hot).pinned_rows == version * 100
        pinned = far.hot_set()
        assert pinned is not None
        assert pinned.to_bytes() == hot.to_bytes()
        assert far.warm_cache(0.5) > 0
    assert proxy.cuts >= 5
