"""A cluster on a real Ray that starts from the backup of another one."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs the extra 'ray': make test-cluster")

from tests.cluster.running import PATIENCE_S, plan_of, running
from tests.cluster.test_on_ray import connected, train


def test_a_cluster_starts_from_the_backup_of_another(tmp_path: Path) -> None:
    to, again = tmp_path / "to", tmp_path / "again"
    config = tmp_path / "cluster.toml"
    config.write_text('backup_within = "/"\n')
    options = "--config", str(config)
    with running(tmp_path / "data", "--shards", "2", *options) as data, connected(data) as store:
        digest = train(store)
        store.checkpoint("one")
        store.backup(str(to), "one")
        assert train(store) == digest
    made = [sys.executable, "-m", "embstore_server", "restore-from", str(to), str(again)]
    subprocess.run(made, check=True, capture_output=True, timeout=PATIENCE_S)
    with running(again, *options), connected(again) as store:
        assert store.table("t").digest() == digest
        assert store.table("t").t == 1
    first, second = plan_of(data).shard_map, plan_of(again).shard_map
    assert second.cluster == first.cluster
    assert second.version == first.version + 1
    assert second.owners == first.owners
