"""Hot sets are swapped and caches warmed while clients go on."""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

import embstore
from embstore.handles.store import Store
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.setup.launch import ServerProcess
from tests.reference import ReferenceStore
from tests.service.faults.served import until
from tests.service.frequency_samples import (
    CACHE_BYTES,
    DIM,
    PATIENCE_S,
    ROWS,
    add,
    falling,
    hot_set_of,
    profile_of,
)
from tests.serving import Server, patient

SWAPS = 20


class Swapping:
    """Swaps hot sets of "ads" by a client of its own; `over` once it has, or has failed."""

    def __init__(self, address: str, rows: int) -> None:
        self._address, self._rows = address, rows
        self.versions: list[int] = []
        self.over = threading.Event()

    def __call__(self) -> None:
        rng = np.random.default_rng(2)
        try:
            with patient(self._address) as client:
                for version in range(1, SWAPS + 1):
                    hot = np.unique(rng.zipf(1.2, self._rows) % ROWS)
                    facts = client.pin_hot_set(hot_set_of(version, ads=hot))
                    assert facts.pinned_rows == len(hot)
                    self.versions.append(facts.version)
        finally:
            self.over.set()

    def batches(self) -> Iterator[Any]:
        """Yield keys for as long as it goes on, and for 30 steps at least."""
        rng = np.random.default_rng(1)
        step = 0
        while step < 30 or not self.over.is_set():
            yield rng.zipf(1.1, 300) % ROWS
            step += 1


def gradients_of(keys: Any) -> Any:
    return np.random.default_rng(keys).standard_normal((len(keys), DIM), np.float32)


def train_by_calls(client: Store, batches: Iterable[Any], expected: Any) -> None:
    for keys in batches:
        rows = client.lookup({"ads": keys})["ads"]
        assert rows.tobytes() == expected.lookup(keys).tobytes()
        client.update({"ads": (keys, gradients_of(keys))})
        expected.update(keys, gradients_of(keys))


def train_by_steps(client: Store, batches: Iterable[Any], expected: Any) -> None:
    with client.session(["ads"], lookahead=4) as run:
        for step in run.steps(batches, keys=lambda keys: {"ads": keys}):
            keys = step.batch
            assert step.lookup()["ads"].tobytes() == expected.lookup(keys).tobytes()
            step.update({"ads": gradients_of(keys)})
            expected.update(keys, gradients_of(keys))


@pytest.mark.parametrize("train", [train_by_calls, train_by_steps])
@pytest.mark.parametrize("policy", ["lru", "lfu", "rank"])
def test_hot_sets_are_swapped_under_load_and_no_bit_changes(serving, train, policy):
    """A trainer goes on while sets are swapped: the digest is the reference's (issue 6)."""
    expected = add(ReferenceStore(), "ads")
    with (
        serving(policy=policy, cache_bytes=1 << 19) as server,
        patient(server.address, timeout_s=PATIENCE_S) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        add(client, "ads")
        client.import_profile(profile_of({"ads": falling(ROWS)}))
        swapping = Swapping(server.address, 600)
        done = pool.submit(swapping)
        train(client, swapping.batches(), expected)
        done.result()
        assert swapping.versions == list(range(1, SWAPS + 1))
        assert client.table("ads").digest() == expected.digest()
        client.check_integrity()
        client.pin_hot_set(None)
        assert pinned_rows(server) == 0


def pinned_rows(server: Server) -> int:
    return sum(pool.pins.count for pool in server.store.executor.tables.pools.values())


# Warming


@pytest.fixture
def ranked(client: Store) -> Store:
    """A client of a store whose rows are ranked by a profile."""
    client.import_profile(profile_of({"ads": falling(ROWS)}))
    return client


def hits(client: Store) -> int:
    return sum(pool["unique_hits"] for pool in client.stats()["cache"]["pools"])


class Gated:
    """Stands where a store warms its cache, and does so when it is let."""

    def __init__(self, server: Server) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        self.shares: list[float] = []
        warming = server.store.executor.warming
        self._warm, warming.warm = warming.warm, self

    def __call__(self, share: float, progress: Any) -> Any:
        self.shares.append(share)
        progress(0, 10)
        self.begun.set()
        assert self.gate.wait(PATIENCE_S)
        return self._warm(share, progress)


@pytest.fixture
def gated(server: Server, ranked: Store) -> Gated:
    return Gated(server)


def test_a_warm_up_of_the_same_share_is_joined_others_wait_and_calls_go_on(ranked, gated):
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(ranked.warm_cache, 0.5)
        assert gated.begun.wait(PATIENCE_S)
        joined = threading.Event()
        second = pool.submit(ranked.warm_cache, 0.5, progress=lambda *_: joined.set())
        other = pool.submit(ranked.warm_cache, 0.25)
        assert joined.wait(PATIENCE_S)
        ranked.lookup({"ads": [1]})
        ranked.update({"ads": ([1], np.ones((1, DIM), np.float32))})
        gated.gate.set()
        assert first.result() == second.result() == ROWS
        assert 0 < other.result() <= ROWS
    assert gated.shares == [0.5, 0.25]


def test_a_warm_up_goes_on_when_its_caller_has_left(ranked, gated, stub):
    replies = stub.WarmCache(pb.WarmCacheRequest(share=0.5))
    assert not next(replies).finished
    replies.cancel()
    gated.gate.set()
    assert until(lambda: ranked.stats()["frequency"]["warming"]["rows"] == ROWS)
    assert gated.shares == [0.5]


def test_an_error_in_progress_ends_the_following_alone(ranked):
    def stop(done: int, of: int) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError):
        ranked.warm_cache(0.5, progress=stop)
    assert ranked.warm_cache(0.5) == ROWS


def test_stopping_does_not_wait_for_a_warm_up_to_be_followed(server, gated, stub):
    replies = stub.WarmCache(pb.WarmCacheRequest(share=0.5))
    assert not next(replies).finished
    assert gated.begun.wait(PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(server.stop)
        with pytest.raises(grpc.RpcError) as caught:
            list(replies)
        assert caught.value.code().name in ("UNAVAILABLE", "CANCELLED")
        gated.gate.set()
        stopping.result()


def test_the_cache_is_warmed_at_start(tmp_path):
    with embstore.open(tmp_path, cache_bytes=CACHE_BYTES, device="cpu") as store:
        add(store, "ads")
        store.import_profile(profile_of({"ads": falling(ROWS)}))
    options = ("--policy", "rank", "--warm-up", "0.7", "--cache-bytes", "4MiB", "--device", "cpu")
    with ServerProcess(tmp_path, *options) as server, patient(server.address) as client:
        assert client.server_info().policy == "rank"
        assert until(lambda: client.stats()["frequency"]["warming"]["rows"] == ROWS)
        before = hits(client)
        client.lookup({"ads": np.arange(ROWS)})
        assert hits(client) - before == ROWS
        assert until(lambda: any("the cache is warm" in line for line in server.log))
