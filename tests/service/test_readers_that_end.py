"""Files whose reading ends early, by an error or Ctrl-C: the process keeps its exit status.

pyarrow reads text ahead, in threads of its own. A thread that calls Python while the interpreter
ends aborts the process, or hangs it. Whether a thread does so then is a matter of chance, so it is
also tested that no such thread calls Python at all.
"""

import gzip
import io
import signal
import subprocess
import sys
import threading
from pathlib import Path, PosixPath
from typing import Any

import pytest

from embstore.errors import InvalidArgumentError
from embstore_client.files.formats import opened

pytest.importorskip("pyarrow", reason="needs the extra 'data'")

READING = """
import signal, sys
from pathlib import Path, PosixPath
from embstore.errors import InvalidArgumentError
from embstore_client.files.formats import opened

sys.setswitchinterval(1000)  # other threads wait for Python until the interpreter ends
place = sys.argv[1]
try:
    with opened(Path(place), place, None, None) as reader:
        for _ in reader.batches(100, with_state=False):
            signal.raise_signal(signal.SIGINT)
except InvalidArgumentError as exc:
    sys.exit(str(exc))
"""
HEADER, BAD_LINE, ROW = b"key,a,b,c,d\n", b"1,2\n", b"7,0.1,0.2,0.3,0.4\n"
MANY = 1 << 21
"""Rows of 36 MB, of which many blocks are still to be read when the first has been parsed."""


class Watched(io.FileIO):
    """A file that notes which threads read from it."""

    threads: set[int]

    def read(self, size: int | None = -1, /) -> Any:
        """Read, and note the thread."""
        self.threads.add(threading.get_ident())
        return super().read(-1 if size is None else size)

    def readinto(self, buffer: Any, /) -> Any:
        """Read, and note the thread."""
        self.threads.add(threading.get_ident())
        return super().readinto(buffer)


class WatchedPath(PosixPath):
    """A path that opens such a file."""

    threads: set[int]

    def open(self, *_: Any, **__: Any) -> Any:
        """Open the file for reading."""
        file = Watched(str(self))
        file.threads = self.threads
        return file


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "tsv", "txt", "vec.gz"])
@pytest.mark.parametrize("is_bad", [False, True], ids=["whole", "malformed"])
def test_only_the_callers_thread_calls_python(tmp_path, kind, is_bad):
    begin = (b"" if kind.startswith(("txt", "vec")) else HEADER) + (BAD_LINE if is_bad else b"")
    separator = {"csv": b",", "tsv": b"\t"}.get(kind[:3], b" ")
    text = (begin + ROW * 1000).replace(b",", separator)
    path = tmp_path / f"ads.{kind}"
    path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    place = WatchedPath(path)
    place.threads = set()
    try:
        with opened(place, str(place), None, None) as reader:
            rows = sum(len(keys) for keys, *_ in reader.batches(100, with_state=False))
        assert rows == 1000 and not is_bad
    except InvalidArgumentError:
        assert is_bad
    assert place.threads == {threading.get_ident()}


def ended(place: Path, content: bytes) -> Any:
    """Read a file in a process of its own, until an error or the first batch."""
    place.write_bytes(content)
    words = [sys.executable, "-c", READING, str(place)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER + BAD_LINE, "Expected 5 columns, got 2"),
        (HEADER.replace(b"key", b"who"), "expected a column 'key' or 'id' of keys"),
    ],
    ids=["a bad line", "no keys"],
)
def test_a_process_that_refuses_a_file(tmp_path, content, message):
    done = ended(tmp_path / "ads.csv", content + ROW * MANY)
    assert done.returncode == 1, done.stderr
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_process_that_is_interrupted(tmp_path):
    done = ended(tmp_path / "ads.csv", HEADER + ROW * MANY)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
