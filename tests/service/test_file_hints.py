"""What an error of importing, exporting or profiling says to do, done as its text says."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.config import Adam, Constant, Sgd
from embstore.errors import EmbstoreError
from embstore_client.files import export_table, import_table
from tests.service.test_hints import call_in

pa = pytest.importorskip("pyarrow", reason="needs the extra 'data'")
parquet = pytest.importorskip("pyarrow.parquet")

DIM = 4
KEYS = np.arange(9)
ROWS = np.arange(9 * DIM, dtype=np.float32).reshape(9, DIM)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[embstore.Store]:
    with embstore.open(tmp_path / "store", cache_bytes=1 << 20) as opened:
        yield opened


def made(store: embstore.Store, name: str = "ads", rows: int = 9, **how: Any) -> embstore.Table:
    given: dict[str, Any] = {"optimizer": Adam(0.1), "initializer": Constant(0.0)} | how
    return store.create_table(name, dim=DIM, rows=rows, **given)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(EmbstoreError) as caught:
        call()
    return str(caught.value)


def test_a_table_of_too_few_rows_is_grown(store, tmp_path):
    np.save(tmp_path / "a.npy", ROWS)
    table = made(store, rows=5)
    call_in(refusal(lambda: import_table(table, tmp_path / "a.npy")), table)
    assert import_table(table, tmp_path / "a.npy").rows == 9


def test_state_that_does_not_fit_is_left_out(store, tmp_path):
    place, bare = tmp_path / "a.parquet", tmp_path / "bare.parquet"
    table, other = made(store), made(store, "other", optimizer=Sgd(0.1))
    table.update(KEYS, ROWS)
    export_table(table, place, with_state=True)
    export_table(table, bare)
    table.update(KEYS, ROWS)  # t cannot go back
    for into, file in ((other, place), (other, bare), (table, place)):
        text = refusal(lambda into=into, file=file: import_table(into, file, with_state=True))
        assert re.search("import it without|or without state", text), text
        assert import_table(into, file).rows == 9
    assert "import into a new table" in text
    assert import_table(made(store, "new"), place, with_state=True).t == 1


def test_what_npy_cannot_have_goes_to_the_formats_that_are_named(store, tmp_path):
    wide = made(store, "wide", rows=2**40)
    wide.assign(KEYS, ROWS)
    for how in ({}, {"with_state": True}):
        text = refusal(lambda how=how: export_table(wide, tmp_path / "a.npy", **how))
        endings = re.findall(r"\.(?:safetensors|parquet)", text)
        assert len(endings) == 2
        pytest.importorskip("safetensors")
        for ending in endings:
            assert export_table(wide, tmp_path / f"a{ending}", **how).rows == 9


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_one_of_several_is_named(store, tmp_path, ending):
    table, place = made(store), tmp_path / f"a.{ending}"
    lists = pa.array(list(ROWS))
    if ending == "npz":
        np.savez(place, no=KEYS, a=ROWS, b=ROWS + 1)
    else:
        parquet.write_table(pa.table({"no": KEYS, "a": lists, "b": lists}), place)
    names: dict[str, str] = {}
    for argument in ("key", "tensor"):
        if ending == "npz" and argument == "key":
            continue  # its rows are numbered
        text = refusal(lambda: import_table(table, place, **names))
        assert text.endswith("name one of them")
        of_key = argument == "key"
        assert of_key == ("of keys" in text)
        names[argument] = re.findall("'([a-z]+)'", text.partition("found")[2])[0 if of_key else -1]
    assert import_table(table, place, **names).rows == 9


def test_a_profile_is_made_as_the_refusals_say(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parquet.write_table(pa.table({"user": KEYS, "item": KEYS}), "day.parquet")
    pa.csv.write_csv(pa.table({"user": KEYS, "item": KEYS}), "day.csv")
    for file in ("day.parquet", "day.csv"):
        words = ["profile", file, "-o", "p"]
        refused = shell(*words)
        (flag, column) = re.findall(
            r"(--table) COLUMN=NAME for a .*; its columns are (\w+)", refused.err
        )[0]
        assert shell(*words, flag, f"{column}=users").status == 0
        assert shell(*words, flag, f"{column}=users", "--rate", "1e-30").status == 0
        refused = shell("size", "--profile", "p")
        (rate,) = re.findall(r"profile again at a higher (--rate)", refused.err)
        assert shell(*words, flag, f"{column}=users", rate, "1").status == 0
        assert shell("size", "--profile", "p").status == 0
