"""Backups of a server by the command line, while clients train."""

import threading

import numpy as np
import pytest

import embstore
from embstore.errors import PermissionDeniedError
from embstore_server.setup.launch import ServerProcess
from tests.serving import patient

OPTIONS = {"cache_bytes": 1 << 20, "device": "cpu"}


def test_a_label_is_backed_up_while_a_client_trains(server, typed, shell, tmp_path):
    begun, ended = threading.Event(), threading.Event()

    def train() -> None:
        rng = np.random.default_rng(3)
        with patient(server.address) as store:
            ads = store.table("ads")
            while not ended.is_set():
                gradients = rng.normal(size=(50, ads.dim)).astype(np.float32)
                ads.update(rng.choice(ads.rows, 50, replace=False), gradients)
                begun.set()

    typed("checkpoint", "first")
    with patient(server.address) as store:
        digest = store.table("ads").digest()
        trainer = threading.Thread(target=train)
        trainer.start()
        assert begun.wait(300)
        made = [
            typed("backup", tmp_path / "to", "--label", "first", "--json").document,
            typed("backup", tmp_path / "to", "--json").document,
        ]
        ended.set()
        trainer.join()
        assert store.stats()["backups"]["backups"] == 2
    assert made[0]["label"] == "first"
    assert made[0]["command"] <= made[1]["command"]
    assert typed("backup", tmp_path / "to", "--label", "none").status == 3
    shown = shell("restore-from", tmp_path / "to", tmp_path / "first", "--label", "first")
    assert shown.status == 0, shown.err
    assert shell("verify", tmp_path / "first", "--json").document["problems"] == []
    with embstore.open(tmp_path / "first", **OPTIONS) as first:
        assert first.table("ads").digest() == digest
    assert shell("restore-from", tmp_path / "to", tmp_path / "last").status == 0
    with embstore.open(tmp_path / "last", **OPTIONS) as last:
        assert last.command == made[1]["command"]
        last.check_integrity()


def test_a_server_writes_backups_where_it_was_told_to_and_nowhere_else(tmp_path, shell):
    with ServerProcess(tmp_path / "store") as running, patient(running.address) as store:
        with pytest.raises(PermissionDeniedError, match="--backup-within"):
            store.backup(str(tmp_path / "to"))
        assert shell("verify", tmp_path / "store").status == 5
    within = "--backup-within", str(tmp_path / "allowed")
    with ServerProcess(tmp_path / "store", *within) as running, patient(running.address) as store:
        with pytest.raises(PermissionDeniedError, match="allowed"):
            store.backup(str(tmp_path / "to"))
        store.backup(str(tmp_path / "allowed" / "to"))
        assert store.stats()["scrubber"]["scrub_bytes_per_s"] == 8 << 20
    assert not (tmp_path / "to").exists()
