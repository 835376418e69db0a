"""What an error tells its reader to do, done as its text says: then the call is answered."""

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import Constant, InvalidArgumentError, Sgd, connect
from embstore.errors import (
    CheckpointExistsError,
    CheckpointProtectedError,
    EmbstoreError,
    SessionExpiredError,
    TableExistsError,
    TableHeldError,
)
from embstore.handles.table import Table
from embstore_server.access.tokens import read

TABLE: dict[str, Any] = {"dim": 4, "optimizer": Sgd(1.0), "initializer": Constant(0.0)}
CREATE = "new --dim 4 --rows 9 --optimizer sgd --learning-rate 1 --initializer constant:0"


def refusal(call: Callable[[], object], kind: type[EmbstoreError] = InvalidArgumentError) -> str:
    with pytest.raises(kind) as refused:
        call()
    return str(refused.value)


def command_in(text: str) -> list[str]:
    """Return the words of the command at the end of a text, or in quotes; NAME is a name."""
    text = " ".join(text.split())
    found = re.search(r"`embstore ([^`]+)`", text) or re.search(
        r"\bembstore (token .*|set-.*)", text
    )
    assert found is not None, text
    return shlex.split(found[1].replace("NAME", "ann"))


def call_in(text: str, of: Any) -> Any:
    """Call the method of an object that a text names, with the arguments there."""
    found = re.search(r"[. ]([a-z_]+\([^()]+\))", text)
    assert found is not None, text
    return eval(f"of.{found[1]}", {"of": of, "int64": np.int64, "float32": np.float32})


def test_a_label_that_is_kept_is_dropped(shell, server):
    with connect(server.address) as store:
        store.checkpoint("it's one")
        text = refusal(lambda: store.checkpoint("it's one"), CheckpointExistsError)
        words = *command_in(text), "--address", server.address
        confirmed = re.findall(r"--[a-z]+", shell(*words).err)  # this is asked for
        assert shell(*words, *confirmed).status == 0
        store.checkpoint("it's one")


def both_ways(text: str, method: str, words: str) -> list[str]:
    """Return what a text says to call in Python, and to type."""
    (call,) = re.findall(rf"(store[\w.]*(?:\('[^']*'\))?\.{method}\([^()]*\))", text)
    (typed,) = re.findall(rf"embstore ({words} [^,;]+?)(?:, (?:removes|grows) |$)", text)
    return [call, typed]


@pytest.mark.parametrize("way", ["Python", "command line"])
def test_what_a_store_refuses_is_mended_in_python_and_on_the_command_line(shell, server, way):
    """A store cannot know which of both its caller has."""
    with connect(server.address) as store:

        def mend(call: Callable[[], object], kind: type[EmbstoreError], *of: str) -> None:
            call_of, typed = both_ways(refusal(call, kind), *of)
            if way == "Python":
                eval(call_of, {"store": store})
                return
            words = *shlex.split(typed), "--address", server.address
            confirmed = re.findall(r"--yes", shell(*words).err)  # where this is asked for
            assert not confirmed or shell(*words, *confirmed).status == 0

        dropping = "set_retention", "set-retention"
        store.checkpoint("one")
        mend(lambda: store.checkpoint("one"), CheckpointExistsError, *dropping)
        store.checkpoint("one")
        store.checkpoint("two")
        store.set_retention("two", "protected")
        mend(lambda: store.restore("one"), CheckpointProtectedError, *dropping)
        store.restore("one")
        store.set_retention("one", "protected")
        drop = partial(store.set_retention, "one", "dropped")
        mend(drop, CheckpointProtectedError, *dropping)
        drop()
        store.create_table("t", rows=5, **TABLE)
        more = partial(store.create_table, "t", rows=9, **TABLE)
        mend(more, TableExistsError, "grow", "table grow")
        more()
        other = partial(store.create_table, "t", rows=9, **TABLE | {"dim": 3})
        mend(other, TableExistsError, "drop_table", "table drop")
        other()
        for refused in (
            lambda: store.session(["t"], wait_s=0).__enter__(),
            lambda: store.drop_table("t"),
        ):
            with suppress(SessionExpiredError), store.session(["t"]):
                mend(refused, TableHeldError, "end", "sessions close")
                with store.session(["t"], wait_s=30):  # a session that ends has them for a moment
                    pass
        store.drop_table("t")


def test_a_file_of_tokens_is_made(shell, tmp_path):
    tokens = tmp_path / "tokens.json"
    added = shell(*command_in(refusal(lambda: read(tokens))))
    assert added.status == 0, added.err
    assert list(read(tokens)) == ["ann"]


def test_a_table_to_import_is_created(shell, server, tmp_path):
    np.save(tmp_path / "rows.npy", np.ones((9, 4), np.float32))
    words = "import", "new", tmp_path / "rows.npy", "--address", server.address
    refused = shell(*words, "--create")
    assert shell(*command_in(refused.err), *CREATE.split(), *words[-2:]).status == 0
    done = shell(*words)
    assert done.status == 0, done.err


def test_a_table_that_is_otherwise_grows_or_is_dropped(server):
    with connect(server.address) as store:
        table = store.create_table("t", rows=9, **TABLE)
        text = refusal(lambda: store.create_table("t", rows=20, **TABLE), TableExistsError)
        call_in(text[text.index(".grow") :], table)
        assert store.create_table("t", rows=20, **TABLE).rows == 20
        other = TABLE | {"dim": 8, "rows": 20}
        text = refusal(lambda: store.create_table("t", **other), TableExistsError)
        call_in(text[text.index(".drop_table") :], store)
        assert store.create_table("t", **other).dim == 8


@pytest.mark.parametrize("kind", ["f8", "f4", "f2"])
def test_arrays_are_converted(server, kind):
    with connect(server.address) as store:
        table = store.create_table("t", rows=9, **TABLE)
        keys, grads = np.array([3], kind), np.ones((1, 4))
        keys = call_in(refusal(lambda: table.lookup(keys)), keys)
        grads = call_in(refusal(lambda: table.update(keys, grads)), grads)
        table.update(keys, grads)
        assert table.lookup(keys).tolist() == [[-1.0] * 4]


@pytest.mark.parametrize(
    "keys",
    [
        np.array([2**63 + 7, 2**64 - 1], np.uint64),
        np.array(["a", "b"]),
        np.array([b"a", b"b"]),
        np.array(["a", 3, None, np.nan], object),
        ["a", "b"],
    ],
    ids=["uint64", "text", "bytes", "objects", "list"],
)
def test_ids_that_are_no_rows_are_hashed(server, keys):
    """The hint was .astype('int64'), which makes negative keys of some, and an error of others."""
    with connect(server.address) as store:
        table = store.create_table("t", rows=9, **TABLE)
        text = refusal(lambda: table.lookup(keys))
        hashed = called_on(keys, text, table)
        assert len(table.lookup(hashed)) == len(keys)


@pytest.mark.parametrize("keys", [[3, -1], [9], np.array([3.0]), np.array([2**63 + 5], np.uint64)])
def test_other_ids_are_hashed(server, keys):
    with connect(server.address) as store:
        table = store.create_table("t", rows=9, **TABLE)
        text = refusal(lambda: table.lookup(keys))
        assert called_on(keys, text, table).tolist() == embstore.hash_ids(keys, rows=9).tolist()
        assert 'or make the table with key_space="sparse"' in text
        grads = np.ones((len(keys), 4), np.float32)
        assert called_on(keys, refusal(lambda: table.update(keys, grads)), table) is not None


def test_other_ids_are_hashed_before_a_step_is_announced(server):
    with connect(server.address) as store:
        table = store.create_table("t", rows=9, **TABLE)
        store.sessions.open("s", ["t"])
        member = store.sessions.join("s", 0).member
        keys = np.array([3, -1])
        text = refusal(lambda: store.sessions.announce(member, {1: {"t": keys}}))
        store.sessions.announce(member, {1: {"t": np.unique(called_on(keys, text, table))}})


def called_on(keys: Any, text: str, table: Table) -> Any:
    """Return what the function that a refusal names makes of ids."""
    advice = (
        r"; for ids that cannot be keys, pass (embstore\.\w+\([^()]+\))(?:, or make the table|$)"
    )
    ((call),) = re.findall(advice, text)
    return eval(call, {"embstore": embstore, "keys": keys, "table": table})


@pytest.mark.parametrize(
    "keys",
    [
        np.array([1.5]),
        np.array([np.nan]),
        np.array([np.inf]),
        np.array([1e300]),
        np.array([True]),
        np.array([1j]),
        np.array(["2026-11-27"], "M8[D]"),
    ],
    ids=str,
)
def test_what_no_conversion_makes_keys_has_no_hint(server, keys):
    with connect(server.address) as store:
        table = store.create_table("t", rows=9, **TABLE)
        assert refusal(lambda: table.lookup(keys)).endswith(f"int64, found {keys.dtype}")
        assert "astype" not in refusal(lambda: table.update([3], keys.astype(str).reshape(1, 1)))


def test_an_update_that_is_not_finite_is_skipped(server):
    with connect(server.address) as store:
        table = store.create_table("t", rows=9, **TABLE)
        grads = np.full((1, 4), np.nan, np.float32)
        text = refusal(lambda: table.update([3], grads))
        ((name, value),) = re.findall(r'give (\w+)="(\w+)"', text)
        table.update([3], grads, **{name: value})
        assert not table.lookup([3]).any()
