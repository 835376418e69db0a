"""Files of profiles and hot sets: what is small and would take much is refused before it does.

Files that are cut, damaged or foreign are refused by name.
"""

import io
import os
import pickle
import re
import struct
import tracemalloc
import zipfile
import zlib
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.errors import InvalidArgumentError, StorageError
from embstore.profiles import archive
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile, TableProfile
from tests.unit.profile_samples import archive_of, members_of, whole_profile


def profile_of(**keys):
    """Return a profile of tables by their keys, each accessed once."""
    arrays = {name: np.array(of_table, np.int64) for name, of_table in keys.items()}
    return Profile(
        {name: TableProfile(name, 0, k, np.ones_like(k), len(k)) for name, k in arrays.items()}
    )


PROFILE = profile_of(a=[0, 1, 2], b=[1])
WIDE = profile_of(a=[0, 1, 300])


def refused(content, reason, kinds=(Profile, HotSet)):
    for kind in kinds:
        with pytest.raises(InvalidArgumentError, match=f"bytes: expected an embstore .*{reason}"):
            kind.from_bytes(content)


def peak_bytes(work):
    """Return how much memory NumPy and Python took at most at once, while work was done."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def stored(name, data):
    """Return what goes before a member of an archive, and its line of the directory but the end."""
    size, check = len(data), zlib.crc32(data)
    facts = (20, 0, 0, 0, 33, check, size, size, len(name), 0)
    return (
        struct.pack("<4s5H3L2H", b"PK\3\4", *facts) + name,
        struct.pack("<4s6H3L5H", b"PK\1\2", 20, *facts, 0, 0, 0) + bytes(4),
    )


def ended(body, lines):
    """Return a body with the directory behind it."""
    directory = b"".join(lines)
    end = (b"PK\5\6", 0, 0, *[min(len(lines), 0xFFFF)] * 2, len(directory), len(body), 0)
    return body + directory + struct.pack("<4s4H2LH", *end)


def overlapping(count, member_bytes):
    """Return an archive of members of which each holds all that come after it."""
    body, found = bytes(member_bytes), []
    for place in reversed(range(count)):
        name = f"keys_{place}.npy".encode()
        front = io.BytesIO()
        facts = {"descr": "|u1", "fortran_order": False, "shape": (len(body),)}
        np.lib.format.write_array_header_1_0(front, facts)
        data = front.getvalue() + body
        before, line = stored(name, data)
        body = before + data
        found.append((name, line, len(body)))
    lines = [line + struct.pack("<L", len(body) - size) + name for name, line, size in found]
    return ended(body, lines)


HOT_SET = HotSet({"a": np.array([0, 5, 2**39]), "b": np.empty(0, np.int64)}, 3, 17, 4096)
each_kind = pytest.mark.parametrize("made", [whole_profile(), HOT_SET], ids=["profile", "hot set"])


def refused_or_same(made, content):
    """Say whether content is refused by the name of its file; else it means the same as before."""
    try:
        found = type(made).from_bytes(content, "some.file")
    except InvalidArgumentError as exc:
        assert str(exc).startswith("some.file: expected an embstore ")
        return True
    assert found.to_bytes() == made.to_bytes()
    return False


@each_kind
def test_what_is_saved_is_loaded_and_replaces_what_was_there(made, tmp_path):
    path = tmp_path / "some.file"
    path.write_bytes(b"before")
    made.save(str(path))
    assert path.read_bytes() == made.to_bytes() == type(made).load(path).to_bytes()
    assert [found.name for found in tmp_path.iterdir()] == ["some.file"]


@each_kind
def test_a_file_cut_anywhere_is_refused(made):
    content = made.to_bytes()
    assert all(refused_or_same(made, content[:length]) for length in range(len(content)))


@each_kind
def test_a_flipped_bit_is_refused_or_makes_no_difference(made):
    """Some bytes of an archive say nothing, dates for example; those of arrays have a checksum."""
    content, refusals = bytearray(made.to_bytes()), 0
    random = np.random.default_rng(61)
    for position in range(len(content)):
        bit = 1 << int(random.integers(8))
        content[position] ^= bit
        refusals += refused_or_same(made, bytes(content))
        content[position] ^= bit
    assert refusals > len(content) / 2


@each_kind
@settings(max_examples=150)
@given(st.data())
def test_bytes_changed_at_random_are_refused_or_make_no_difference(made, data):
    content = bytearray(made.to_bytes())
    low = data.draw(st.integers(0, len(content)))
    patch = data.draw(st.binary(max_size=40))
    content[low : low + data.draw(st.sampled_from([len(patch), 0, 7]))] = patch
    refused_or_same(made, bytes(content))


@each_kind
def test_a_file_of_something_else_is_refused_by_its_name(made, tmp_path):
    path = tmp_path / "a"
    other = HOT_SET if isinstance(made, Profile) else PROFILE
    others = (b"", b"PK", b"\x00" * 1000, b"1\t2\t3\n" * 50, pickle.dumps({}), other.to_bytes())
    for wrong in (tmp_path / "none", tmp_path, *others):
        if isinstance(wrong, bytes):
            path.write_bytes(wrong)
            wrong = path
        with pytest.raises(
            InvalidArgumentError, match=f"^{re.escape(str(wrong))}: expected an emb"
        ):
            type(made).load(wrong)


def test_arrays_are_read_one_at_a_time_and_only_those_of_the_header():
    """All arrays of a file were held before the first of them was checked."""
    members = members_of(PROFILE.to_bytes())
    many = np.ones(1 << 22, np.uint8)
    wrong = archive_of({**members, "keys_0": np.array([0, 0, 1], np.uint8), "counts_1": many})
    more = archive_of({**members, "keys_2": many})
    for content, reason in ((wrong, "keys ascending"), (more, "no more in it")):
        read = partial(refused, content, reason, [Profile])
        assert peak_bytes(read) < 1 << 20


def test_members_that_overlap_are_refused():
    """A MiB of them took GiB: each was no longer than the file, and all were held, widened. Newer
    versions of Python refuse to read them, too."""
    content = overlapping(400, 1 << 18)
    with zipfile.ZipFile(io.BytesIO(content)) as file, suppress(zipfile.BadZipFile):
        assert sum(map(len, map(file.read, file.namelist()))) > 100 * (1 << 20)
    assert peak_bytes(partial(refused, content, "bytes of arrays, found .* bytes in all")) < 1 << 20


@pytest.mark.parametrize("is_long", [False, True], ids=["zip", "zip64"])
def test_a_list_of_too_many_members_is_refused_unread(is_long):
    """Each becomes an object of half a KiB, whatever comes of the file."""
    _, line = stored(b"", b"")
    count = archive.DIRECTORY_BYTES_MAX // (len(line) + 4) + 1
    content = ended(b"", [line + bytes(4)] * count)
    if is_long:
        end = len(content) - 22
        long = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, end, 0)
        content = content[:end] + long + struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
        content += struct.pack("<4s4H2LH", b"PK\5\6", *[0xFFFF] * 4, *[0xFFFFFFFF] * 2, 0)
    assert len(zipfile.ZipFile(io.BytesIO(content)).infolist()) == count
    assert peak_bytes(partial(refused, content, "a list of at most 4194304 bytes")) < 1 << 20


def test_a_large_header_is_refused_unread():
    """JSON became objects of 28 times its size, and no other thread ran until it had."""
    text = b'{"x":[' + b"{}," * (archive.HEADER_BYTES_MAX // 3) + b"{}]}"
    content = archive_of({"header": np.frombuffer(text, np.uint8)})
    assert peak_bytes(partial(refused, content, "a header of at most")) < 1 << 20


def test_no_file_is_written_that_could_not_be_read():
    limit = archive.HEADER_BYTES_MAX
    names = [f"{place:0255}" for place in range(4096)]
    profile = profile_of(**dict.fromkeys(names, ()))
    assert list(Profile.from_bytes(profile.to_bytes()).tables) == names
    with pytest.raises(InvalidArgumentError, match=f"take at most {limit} bytes, found"):
        Profile({}, store_id="x" * limit).to_bytes()


def test_no_file_is_written_of_more_arrays_than_are_read(monkeypatch):
    monkeypatch.setattr(archive, "DIRECTORY_BYTES_MAX", 5 * 62)
    assert Profile.from_bytes(PROFILE.to_bytes()).tables.keys() == {"a", "b"}
    with pytest.raises(InvalidArgumentError, match="a list of at most 310 bytes"):
        profile_of(a=[1], b=[2], c=[3]).to_bytes()


def test_a_reason_is_short():
    """It told all that a header had too much, whatever its length."""
    for content in (Profile({}, store_id="x").to_bytes(), HotSet({}).to_bytes()):
        members = members_of(content)
        header = members["header"].tobytes().replace(b"{", b'{"' + b"x" * 1_000_000 + b'": 1, ', 1)
        told = archive_of({**members, "header": np.frombuffer(header, np.uint8)})
        for kind in (Profile, HotSet):
            with pytest.raises(InvalidArgumentError) as caught:
                kind.from_bytes(told)
            assert len(str(caught.value)) < 2000


def test_an_array_that_says_it_is_longer_takes_no_memory():
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as file:
        array = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            array, {"descr": "|u1", "fortran_order": False, "shape": (2**50,)}
        )
        file.writestr("header.npy", array.getvalue())
    refused(raw.getvalue(), "an array of shape")


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0]),
        np.array([-1]),
        np.array([{}]),
        np.array([[[1]]], np.uint8),
        np.array(1, np.uint8),
        np.array([1], "M8[s]"),
    ],
    ids=str,
)
def test_arrays_of_another_kind_are_refused(values):
    told = archive_of({**members_of(PROFILE.to_bytes()), "header": values})
    refused(told, "an array of unsigned integers")


def test_a_front_of_another_length_than_it_says_is_refused():
    raw = io.BytesIO(PROFILE.to_bytes())
    told = io.BytesIO()
    with zipfile.ZipFile(raw) as source, zipfile.ZipFile(told, "w") as file:
        for name in source.namelist():
            content = bytearray(source.read(name))
            content[8] += 1  # of the length
            file.writestr(name, bytes(content))
    refused(told.getvalue(), "an array of unsigned integers")


def test_arrays_of_another_byte_order_are_read():
    members = {name: values.astype(">u2") for name, values in members_of(WIDE.to_bytes()).items()}
    members["header"] = members["header"].astype(np.uint8)
    assert Profile.from_bytes(archive_of(members)) == WIDE


@pytest.mark.parametrize("made", [PROFILE, HotSet({"a": np.arange(3)}, 1)], ids=["profile", "hot"])
def test_reading_calls_no_parser_of_python(made, monkeypatch):
    """It fails now and then in Python 3.11 when two threads are in it: two clients that pinned the
    same hot set were told that the file was damaged."""

    def parse(*_, **__):
        raise SystemError("AST constructor recursion depth mismatch (before=54, after=51)")

    content = made.to_bytes()
    with monkeypatch.context() as patched:  # pytest itself parses
        patched.setattr("ast.parse", parse)
        patched.setattr("ast.literal_eval", parse)
        found = type(made).from_bytes(content)
    assert found == made


def test_compressed_archives_are_refused():
    """A kilobyte of them can be a gigabyte of zeros."""
    raw = io.BytesIO()
    np.savez_compressed(raw, **members_of(PROFILE.to_bytes()))
    refused(raw.getvalue(), "no compression")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_is_there_twice_is_refused():
    raw = io.BytesIO(PROFILE.to_bytes())
    with zipfile.ZipFile(raw, "a") as file:
        file.writestr("header.npy", file.read("header.npy"))
    refused(raw.getvalue(), "each array once")


def test_saving_follows_a_link(tmp_path):
    """The link was replaced, and the file that it led to stayed as it was."""
    for name in ("there", "not yet"):
        link = tmp_path / f"link to {name}"
        link.symlink_to(tmp_path / name)
        if name == "there":
            profile_of().save(tmp_path / name)
        PROFILE.save(link)
        assert link.is_symlink()
        assert Profile.load(tmp_path / name).to_bytes() == PROFILE.to_bytes()


def test_saving_replaces_nothing_but_files(tmp_path):
    """A device was replaced by a file, /dev/full among others. (A pipe is none either.)"""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(StorageError, match=f"{path}: expected a regular file"):
            PROFILE.save(path)
    assert pipe.is_fifo() and link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]
