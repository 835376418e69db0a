"""Small files that are read whole: each flipped bit and each cut is refused, or reads the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embstore.commands import Right
from embstore.errors import CorruptTableError, InvalidArgumentError, TableMismatchError
from embstore.results import State
from embstore.sharding import ShardMap
from embstore.storage import catalogue as catalogues
from embstore.storage import lineage as lineages
from embstore.storage import shard as shards
from embstore.storage.catalogue import Catalogue
from embstore.storage.command_records import Place
from embstore.storage.files import Files
from embstore.storage.lineage import Lineage, Promotion
from embstore.storage.shard import ShardPlace
from embstore.storage.states import KeptState
from embstore_server.access import tokens

CATALOGUE = Catalogue("00" * 16, checkpoints=(KeptState("a", {}, State()),), commands=Place(3, 64))
PLACE = ShardPlace(1, ShardMap.even("c", ["h:1", "h:2"]), "by", since=1, moved_commit=2)
ENTRIES = {
    "ads": tokens.Entry("ads", tokens.new_secret()[1], {"ads/*": Right.WRITE}, {"tables": 3}),
    "ops": tokens.Entry("ops", None, {"*": Right.ADMIN}),
}
REFUSALS = (CorruptTableError, TableMismatchError, InvalidArgumentError)


def lineage_of(path: Path) -> Callable[[bytes], Any]:
    files = Files(path)
    lineages.write(files, Lineage((Promotion("ab", 7, 3, 100),), 5, "host:1", "cd"))

    def read(content: bytes) -> Any:
        (path / lineages.PATH).write_bytes(content)
        return lineages.read(files)

    return read


def tokens_of(path: Path) -> Callable[[bytes], Any]:
    tokens.write(path / "TOKENS", ENTRIES)

    def read(content: bytes) -> Any:
        (path / "TOKENS").write_bytes(content)
        return tokens.read(path / "TOKENS")

    return read


def shard_of(path: Path) -> Callable[[bytes], Any]:
    shards.write(Files(path), PLACE)
    return lambda content: shards.decode(content, shards.PATH)


def catalogue_of(path: Path) -> Callable[[bytes], Any]:
    (path / "CATALOGUE").write_bytes(catalogues.encode(CATALOGUE))
    return catalogues.decode


@pytest.mark.parametrize("kind", [catalogue_of, lineage_of, shard_of, tokens_of])
def test_each_flip_and_each_cut_is_refused_or_reads_the_same(tmp_path, kind):
    read = kind(tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    right = read(whole)
    flips = (
        whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        for at in range(len(whole))
        for bit in range(8)
    )
    cuts = (whole[:length] for length in range(len(whole)))
    refused = 0
    for damaged in (*flips, *cuts):
        try:
            assert read(damaged) == right
        except REFUSALS as exc:
            assert file.name in str(exc)
            refused += 1
    assert refused > 7 * len(whole)


def test_a_refusal_of_tokens_says_how_they_are_made_again(tmp_path):
    path = tmp_path / "tokens.json"
    tokens.write(path, ENTRIES)
    path.write_text(path.read_text().replace("write", "admin"))
    with pytest.raises(InvalidArgumentError, match="add its tokens again by embstore token"):
        tokens.read(path)
    path.unlink()
    tokens.change(path, lambda entries: entries.update(ENTRIES), may_be_new=True)
    assert tokens.read(path) == ENTRIES
