"""Files of ids of sparse tables: cut, flipped, removed, backed up and taken over.

Power cuts are those of `test_power_cuts`, whose training has a sparse table.
"""

import shutil
from contextlib import closing

import numpy as np
import pytest

from embstore.engine.scrubbing import Scrubber
from embstore.errors import CorruptTableError, StorageError
from embstore.row_keys import RowKeys
from embstore.storage import catalogue as catalogues
from embstore.storage.backup import (
    back_up,
    catalogue_of,
    linked,
    make_room,
    restore_from,
    verify_backups,
)
from embstore.storage.destinations import open_destination
from embstore.storage.files import Files
from embstore.storage.taking import Incoming, finish
from embstore.storage.verify import verify
from tests.conformance.backends import UnsyncedFiles
from tests.faults.damage import Damage, files_of, flips_of
from tests.faults.refusing import CHANGES, RefusingFiles
from tests.unit.small_stores import generator
from tests.unit.sparse_samples import (
    DIMS,
    EXTREMES,
    ONE,
    OTHER,
    TABLES,
    Model,
    copied,
    opened,
    random_ids,
)
from tests.unit.storage_samples import append, settle, versions

SEED = 20261127


def quiet(*_):
    """Note no problem and no progress."""


def made(path, files=None):
    """Make a closed store with ids on both sides of a label; return the model of its rows."""
    rng, model = generator(SEED), Model()
    storage = opened(path, files=files, fold_bytes=1)
    for version in range(4):
        for table_id in DIMS:
            keys = np.arange(100) if table_id == 0 else random_ids(rng, 150)
            model.write(storage, table_id, keys, version)
        model.write(storage, ONE, EXTREMES, version)
        model.commit(storage, "label" if version == 1 else None)
        settle(storage)
    storage.close()
    return model


def ids_files(path):
    return [name for name in files_of(path) if name.startswith("ids/")]


def check(path, model, **options):
    storage = opened(path, **options)
    model.check(storage)
    storage.close()


def verified(path):
    return verify(Files(path), quiet, quiet)


def test_a_good_store_has_nothing_wrong(tmp_path):
    made(tmp_path / "store")
    found = verified(tmp_path / "store")
    assert not found.problems and not found.affected and not found.leftovers
    assert found.files == sum("/" in name for name in files_of(tmp_path / "store"))
    assert len(ids_files(tmp_path / "store")) == 4


def test_every_flipped_bit_is_found_and_refused(tmp_path):
    path = tmp_path / "store"
    made(path)
    flips = list(flips_of(path, ".ids"))
    assert len(flips) > 500
    for number, flip in enumerate(flips):
        flip.toggle(path)
        if number % 7 == 0:
            assert any(problem.startswith(flip.path) for problem in verified(path).problems)
        with pytest.raises(CorruptTableError, match=flip.path):
            opened(path, files=UnsyncedFiles(path))
        flip.toggle(path)


@pytest.mark.parametrize("cut", [0, 100, 4096, 4104, -8, None])
def test_a_file_that_is_cut_or_missing_names_its_table_and_its_states(tmp_path, cut):
    path = tmp_path / "store"
    model = made(path)
    catalogue = catalogues.decode((path / "CATALOGUE").read_bytes())
    for entry in catalogue.ids:
        content = (path / entry.path).read_bytes()
        (path / entry.path).unlink()
        if cut is not None:
            (path / entry.path).write_bytes(content[:cut])
        found = verified(path)
        assert all(problem.startswith(entry.path) for problem in found.problems)
        kept = catalogue.checkpoints[0].state
        labels = ["", "label"] if entry.commit <= kept.commit else [""]
        assert [(a.label, a.table, a.rows, a.path) for a in found.affected] == [
            (label, f"t{entry.table_id}", entry.count, entry.path) for label in labels
        ]
        assert f": {entry.count:,} rows: {entry.path}" in str(found.affected[0])
        with pytest.raises(CorruptTableError, match=entry.path):
            opened(path)
        with pytest.raises((CorruptTableError, StorageError), match=entry.path):
            restored_of(path, tmp_path)
        assert not (tmp_path / "again" / "ids").exists()
        (path / entry.path).write_bytes(content)
    check(path, model)


def restored_of(path, tmp_path):
    """Make a store of a directory that is taken for a backup of itself."""
    shutil.rmtree(tmp_path / "backups", ignore_errors=True)
    shutil.copytree(path, tmp_path / "backups")
    (tmp_path / "backups" / "labels").mkdir()
    shutil.copy(path / "CATALOGUE", tmp_path / "backups" / "labels" / "x.catalogue")
    source = open_destination(str(tmp_path / "backups"))
    return restore_from(source, UnsyncedFiles(tmp_path / "again"), "x", None, quiet)


def test_a_damaged_record_names_the_id_unsigned(tmp_path):
    path = tmp_path / "store"
    made(path)
    (name,) = [name for name in files_of(path) if name.startswith("base/")][-1:]
    storage = opened(path)
    located = storage.of_pool(RowKeys(ONE)).rows.locate(EXTREMES)
    (part,) = [part for run in storage.base.runs for part in run if part.entry.path == name][:1]
    at = int(located.addresses[2]) - part.file.map.ctypes.data
    storage.close()
    Damage(name, at + 20, 3).toggle(path)
    found = verified(path)
    assert [(a.table, a.rows, a.first_keys) for a in found.affected if not a.label] == [
        ("t1", 1, ((1 << 64) - 2,))
    ]
    storage = opened(path)
    scrubber = Scrubber(storage, 1)
    while not scrubber.found.passes:
        scrubber.step()
    (text,) = scrubber.found.problems.values()
    assert "keys 18446744073709551614:" in text[1]
    storage.close()


def test_damage_below_a_running_store_is_told_and_disturbs_nobody(tmp_path):
    path = tmp_path / "store"
    model = made(path)
    storage = opened(path)
    scrubber = Scrubber(storage, 1)
    name = ids_files(path)[-1]
    for change in (lambda content: content[:-16], lambda content: content[:-1] + b"x"):
        content = (path / name).read_bytes()
        (path / name).write_bytes(change(content))
        passes = scrubber.found.passes
        while scrubber.found.passes == passes:
            scrubber.step()
        assert set(scrubber.found.problems) == {name}
        model.check(storage)
        (path / name).write_bytes(content)
    model.write(storage, OTHER, [17], 5)
    model.commit(storage)
    storage.close()
    check(path, model)


def test_a_file_removed_below_a_running_store_fails_its_next_commit(tmp_path):
    path = tmp_path / "store"
    made(path)
    storage = opened(path)
    gone = ids_files(path)[0]
    (path / gone).unlink()
    assert storage.missing() == gone
    append(storage, [17], 5, ONE)
    with pytest.raises(StorageError, match=r"ids/.* was removed while the store was open"):
        storage.commit(TABLES, 9)
    assert storage.failure is not None
    storage.close()


def test_what_is_left_over_goes_and_what_is_not_the_stores_stays(tmp_path):
    path = tmp_path / "store"
    model = made(path)
    named = ids_files(path)
    for name in ("000000000999.ids", "notes", "1.ids"):
        (path / "ids" / name).write_bytes(b"x")
    assert verified(path).leftovers == [f"ids/{n}" for n in ("000000000999.ids", "1.ids", "notes")]
    check(path, model)
    assert ids_files(path) == sorted([*named, "ids/1.ids", "ids/notes"])


@pytest.mark.parametrize("store_id", [None, "ab" * 16])
def test_a_backup_has_the_ids_of_its_state(tmp_path, store_id):
    path, to = tmp_path / "store", tmp_path / "to"
    model = made(path)
    storage = opened(path)
    facts = backed_up(storage, "label", to)
    assert facts.new_files == facts.files == sum("/" in n for n in files_of(to)) - 1
    append(storage, [17], 5, ONE)
    model.now[ONE][17] = 5
    model.commit(storage)
    again = backed_up(storage, None, to)
    assert 0 < again.new_files < again.files
    assert not list((path / "backup").glob("*"))
    storage.close()
    found = verify_backups(Files(to), quiet, quiet)
    assert not found.problems and not found.leftovers
    for label, rows in (("label", model.kept["label"]), ("head", model.now)):
        target = tmp_path / f"made-{label}"
        restore_from(open_destination(str(to)), UnsyncedFiles(target), label, store_id, quiet)
        found = Model()
        found.now = copied(rows)
        check(target, found)
        assert not verified(target).problems
    (to / "labels" / "label.catalogue").unlink()
    (to / "ids" / "000000000999.ids").write_bytes(b"x")
    storage = opened(path)
    backed_up(storage, None, to)
    assert set(ids_files(to)) == {entry.path for entry in storage.catalogue.ids}
    storage.close()


def backed_up(storage, label, to):
    """Back a store up, as of a label or its head."""
    kept = None if label is None else storage.kept(label)
    catalogue = catalogue_of(storage.catalogue, kept)
    make_room(storage.files)
    store_id = storage.catalogue.store_id
    with (
        closing(open_destination(str(to), store_id=store_id)) as destination,
        linked(storage.files, catalogue) as name,
    ):
        return back_up(storage.files, name, catalogue, label or "head", destination, quiet)


class CutError(Exception):
    """The process has ended."""


class CutFiles(RefusingFiles):
    """Ends at one of the operations that change something."""

    left = 1 << 30

    def _ask(self, verb, path):
        self.left -= verb in (*CHANGES, "write")
        if self.left < 0:
            raise CutError


def taken(files, leader):
    """Take the last commit of a directory."""
    catalogue = catalogues.decode((leader / "CATALOGUE").read_bytes())
    incoming = Incoming(files, catalogue, ())
    missing = incoming.missing(None)
    assert any(path.startswith("ids/") for path in missing)
    for path, size in missing.items():
        incoming.receive(path, 0, (leader / path).read_bytes(), size)
    incoming.end()
    finish(files)


def test_a_standby_takes_ids_or_keeps_its_own_wherever_it_is_cut_off(tmp_path):
    leader, standby, at = tmp_path / "leader", tmp_path / "standby", tmp_path / "at"
    after, before = made(leader), Model()
    storage = opened(standby)
    before.write(storage, ONE, [5, -9], 7)
    before.commit(storage)
    storage.close()
    found = set()
    for left in [*range(0, 200, 3), 1 << 20]:
        shutil.rmtree(at, ignore_errors=True)
        shutil.copytree(standby, at)
        files = CutFiles(at)
        files.left = left
        try:
            taken(files, leader)
        except CutError:
            pass
        storage = opened(at)
        model = before if versions(storage, [-9], ONE) == [7] else after
        model.check(storage)
        found.add(model is after)
        storage.close()
    assert found == {False, True} and left == 1 << 20
