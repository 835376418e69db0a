"""What the process around a store does: changes its directory, forks, counts descriptors."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import embstore
from embstore.errors import CapacityError, InvalidArgumentError
from tests.conformance.backends import TINY
from tests.conformance.cases import assert_same, config, descriptors, ones

pytestmark = pytest.mark.needs("one_store")


def test_changing_the_directory_moves_no_store(tmp_path, monkeypatch):
    """A store opened by a relative path stays where it was opened: Hydra and notebooks change the
    working directory of a run. A checkpoint that went elsewhere would be acknowledged and lost."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    store = embstore.open("store", cache_bytes=1 << 20)
    table = store.create_table("a", **config())
    store.checkpoint("first")
    monkeypatch.chdir(tmp_path / "there")
    table.update([1], ones(1))
    store.checkpoint("second")
    digest = table.digest()
    store.close()
    assert list((tmp_path / "there").iterdir()) == []
    with embstore.open(tmp_path / "here" / "store", cache_bytes=1 << 20) as store:
        assert [c.label for c in store.checkpoints()] == ["first", "second"]
        assert store.table("a").digest() == digest


def run(script, path):
    """Run a script in a process of its own, which is to end in silence; return what it prints."""
    command = [sys.executable, "-W", "error", "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


FORK = """
import os, sys, embstore
store = embstore.open(sys.argv[1], device="cpu", cache_bytes=1 << 20)
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.close(writer)
    os.read(reader, 1)
    os._exit(0)
store.close()
try:
    embstore.open(sys.argv[1], device="cpu", cache_bytes=1 << 20).close()
finally:
    os.close(writer)
    os.waitpid(child, 0)
"""


@pytest.mark.needs("process")
def test_closing_frees_the_directory_though_a_forked_child_lives(backend):
    """Data loaders fork. A lock lives as long as a copy of its descriptor, unless undone."""
    assert run(FORK, backend.path()) == ""


def fill(store, count=400):
    table = store.create_table("a", **config(dim=64))
    for value in range(3):
        table.assign(np.arange(count), ones(count, 64, value))
        store.checkpoint(str(value))
    return table


def open_files(path):
    """Return the files of a store that this process has open."""
    opened = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(name) for name in opened if name.is_symlink()]
    return [target for target in targets if target.startswith(str(path))]


@pytest.mark.needs("process")
def test_closing_gives_descriptors_and_threads_back(backend):
    """With handles still about: an object that nobody uses may live for long."""
    before = descriptors(), threading.active_count()
    store = backend.open_store(limits=TINY, threads=3)
    table = fill(store)
    backend.settle(store)
    table.lookup(np.arange(1000))
    store.close()
    assert not open_files(backend.path())
    # Descriptors and threads of earlier cases may go meanwhile.
    assert (descriptors() <= before[0], threading.active_count() <= before[1]) == (True, True)


@pytest.mark.needs("process")
@pytest.mark.needs("plain_keys")
def test_folded_tables_keep_no_descriptors(backend):
    """Review: every map kept one, as Python's mmap duplicates the descriptor that it is made from;
    and after closing they stayed until the garbage collector came by."""
    before, count = descriptors(), 60
    store = backend.open_store(limits=TINY, checkpoints_keep=1)
    for number in range(count):
        store.create_table(f"t{number}", **config()).assign([0], ones(1))
    store.checkpoint("c")
    backend.settle(store)
    assert store.stats()["storage"]["folds"] > 0
    assert descriptors() - before < count // 2
    store.close()
    assert descriptors() <= before


@pytest.mark.needs("process")
def test_refused_openings_keep_no_descriptor(backend):
    fill(backend.open_store())
    backend.close()
    (backend.path() / "store.json").write_text("{}")
    before = descriptors()
    for _ in range(5):
        with pytest.raises(embstore.CorruptTableError):
            backend.open_store()
    assert descriptors() <= before
    assert not open_files(backend.path())


def test_opening_with_too_small_a_cache_keeps_no_lock(backend):
    with backend.open_store() as store:
        store.create_table("large", **config(dim=4096)).update([1], ones(1, 4096))
    for _ in range(2):
        with pytest.raises(CapacityError, match=r"table 'large'.*cache_bytes"):
            backend.open_store(cache_bytes=10_000)
    with backend.open_store() as store:
        assert store.table("large").t == 1


FEW = """
import resource, sys, numpy as np, embstore
from embstore import Constant, Sgd
from embstore.config import Limits
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
options = {"device": "cpu", "cache_bytes": 1 << 20}
options["limits"] = Limits(fold_bytes=4096, fold_segments=1)
for turn in range(2):
    with embstore.open(sys.argv[1], checkpoints_keep=1, **options) as store:
        for i in range(100):
            table = store.create_table(
                f"t{i}", dim=4, rows=9, optimizer=Sgd(1.0), initializer=Constant(0.0)
            )
            table.update([1], np.full((1, 4), -1.0, np.float32))
            assert (table.lookup([1]) == turn + 1).all()
        store.checkpoint(f"c{turn}")
        store.executor.storage.merges.finish()
        assert store.stats()["storage"]["merge_failures"] == 0
"""


@pytest.mark.needs("process")
def test_more_tables_than_descriptors(backend):
    """limits.tables_max is 4,096 and the usual limit of open files 1,024: a table may hold none."""
    assert run(FEW, backend.path()) == ""


@pytest.mark.parametrize("target", ["file", "nothing"])
def test_path_through_a_link(tmp_path, target):
    """A link to a directory is the directory; a link to something else is refused."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with embstore.open(tmp_path / "link", cache_bytes=1 << 20) as store:
        store.create_table("a", **config())
    assert (tmp_path / "real" / "CATALOGUE").exists()
    if target == "file":
        (tmp_path / "target").write_text("x")
        (tmp_path / "other").symlink_to(tmp_path / "target")
        with pytest.raises(InvalidArgumentError, match="expected a directory"):
            embstore.open(tmp_path / "other", cache_bytes=1 << 20)


ENDINGS = {
    "without closing": "",
    "by an error": "raise SystemExit(0)",
    "in an atexit hook": "import atexit; atexit.register(store.close)",
    "while a thread is in a call": (
        "import threading; threading.Thread(target=table.lookup, args=([1],)).start()"
    ),
}


LEAVE = """
import sys, numpy as np, embstore
from embstore import Constant, Sgd
from embstore.config import Limits
small = Limits(segment_bytes=8192, fold_bytes=4096, fold_segments=2)
store = embstore.open(sys.argv[1], cache_bytes=1 << 20, limits=small, threads=2)
table = store.create_table("a", dim=64, rows=9999, optimizer=Sgd(0.1), initializer=Constant(0.0))
table.assign(np.arange(3000), np.ones((3000, 64), np.float32))
table.lookup(np.arange(9999))
store.checkpoint("c")
"""


@pytest.mark.needs("process")
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_interpreter_exit(backend, ending):
    """Source: "object destruction order / interpreter exit": HugeCTR#371, NVE's memblock notes.

    The process ends at once and in silence, with worker threads and a merge running; the store is
    at its last commit.
    """
    assert run(LEAVE + ending, backend.path()) == ""
    with backend.open_store() as store:
        assert_same(store.table("a").lookup([0, 2999]), ones(2, 64))
        store.check_integrity()


def test_no_shared_memory_is_needed(tmp_path):
    """Source: "container with 64 MiB shared memory, without IPC/PID sharing": HPS docs, vllm#55906.
    The store maps its own files, and nothing of /dev/shm."""
    maps = run(
        f"{LEAVE}\nimport pathlib; print(pathlib.Path('/proc/self/maps').read_text())",
        tmp_path / "store",
    )
    assert str(tmp_path) in maps
    assert "/dev/shm" not in maps
