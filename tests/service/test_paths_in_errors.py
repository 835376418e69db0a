"""Errors about files name the path and what was tried, whichever command it is, and whatever the
system said."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore_server.cli import exits
from tests.service.frequency_samples import profile_of

STRANGE: dict[str, Callable[[Path], Path]] = {
    "a long name": lambda here: here / ("n" * 300),
    "a long path": lambda here: here.joinpath(*["f" * 200] * 25, "x"),
    "below a file": lambda here: here / "file" / "x",
    "a link to itself": lambda here: here / "loop",
    "below a link to itself": lambda here: here / "loop" / "x",
    "a folder": lambda here: here / "folder",
    "below no folder": lambda here: here / "none" / "x",
}
"""Paths where no file is, and none can be made; the last two may become a folder of a store."""
OF_FOLDERS = list(STRANGE)[:-2]
SAID = {
    "a long name": os.strerror(errno.ENAMETOOLONG),
    "a long path": os.strerror(errno.ENAMETOOLONG),
}
"""What the system says, which is to come with the path."""
TRIED = re.compile("cannot|could not|expected", re.IGNORECASE)

HERE = [
    ["token", "add", "a", "--right", "read", "--tables", "*", "--tokens", "FILE"],
    ["token", "list", "--tokens", "FILE"],
    ["profile", "FILE", "-o", "out.profile"],
    ["profile", "samples.csv", "--table", "a=ads", "-o", "FILE"],
    ["hotset", "--profile", "FILE", "--budget", "1MiB", "-o", "hot"],
    ["hotset", "--profile", "in.profile", "--budget", "1MiB", "-o", "FILE"],
    ["size", "--profile", "FILE"],
    ["report", "FILE"],
    ["demo", "--data", "FILE"],
    ["demo", "--report", "FILE"],
    ["demo", "--keep", "FOLDER"],
    ["verify", "FOLDER"],
    ["restore-from", "FOLDER", "again"],
    ["restore-from", "kept", "FOLDER"],
    ["serve", "--data", "FOLDER"],
    ["serve", "--data", "new", "--config", "FILE"],
    ["serve", "--data", "new", "--tokens", "FILE"],
    ["serve", "--data", "new", "--tls-cert", "FILE", "--tls-key", "FILE"],
    ["serve", "--data", "new", "--shard-map", "FILE", "--shard", "0"],
    ["serve", "--data", "new", "--follow", "127.0.0.1:1", "--follow-token", "FILE"],
]
OF_A_SERVER = [
    *(["export", "ads", "-o", f"FILE.{end}"] for end in ("npy", "parquet", "safetensors")),
    *(["import", "ads", f"FILE.{end}"] for end in ("npy", "csv", "parquet", "safetensors", "txt")),
    ["export-profile", "-o", "FILE"],
    ["import-profile", "FILE"],
    ["pin-hotset", "FILE"],
    ["backup", "FOLDER"],
    ["stats", "--token-file", "FILE"],
    ["stats", "--tls-ca", "FILE"],
]


def named(words: list[str]) -> str:
    return " ".join(words)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with what the commands read."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "file").write_bytes(b"x")
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    (folder / "samples.csv").write_text("a\n1\n2\n")
    profile_of({"ads": {1: 5, 2: 3}}).save(folder / "in.profile")
    return folder


def check(run: Callable[..., Any], words: list[str], here: Path) -> None:
    wrong = []
    for kind in OF_FOLDERS if "FOLDER" in words else STRANGE:
        path = str(STRANGE[kind](here))
        given = [re.sub("FILE|FOLDER", path, word) for word in words]
        if kind == "a folder" and given[-1].endswith(path + words[-1].removeprefix("FILE")):
            Path(given[-1]).mkdir(exist_ok=True)
        ended = run(*given)
        is_said = path in ended.err and TRIED.search(ended.err) and SAID.get(kind, "") in ended.err
        if ended.status not in (exits.FAILED, exits.USAGE) or not is_said:
            wrong.append((kind, ended.status, ended.err.replace(path, "PATH")))
    assert not wrong


@pytest.mark.parametrize("words", HERE, ids=named)
def test_commands(here, shell, words):
    check(shell, words, here)


@pytest.mark.parametrize("words", OF_A_SERVER, ids=named)
def test_commands_of_a_server(here, typed, client, words):
    client.table("ads").assign(np.arange(2), np.ones((2, 4), np.float32))
    check(typed, words, here)
