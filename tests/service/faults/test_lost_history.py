"""A standby whose leader has other commands by the numbers of its own keeps them, and says so."""

import os
import shutil
from pathlib import Path

import pytest

from embstore.storage.backup import restore_from
from embstore.storage.destinations import DirectoryDestination
from embstore.storage.files import Files
from tests.faults.forks import Forks
from tests.service.faults.following import (
    Pair,
    await_same,
    connected,
    contents,
    replication,
    server,
    update,
)
from tests.service.faults.ledger import make_tables
from tests.service.faults.processes import ForkedServer
from tests.service.faults.served import until

BEFORE, LOST = 4, 5
"""Updates before what is lost, and of those that are."""


@pytest.fixture
def pair(forks: Forks, quick_path: Path) -> Pair:
    return Pair(forks, quick_path, backup_within=str(quick_path))


def copied(path: Path, to: Path) -> None:
    """Copy a directory of which no server is left."""
    shutil.copytree(path, to, ignore=shutil.ignore_patterns("socket"))


def put_back(path: Path) -> None:
    """Have the copy of a directory that was made before."""
    shutil.rmtree(path)
    copied(path.with_name("copy"), path)


def restored(path: Path) -> None:
    """Have the backup that was made before."""
    shutil.rmtree(path)
    source = DirectoryDestination(Files(str(path.with_name("backup"))))
    restore_from(source, Files(str(path)), None, None, lambda done, total: None)


def cut(path: Path) -> None:
    """Have the command log end before its last command: the next start tells that."""
    segment, _, last = last_command(path)
    os.truncate(segment, last)


def zeroed(path: Path) -> None:
    """Have zeros in place of the last command: no file tells that."""
    segment, content, last = last_command(path)
    segment.write_bytes(content[:last].ljust(len(content), b"\0"))


def last_command(path: Path) -> tuple[Path, bytes, int]:
    """Return the last segment of a command log, its content, and where its last command begins."""
    segment = max(path.glob("commands/*.commands"))
    content = segment.read_bytes()
    return segment, content, content.rindex(b"EMCR\1\0\0\0")


def prepare(pair: Pair) -> None:
    """Have the leader's directory as a copy and as a backup, then more commands on both."""
    pair.start()
    with connected(pair.leader) as store:
        make_tables(store)
        update(store, *range(BEFORE))
        store.checkpoint("one")
        store.backup(str(pair.leader.path.with_name("backup")), "one")
    await_same(pair.leader, pair.standby)
    pair.leader.kill()
    copied(pair.leader.path, pair.leader.path.with_name("copy"))
    pair.leader.start()
    with connected(pair.leader) as store:
        update(store, *range(BEFORE, BEFORE + LOST))


def until_refused(standby: ForkedServer) -> None:
    with connected(standby) as copy:
        until(lambda: "promote this standby" in (replication(copy)["reason"] or ""))


@pytest.mark.parametrize(
    ("others", "commits", "is_away"),
    [(0, False, True), (LOST, False, True), (LOST + 3, True, True), (LOST + 3, False, False)],
    ids=["fewer", "as many", "more, committed", "more, at once"],
)
@pytest.mark.parametrize("lose", [put_back, restored, cut, zeroed])
def test_a_standby_does_not_follow_on_other_rows(pair, lose, others, commits, is_away):
    """However many others there are, and whether the leader still has the log of them."""
    prepare(pair)
    wanted = await_same(pair.leader, pair.standby)
    if is_away:
        pair.standby.kill()
    pair.leader.kill()
    lose(pair.leader.path)
    assert pair.leader.start() < wanted["command"]
    for n in range(2):
        with connected(pair.leader) as store:
            update(store, *range(50 + 10 * n, 50 + 10 * n + others))
            if commits:
                store.checkpoint(f"other-{n}")
        if is_away or n:
            pair.standby.start()
        until_refused(pair.standby)
        with connected(pair.standby) as copy:
            assert contents(copy) == wanted
        pair.standby.kill()
    pair.standby.start()
    with connected(pair.standby) as copy:
        copy.promote()
    with connected(pair.standby) as copy:
        assert contents(copy)["tables"] == wanted["tables"]
        update(copy, 90)
    pair.kill()


def test_a_leader_that_has_its_commands_back_is_followed(pair):
    prepare(pair)
    await_same(pair.leader, pair.standby)
    with connected(pair.standby) as copy:
        taken = replication(copy)["commits_taken"]
    pair.leader.kill()
    path, aside = pair.leader.path, pair.leader.path.with_name("aside")
    path.rename(aside)
    path.with_name("copy").rename(path)
    pair.leader.start()
    with connected(pair.leader) as store:
        update(store, *range(50, 50 + LOST))
    until_refused(pair.standby)
    pair.leader.kill()
    shutil.rmtree(path)
    aside.rename(path)
    pair.leader.start()
    with connected(pair.leader) as store, connected(pair.standby) as copy:
        update(store, 90)
        await_same(pair.leader, pair.standby)
        assert replication(copy)["commits_taken"] == taken
    pair.kill()


def test_a_standby_of_what_was_restored_follows(pair):
    """It was behind the backup, or at it: its leader has lost nothing that it has."""
    pair.start()
    with connected(pair.leader) as store:
        make_tables(store)
        update(store, 0)
        await_same(pair.leader, pair.standby)
        pair.standby.kill()
        update(store, *range(1, BEFORE))
        store.checkpoint("one")
        store.backup(str(pair.leader.path.with_name("backup")), "one")
        update(store, *range(BEFORE, BEFORE + LOST))
    pair.leader.kill()
    restored(pair.leader.path)
    pair.leader.start()
    pair.standby.start()
    for n in range(2):
        with connected(pair.leader) as store, connected(pair.standby) as copy:
            await_same(pair.leader, pair.standby)
            assert replication(copy)["commits_taken"] == 1 - n
            update(store, 50 + n)
            await_same(pair.leader, pair.standby)
        pair.standby.kill()
        pair.standby.start()
    pair.kill()


@pytest.mark.parametrize("commits", [False, True], ids=["log", "commit"])
def test_a_standby_that_is_merely_behind_catches_up(forks, quick_path, commits):
    """With a leader that has crashed since, has committed and merged, and was replaced twice."""
    pair = Pair(forks, quick_path)
    other = server(forks, quick_path / "other", follow=pair.leader.address)
    pair.start()
    other.start()
    with connected(pair.leader) as store:
        make_tables(store)
        update(store, 0)
    await_same(pair.leader, other)
    other.kill()
    leader, standby = pair.leader, pair.standby
    for n in range(1, 7):
        with connected(leader) as store:
            update(store, *range(10 * n, 10 * n + 3))
            if commits:
                store.checkpoint(f"label-{n}")
        await_same(leader, standby)
        leader.kill()
        if n % 3:
            leader.start()
            continue
        with connected(standby) as copy:
            copy.promote()
        leader, standby = standby, leader.changed(follow=standby.address)
        standby.start()
    other = other.changed(follow=leader.address)
    other.start()
    with connected(other) as copy:
        await_same(leader, other)
        assert replication(copy)["commits_taken"] == commits
    for one in (other, standby, leader):
        one.kill()


def test_a_standby_that_has_written_by_itself_is_refused(pair):
    prepare(pair)
    await_same(pair.leader, pair.standby)
    pair.standby.kill()
    alone = pair.standby.changed(follow="off")
    alone.start()
    with connected(alone) as store:
        update(store, 50)
        wanted = contents(store)
    alone.kill()
    with connected(pair.leader) as store:
        update(store, *range(20, 30))
    pair.standby.start()
    until_refused(pair.standby)
    with connected(pair.standby) as copy:
        assert contents(copy) == wanted
    pair.kill()


def test_of_two_that_were_promoted_neither_gives_up_its_commands(forks, quick_path):
    pair = Pair(forks, quick_path)
    other = server(forks, quick_path / "other", follow=pair.leader.address)
    pair.start()
    other.start()
    with connected(pair.leader) as store:
        make_tables(store)
        update(store, 0)
    await_same(pair.leader, pair.standby)
    await_same(pair.leader, other)
    pair.leader.kill()
    for n, one in enumerate((pair.standby, other)):
        with connected(one) as copy:
            copy.promote()
        with connected(one) as store:
            update(store, *range(10 + 10 * n, 15 + 10 * n))
            wanted = contents(store)
    other.kill()
    other = other.changed(follow=pair.standby.address)
    other.start()
    until_refused(other)
    with connected(other) as copy:
        assert contents(copy) == wanted
    other.kill()
    pair.standby.kill()


def test_an_old_leader_that_has_lost_commands_gives_up_nothing_by_itself(pair):
    """What it has done since is not only what it had behind the promotion."""
    prepare(pair)
    await_same(pair.leader, pair.standby)
    pair.leader.kill()
    put_back(pair.leader.path)
    pair.leader.start()
    with connected(pair.leader) as store:
        update(store, *range(50, 60))
        wanted = contents(store)
    pair.leader.kill()
    with connected(pair.standby) as copy:
        copy.promote()
    back = pair.leader.changed(follow=pair.standby.address)
    back.start()
    until_refused(back)
    with connected(back) as copy:
        assert contents(copy) == wanted
    back.kill()
    shutil.rmtree(back.path)
    back.start()
    await_same(pair.standby, back)
    back.kill()
    pair.standby.kill()
