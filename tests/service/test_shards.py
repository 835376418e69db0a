"""Shards: a server that knows its place, and a connection to one of them that finds the others."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import embstore
from embstore.config import Sgd, Uniform
from embstore.errors import DeadlineError, InvalidArgumentError, StoreClosedError
from embstore.handles.store import Store
from embstore.sharding import PARTITIONS, ShardMap
from embstore_client import connect
from embstore_client.connecting import connect_one
from embstore_server.transports.rest.exposition import exposition
from tests.serving import Server, free_addresses

PATIENCE_S = 300.0


class Shards:
    """Shards of a cluster, served by this process."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.map = ShardMap.even("ads", free_addresses(count))
        self.running = ExitStack()

    def file_of(self, shard_map: ShardMap) -> Path:
        """Return a file of a map."""
        path = self.folder / f"map-{shard_map.cluster}-{shard_map.version}.json"
        path.write_text(shard_map.to_json())
        return path

    def data(self, shard: int) -> Path:
        """Return the directory of a shard."""
        return self.folder / f"shard-{shard}"

    def serve(
        self, shard: int, shard_map: ShardMap | None = None, *, data: Path | None = None
    ) -> Server:
        """Serve a shard, where the map says."""
        shard_map = shard_map or self.map
        settings = {"shard_map": self.file_of(shard_map), "shard": shard}
        return self.plain(data or self.data(shard), shard_map.shards[shard], **settings)

    def plain(self, data: Path, address: str, **settings: Any) -> Server:
        """Serve a directory."""
        made: Callable[[], Store] = lambda: embstore.open(data, device="cpu", cache_bytes=1 << 20)  # noqa: E731
        return self.running.enter_context(Server(made, data, listen=address, **settings))


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    made = Shards(tmp_path, 2)
    with made.running:
        yield made


def one(address: str) -> Store:
    return connect_one(address, timeout_s=PATIENCE_S, transport="grpc")


def next_map(shard_map: ShardMap, **changes: Any) -> ShardMap:
    return replace(shard_map, version=shard_map.version + 1, **changes)


# A server that knows its place


def test_a_shard_says_which_it_is(shards):
    server = shards.serve(1)
    with one(server.address) as store:
        info = store.server_info()
        assert (info.shard, info.shard_map) == (1, shards.map)
        stats = store.stats()
    assert stats["shard"] == {
        "cluster": "ads",
        "number": 1,
        "map_version": 1,
        "partitions": PARTITIONS // 2,
        "shards": 2,
    }
    metrics = exposition(CollectorRegistry(), stats, None).decode()
    assert "embstore_shard_number 1.0" in metrics
    assert "embstore_shard_map_version 1.0" in metrics
    assert f"embstore_shard_partitions {PARTITIONS / 2}" in metrics


def test_a_store_of_its_own_is_no_shard(shards, tmp_path):
    server = shards.plain(tmp_path / "own", "127.0.0.1:0")
    with connect(server.address, timeout_s=PATIENCE_S, transport="grpc") as store:
        info = store.server_info()
        assert (info.shard, info.shard_map) == (None, None)
        assert set(store.stats()["shard"].values()) == {None}
        with pytest.raises(InvalidArgumentError, match="is no shard"):
            store.set_shard_map(shards.map)


REFUSALS: dict[str, tuple[Callable[[Shards], Any], str]] = {
    "another number": (
        lambda s: s.serve(1, data=s.data(0)),
        "is shard 0 of cluster 'ads', and not",
    ),
    "another cluster": (
        lambda s: s.serve(0, replace(s.map, cluster="users")),
        "is shard 0 of cluster 'ads', and not shard 0 of cluster 'users'",
    ),
    "a store of its own": (
        lambda s: s.plain(s.data(0), "127.0.0.1:0"),
        "is shard 0 of cluster 'ads': open it with --shard-map",
    ),
    "an older map": (lambda s: s.serve(0, s.map), "has had version 2 of the map"),
    "another map of the version": (
        lambda s: s.serve(0, next_map(s.map, owners=(0,) * PARTITIONS)),
        "has another map of version 2",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_shard_is_opened_as_nothing_else(case, shards):
    newer = next_map(shards.map)
    shards.serve(0, newer).stop()
    before = (shards.data(0) / "SHARD").read_bytes()
    attempt, message = REFUSALS[case]
    with pytest.raises(InvalidArgumentError, match=message):
        attempt(shards)
    assert (shards.data(0) / "SHARD").read_bytes() == before
    server = shards.serve(0, newer)  # nothing is left open
    with one(server.address) as store:
        assert store.server_info().shard_map == newer


def test_a_store_that_had_commands_becomes_no_shard(shards):
    with embstore.open(shards.data(0), device="cpu") as store:
        table = store.create_table(
            "t", dim=2, rows=9, optimizer=Sgd(1.0), initializer=Uniform(0, 1)
        )
        digest = table.digest()
        store.table("t")
    with pytest.raises(
        InvalidArgumentError, match="is a store outside of any cluster, which has executed commands"
    ):
        shards.serve(0)
    assert not (shards.data(0) / "SHARD").exists()
    with embstore.open(shards.data(0), device="cpu") as store:
        assert store.table("t").digest() == digest


def test_a_map_has_to_have_the_shard(shards, tmp_path):
    settings = {"shard_map": shards.file_of(shards.map), "shard": 2}
    with pytest.raises(
        InvalidArgumentError, match=r"map-ads-1\.json: expected a shard from 0 to 1"
    ):
        shards.plain(shards.data(2), "127.0.0.1:0", **settings)
    broken = tmp_path / "broken.json"
    for text in ("", "{}", json.dumps({"cluster": "ads"})):
        broken.write_text(text)
        with pytest.raises(InvalidArgumentError, match=r"broken\.json: expected the JSON"):
            shards.plain(shards.data(0), "127.0.0.1:0", shard_map=broken, shard=0)
    broken.unlink()
    with pytest.raises(InvalidArgumentError, match="expected the file of a shard map"):
        shards.plain(shards.data(0), "127.0.0.1:0", shard_map=broken, shard=0)


def test_the_next_map_is_taken_and_stays(shards):
    server = shards.serve(0)
    newer = next_map(shards.map, shards=(shards.map.shards[0], "127.0.0.1:9"))
    others = tuple(p % 2 for p in range(1, PARTITIONS + 1))
    with one(server.address) as store:
        store.set_shard_map(newer)
        assert store.server_info().shard_map == newer
        for wrong, message in (
            (newer, "expected a higher version, found 2"),
            (replace(shards.map, version=1), "expected a higher version, found 1"),
            (next_map(newer, cluster="users"), "expected a map of that cluster"),
            (next_map(newer, shards=newer.shards[::-1]), "gives it the same number, found 1"),
            (next_map(newer, owners=others), "only addresses may change"),
        ):
            with pytest.raises(InvalidArgumentError, match=message):
                store.set_shard_map(wrong)
        assert store.server_info().shard_map == newer
    server.stop()
    with pytest.raises(InvalidArgumentError, match="has had version 2 of the map"):
        shards.serve(0)
    with one(shards.serve(0, newer).address) as store:
        assert store.server_info().shard_map == newer


def test_the_next_map_comes_as_a_file(shards, shell):
    server, newer = shards.serve(0), next_map(shards.map)
    words = ["set-shard-map", str(shards.file_of(newer)), "--address", server.address, "--json"]
    assert shell(*words).document == {"shard": 0, "cluster": "ads", "version": 2}
    with one(server.address) as store:
        assert store.server_info().shard_map == newer


# The others


def test_a_connection_to_any_shard_finds_all(shards):
    for shard in range(2):
        shards.serve(shard)
    for address in shards.map.shards:
        with connect(address, timeout_s=PATIENCE_S, transport="grpc") as store:
            router: Any = store.executor
            found = [one.info.shard for one in router.shards]
            assert (found, router.shard_map) == ([0, 1], shards.map)
            options = [dict(one.connected_by) for one in router.shards]
            assert [o.pop("address") for o in options] == list(shards.map.shards)
            assert options[0] == options[1]
            assert router.connected_by["address"] == address
            info = store.server_info()
            assert (info.shard, info.shard_map) == (None, shards.map)


def test_operators_reach_the_one_server(shards, shell):
    servers = [shards.serve(shard) for shard in range(2)]
    for shard, server in enumerate(servers):
        stats = shell("stats", "--address", server.address, "--json").document
        assert stats["shard"]["number"] == shard
    for words in (("Checkpoint", '{"label": "one"}'), ("DropTable", '{"table": "t"}')):
        refused = shell("call", *words, "--address", servers[1].address)
        assert "to be given to all of its shards" in refused.err
    assert shell("call", "GetStats", "--address", servers[1].address).status == 0
    servers[1].stop()  # also when others are missing
    assert shell("stats", "--address", servers[0].address).status == 0
    assert "shard 1 of cluster 'ads'" in shell("table", "list", "--address", servers[0].address).err


def test_a_missing_shard_is_named(shards):
    shards.serve(0)
    options: dict[str, Any] = {"timeout_s": PATIENCE_S, "transport": "grpc"}
    message = f"shard 1 of cluster 'ads', at {shards.map.shards[1]}: "
    with pytest.raises(StoreClosedError, match=message):
        connect(shards.map.shards[0], wait=False, **options)
    with pytest.raises(DeadlineError, match=message):
        connect(shards.map.shards[0], connect_timeout_s=0.1, **options)


def test_a_server_that_is_not_the_shard_is_refused(shards, tmp_path):
    shards.serve(0)
    address = shards.map.shards[1]
    for attempt, message in (
        (
            lambda: shards.plain(tmp_path / "own", address),
            "found a store outside of any cluster: serve that",
        ),
        (
            lambda: shards.serve(1, replace(shards.map, cluster="users"), data=tmp_path / "users"),
            "found shard 1 of cluster 'users'",
        ),
        (
            lambda: shards.serve(1, next_map(shards.map), data=tmp_path / "newer"),
            "shard 1 of cluster 'ads', at .* has version 2 of the map, and shard 0 has version 1: "
            "if the map is just being replaced",
        ),
        (
            lambda: shards.serve(
                1, replace(shards.map, owners=(1,) * PARTITIONS), data=tmp_path / "other"
            ),
            "has version 1 of the map, and shard 0 has version 1; they differ",
        ),
    ):
        server = attempt()
        with pytest.raises(InvalidArgumentError, match=message):
            connect(shards.map.shards[0], timeout_s=PATIENCE_S, transport="grpc")
        server.stop()
