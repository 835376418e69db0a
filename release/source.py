"""The commit from which a release is built, exported by git."""

import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Source:
    """The files of a commit."""

    path: Path
    commit: str
    time_s: int
    """The commit's time as SOURCE_DATE_EPOCH; all files of the release have this time."""
    version: str


def export(path: Path) -> Source:
    """Export HEAD into a folder that does not exist yet."""
    commit, time_s = _git("log", "-1", "--format=%H %ct").decode().split()
    content = io.BytesIO(_git("-c", "tar.umask=0022", "archive", "HEAD"))
    with tarfile.open(fileobj=content) as archive:
        archive.extractall(path, filter="data")
    names: dict[str, str] = {}
    for line in path.joinpath("embstore", "version.py").read_text().splitlines():
        name, _, value = line.partition(" = ")
        names[name] = value.strip('"')
    assert names["_COMMIT"] == commit, "git has not put the commit into embstore/version.py"
    return Source(path=path, commit=commit, time_s=int(time_s), version=names["__version__"])


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
