"""Weight decay of a table, wherever a table is written down: files, REST, the command line."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.config import Limits
from embstore_server.cli import connection, exits
from tests.decayed import DECAYED, name_of

KEYS = np.arange(30)
SHAPE: dict[str, Any] = {"dim": 4, "rows": 100, "initializer": embstore.Uniform(-1.0, 1.0)}
WORDS = ["--dim", "4", "--rows", "9", "--learning-rate", "0.5", "--initializer", "constant:1"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[embstore.Store]:
    """Return the store that commands reach."""
    with embstore.open(tmp_path / "store", cache_bytes=1 << 20) as opened:
        monkeypatch.setattr(connection, "connected", lambda *way: nullcontext(opened))
        yield opened


def train(table: Any) -> None:
    rng = np.random.default_rng(4)
    for _ in range(3):
        table.update(KEYS, rng.standard_normal((30, 4), np.float32))


@pytest.mark.parametrize("optimizer", DECAYED, ids=name_of)
def test_an_exported_table_is_made_again_and_trains_on_alike(optimizer, shell, store, tmp_path):
    place, digests = str(tmp_path / "ads.safetensors"), []
    table = store.create_table("ads", optimizer=optimizer, **SHAPE)
    train(table)
    assert shell("export", "ads", "-o", place, "--with-state").status == 0
    train(table)
    digests.append(table.digest())
    store.drop_table("ads")
    assert shell("import", "ads", place, "--with-state", "--create").status == 0
    again = store.table("ads")
    assert again.optimizer == optimizer
    train(again)
    digests.append(again.digest())
    assert digests[0] == digests[1]


@pytest.mark.parametrize("optimizer", DECAYED, ids=name_of)
def test_a_store_that_is_opened_again_trains_on_alike(optimizer, tmp_path):
    """From its catalogue, and from a command log that has the table's creation."""
    digests = []
    for durability in ("checkpoint", "commands"):
        path = tmp_path / durability
        how: Any = {"durability": durability, "cache_bytes": 1 << 20, "limits": Limits()}
        with embstore.open(path, **how) as store:
            train(store.create_table("ads", optimizer=optimizer, **SHAPE))
            store.checkpoint("one")
        with embstore.open(path, **how) as store:
            assert store.table("ads").optimizer == optimizer
            train(store.table("ads"))
            digests.append(store.table("ads").digest())
            store.restore("one")
            train(store.table("ads"))
            digests.append(store.table("ads").digest())
    assert len(set(digests)) == 1


def test_the_command_line_shows_it(shell, store):
    more = ["--optimizer", "adam", "--weight-decay", "0.1", "--decoupled-weight-decay"]
    assert shell("table", "create", "ads", *WORDS, *more).status == 0
    assert "weight_decay=0.1 decoupled_weight_decay=1" in shell("table", "show", "ads").out
    optimizer = shell("table", "show", "ads", "--json").document["optimizer"]
    assert (optimizer["weight_decay"], optimizer["decoupled_weight_decay"]) == (0.1, True)
    shell("table", "create", "users", *WORDS, "--optimizer", "adam")
    assert "decay" not in shell("table", "show", "users").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sgd", "--weight-decay", "-1"], "weight_decay to be finite in fp32 and >= 0, found -1"),
        (["sgd", "--weight-decay", "inf"], "weight_decay to be finite in fp32 and >= 0, found inf"),
        (["ftrl", "--weight-decay", "1"], "ftrl has no --weight-decay; leave it out"),
    ],
)
def test_the_command_line_refuses_it(words, told, shell, store):
    ended = shell("table", "create", "ads", *WORDS, "--optimizer", *words)
    assert ended.status == exits.USAGE
    assert told in ended.err
    assert store.tables() == []


async def test_rest_tells_it(rest):
    optimizer = embstore.Sgd(0.1, weight_decay=0.2, decoupled_weight_decay=True)
    made: Any = {"optimizer": optimizer, **SHAPE}
    await rest.on_engine(lambda store: store.create_table("decayed", **made))
    told = await rest.get("/api/v1/tables/decayed")
    assert told["table"]["optimizer"] == {
        "kind": "sgd",
        "learning_rate": 0.1,
        "weight_decay": 0.2,
        "decoupled_weight_decay": True,
    }
