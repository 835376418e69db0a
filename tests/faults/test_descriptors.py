"""No descriptor is left for anybody: the store's files are opened all the same."""

import errno
import gc
import os
import resource
from typing import Any

from embstore.host.descriptors import SPARE
from tests.faults.promises import check_content, content_of
from tests.faults.training import commit, open_store, train

SEED = 20_261_125


def train_without_descriptors(reports: Any, path: str) -> None:
    """A child: take every descriptor that there is, then go on with the store."""
    store = open_store(path, durability="commands")
    train(store, SEED, 20)
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as exc:
        assert exc.errno == errno.EMFILE
    for n in range(3):
        train(store, SEED + n, 20)
        commit(store)
    while taken:
        os.close(taken.pop())
    content = content_of(store)
    store.close()
    reports.send(content)


def test_a_closed_store_keeps_no_descriptors(tmp_path):
    gc.collect()
    had = bool(SPARE._kept)  # of a store that another test has left open
    with open_store(tmp_path / "other"):
        before = len(os.listdir("/proc/self/fd"))
        with open_store(tmp_path / "store") as store:
            commit(store)
            assert SPARE._kept
        assert len(os.listdir("/proc/self/fd")) == before
        assert SPARE._kept, "the other one may need them"
    assert bool(SPARE._kept) == had


def fork_while_descriptors_are_filled(reports: Any, path: str) -> None:
    """A child: have one of its own, as if another thread were at it."""
    with SPARE._lock:
        pid = os.fork()
        if not pid:
            with open_store(path):
                os._exit(0)
    reports.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def test_a_fork_does_not_wait_for_what_another_thread_had(tmp_path, forks):
    child = forks.start(fork_while_descriptors_are_filled, str(tmp_path / "store"))
    assert child.reports.recv() == 0
    assert child.wait() == 0


def test_commits_are_made_when_connections_have_all_descriptors(tmp_path, forks):
    child = forks.start(train_without_descriptors, str(tmp_path / "store"))
    content = child.reports.recv()
    assert child.wait() == 0
    with open_store(tmp_path / "store") as store:
        check_content(store, content)
