"""Errors about files name the path and what was tried, whichever command it is, and whatever the
system said."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embstore_server.cli import exits
from tests.service.frequency_samples import profile_of
from tests.service.shell import Shell

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
TRIED = re.compile("cannot|could not|expected|invalid value", re.IGNORECASE)
LONG = os.strerror(errno.ENAMETOOLONG), "'PATH'does not exist"
"""What is said of a long name: by the system, or by the command line, which looks first."""
BOX = re.compile(r"[\s│╭╮╰╯─]")
"""Where the command line breaks lines, in a frame."""

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
]
SERVE = [
    ["serve", "--data", "FOLDER"],
    ["serve", "--data", "new", "--config", "FILE"],
    ["serve", "--data", "new", "--tokens", "FILE"],
    ["serve", "--data", "new", "--shard-map", "FILE", "--shard", "0"],
    ["serve", "--data", "new", "--tls-cert", "FILE", "--tls-key", "FILE"],
]
ANYWHERE = "--listen", "127.0.0.1:0", "--admin", "off"
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
    takes_links = words[0] == "export"
    for kind in OF_FOLDERS if "FOLDER" in words else STRANGE:
        if kind == "a link to itself" and takes_links:
            continue
        path = str(STRANGE[kind](here))
        given = [re.sub("FILE|FOLDER", path, word) for word in words]
        if kind == "a folder":
            for word in filter(lambda word: word.startswith(path), given):
                Path(word).mkdir(exist_ok=True)
        ended = run(*given)
        said = BOX.sub("", ended.out + ended.err).replace(BOX.sub("", path), "PATH")
        is_named = "PATH" in said and TRIED.search(ended.out + ended.err)
        if kind.startswith("a long"):
            is_named = is_named and any(BOX.sub("", text) in said for text in LONG)
        if kind == "a long path" and words[0] == "backup":  # refused by its form, before it is sent
            is_named = "PATH" in said and "of1to4096printablecharacters" in said
        if ended.status not in (exits.FAILED, exits.USAGE) or not is_named:
            wrong.append((kind, ended.status, said[-300:]))
    assert not wrong


@pytest.mark.parametrize("words", HERE, ids=named)
def test_commands(here, shell, words, server):
    server.store.backup(str(here / "kept"))
    check(shell, words, here)


def test_the_doctor(here, shell):
    """Of a directory that is not there it examines the next one above."""
    for kind in ("a long name", "a long path"):
        path = STRANGE[kind](here)
        ended = shell("doctor", path)
        assert ended.status == exits.FAILED
        assert f"cannot look at {path}: {LONG[0]}" in ended.out


@pytest.mark.parametrize("words", SERVE, ids=named)
def test_servers(here, capfd, monkeypatch, words):
    check(Shell(capfd, monkeypatch, ANYWHERE), words, here)


@pytest.mark.parametrize("words", OF_A_SERVER, ids=named)
def test_commands_of_a_server(here, typed, words):
    """An export takes the place of a link, also of one to itself."""
    check(typed, words, here)
