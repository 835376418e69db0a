"""What commands write and remove: the files that they were told, and nothing beside these.

The table in docs/guide/security.md says which these are.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.arithmetic import cached
from embstore_client import connect
from embstore_proto.addresses import unix_socket_address
from embstore_server.setup.launch import ServerProcess
from tests.service.faults.served import until
from tests.service.frequency_samples import DIM, PATIENCE_S, add, profile_of
from tests.strange_files import listing, strew


class Watched:
    """A folder full of files of others, which is the working directory."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder, self.outside = tmp_path / "folder", tmp_path / "outside"
        strew(self.folder, self.outside)
        self._others = listing(self.folder)
        self._top = self._of_others = {name.split("/")[0] for name in self._others}

    def check(self, what: object, *made: str) -> None:
        """See that since the last time these came into the folder, and nothing else, also not into
        folders of others, and that what others have there is as it was."""
        found = listing(self.folder)
        theirs = {n: of for n, of in found.items() if n.split("/")[0] in self._of_others}
        assert theirs == self._others, what
        top = {name.split("/")[0] for name in found}
        assert top == self._top | set(made), what
        self._top = top
        assert listing(self.outside).keys() == {"victim"}, what
        assert (self.outside / "victim").read_bytes() == b"precious", what


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    made = Watched(tmp_path)
    monkeypatch.chdir(made.folder)
    return made


def test_commands_write_what_they_were_told_and_nothing_else(watched, typed, shell):
    profile_of({"ads": {1: 5, 2: 3}}).save("in.profile")
    watched.check("save", "in.profile")
    tokens = "--tokens", "tokens.json"
    steps: list[tuple[Callable[..., Any], list[str], list[str]]] = [
        (typed, ["export", "ads", "-o", "rows.npy"], ["rows.npy"]),
        (typed, ["export", "ads", "-o", "rows.npy"], []),
        (typed, ["import", "ads", "rows.npy"], []),
        (typed, ["import-profile", "in.profile"], []),
        (typed, ["export-profile", "-o", "out.profile", "--source", "imported"], ["out.profile"]),
        (shell, ["hotset", "--profile", "in.profile", "--budget", "1MiB", "-o", "hot"], ["hot"]),
        (typed, ["pin-hotset", "hot"], []),
        (typed, ["checkpoint", "one"], []),
        (typed, ["backup", str(watched.folder / "kept")], ["kept"]),
        (typed, ["backup", str(watched.folder / "kept"), "--label", "one"], []),
        (shell, ["verify", "kept"], []),
        (shell, ["restore-from", "kept", "again"], ["again"]),
        (shell, ["verify", "again"], []),
        (
            shell,
            ["token", "add", "a", "--right", "read", "--tables", "*", *tokens],
            ["tokens.json"],
        ),
        (shell, ["token", "limit", "a", "--to", "tables=2", *tokens], []),
        (shell, ["token", "list", *tokens], []),
        (shell, ["token", "remove", "a", "--yes", *tokens], []),
    ]
    for run, words, made in steps:
        ended = run(*words)
        assert ended.status == 0, (words, ended.err)
        locks = ["tokens.json.lock"] if made == ["tokens.json"] else []
        watched.check(words, *made, *locks)
    doctor = shell("doctor", "again")
    assert "/s written" in doctor.out, doctor
    watched.check(["doctor", doctor.err])


def test_tools_for_profiles_write_what_they_were_told(watched, shell):
    Path("samples.csv").write_text("a,b\n1,2\n3,4\n")
    watched.check("samples", "samples.csv")
    made = ["profile", "samples.csv", "--table", "a=ads", "-o", "made.profile"]
    steps = [
        (made, "made.profile"),
        (["size", "--profile", "made.profile", "--picture", "curves.png"], "curves.png"),
    ]
    for words, file in steps:
        for names in ([file], []):
            ended = shell(*words)
            assert ended.status == 0, (words, ended.err)
            watched.check(words, *names)
        Path(file).unlink()
        Path(file).hardlink_to(watched.outside / "victim")
        assert shell(*words).status == 0
        watched.check(words)


def test_urls_leave_nothing_in_the_directory_for_temporary_files(watched, typed, monkeypatch):
    pytest.importorskip("fsspec", reason="needs the extra 'remote'")
    temporary = watched.folder / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    url = f"file://{watched.folder}/urls/rows.safetensors"
    for words, made in (
        (["export", "ads", "-o", url], ["urls"]),
        (["import", "ads", url], []),
        (["import", "ads", f"{url}.none.npy"], []),
        (["backup", f"file://{watched.folder}/kept"], ["kept"]),
    ):
        assert typed(*words).status == (1 if "none" in words[-1] else 0)
        watched.check(words, *made, *(["temporary"] if made == ["urls"] else []))
        assert not list(temporary.iterdir())
    assert [path.name for path in Path("urls").iterdir()] == ["rows.safetensors"]


def test_the_demo_and_the_compiler_write_what_they_were_told(watched):
    """In processes of their own, whose directory for temporary files is here, too."""
    temporary = watched.folder / "temporary"
    temporary.mkdir()
    small = ["--samples", "2000", "--batch", "500", "--scale", "0.002"]
    for words, made in (
        (["demo", *small, "--report", "run.html"], ["run.html", "run.json", "temporary"]),
        (["demo", *small, "--keep", "demo"], ["demo"]),
        (["compile"], []),
    ):
        run_alone(words, temporary)
        watched.check(words, *made)
        assert not list(temporary.iterdir())


def run_alone(words: list[str], temporary: Path) -> None:
    """Run a command to its good end."""
    done = subprocess.run(
        [sys.executable, "-m", "embstore_server", *words],
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, (words, done.stderr)


def test_commands_of_a_standby_write_what_they_were_told(watched):
    """A live one: its files come and go meanwhile in its own directory alone."""
    options = "--device cpu --cache-bytes 1MiB --socket off --durability commands".split()
    leader = ServerProcess("leader", *options)
    within = ("--backup-within", str(watched.folder))
    with leader, ServerProcess("standby", *options, *within, "--follow", leader.address) as standby:
        watched.check("serve", "leader", "standby")
        with connect(leader.address, timeout_s=PATIENCE_S) as store:
            add(store, "ads").assign([1, 2], np.ones((2, DIM), np.float32))
            store.checkpoint("one")
        with connect(standby.address, timeout_s=PATIENCE_S) as copy:
            until(copy.checkpoints)
        address = ["--address", standby.address]
        for words, made in (
            (["export", "ads", "-o", "rows.npy", "--label", "one"], ["rows.npy"]),
            (["backup", str(watched.folder / "kept"), "--label", "one"], ["kept"]),
        ):
            run_alone([*words, *address], watched.folder)
            watched.check(words, *made)
    run_alone(["verify", "standby"], watched.folder)
    watched.check("the end")


@pytest.mark.parametrize(
    "words",
    [
        ["export", "ads", "-o", "FILE"],
        ["export-profile", "-o", "FILE"],
        ["backup", "FILE"],
    ],
)
def test_commands_of_a_server_write_through_nothing_at_a_temporary_name(watched, typed, words):
    write_anew(watched, typed, [w.replace("FILE", str(watched.folder / "x.npy")) for w in words])


def test_tokens_are_written_through_nothing_at_a_temporary_name(watched, shell):
    words = ["token", "add", "a", "--right", "read", "--tables", "*", "--tokens", "x.npy"]
    write_anew(watched, shell, words)


PLACED: dict[str, Callable[[Path, Path], object]] = {
    "a link": lambda place, outside: place.symlink_to(outside / "victim"),
    "a link to nothing": lambda place, outside: place.symlink_to(outside / "none"),
    "a second name": lambda place, outside: place.hardlink_to(outside / "victim"),
    "a pipe": lambda place, _: os.mkfifo(place),
    "a folder": lambda place, _: place.mkdir(),
}
"""What others may have put where a command writes first."""


def write_anew(watched: Watched, run: Callable[..., Any], words: list[str]) -> None:
    """See that a command is refused, or takes the place of what is there, and waits for nothing."""
    for ending in ("new", "lock", "part", "embstore-part", "tmp"):
        for kind, put in PLACED.items():
            place = watched.folder / f"x.npy.{ending}"
            put(place, watched.outside)
            ended = run(*words)
            assert ended.status in (0, 1, 2), (ending, kind, ended.err)
            assert ended.status == 0 or "x.npy" in ended.err, (ending, kind, ended.err)
            assert listing(watched.outside).keys() == {"victim"}, (ending, kind)
            assert (watched.outside / "victim").read_bytes() == b"precious", (ending, kind)
            for left in watched.folder.glob("x.npy*"):
                is_folder = left.is_dir() and not left.is_symlink()
                shutil.rmtree(left) if is_folder else left.unlink()


def test_a_kept_kernel_is_written_through_no_link(watched, monkeypatch):
    monkeypatch.setattr(cached, "_file", lambda folder, kernel: Path(folder, "kernel.nbc"))
    monkeypatch.setattr(cached, "_folders", lambda: iter([watched.folder]))
    monkeypatch.setattr(cached.os, "getpid", lambda: 7)
    Path("kernel.7").symlink_to(watched.outside / "victim")
    monkeypatch.setattr(cached, "sealed", lambda kernel, code: code)
    kernel: Any = None
    assert cached.keep(kernel, b"code") == [watched.folder]
    watched.check("keep", "kernel.nbc")


def test_a_server_writes_its_directory_and_its_socket(watched):
    options = ("--device", "cpu", "--cache-bytes", "1MiB", "--socket", "own.socket")
    with ServerProcess("store", *options) as server:
        watched.check("serve", "store", "own.socket")
        server.kill()
        assert Path("own.socket").is_socket()
    Path("theirs.socket").symlink_to(watched.outside / "none")
    refused = socket.socket(socket.AF_UNIX)
    with refused, unix_socket_address(Path("listening.socket")) as address:
        refused.bind(address)
        refused.listen()
        watched.check("listen", "theirs.socket", "listening.socket")
        for name in ("to-file", "folder", "pipe", "theirs.socket", "listening.socket", "*"):
            with pytest.raises(Exception, match="before it was ready"):
                ServerProcess("store", *options[:-1], name).start()
            watched.check(name)
    with ServerProcess("store", *options):
        watched.check("serve again")
    assert not Path("own.socket").exists()
