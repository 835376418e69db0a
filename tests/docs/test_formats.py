"""docs/formats.md, held against the files of a real store, an archive, and messages of the wire.

The layouts are read from the page's tables, so a wrong size or order there fails here.
"""

import json
import re
import shutil
import zipfile
import zlib
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.config import Limits
from embstore.profiles.hotset import HotSet
from embstore.sharding import ShardMap
from embstore.storage import lineage as lineages
from embstore.storage import shard as shards
from embstore.storage import taking
from embstore.storage.format import FORMAT
from embstore.storage.lineage import Lineage
from embstore.storage.shard import ShardPlace
from embstore_proto.v1 import embstore_pb2 as pb
from tests.style.sources import ROOT, table_rows
from tests.unit.storage_samples import append, open_storage, table_entry

PAGE = (ROOT / "docs" / "formats.md").read_text()
DIM, KEYS = 3, [1, 2, 999]
IDS = [7, -(1 << 63), -2]
PAGE_BYTES = 4096


def layout(name: str) -> dict[str, tuple[int, int]]:
    """Return offset and size of each field of one of the page's layouts."""
    fields, offset = {}, 0
    for size, field, _ in table_rows(PAGE, f"bytes | {name} | content"):
        fields[field] = offset, int(size)
        offset += int(size)
    return fields


def parsed(name: str, content: bytes) -> dict[str, bytes]:
    return {field: content[at : at + size] for field, (at, size) in layout(name).items()}


def number(content: bytes) -> int:
    return int.from_bytes(content, "little")


def crc32c(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store's directory with a sparse table, id 1, of which IDS have row numbers."""
    path = tmp_path_factory.mktemp("sparse") / "store"
    table = table_entry(1, key_space="sparse")
    storage = open_storage(path)
    storage.create_table(table)
    append(storage, IDS, 1, 1)
    storage.commit([table], 1)
    storage.close()
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A store's directory with a file of every kind, and the weights and state of its KEYS."""
    path = tmp_path_factory.mktemp("formats") / "store"
    limits = Limits(fold_bytes=PAGE_BYTES, fold_segments=1)
    options = {"device": "cpu", "cache_bytes": 1 << 20, "count_rate": 1.0, "limits": limits}
    with embstore.open(path, durability="commands", **options) as store:
        table = store.create_table(
            "ads",
            dim=DIM,
            rows=1000,
            optimizer=embstore.RowWiseAdagrad(0.1),
            initializer=embstore.Uniform(-0.1, 0.1),
        )
        table.update([5], np.ones((1, DIM), np.float32))
        store.checkpoint("folded")
        while store.executor.is_merging:
            table.lookup([5])
    with embstore.open(path, durability="commands", **options | {"limits": Limits()}) as store:
        table = store.table("ads")
        table.update(KEYS, np.ones((len(KEYS), DIM), np.float32))
        store.checkpoint("logged", {"step": 2})
        store.import_profile(store.export_profile())
        store.pin_hot_set(HotSet({"ads": np.arange(3)}))
        place = ShardPlace(1, ShardMap.even("cluster", ["127.0.0.1:1", "127.0.0.1:2"]))
        shards.write(store.executor.storage.files, place)
        lineages.write(store.executor.storage.files, Lineage())
        return path, *table.read_rows(KEYS)


def test_tree_of_the_page_is_that_of_a_store(written, numbered):
    tree = re.search(r"```\nDATA/\n(.*?)```", PAGE, re.S)[1]
    named = [line.split()[0] for line in tree.splitlines()]
    assert named.pop() == f"{taking.DIRECTORY}/"  # its files are a commit's
    patterns = [re.sub(r"\d+", r"\\d+", name) for name in named]
    files = [
        str(p.relative_to(path))
        for path in (written[0], numbered)
        for p in path.rglob("*")
        if p.is_file()
    ]
    for pattern in patterns:
        assert any(re.fullmatch(pattern, file) for file in files), pattern
    for file in files:
        assert any(re.fullmatch(pattern, file) for pattern in patterns), file


def test_shard(written):
    line, _, body = (written[0] / "SHARD").read_bytes().partition(b"\n")
    assert line.decode() == f"EMBSTORE SHARD 1 {blake2b(body, digest_size=32).hexdigest()}"
    found = json.loads(body)
    section = PAGE.partition("## SHARD")[2].partition("\n## ")[0]
    for name in (*found, *found["shard_map"]):
        assert f"`{name}`" in section, name
    assert (found["shard"], len(found["shard_map"]["owners"])) == (1, 1024)
    assert ShardMap.from_json(json.dumps(found["shard_map"])).shards[1] == "127.0.0.1:2"


def test_header_page(written, numbered):
    names = ("log/*", "base/*", "commands/*", "ids/*")
    magics = set()
    for file in (p for path in (written[0], numbered) for name in names for p in path.glob(name)):
        store_id = json.loads((file.parent.parent / "store.json").read_text())["store_id"]
        page = file.read_bytes()[:PAGE_BYTES]
        header = parsed("header", page)
        magics.add(header["magic"].decode())
        form = {"log": 4, "ids": 2}.get(file.parent.name, 5)
        assert (number(header["format"]), number(header["byte order"])) == (form, 0x01020304)
        rows = ("key width", "element type", "extra bytes")
        assert [number(header[name]) for name in rows] == [8, 1, 0]
        assert header["store id"].hex() == store_id
        assert number(header["checksum"]) == zlib.crc32(page[: layout("header")["checksum"][0]])
        assert not any(page[sum(layout("header")["checksum"]) :])
        if file.suffix == ".commands":
            assert number(header["third number"]) == file.stat().st_size
        if file.parent.name in ("log", "commands", "ids"):
            assert number(header["first number"]) == int(file.stem)
        else:
            numbers = [number(header["first number"]), number(header["second number"])]
            assert numbers == [int(name) for name in file.stem.split("-")]
    (magic_row,) = (
        row for row in table_rows(PAGE, "bytes | header | content") if row[1] == "magic"
    )
    assert magics == set(re.findall(r"`(\S{8})`", magic_row[2]))


def test_command_log(written, tmp_path):
    copy = tmp_path / "store"
    shutil.copytree(written[0], copy)
    with embstore.open(copy, durability="commands") as store:
        store.table("ads").update([7], np.ones((1, DIM), np.float32))
        (path,) = sorted(copy.glob("commands/*.commands"))[-1:]
        content = path.read_bytes()
        command, (life, first) = store.command, store.executor.tables.frame.lives[-1]
    at, bodies, lives = PAGE_BYTES, [], []
    while True:  # until what another segment left, or nothing
        head = parsed("command record", content[at:])
        end, size = layout("command record")["checksum"][0], number(head["body bytes"])
        if number(head["checksum"]) != zlib.crc32(content[at : at + end], int(path.stem)):
            break
        assert head["magic"] == b"EMCR"
        body = content[at + 64 : at + 64 + size]
        assert number(head["body checksum"]) == zlib.crc32(body)
        bodies.append((number(head["kind"]), number(head["command number"]), body))
        lives.append(number(head["life"]))
        at += 64 + -(-size // 64) * 64
    kind, found, body = bodies[-1]
    assert (kind, found) == (1, command)
    assert (lives[-1], first) == (life, command)
    assert not any(lives[:-1])
    length = number(body[:4])
    described = json.loads(body[4 : 4 + length])
    assert described == {"verb": "Update", "next_table_id": 1}
    message = pb.UpdateRequest.FromString(body[-(-(4 + length) // 64) * 64 :])
    assert message.header.tables[0].table == "ads"


def test_log_segment(written):
    path, weights, state = written
    (segment,) = path.glob("log/*")
    content = segment.read_bytes()
    trailer = parsed("trailer", content[-64:])
    assert trailer["magic"] == b"EMBS.END"
    assert number(trailer["checksum"]) == zlib.crc32(content[-64:-16])
    assert number(trailer["segment number"]) == int(segment.stem)
    assert (number(trailer["records"]), number(trailer["runs"])) == (len(KEYS), 1)
    index = content[number(trailer["index offset"]) : -64]
    assert number(trailer["index checksum"]) == zlib.crc32(index)
    numbers = np.frombuffer(index, "<i8").tolist()
    record_bytes = 16 + 4 * 4  # three weights and one s are a multiple of 16 bytes already
    assert sorted(numbers[: len(KEYS)]) == KEYS
    assert numbers[len(KEYS) :] == [0, PAGE_BYTES, record_bytes]
    for place, key in enumerate(numbers[: len(KEYS)]):
        at = PAGE_BYTES + place * record_bytes
        record = content[at : at + record_bytes]
        assert number(record[:8]) == crc32c(record[8:])
        assert number(record[8:16]) == key
        row = np.frombuffer(record[16:], "<f4")
        assert (row[:DIM] == weights[KEYS.index(key)]).all()
        assert row[DIM] == state[KEYS.index(key)]


def test_tombstone(tmp_path):
    """A record of 16 bytes, of which the runs of the segment tell."""
    with embstore.open(tmp_path / "store", device="cpu", cache_bytes=1 << 20) as store:
        table = store.create_table(
            "ads", dim=DIM, rows=9, optimizer=embstore.Sgd(0.1), initializer=embstore.Constant(0.0)
        )
        table.assign([5], np.ones((1, DIM), np.float32))
        store.checkpoint("written")
        table.delete([5])
        store.checkpoint("deleted")
    content = max((tmp_path / "store").glob("log/*")).read_bytes()
    trailer = parsed("trailer", content[-64:])
    index = content[number(trailer["index offset"]) : -64]
    assert np.frombuffer(index, "<i8").tolist() == [5, 0, PAGE_BYTES, 16]
    record = content[PAGE_BYTES : number(trailer["index offset"])]
    assert (number(record[:8]), number(record[8:])) == (crc32c(record[8:]), 5)


def test_record_of_the_page_is_the_one_parsed_above():
    sizes = [row[0] for row in table_rows(PAGE, "bytes | record | content")]
    assert sizes == ["8", "8", "4 * dim", "4 * state_dim", "to 16"]


def test_base(written):
    (file,) = written[0].glob("base/*")
    content = file.read_bytes()
    trailer = parsed("run trailer", content[-64:])
    assert trailer["magic"] == b"EMBS.RUN"
    assert number(trailer["checksum"]) == zlib.crc32(content[-64:-16])
    assert number(trailer["run number"]) == int(file.stem.split("-")[0])
    assert (number(trailer["records"]), number(trailer["groups"])) == (1, 1)
    record = content[PAGE_BYTES : PAGE_BYTES + 32]
    assert (number(record[:8]), number(record[8:16])) == (crc32c(record[8:]), 5)
    index = content[number(trailer["index offset"]) : -64]
    assert number(trailer["index checksum"]) == zlib.crc32(index)
    entry = parsed("directory", index)
    expected = {"group": 0, "keys": 1, "record bytes": 32, "offset": PAGE_BYTES, "place": 0}
    assert {name: number(value) for name, value in entry.items()} == expected
    assert index[40:] == (5).to_bytes(8, "little")


def test_ids(numbered):
    (file,) = numbered.glob("ids/*")
    content = file.read_bytes()
    header = parsed("header", content)
    assert (number(header["second number"]), number(header["third number"])) == (1, 0)
    ids = content[PAGE_BYTES:]
    assert np.frombuffer(ids, np.int64).tolist() == IDS
    _, _, body = (numbered / "CATALOGUE").read_bytes().partition(b"\n")
    (entry,) = json.loads(body)["ids"]
    (row,) = (row for row in table_rows(PAGE, "field | meaning") if row[0] == "`ids`")
    assert entry.keys() == set(re.findall(r"`(\w+)`", row[1]))
    assert (entry["table_id"], entry["first"], entry["count"]) == (1, 0, len(IDS))
    assert (entry["bytes"], entry["checksum"]) == (len(content), zlib.crc32(ids))


def test_catalogue(written):
    line, _, body = (written[0] / "CATALOGUE").read_bytes().partition(b"\n")
    assert (
        line.decode() == f"EMBSTORE CATALOGUE {FORMAT} {blake2b(body, digest_size=32).hexdigest()}"
    )
    document = json.loads(body)
    fields = {
        name
        for row in table_rows(PAGE, "field | meaning")
        for name in re.findall(r"`(\w+)`", row[0])
    }
    assert document.keys() == fields
    assert (written[0] / f"commands/{document['commands'][0]:012d}.commands").exists()
    _, text = PAGE.split("A **state** has ")
    named = re.findall(r"`(\w+)`", text.partition("\n\n")[0])
    first, second, head = *(one["state"] for one in document["checkpoints"]), document["head"]
    assert first.keys() == second.keys() == head.keys() == set(named)
    rows = [row[0] for row in table_rows(PAGE, "list | of")]
    forms = [re.findall(r"\w+", row) for row in rows if "table_id," in row]
    ((table_id, t, _),), ((*_, identity),) = second["tables"], first["tables"]
    assert [len(row) for row in (second["tables"][0], first["tables"][0])] == [
        len(forms[0]),
        len(forms[2]),
    ]
    assert (table_id, t, identity["name"], head["tables"]) == (0, 2, "ads", [])
    kept = {"label", "metadata", "state", "made_at", "protected"}
    assert document["checkpoints"][0].keys() == kept
    assert document["segments"][0].keys() == {"number", "commit", "bytes", "checksum"}


@pytest.mark.parametrize(
    ("what", "name", "arrays"),
    [("profile", "0.counted", {"keys_0", "counts_0"}), ("hot set", "HOTSET", {"keys_0"})],
)
def test_archive(written, what, name, arrays):
    with zipfile.ZipFile(written[0] / "frequency" / name) as file:
        assert {member.compress_type for member in file.infolist()} == {zipfile.ZIP_STORED}
        assert {member.removesuffix(".npy") for member in file.namelist()} == arrays | {"header"}
        header = json.loads(np.load(file.open("header.npy")).tobytes())
        assert np.load(file.open("keys_0.npy")).dtype.kind == "u"
    (row,) = (row for row in table_rows(PAGE, "file | header | arrays") if row[0] == what)
    assert header.keys() == set(re.findall(r"`(\w+)`", row[1]))
    assert f'"{header["format"]}"' in row[1]


@pytest.mark.parametrize(
    ("name", "kind"), [("bulk message", pb.LookupRequest), ("chunk", pb.Chunk)]
)
def test_fields_of_messages(name, kind):
    on_page = {field: int(n) for n, field, _ in table_rows(PAGE, f"field | {name} | content")}
    assert on_page == {field.name: field.number for field in kind.DESCRIPTOR.fields}


def test_every_bulk_message_has_the_same_fields():
    shape = {field.name for field in pb.LookupRequest.DESCRIPTOR.fields}
    for kind in pb.DESCRIPTOR.message_types_by_name.values():
        if "payload" in kind.fields_by_name:
            assert set(kind.fields_by_name) == shape
