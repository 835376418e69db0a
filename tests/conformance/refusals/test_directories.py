"""Directories that cannot be opened: in use, foreign, of another format. None is changed."""

import hashlib
import json
import re
import subprocess
import sys

import pytest

import embstore
from embstore.errors import (
    CorruptTableError,
    EmbstoreError,
    InvalidArgumentError,
    StoreInUseError,
    TableMismatchError,
)
from embstore.storage.format import FORMAT
from tests.conformance.cases import config, each, ones


def snapshot(path):
    """Return every file's content; the lock has none."""
    found = {str(p.relative_to(path)): p for p in path.rglob("*")}
    return {name: p.read_bytes() for name, p in found.items() if p.is_file() and name != "LOCK"}


@pytest.fixture
def path(backend):
    """A closed store with a trained table and a checkpoint."""
    with backend.open_store() as store:
        store.create_table("a", **config()).update([1, 2], ones(2))
        store.checkpoint("c")
    return backend.path()


def assert_refused(backend, error, *parts, read_only=(False, True)):
    """Expect every opening to be refused, as often as it is tried, and every file left alone."""
    before = snapshot(backend.path())
    for reading in read_only:
        for _ in range(2):  # the second would find the lock, if the first had kept it
            with pytest.raises(EmbstoreError) as caught:
                backend.open_store(read_only=reading)
            assert type(caught.value) is error
            for part in parts:
                assert part in str(caught.value)
    assert snapshot(backend.path()) == before


HOLD = """
import sys, embstore
with embstore.open(sys.argv[1], read_only=sys.argv[2] == "reader") as store:
    print("open", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("holder", ["writer", "reader"])
def test_in_use_by_another_process(path, backend, holder):
    command = [sys.executable, "-c", HOLD, str(path), holder]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "open\n"
        reading = (False, True) if holder == "writer" else (False,)
        assert_refused(backend, StoreInUseError, str(path), read_only=reading)
        other.communicate("close\n")
    backend.open_store().close()


def test_held_by_a_process_that_was_killed_is_free(path, backend):
    command = [sys.executable, "-c", HOLD, str(path), "writer"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        other.stdout.readline()
        other.kill()
    with backend.open_store() as store:
        assert store.table("a").t == 1


def test_foreign_directory(backend):
    backend.path().mkdir()
    (backend.path() / "thesis.txt").write_text("years of work")
    (backend.path() / "log").mkdir()
    (backend.path() / "log" / "000000000001.log").write_text("of something else")
    assert_refused(backend, InvalidArgumentError, "found other files", read_only=(False,))


def test_a_file(backend):
    backend.path().write_text("x")
    for read_only in (False, True):
        with pytest.raises(InvalidArgumentError, match="expected a directory"):
            backend.open_store(read_only=read_only)


def test_empty_directory_and_missing_parents_are_fine(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in ("empty", "new/of/several"):
        with embstore.open(tmp_path / path, cache_bytes=1 << 20) as store:
            assert store.tables() == []
    with embstore.open(str(tmp_path / "text"), cache_bytes=1 << 20) as store:
        assert store.tables() == []


def test_files_of_others_beside_the_store_are_left_alone(path, backend):
    (path / "README").write_text("the ads model")
    with backend.open_store() as store:
        store.table("a").update([1], ones(1))
    assert (path / "README").read_text() == "the ads model"


def test_store_that_lost_its_store_json(path, backend):
    (path / "store.json").unlink()
    assert_refused(backend, CorruptTableError, "store.json", "missing")


def test_store_that_lost_its_catalogue(path, backend):
    (path / "CATALOGUE").unlink()
    assert_refused(backend, CorruptTableError, "CATALOGUE", "missing")


STORE_JSON = {
    "another format": ({"format": 99}, TableMismatchError, (f"format {FORMAT}", "found format 99")),
    "an older format": ({"format": 0}, TableMismatchError, ("found format 0",)),
    "a format in words": ({"format": "one"}, TableMismatchError, ("found format one",)),
    "big-endian": ({"endianness": "big"}, TableMismatchError, ("little-endian", "big")),
    "no store id": ({"store_id": None}, CorruptTableError, ("store.json",)),
    "a short store id": ({"store_id": "00ff"}, CorruptTableError, ("32 digits",)),
    "no hexadecimal store id": ({"store_id": "x" * 32}, CorruptTableError, ("store.json",)),
    "another store's id": ({"store_id": "0" * 32}, CorruptTableError, ("belongs to store",)),
}


def test_store_json_of(path, backend):
    identity = json.loads((path / "store.json").read_text())
    for change, error, parts in each(STORE_JSON.values()):
        (path / "store.json").write_text(json.dumps(identity | change))
        assert_refused(backend, error, *parts)


def body_hash(body):
    return hashlib.blake2b(body, digest_size=32).hexdigest()


def rewrite(path, form=FORMAT, change=lambda body: body):
    """Write the catalogue with another first line or body, its checksum right."""
    _, _, body = (path / "CATALOGUE").read_bytes().partition(b"\n")
    body = change(body)
    head = f"EMBSTORE CATALOGUE {form} {body_hash(body)}\n".encode()
    (path / "CATALOGUE").write_bytes(head + body)


@pytest.mark.parametrize("form", ["99", f"{FORMAT - 1}", "0", f"{FORMAT}.1", "x"])
def test_catalogue_of_another_format(path, backend, form):
    rewrite(path, form=form)
    assert_refused(backend, TableMismatchError, "CATALOGUE", f"format {FORMAT}", f"found {form}")


CHANGES = {
    "no JSON": lambda body: b"{",
    "another JSON": lambda body: b"[]\n",
    "without its tables": lambda body: body.replace(b'"tables"', b'"tablets"'),
    "with a field of the future": lambda body: body.replace(b'"epoch"', b'"aeon": 1,\n "epoch"'),
    "with a table of no dim": lambda body: body.replace(b'"dim": 4', b'"dim": 0'),
    "with an optimizer of the future": lambda body: body.replace(b'"sgd"', b'"lion"'),
    "with a table's t as text": lambda body: re.sub(rb"(?<=\[\[0, )\d+", b'"x"', body),
    "with a table's last write as text": lambda body: re.sub(rb"(?<=\[\[0, 1, )\d+", b'"x"', body),
    "with a table's rows as text": lambda body: re.sub(rb"(\[\[0, 1, \d+, )\d+", rb'\1"x"', body),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_catalogue_that_is_right_by_its_checksum_and_makes_no_sense(path, backend, change):
    before = (path / "CATALOGUE").read_bytes()
    rewrite(path, change=change)
    assert (path / "CATALOGUE").read_bytes() != before
    assert_refused(backend, CorruptTableError, "CATALOGUE")


def test_files_of_another_store(path, backend):
    """A file copied from one store into another is told by the id in its header."""
    with backend.open_store("other") as store:
        store.create_table("a", **config()).update([1, 2], ones(2))
    (segment,) = (path / "log").iterdir()
    (foreign,) = (backend.path("other") / "log").iterdir()
    segment.write_bytes(foreign.read_bytes())
    assert_refused(backend, CorruptTableError, "log/")
    (path / "CATALOGUE").write_bytes((backend.path("other") / "CATALOGUE").read_bytes())
    assert_refused(backend, CorruptTableError, "belongs to store")
