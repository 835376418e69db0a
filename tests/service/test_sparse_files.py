"""Files of tables of sparse keys: keys of any bits, in any order, and no .npy."""

from typing import Any

import numpy as np
import pytest

import embstore
from embstore.config import Uniform
from embstore.errors import InvalidArgumentError
from embstore_client.files import export_table, import_table
from embstore_server.cli import exits, main
from tests.conformance.cases import OPTIMIZERS, generator, normal
from tests.service.test_table_files import DIM, WHOLE, format_of, import_error, open_store

__all__ = ["open_store"]
KINDS = pytest.mark.parametrize("kind", WHOLE)
IDS = np.random.default_rng(5).integers(0, 2**64 - 1, 500, np.uint64).view(np.int64)


def made(store: embstore.Store, name: str = "ads", **given: Any) -> embstore.Table:
    usual: dict[str, Any] = {"dim": DIM, "initializer": Uniform(-1.0, 1.0), "seed": 3}
    usual |= {"optimizer": OPTIMIZERS["adam"]}
    return store.create_table(name, **(usual | (given or {"key_space": "sparse"})))


def trained(table: embstore.Table, seed: int, low: int = 0, high: int = 500) -> embstore.Table:
    rng = generator(seed)
    keys = IDS[rng.integers(low, high, 300)]
    table.update(keys, normal(rng, 300, DIM))
    return table


@KINDS
def test_an_export_with_state_makes_an_equal_table(open_store, tmp_path, kind):
    store, file = open_store(), tmp_path / f"ads.{format_of(kind)}"
    table = trained(made(store), 1)
    done = export_table(table, file, with_state=True, batch_rows=40)
    other = made(open_store("other"))
    read = import_table(other, file, with_state=True, batch_rows=30)
    assert read.rows == done.rows > 200
    assert other.digest() == table.digest()


def test_keys_in_files_of_others(open_store, tmp_path):
    """Unsigned or not, in any order; the last row of a key stays."""
    store, rows = open_store(), normal(generator(2), 4, DIM)
    keys = np.array([2**63 + 5, 7, 2**64 - 2, 7], np.uint64)
    for kind in ("npz", "parquet"):
        file = tmp_path / f"x.{kind}"
        if kind == "npz":
            np.savez(file, keys=keys, weights=rows)
        else:
            pa = pytest.importorskip("pyarrow", reason="needs the extra 'data'")
            from pyarrow import parquet

            parquet.write_table(pa.table({"key": keys, "weights": list(rows)}), file)
        table = made(store, kind)
        import_table(table, file)
        assert table.lookup(keys[:3]).tobytes() == rows[[0, 3, 2]].tobytes()
        assert table.scan().rows == 3


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_keys_of_all_64_bits_as_text(open_store, tmp_path, kind):
    """With a sign or without, quoted or not; the last row of a key stays."""
    pytest.importorskip("pyarrow", reason="needs the extra 'data'")
    table, rows = made(open_store()), normal(generator(2), 6, DIM)
    keys = [
        "9223372036854775813",
        "7",
        "18446744073709551614",
        '"-3"',
        " 0 ",
        "-9223372036854775803",
    ]
    between = {"csv": ",", "tsv": "\t"}[kind]
    names = between.join(["key", *(f"x{n}" for n in range(DIM))])
    lines = [between.join([k, *map(repr, r.tolist())]) for k, r in zip(keys, rows, strict=True)]
    file = tmp_path / f"x.{kind}"
    file.write_text("\n".join([names, *lines]))
    import_table(table, file)
    found = table.lookup(np.array([2**63 + 5, 7, 2**64 - 2, 2**64 - 3, 0], np.uint64))
    assert found.tobytes() == rows[[5, 1, 2, 3, 4]].tobytes()
    assert table.scan().rows == 5
    for key in ("18446744073709551616", "-9223372036854775809", "seven", "7.5", "", "--7"):
        file.write_text(f"{names}\n{lines[0].replace(keys[0], key)}")
        assert str(file) in import_error(table, file)
    file.write_text(f"{names}\n{lines[0].replace(keys[0], '18446744073709551615')}")
    assert "18446744073709551615" in import_error(table, file)


def test_the_value_that_is_no_key_is_refused(open_store, tmp_path):
    np.savez(tmp_path / "x.npz", keys=np.array([1, -1]), weights=np.ones((2, DIM), np.float32))
    said = import_error(made(open_store()), tmp_path / "x.npz")
    assert "18446744073709551615" in said


def test_a_npy_file_has_no_sparse_keys(open_store, tmp_path):
    table = trained(made(open_store()), 1)
    with pytest.raises(
        InvalidArgumentError, match=r"of sparse keys: write \.safetensors or \.parquet"
    ):
        export_table(table, tmp_path / "x.npy")
    assert not [*tmp_path.glob("x.npy*")]


@KINDS
def test_a_table_of_dense_keys_has_no_place_for_sparse_ones(open_store, tmp_path, kind):
    store, file = open_store(), tmp_path / f"ads.{format_of(kind)}"
    export_table(trained(made(store), 1), file)
    dense = made(store, "dense", rows=9)
    assert 'make the table with key_space="sparse"' in import_error(dense, file)
    keys = np.arange(9)
    dense.assign(keys, normal(generator(4), 9, DIM))
    export_table(dense, tmp_path / f"dense.{kind}")
    wide = made(store, "wide")
    import_table(wide, tmp_path / f"dense.{kind}")
    assert wide.lookup(keys).tobytes() == dense.lookup(keys).tobytes()


@KINDS
def test_what_was_since_on_top_of_an_export_is_the_later_export(open_store, tmp_path, kind):
    store, base, since = open_store(), tmp_path / f"0.{format_of(kind)}", tmp_path / f"1.{kind}"
    table, other = trained(made(store), 1, 0, 400), made(open_store("other"))
    store.checkpoint("one")
    export_table(table, base, label="one", with_state=True)
    trained(table, 2, 350, 500)
    table.delete(IDS[:40])
    trained(table, 3, 0, 5)  # rows that were deleted come back
    about = export_table(table, since, since="one", with_state=True).about
    assert len(about.since_sample) > 15 and len(about.deleted_keys)
    assert "since checkpoint 'one': expected table" in import_error(other, since, with_state=True)
    import_table(other, base, with_state=True)
    for _ in range(2):
        import_table(other, since, with_state=True)
        assert other.digest() == table.digest()


def test_commands(server, tmp_path, capsys):
    file = tmp_path / "seen.safetensors"
    with embstore.connect(server.address) as store:
        table = trained(made(store, "seen"), 1)
        address = ["--address", server.address]
        assert main(["export", "seen", "-o", str(file), "--with-state", *address]) == exits.OK
        again = ["import", "again", str(file), "--with-state", "--create", *address]
        assert main(again) == exits.OK
        assert store.table("again").config.is_sparse
        assert store.table("again").lookup(IDS).tobytes() == table.lookup(IDS).tobytes()
        assert main(["export", "seen", "-o", str(tmp_path / "x.npy"), *address]) != exits.OK
        assert "of sparse keys" in capsys.readouterr().err
