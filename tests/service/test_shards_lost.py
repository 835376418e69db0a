"""Shards that have lost commands or their directory, and standbys of shards: no client mixes their
rows with the rows of the other shards."""

import shutil
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

import embstore
from embstore import commands as c
from embstore.commands import PartOf
from embstore.config import Sgd
from embstore.errors import (
    CorruptTableError,
    InvalidArgumentError,
    OutcomeUnknownError,
    TableNotFoundError,
)
from embstore.handles.store import Store
from embstore.sharding import ShardMap
from embstore_client import connect
from embstore_client.connecting import connect_one
from tests.clusters import table
from tests.copies import copy_of_open
from tests.service.faults.served import until
from tests.serving import Server, free_addresses

PATIENCE_S = 300.0
KEYS = np.arange(0, 20_000, 7)
ROWS = np.ones((len(KEYS), 4), np.float32)


class Served:
    """Two shards that are started without a coordinator."""

    def __init__(self, tmp_path, durability):
        self.map = ShardMap.even("ads", free_addresses(2))
        self.file = tmp_path / "map.json"
        self.file.write_text(self.map.to_json())
        self.folder, self.durability = tmp_path, durability
        self.servers = {}

    def data(self, shard):
        return self.folder / f"shard-{shard}"

    def opened(self, data) -> Store:
        return embstore.open(data, device="cpu", cache_bytes=1 << 20, durability=self.durability)

    def serve(self, shard, **settings):
        settings = {"listen": self.map.shards[shard], "durability": self.durability} | settings
        settings |= {"shard_map": self.file, "shard": shard}
        settings["socket"] = "off"  # which cannot be copied
        data = self.data(shard)
        self.servers[shard] = Server(lambda: self.opened(data), data, **settings)

    def move(self, shard, address):
        """Make the next map, in which a shard has another address."""
        self.before, shards = self.map.shards[shard], list(self.map.shards)
        shards[shard] = address
        self.map = replace(self.map, version=self.map.version + 1, shards=tuple(shards))
        self.file.write_text(self.map.to_json())

    def stop(self, shard):
        self.servers.pop(shard).stop()

    def kill(self, shard):
        """Stop a shard, and leave in its directory what a kill would have left."""
        copy_of_open(self.data(shard), self.folder / "killed")
        self.stop(shard)
        shutil.rmtree(self.data(shard))
        (self.folder / "killed").rename(self.data(shard))

    def client(self):
        return connect(self.map.shards[0], timeout_s=PATIENCE_S, transport="grpc")


@pytest.fixture
def served(request, tmp_path):
    made = Served(tmp_path, getattr(request, "param", "commands"))
    for shard in range(2):
        made.serve(shard)
    with made.client() as store:
        own = store.create_table("a", **table(Sgd(0.1)))
        store.create_table("b", **table(Sgd(0.1)))
        own.update(KEYS, ROWS)
        store.checkpoint("l1")
        own.update(KEYS, ROWS)
    yield made
    for shard in list(made.servers):
        made.stop(shard)


@pytest.mark.parametrize("served", ["checkpoint", "commands"], indirect=True)
def test_a_shard_that_has_lost_commands_is_not_served(served):
    with served.client() as store:
        before = store.table("a").digest()
        now = store.checkpoints()[0]
    served.kill(1)
    if served.durability == "commands":
        served.serve(1)
        with served.client() as store:
            assert store.table("a").digest() == before
        return
    for _ in range(2):  # the first attempt leaves the directory as it was
        with pytest.raises(InvalidArgumentError, match=r"shard 1 of cluster 'ads'.*commit lost"):
            served.serve(1)
    served.stop(0)
    for shard in range(2):  # as the message says
        with embstore.open(served.data(shard), device="cpu") as store:
            store.restore("l1", force=True)
        served.serve(shard)
    with served.client() as store:
        assert (store.table("a").t, now.label) == (1, "l1")
        once = store.table("a").digest()
        store.table("a").update(KEYS, ROWS)
        assert store.table("a").digest() == before
        assert once != before


def test_a_shard_in_a_new_directory_gets_no_table_that_others_have_updated(served):
    served.stop(1)
    served.data(1).rename(served.folder / "away")
    served.serve(1)
    with served.client() as store:
        for name in "ab":  # b was not updated, and yet nothing is created on that shard
            with pytest.raises(CorruptTableError, match=r"shard 1 .* 'a', of which .* has 2 upd"):
                store.create_table(name, **table(Sgd(0.1)))
        with pytest.raises(TableNotFoundError):
            store.table("a").lookup(KEYS)
    served.stop(1)
    shutil.rmtree(served.data(1))
    (served.folder / "away").rename(served.data(1))
    served.serve(1)
    with served.client() as store:
        assert store.create_table("a", **table(Sgd(0.1))).t == 2


def test_a_digest_of_a_torn_table_names_t(served):
    with served.client() as store:
        Store(store.executor.shards[1]).table("a").update(KEYS[:0], ROWS[:0])
        with pytest.raises(OutcomeUnknownError, match=r"t is \[2, 3\], by shard"):
            store.table("a").digest()


@pytest.fixture
def standby(served):
    """Return a function that serves a standby of shard 1, as a shard or as none."""
    made = []

    def serve(**started):
        data = served.folder / "standby"
        if started:
            started["shard_map"] = served.file
        settings = {"follow": served.map.shards[1], "durability": "commands", **started}
        made.append(Server(lambda: served.opened(data), data, listen="127.0.0.1:0", **settings))
        return made[0]

    yield serve
    for server in made:
        server.stop()


def test_a_client_takes_no_standby_for_its_shard(standby):
    with pytest.raises(InvalidArgumentError, match="found a standby"):
        connect(standby(shard=1).address, timeout_s=PATIENCE_S, transport="grpc")


@pytest.mark.parametrize("first", ["update", "lookup"])
def test_clients_follow_a_shard_to_its_standby(served, standby, first):
    """The old leader runs again at its old address, as a standby of the promoted server."""
    with embstore.open(served.folder / "twin", device="cpu", cache_bytes=1 << 20) as twin:
        own = twin.create_table("a", **table(Sgd(0.1)))
        clients = [served.client() for _ in range(2)]
        clients[0].table("a").lookup(KEYS)
        promoted = standby(shard=1)
        with connect_one(promoted.address, transport="grpc", timeout_s=PATIENCE_S) as copy:
            until(lambda: copy.command == clients[0].command)
            served.stop(1)
            copy.promote()
            served.move(1, promoted.address)
            copy.set_shard_map(served.map)
        with connect_one(served.map.shards[0], transport="grpc", timeout_s=PATIENCE_S) as store:
            store.set_shard_map(served.map)
        served.serve(1, follow=promoted.address, listen=served.before)
        with connect_one(served.before, transport="grpc", timeout_s=PATIENCE_S) as copy:
            until(lambda: copy.stats()["replication"]["connected"])
        for client in clients:
            a = client.table("a")
            if first == "lookup":
                with suppress(OutcomeUnknownError):
                    a.lookup(KEYS)
            told = 0
            for _ in range(3):
                try:
                    a.update(KEYS, ROWS)
                except OutcomeUnknownError as exc:
                    assert "epoch" in str(exc)
                    told += 1
            assert told <= 1
        for _ in range(store_t := clients[0].table("a").t):
            own.update(KEYS, ROWS)
        assert store_t >= 2 + 2 + 2
        assert [client.table("a").digest() for client in clients] == [own.digest()] * 2
        for client in clients:
            client.close()


def test_a_promoted_standby_refuses_what_its_leader_has_given_up(served, standby):
    """It also knows which of the cluster's commands its leader has answered."""
    given_up, leader, promoted = 5, served.servers[1], standby(shard=1)
    with (
        served.client() as store,
        connect_one(promoted.address, transport="grpc", timeout_s=PATIENCE_S) as copy,
    ):
        until(lambda: copy.stats()["replication"]["connected"])
        store.table("a").assign(KEYS, ROWS)
        pause = c.PauseWrites("the test", None, 1, (given_up,))
        leader.on_engine(lambda own: own.executor.execute(pause))
        ids = leader.service.engine.cluster_commands.ids
        until(lambda: copy.command == leader.store.command)
        until(lambda: promoted.service.engine.cluster_commands.given_up == (given_up,))
        served.stop(1)
        copy.promote()
        assert ids and promoted.service.engine.cluster_commands.ids == ids
        with pytest.raises(OutcomeUnknownError, match="did not wait"):
            copy.executor.execute(
                c.Assign(c.TableKeys("a", None, KEYS), ROWS),
                part_of=PartOf(served.map.version, given_up),
            )


@pytest.mark.parametrize(
    ("started", "found"), [({"shard": 0}, "shard 0 of cluster 'ads'"), ({}, "no shard")]
)
def test_a_shard_has_no_standby_that_is_another_shard_or_none(standby, started, found):
    role = standby(**started).service.replication
    reason = until(lambda: role.reason)
    assert f"expected a standby of shard 1 of cluster 'ads', found {found}: start it with" in reason
    assert role.is_empty


def test_a_store_outside_of_a_cluster_has_no_standby_that_is_a_shard(served, tmp_path):
    data, copy = tmp_path / "own", tmp_path / "copy"
    leader = Server(lambda: served.opened(data), data, durability="commands")
    settings = {"shard_map": served.file, "shard": 0, "durability": "commands"}
    other = Server(lambda: served.opened(copy), copy, follow=leader.address, **settings)
    reason = until(lambda: other.service.replication.reason)
    assert "outside of any cluster, found shard 0 of cluster 'ads'" in reason
    other.stop()
    leader.stop()
