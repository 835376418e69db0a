"""Profiles, hot sets and warm-up over gRPC: by generated code and by the client."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import embstore
from embstore.config import Limits
from embstore.errors import (
    CapacityError,
    DeadlineError,
    InvalidArgumentError,
    TableNotFoundError,
)
from embstore.frequency.profile import Profile
from embstore_client import RemoteStore, connect
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_proto.v1.embstore_pb2_grpc import EmbstoreStub
from embstore_server.launch import ServerProcess
from tests.reference import ReferenceStore
from tests.service.faults.proxy import Proxy
from tests.service.faults.served import until
from tests.service.frequency_samples import (
    CACHE_BYTES,
    DIM,
    PATIENCE_S,
    ROWS,
    Serving,
    add,
    called,
    counts_of,
    document,
    falling,
    hot_set_of,
    profile_of,
)
from tests.service.plain import Payload, array_of
from tests.serving import Server

SWAPS = 20


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    return Serving(tmp_path / "store")


@pytest.fixture
def server(serving: Serving) -> Iterator[Server]:
    with serving() as server:
        for name in ("ads", "users"):
            add(server.store, name)
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[RemoteStore]:
    with connect(server.address, timeout_s=PATIENCE_S) as client:
        yield client


@pytest.fixture
def stub(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(server.address) as channel:
        made: Callable[[Any], Any] = EmbstoreStub
        yield made(channel)


def code_of(error: grpc.RpcError) -> tuple[str, str]:
    """Return the status of a refusal, and the class of error that it names."""
    trailing: Any = dict(error.trailing_metadata() or ())
    return error.code().name, trailing["embstore-error"]


INVALID = ("INVALID_ARGUMENT", "InvalidArgumentError")


# Profiles, by generated code


@pytest.mark.parametrize("piece_bytes", [0, 7, 1 << 20], ids=["unary", "pieces of 7", "one piece"])
def test_plain_stub_moves_a_profile_both_ways(
    stub: Any, client: RemoteStore, piece_bytes: int
) -> None:
    client.lookup({"ads": [1, 2, 2, 7]})
    request = pb.ExportProfileRequest(source=pb.PROFILE_SOURCE_COUNTED)
    reply = document(stub.ExportProfile(request), pb.ProfileReply)
    assert reply.header.context.store_id == client.store_id
    content = array_of(reply, reply.header.profile).tobytes()
    assert counts_of(Profile.from_bytes(content), "ads") == {1: 1, 2: 2, 7: 1}
    payload = Payload(3)
    sent = pb.ImportProfileRequest.Header(profile=payload.add(np.frombuffer(content, "u1"), "u1"))
    again = pb.ImportProfileRequest(header=sent, payload=payload.content)
    done = called(stub, "ImportProfile", again, pb.ProfileImportedReply, piece_bytes)
    assert done.header.context.command == client.command
    assert counts_of(client.export_profile(source="imported"), "ads") == {1: 1, 2: 2, 7: 1}


def test_unknown_source_is_refused(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.ExportProfile(pb.ExportProfileRequest(source=5)))  # type: ignore[arg-type]
    assert code_of(caught.value) == INVALID


def test_a_profile_of_another_dtype_is_refused(stub: Any) -> None:
    payload = Payload(0)
    header = pb.ImportProfileRequest.Header(profile=payload.add([1, 2], "<i8"))
    with pytest.raises(grpc.RpcError, match="expected uint8 of 1 dimensions") as caught:
        stub.ImportProfile(pb.ImportProfileRequest(header=header, payload=payload.content))
    assert code_of(caught.value) == INVALID


# Profiles, by the client


def test_counts_are_those_of_lookups(client: RemoteStore) -> None:
    client.lookup({"ads": [5, 5, 9], "users": [0]})
    client.lookup({"ads": [5], "users": [0, 1]})
    client.lookup({"ads": [3]}, admit=False)
    profile = client.export_profile()
    assert (counts_of(profile, "ads"), counts_of(profile, "users")) == ({5: 3, 9: 1}, {0: 2, 1: 1})
    assert profile.tables["ads"].rows == ROWS
    assert profile.store_id == client.store_id
    assert profile.trace is not None
    client.clear_counts()
    assert client.export_profile().tables["ads"].accesses == 0


def test_a_large_profile_travels_as_a_stream(client: RemoteStore) -> None:
    counts = falling(ROWS)
    client.import_profile(profile_of({"ads": counts, "users": counts}, rate=0.5))
    back = client.export_profile(source="imported")
    assert counts_of(back, "ads") == counts_of(back, "users") == counts
    assert back.rate == 0.5


def test_tables_may_be_renamed(client: RemoteStore) -> None:
    client.import_profile(profile_of({"C1": {3: 2}}), rename={"C1": "ads"})
    assert counts_of(client.export_profile(source="imported"), "ads") == {3: 2}


def test_an_imported_profile_outlives_a_restart(serving: Serving) -> None:
    with serving() as server, connect(server.address) as client:
        add(client, "ads")
        client.import_profile(profile_of({"ads": {1: 5, 9: 7}}))
        client.lookup({"ads": [4, 4]})
    with serving() as server, connect(server.address) as client:
        assert counts_of(client.export_profile(source="imported"), "ads") == {1: 5, 9: 7}
        assert counts_of(client.export_profile(), "ads") == {4: 2}
        assert client.stats()["frequency"]["tables"]["ads"]["profile_rows"] == 2
        assert client.warm_cache(0.5) == 2


WRONG_PROFILES: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "of another table": (profile_of({"items": {1: 1}}), None, TableNotFoundError, "items"),
    "with keys beyond the table": (
        profile_of({"ads": {ROWS: 1}}),
        None,
        InvalidArgumentError,
        f"{ROWS} rows",
    ),
    "renamed to a table that is not there": (
        profile_of({"ads": {1: 1}}),
        {"ads": "items"},
        TableNotFoundError,
        "items",
    ),
    "renamed from a table that it has not": (
        profile_of({"ads": {1: 1}}),
        {"items": "ads"},
        InvalidArgumentError,
        "items",
    ),
    "two for one table": (
        profile_of({"ads": {1: 1}, "users": {1: 1}}),
        {"users": "ads"},
        InvalidArgumentError,
        "one profile",
    ),
    "with a rename that is none": (
        profile_of({"ads": {1: 1}}),
        {"ads": 7},
        InvalidArgumentError,
        "rename",
    ),
    "that is none": (b"profile", None, InvalidArgumentError, "Profile"),
}


@pytest.mark.parametrize("case", WRONG_PROFILES.values(), ids=WRONG_PROFILES)
def test_a_wrong_profile_changes_nothing(
    client: RemoteStore, case: tuple[Any, Any, type[Exception], str]
) -> None:
    profile, rename, error, part = case
    client.import_profile(profile_of({"ads": {1: 5}}))
    with pytest.raises(error, match=part):
        client.import_profile(profile, rename=rename)
    back = client.export_profile(source="imported")
    assert (counts_of(back, "ads"), counts_of(back, "users")) == ({1: 5}, {})


@pytest.mark.parametrize("source", ["COUNTED", None, 1])
def test_a_source_that_is_none_is_refused(client: RemoteStore, source: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="source"):
        client.export_profile(source=source)


def damaged(content: bytes) -> Iterator[bytes]:
    """Yield files that are none any more."""
    yield b""
    yield b"\x80\x04N."
    yield content[: len(content) // 2]
    yield content[:-1]
    yield hot_set_of(ads=[1]).to_bytes()
    for place in range(0, len(content), 97):
        yield content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


def test_damaged_profiles_are_refused_whole(stub: Any, client: RemoteStore) -> None:
    refused = 0
    for content in damaged(profile_of({"ads": falling(40)}).to_bytes()):
        payload = Payload(0)
        place = payload.add(np.frombuffer(content, "u1"), "u1")
        header = pb.ImportProfileRequest.Header(profile=place)
        request = pb.ImportProfileRequest(header=header, payload=payload.content)
        try:
            stub.ImportProfile(request)
        except grpc.RpcError as exc:
            assert code_of(exc) in (INVALID, ("NOT_FOUND", "TableNotFoundError"))
            refused += 1
    assert refused > 5
    client.check_integrity()
    client.lookup({"ads": [1]})


def test_documents_above_the_limit_are_refused_by_its_name(serving: Serving) -> None:
    limits = Limits(call_bytes_max=20_000)
    with serving(limits=limits) as server, connect(server.address) as client:
        add(client, "ads")
        wide = profile_of({"ads": dict.fromkeys(range(ROWS), 1 << 40)})
        with pytest.raises(InvalidArgumentError, match=r"limits\.call_bytes_max"):
            client.import_profile(wide)
        client._calls.limits = Limits()  # the server's own check
        with pytest.raises(InvalidArgumentError, match=r"limits\.call_bytes_max"):
            client.import_profile(wide)
        client.import_profile(profile_of({"ads": falling(1000)}))


# Hot sets


def test_a_hot_set_is_pinned_told_and_unpinned(client: RemoteStore) -> None:
    assert client.hot_set() is None
    hot = hot_set_of(3, ads=[1, 5, 3999], users=[7])
    facts = client.pin_hot_set(hot)
    assert (facts.version, facts.rows, facts.pinned_rows) == (3, 4, 4)
    back = client.hot_set()
    assert back is not None
    assert back.to_bytes() == hot.to_bytes()
    assert client.stats()["frequency"]["hot_set"]["pinned_rows"] == 4
    assert client.pin_hot_set(hot) == facts  # as a lost call that is sent again
    swapped = client.pin_hot_set(hot_set_of(4, ads=[5, 6]))
    assert (swapped.version, swapped.rows, swapped.pinned_rows) == (4, 2, 2)
    gone = client.pin_hot_set(None)
    assert (gone.version, gone.rows, gone.pinned_rows) == (0, 0, 0)
    assert client.hot_set() is None


@pytest.mark.parametrize("piece_bytes", [0, 7])
def test_plain_stub_pins_a_hot_set(stub: Any, piece_bytes: int) -> None:
    none = document(stub.GetHotSet(pb.GetHotSetRequest()), pb.HotSetReply)
    assert not none.header.HasField("hot_set")
    content = np.frombuffer(hot_set_of(2, ads=[1, 2]).to_bytes(), "u1")
    payload = Payload(1)
    header = pb.PinHotSetRequest.Header(hot_set=payload.add(content, "u1"))
    request = pb.PinHotSetRequest(header=header, payload=payload.content)
    done = called(stub, "PinHotSet", request, pb.HotSetPinnedReply, piece_bytes)
    assert (done.header.hot_set.version, done.header.hot_set.pinned_rows) == (2, 2)
    back = document(stub.GetHotSet(pb.GetHotSetRequest()), pb.HotSetReply)
    assert array_of(back, back.header.hot_set).tobytes() == content.tobytes()
    gone = stub.UnpinHotSet(pb.UnpinHotSetRequest())
    assert gone.hot_set.version == 0
    assert gone.context.store_id == back.header.context.store_id


WRONG_HOT_SETS: dict[str, tuple[Any, type[Exception], str]] = {
    "of a lower version": (hot_set_of(1, ads=[1]), InvalidArgumentError, "version above 2"),
    "of the version pinned": (hot_set_of(2, ads=[1]), InvalidArgumentError, "version above 2"),
    "of another table": (hot_set_of(3, items=[1]), TableNotFoundError, "items"),
    "with keys beyond the table": (hot_set_of(3, ads=[ROWS]), InvalidArgumentError, str(ROWS)),
    "of more rows than may be pinned": (
        hot_set_of(3, large=range(100_000)),
        CapacityError,
        "three quarters",
    ),
    "that is none": ({"ads": [1]}, InvalidArgumentError, "HotSet"),
}


@pytest.mark.parametrize("case", WRONG_HOT_SETS.values(), ids=WRONG_HOT_SETS)
def test_a_wrong_hot_set_changes_nothing(
    client: RemoteStore, case: tuple[Any, type[Exception], str]
) -> None:
    hot, error, part = case
    add(client, "large", rows=100_000)
    client.pin_hot_set(hot_set_of(2, ads=[1, 2]))
    with pytest.raises(error, match=part):
        client.pin_hot_set(hot)
    assert client.stats()["frequency"]["hot_set"]["version"] == 2
    assert client.stats()["frequency"]["hot_set"]["pinned_rows"] == 2


def test_a_damaged_hot_set_is_refused(stub: Any) -> None:
    content = np.frombuffer(hot_set_of(2, ads=[1, 2]).to_bytes()[:-3], "u1")
    payload = Payload(0)
    header = pb.PinHotSetRequest.Header(hot_set=payload.add(content, "u1"))
    with pytest.raises(grpc.RpcError, match="the hot set: expected an embstore hot set") as caught:
        stub.PinHotSet(pb.PinHotSetRequest(header=header, payload=payload.content))
    assert code_of(caught.value) == INVALID


def test_a_hot_set_is_pinned_again_after_a_restart(serving: Serving) -> None:
    with serving() as server, connect(server.address) as client:
        add(client, "ads")
        client.pin_hot_set(hot_set_of(5, ads=[3, 4]))
    with serving() as server, connect(server.address) as client:
        back = client.hot_set()
        assert back is not None
        assert back.version == 5
        assert until(lambda: client.stats()["frequency"]["hot_set"]["pinned_rows"] == 2)


class Swapping:
    """Swaps hot sets of "ads" by a client of its own; `over` once it has, or has failed."""

    def __init__(self, address: str, rows: int) -> None:
        self._address, self._rows = address, rows
        self.versions: list[int] = []
        self.over = threading.Event()

    def __call__(self) -> None:
        rng = np.random.default_rng(2)
        try:
            with connect(self._address) as client:
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


def train_by_calls(client: RemoteStore, batches: Iterable[Any], expected: Any) -> None:
    for keys in batches:
        rows = client.lookup({"ads": keys})["ads"]
        assert rows.tobytes() == expected.lookup(keys).tobytes()
        client.update({"ads": (keys, gradients_of(keys))})
        expected.update(keys, gradients_of(keys))


def train_by_steps(client: RemoteStore, batches: Iterable[Any], expected: Any) -> None:
    with client.session(["ads"], lookahead=4) as run:
        for step in run.steps(batches, keys=lambda keys: {"ads": keys}):
            keys = step.batch
            assert step.lookup()["ads"].tobytes() == expected.lookup(keys).tobytes()
            step.update({"ads": gradients_of(keys)})
            expected.update(keys, gradients_of(keys))


@pytest.mark.parametrize("train", [train_by_calls, train_by_steps])
@pytest.mark.parametrize("policy", ["lru", "lfu", "rank"])
def test_hot_sets_are_swapped_under_load_and_no_bit_changes(
    serving: Serving, train: Callable[..., None], policy: str
) -> None:
    """A trainer goes on while sets are swapped: the digest is the reference's (issue 6)."""
    expected = add(ReferenceStore(), "ads")
    with (
        serving(policy=policy, cache_bytes=1 << 19) as server,
        connect(server.address, timeout_s=PATIENCE_S) as client,
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
    return sum(pool.pinned_count for pool in server.store._engine.pools.values())


# Warming


def test_warming_fills_the_cache_by_the_profile_and_tells_how_far_it_is(
    client: RemoteStore,
) -> None:
    client.import_profile(profile_of({"ads": falling(ROWS)}))
    told: list[tuple[int, int]] = []
    rows = client.warm_cache(0.5, progress=lambda done, of: told.append((done, of)))
    assert rows == ROWS
    assert told[-1] == (ROWS, ROWS)
    assert told == sorted(told)
    before = hits(client)
    client.lookup({"ads": np.arange(ROWS)})
    assert hits(client) - before == ROWS
    warming = client.stats()["frequency"]["warming"]
    assert (warming["rows"], warming["running"]) == (ROWS, False)


def hits(client: RemoteStore) -> int:
    return sum(pool["unique_hits"] for pool in client.stats()["cache"]["pools"])


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan"), "all", True, None])
def test_a_share_that_is_none_is_refused(client: RemoteStore, share: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="share"):
        client.warm_cache(share)


class Gated:
    """Stands where a store warms its cache, and does so when it is let."""

    def __init__(self, server: Server) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        self.shares: list[float] = []
        self._warm = server.store.warm_cache
        server.store.warm_cache = self  # type: ignore[assignment, method-assign]

    def __call__(self, share: float, progress: Any) -> int:
        self.shares.append(share)
        progress(0, 10)
        self.begun.set()
        assert self.gate.wait(PATIENCE_S)
        return self._warm(share, progress=progress)


def test_a_warm_up_of_the_same_share_is_joined_and_others_wait(
    server: Server, client: RemoteStore
) -> None:
    client.import_profile(profile_of({"ads": falling(ROWS)}))
    gated = Gated(server)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(client.warm_cache, 0.5)
        assert gated.begun.wait(PATIENCE_S)
        joined = threading.Event()
        second = pool.submit(client.warm_cache, 0.5, progress=lambda *_: joined.set())
        other = pool.submit(client.warm_cache, 0.25)
        assert joined.wait(PATIENCE_S)
        gated.gate.set()
        assert first.result() == second.result() == ROWS
        assert 0 < other.result() <= ROWS
    assert gated.shares == [0.5, 0.25]


def test_a_warm_up_goes_on_when_its_caller_has_left(server: Server, client: RemoteStore) -> None:
    client.import_profile(profile_of({"ads": falling(ROWS)}))
    gated = Gated(server)
    with pytest.raises(DeadlineError):
        client.warm_cache(0.5, timeout_s=0.2)
    gated.gate.set()
    assert until(lambda: client.stats()["frequency"]["warming"]["rows"] == ROWS)
    assert gated.shares == [0.5]


def test_an_error_in_progress_ends_the_following_alone(client: RemoteStore) -> None:
    client.import_profile(profile_of({"ads": falling(ROWS)}))

    def stop(done: int, of: int) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError):
        client.warm_cache(0.5, progress=stop)
    assert client.warm_cache(0.5) == ROWS


def test_stopping_does_not_wait_for_a_warm_up_to_be_followed(
    server: Server, client: RemoteStore, stub: Any
) -> None:
    client.import_profile(profile_of({"ads": falling(ROWS)}))
    gated = Gated(server)
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


def test_other_calls_go_on_while_the_cache_is_warmed(server: Server, client: RemoteStore) -> None:
    client.import_profile(profile_of({"ads": falling(ROWS)}))
    gated = Gated(server)
    with ThreadPoolExecutor(1) as pool:
        warming = pool.submit(client.warm_cache, 0.5)
        assert gated.begun.wait(PATIENCE_S)
        client.lookup({"ads": [1]})
        client.update({"ads": ([1], np.ones((1, DIM), np.float32))})
        gated.gate.set()
        assert warming.result() == ROWS


def test_the_cache_is_warmed_at_start(tmp_path: Path) -> None:
    with embstore.open(tmp_path, cache_bytes=CACHE_BYTES, device="cpu") as store:
        add(store, "ads")
        store.import_profile(profile_of({"ads": falling(ROWS)}))
    options = ("--policy", "rank", "--warm-up", "0.7", "--cache-bytes", "4MiB", "--device", "cpu")
    with ServerProcess(tmp_path, *options) as server, connect(server.address) as client:
        assert client.server_info().policy == "rank"
        assert until(lambda: client.stats()["frequency"]["warming"]["rows"] == ROWS)
        before = hits(client)
        client.lookup({"ads": np.arange(ROWS)})
        assert hits(client) - before == ROWS
        assert until(lambda: any("the cache is warm" in line for line in server.log))


# Lost connections


def test_documents_pass_however_often_connections_are_cut(server: Server) -> None:
    rng = np.random.default_rng(6)
    profile = profile_of({"ads": falling(ROWS)})
    with (
        Proxy(server.address) as proxy,
        connect(proxy.address, timeout_s=PATIENCE_S) as client,
    ):
        for version in range(1, 11):
            proxy.cut_after(int(rng.integers(len(profile.to_bytes()))))
            client.import_profile(profile)
            back = client.export_profile(source="imported")
            assert counts_of(back, "ads") == counts_of(profile, "ads")
            hot = hot_set_of(version, ads=range(version * 100))
            assert client.pin_hot_set(hot).pinned_rows == version * 100
            found = client.hot_set()
            assert found is not None
            assert found.to_bytes() == hot.to_bytes()
            assert client.warm_cache(0.5) == ROWS
        assert proxy.cuts >= 5
