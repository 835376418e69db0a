"""Verifying a directory: what is wrong is found, with the rows that it means; nothing else is."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embstore.errors import CorruptTableError, StoreInUseError
from embstore.sharding import ShardMap
from embstore.storage import catalogue as catalogues
from embstore.storage import lineage as lineages
from embstore.storage import shard as shards
from embstore.storage.files import File, Files
from embstore.storage.lineage import Lineage
from embstore.storage.shard import ShardPlace
from embstore.storage.taking import Incoming
from embstore.storage.verify import Verification, verify
from embstore_server.cli import main
from tests.conformance.backends import UnsyncedFiles
from tests.copies import copy_of_open
from tests.faults.damage import SEED, Damage, files_of, flips_of
from tests.faults.training import LOGGED, keys_of, open_store, rows_of, train

NAMED = ("log/", "base/", "ids/")
"""What the catalogue names is there."""


def verified(path: Path, files: Files | None = None) -> Verification:
    noted: list[str] = []
    seen: list[int] = []
    found = verify(files or Files(path), noted.append, lambda done, of: seen.append(done))
    assert noted == found.problems
    assert seen == sorted(seen)
    return found


def unreadable(store: object) -> dict[str, list[int]]:
    """Return the keys of each table whose rows cannot be read, by reading ever fewer of them."""
    found: dict[str, list[int]] = {}
    for name in store.tables():  # type: ignore[attr-defined]
        table = store.table(name)  # type: ignore[attr-defined]
        numbers = _unreadable_of(table, 0, rows_of(store, name))
        if own := [int(keys_of(name, number)) % (1 << 64) for number in numbers]:
            found[name] = own
    return found


def _unreadable_of(table: object, low: int, high: int) -> Iterator[int]:
    try:
        keys = keys_of(table.name, np.arange(low, high))  # type: ignore[attr-defined]
        table.read_rows(keys)  # type: ignore[attr-defined]
    except CorruptTableError:
        if high - low == 1:
            yield low
        else:
            yield from _unreadable_of(table, low, (low + high) // 2)
            yield from _unreadable_of(table, (low + high) // 2, high)


def affected(found: Verification, label: str = "") -> dict[str, tuple[int, tuple[int, ...]]]:
    assert all(a.rows is not None for a in found.affected)
    return {a.table: (a.rows or 0, a.first_keys) for a in found.affected if a.label == label}


def expected(keys: dict[str, list[int]]) -> dict[str, tuple[int, tuple[int, ...]]]:
    return {name: (len(own), tuple(own[:5])) for name, own in keys.items()}


def offsets_of_records(path: Path) -> list[int]:
    """Return an offset within the rows of a file: from behind the header to its middle."""
    size = path.stat().st_size
    rng = np.random.default_rng(SEED)
    return rng.integers(4096, 4096 + (size - 4096) // 2, 4).tolist()


def test_a_good_store_has_nothing_wrong(made):
    path, _ = made
    found = verified(path)
    assert not found.problems and not found.affected and not found.leftovers
    assert found.rows > 900, "of a training that deletes rows, too"
    assert found.files == len([n for n in files_of(path) if n.startswith(NAMED)])


def test_a_killed_store_with_a_command_log_has_nothing_wrong(tmp_path):
    path, copy = tmp_path / "store", tmp_path / "copy"
    store = open_store(path, files=UnsyncedFiles(path), **LOGGED)
    train(store, SEED, 21)
    store.executor.log.files.sync()  # type: ignore[attr-defined]
    copy_of_open(path, copy)
    store.close()
    (copy / "log" / "000000009999.log").write_bytes(b"cut off")
    found = verified(copy)
    assert not found.problems and not found.affected
    assert "log/000000009999.log" in found.leftovers
    assert found.commands > 0


@pytest.mark.parametrize("path", [lineages.PATH, shards.PATH])
def test_files_of_a_store_among_others_are_its_own(made, tmp_path, path):
    """Of a leader, a standby, one that takes a leader's files, and a shard."""
    copy = shutil.copytree(made[0], tmp_path / "copy")
    files = Files(copy)
    lineage = Lineage().promoted(7, 1, "127.0.0.1:1", 1)
    lineages.write(files, lineage)
    shards.write(files, ShardPlace(0, ShardMap.even("ads", ["127.0.0.1:1"])))
    catalogue = catalogues.decode(files.read_all(catalogues.PATH))
    incoming = Incoming(files, replace(catalogue, store_id="0" * 32), lineage.promotions)
    (first, size), (second, _) = list(incoming.missing(None).items())[:2]
    incoming.receive(first, 0, bytes(size), size)
    incoming.receive(second, 0, b"a piece", 8)
    found = verified(copy)
    assert not found.problems and not found.leftovers
    for left in ("incoming/notes", "incoming/log/notes"):
        (copy / left).write_bytes(b"mine")
    assert verified(copy).leftovers == ["incoming/notes", "incoming/log/notes"]
    content = bytearray((copy / path).read_bytes())
    content[-2] ^= 1
    (copy / path).write_bytes(content)
    (problem,) = verified(copy).problems
    assert path in problem


@pytest.mark.parametrize("kind", [".log", ".rows", ".ids", "CATALOGUE"])
def test_every_flipped_bit_is_found(made, kind):
    path, _ = made
    missed = []
    for flip in list(flips_of(path, kind))[::5]:
        flip.toggle(path)
        if not verified(path).problems:
            missed.append(flip)
        flip.toggle(path)
    assert not missed


def test_a_flipped_bit_names_the_rows_that_cannot_be_read(made, tmp_path):
    path, copy = tmp_path / "store", tmp_path / "copy"
    shutil.copytree(made[0], path)
    seen = dict.fromkeys(("head", "label", "nobody"), 0)
    for name in files_of(path):
        if not name.startswith(("log/", "base/")):
            continue
        for offset in offsets_of_records(path / name):
            flip = Damage(name, offset, 3)
            flip.toggle(path)
            found = verified(path)
            assert any(problem.startswith(f"{name}: 1 of ") for problem in found.problems)
            with open_store(path, read_only=True) as store:
                labels = [kept.label for kept in store.checkpoints()]
                assert affected(found) == expected(unreadable(store))
            for label in labels:
                shutil.copytree(path, copy)
                with open_store(copy, files=UnsyncedFiles(copy)) as store:
                    store.restore(label)
                    assert affected(found, label) == expected(unreadable(store))
                shutil.rmtree(copy)
                seen["label"] += bool(affected(found, label))
            seen["head"] += bool(affected(found))
            seen["nobody"] += not found.affected
            flip.toggle(path)
    assert all(seen.values()), seen


def test_a_file_that_is_cut_or_missing_names_its_tables(made, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(made[0], path)
    for name in files_of(path):
        if not name.startswith(NAMED):
            continue
        content = (path / name).read_bytes()
        for cut in (content[:-1], content[:100], b"", None):
            if cut is None:
                (path / name).unlink()
            else:
                (path / name).write_bytes(cut)
            found = verified(path)
            assert len(found.problems) in (1, 2)
            assert all(problem.startswith(name) for problem in found.problems)
            assert {a.path for a in found.affected} == {name}
            counts = {a.rows for a in found.affected}
            assert None not in counts if name.startswith("ids/") else counts == {None}
        (path / name).write_bytes(content)
    assert not verified(path).problems


class _BadSector(Files):
    """Cannot read one place of one file."""

    def __init__(self, root: Path, name: str, offset: int) -> None:
        super().__init__(root)
        self.name, self.offset = name, offset

    def open(self, path: str, *, write: bool = False) -> File:
        file = super().open(path, write=write)
        if path == self.name:
            file.read = self._reading(file.read)  # type: ignore[method-assign]
        return file

    def _reading(self, read: object) -> object:
        from embstore.errors import StorageError

        def reading(offset: int, length: int) -> bytes:
            if offset <= self.offset < offset + length:
                raise StorageError(5, f"Input/output error: {self.name}")
            return read(offset, length)  # type: ignore[operator]

        return reading


def test_a_sector_that_cannot_be_read_costs_one_record(made):
    path, _ = made
    name = next(name for name in files_of(path) if name.startswith("base/"))
    whole = verified(path)
    found = verified(path, _BadSector(path, name, 4096 + 100))
    assert found.rows == whole.rows
    assert found.problems[0].endswith(f"Input/output error: {name}")
    assert sum(a.rows or 0 for a in found.affected if not a.label) <= 1


def test_damage_in_the_command_log_is_found(tmp_path):
    path, copy = tmp_path / "store", tmp_path / "copy"
    store = open_store(path, files=UnsyncedFiles(path), **LOGGED)
    train(store, SEED, 3)
    for _ in range(20):
        train(store, SEED, 1, label_last=False)
        store.executor.log.wait()  # type: ignore[attr-defined]
    shutil.copytree(path, copy)
    store.close()
    assert not verified(copy).problems
    (segment,) = (name for name in files_of(copy) if name.endswith(".commands"))
    Damage(segment, 4096 + 70, 1).toggle(copy)
    (problem,) = verified(copy).problems
    assert problem.startswith(segment)
    assert "acknowledged" in problem


def test_a_store_that_a_writer_has_is_refused(tmp_path):
    with open_store(tmp_path / "store"), pytest.raises(StoreInUseError):
        verified(tmp_path / "store")


def test_the_command_says_it_and_ends_with_1(made, tmp_path, capsys):
    path, promise = tmp_path / "store", made[1]
    shutil.copytree(made[0], path)
    assert main(["verify", str(path), "--digests"]) == 0
    shown = capsys.readouterr().out
    assert "nothing is wrong" in shown
    for name, (digest, *_) in promise.tables.items():
        assert f"{digest}  {name}\n" in shown
    name = next(name for name in files_of(path) if name.startswith("base/"))
    Damage(name, 4096 + 20, 1).toggle(path)
    assert main(["verify", str(path)]) == 1
    assert f"wrong: {name}: 1 of " in capsys.readouterr().out
    assert main(["verify", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert len(document["problems"]) == 1
    assert main(["verify", str(tmp_path / "none")]) == 1
    assert "verify its folders" not in capsys.readouterr().err
    assert main(["verify", str(tmp_path)]) == 1
    assert "found none in" in (said := capsys.readouterr().err)
    assert "verify its folders, one by one: store" in " ".join(said.split())
