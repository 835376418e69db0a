"""The file SHARD: durable before a map is acknowledged, whole or not at all."""

import errno
from typing import Any

import pytest

import embstore
from embstore.errors import CapacityError, InvalidArgumentError
from embstore.sharding import PARTITIONS, ShardMap
from embstore.storage import shard as shards
from embstore.storage.files import Files
from embstore.storage.shard import ShardPlace

MAP = ShardMap.even("ads", ["127.0.0.1:1", "127.0.0.1:2"])
NEXT = ShardMap("ads", 2, MAP.shards, MAP.owners)


class Full(Files):
    """Files of a disk that gets full when it is told to."""

    is_full = False

    def _write(self, file: Any, offset: int, data: memoryview) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space")
        super()._write(file, offset, data)


def test_a_map_that_cannot_be_written_is_not_taken(tmp_path):
    files = Full(tmp_path)
    with embstore.open(tmp_path, device="cpu", files=files) as store:
        engine: Any = store.executor
        engine.shard = shards.take(files, ShardPlace(0, MAP), is_used=False, commit=0)
        files.is_full = True
        with pytest.raises(CapacityError, match="SHARD"):
            store.set_shard_map(NEXT)
        assert store.server_info().shard_map == shards.read(files).shard_map == MAP
        files.is_full = False
        store.set_shard_map(NEXT)
        assert store.server_info().shard_map == shards.read(files).shard_map == NEXT


def test_a_place_is_read_as_it_was_written(tmp_path):
    files = Files(tmp_path)
    assert shards.read(files) is None
    shards.write(files, ShardPlace(1, MAP))
    assert shards.read(files) == ShardPlace(1, MAP)


def test_a_shard_is_one_of_the_map():
    for shard in (-1, 2, True):
        with pytest.raises(InvalidArgumentError, match="expected a shard from 0 to 1"):
            ShardPlace(shard, MAP)
    with pytest.raises(InvalidArgumentError, match="expected a shard from 0 to 0"):
        ShardPlace(1, MAP).with_map(ShardMap("ads", 2, MAP.shards[:1], (0,) * PARTITIONS), 0)
