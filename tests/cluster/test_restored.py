"""A cluster on a real Ray that starts from the backup of another one."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs the extra 'ray': make test-cluster")

from tests.cluster.test_on_ray import (
    PATIENCE_S,
    connected,
    embstore_command,
    kept_plan,
    train,
)


def test_a_cluster_starts_from_the_backup_of_another(tmp_path: Path) -> None:
    data, to, again = tmp_path / "data", tmp_path / "to", tmp_path / "again"
    config = tmp_path / "cluster.toml"
    config.write_text('backup_within = "/"\n')
    options = "--cache-bytes", "16MiB", "--config", str(config)
    embstore_command("start", "--shards", "2", "--data", str(data), *options)
    try:
        with connected(data) as store:
            digest = train(store)
            store.checkpoint("one")
            store.backup(str(to), "one")
            assert train(store) == digest
    finally:
        embstore_command("stop", "--data", str(data))
    made = [sys.executable, "-m", "embstore_server", "restore-from", str(to), str(again)]
    subprocess.run(made, check=True, capture_output=True, timeout=PATIENCE_S)
    embstore_command("start", "--data", str(again), *options)
    try:
        with connected(again) as store:
            assert store.table("t").digest() == digest
            assert store.table("t").t == 1
        first, second = kept_plan(str(data)), kept_plan(str(again))
        assert first is not None
        assert second is not None
        assert second.shard_map.cluster == first.shard_map.cluster
        assert second.shard_map.version == first.shard_map.version + 1
        assert second.shard_map.owners == first.shard_map.owners
    finally:
        embstore_command("stop", "--data", str(again))
