"""A standby has what its leader has, to the bit, whatever is killed in between."""

import sys
import threading
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore.errors import EmbstoreError, OutcomeUnknownError, PermissionDeniedError
from embstore.handles.store import Store
from embstore_client import connect
from tests.commands.lists import Author
from tests.commands.model import Model
from tests.faults.forks import Forks
from tests.service.faults.following import (
    Pair,
    await_role,
    await_same,
    connected,
    is_promoted,
    kept,
    replication,
    server,
    update,
)
from tests.service.faults.ledger import DIM, Ledger, applied_counts, make_tables
from tests.service.faults.proxy import Proxy
from tests.service.faults.served import PATIENCE_S
from tests.service.faults.test_restarts import TRAINERS, Trainer, again

SEED = 20_261_124
COMMANDS, LIVES = 120, 8
KILLS = 5


@pytest.fixture
def pair(forks: Forks, quick_path: Path) -> Pair:
    return Pair(forks, quick_path)


def test_a_standby_that_was_away_for_too_long_takes_a_newer_commit(pair):
    pair.start()
    with connected(pair.leader) as store, connected(pair.standby) as copy:
        make_tables(store)
        update(store, 1)
        await_same(pair.leader, pair.standby)
        pair.standby.kill()
        for n in range(2, 7):
            update(store, n)
            store.checkpoint(f"label-{n}")
        store.restore("label-5")
        pair.standby.start()
        wanted = await_same(pair.leader, pair.standby)
        assert wanted["epoch"] == 2
        assert replication(copy)["commits_taken"] == 1
        store.checkpoint("more")
        update(store, 8)
        store.restore("more")
        await_same(pair.leader, pair.standby)
    pair.kill()


@pytest.mark.parametrize("ended", ["neither", "leader", "standby"])
def test_a_standby_keeps_the_labels_that_its_leader_keeps(pair, ended):
    """Those that were protected or dropped too, so that a restore of either finds the same."""
    pair.start()
    with connected(pair.leader) as store, connected(pair.standby) as copy:
        make_tables(store)
        for n in range(3):
            update(store, n)
            store.checkpoint(f"label-{n}")
        store.set_retention("label-0", "protected")
        store.set_retention("label-1", "dropped")
        await_same(pair.leader, pair.standby)
        if ended != "neither":
            server = getattr(pair, ended)
            server.kill()
            server.start()
        store.checkpoint("label-1")  # again, at another command
        store.set_retention("label-2", "dropped")
        for n in range(3, 8):
            update(store, n)
            store.checkpoint(f"label-{n}")
        wanted = await_same(pair.leader, pair.standby)["checkpoints"]
        assert [(label, protected) for label, *_, protected in wanted] == [
            ("label-0", True),
            *((f"label-{n}", False) for n in (5, 6, 7)),
        ]
        with pytest.raises(PermissionDeniedError, match="standby"):
            copy.set_retention("label-7", "dropped")
        pair.leader.kill()
        copy.promote()
    with connected(pair.standby) as store:
        store.set_retention("label-6", "dropped")
        store.restore("label-0")
        assert [one[0] for one in kept(store)] == ["label-0"]
    pair.standby.kill()


def test_a_standby_gets_all_labels_of_one_command_that_were_made_while_it_was_away(pair):
    """The last of them begins the log anew, at the command that the standby has."""
    pair.start()
    with connected(pair.leader) as store:
        make_tables(store)
        for label in ("dropped", "protected"):
            update(store, len(label))
            store.checkpoint(label)
        before = await_same(pair.leader, pair.standby)
        pair.standby.kill()
        store.set_retention("dropped", "dropped")
        store.set_retention("protected", "protected")
        store.checkpoint("first")
        store.checkpoint("second")
        pair.standby.start()
        wanted = await_same(pair.leader, pair.standby)
        assert wanted["command"] == before["command"]
        assert [(label, protected) for label, *_, protected in wanted["checkpoints"]] == [
            ("protected", True),
            ("first", False),
            ("second", False),
        ]
    pair.kill()


def test_a_standby_forgets_the_place_of_a_session_that_was_forgotten_while_it_was_away(pair):
    """The commit after it begins the log anew, at the command that the standby has."""
    pair.start()
    with connected(pair.leader) as store:
        make_tables(store)
        run = store.executor.execute
        run(c.OpenSession("train", ("rows",)))
        member = run(c.JoinSession("train", 0)).member
        keys = c.StepTable("rows", np.arange(3))
        run(c.Announce(member, (c.StepKeys(1, (keys,)),)))
        run(c.UpdateStep(member, 1, (c.StepGradients("rows", np.ones((3, DIM), np.float32)),)))
        await_same(pair.leader, pair.standby)
        pair.standby.kill()
        run(c.CloseSession(member, forget=True))
        store.checkpoint("one")
        pair.standby.start()
        await_same(pair.leader, pair.standby)
        pair.leader.kill()
        pair.standby.kill()  # and it does not come back
        pair.standby.start()
    with connected(pair.standby) as copy:
        copy.promote()
        assert copy.executor.execute(c.OpenSession("train", ("rows",))).last_step == 0
    pair.standby.kill()


@pytest.mark.parametrize("seed", range(2))
def test_every_verb_does_on_a_standby_what_it_does_on_its_leader(pair, seed):
    """Also a step of a session, which is logged as what it did, and a place that is forgotten."""
    sys.stdout.write(f"seed {SEED + seed}\n")
    rng = np.random.default_rng(SEED + seed)
    model = Model()
    author = Author(SEED + seed, model)
    pair.start()
    with connected(pair.leader) as store, connected(pair.standby) as copy:
        for life in range(LIVES):
            for _ in range(COMMANDS):
                command = author.next()
                if not isinstance(command, c.GetServerInfo):
                    follow(model, store, command)
            await_same(pair.leader, pair.standby)
            leave_sessions(model, store)
            ended = pair.standby if rng.random() < 0.5 else pair.leader
            (ended.kill if life % 2 else ended.stop)()
            ended.start()
        await_same(pair.leader, pair.standby)
        pair.leader.kill()
        copy.promote()
    with connected(pair.standby) as copy:
        assert {n: copy.table(n).digest() for n in copy.tables()} == model.digests()
        for name in model.places:
            if tables := tuple(copy.tables()[:1]):
                opened = c.OpenSession(name, tables, shared=True)
                found = copy.executor.execute(opened).last_step
                assert found == model.last_step(name, tables)
    pair.standby.stop()


def follow(model: Model, store: Store, command: c.Command[Any]) -> None:
    """Execute a command, and have the model do the same if it is taken."""
    try:
        result = store.executor.execute(command)
    except EmbstoreError:
        return
    model.follow(command, result)


def leave_sessions(model: Model, store: Store) -> None:
    """Close the sessions: they end with their server."""
    for session in list(model.sessions.values()):
        for member in list(session.members):
            follow(model, store, c.CloseSession(member))


def test_a_standby_refuses_what_writes(pair):
    pair.start()
    with connected(pair.leader) as store, connected(pair.standby) as copy:
        make_tables(store)
        update(store, 1)
        before = await_same(pair.leader, pair.standby)
        for write in (
            lambda: update(copy, 2),
            lambda: copy.drop_table("rows"),
            lambda: copy.checkpoint("mine"),
            lambda: copy.executor.execute(c.OpenSession("train", ("rows",))),
        ):
            with pytest.raises(PermissionDeniedError, match=f"standby of {pair.leader.address}"):
                write()
        assert copy.flush() >= 0
        found = replication(copy)
        assert (found["role"], found["leader"]) == ("standby", pair.leader.address)
        assert (found["connected"], found["reason"]) == (True, None)
        assert (replication(store)["role"], replication(store)["standbys"]) == ("leader", 1)
        assert await_same(pair.leader, pair.standby) == before
    pair.kill()


def test_the_old_leader_is_replaced_for_good(pair):
    pair.start()
    leader, standby = pair.leader, pair.standby
    with connected(leader) as old, connected(standby) as new:
        make_tables(old)
        update(old, 1)
        await_same(pair.leader, pair.standby)
        new.promote()
        assert new.table_facts()["rows"].t == 1, "no surprise to who has promoted it"
        new.promote()  # an answer that was lost
        update(new, 5)
        await_role(old, role="replaced")
    with connected(leader) as old, connected(standby) as new:
        for _ in range(2):
            for call in (old.promote, lambda: old.drop_table("rows")):
                with pytest.raises(PermissionDeniedError, match="replaced by promotion"):
                    call()
            leader.kill()
            leader.start()
        update(new, 2)
        standby.kill()
        standby.start()  # with what it was started with: it stays what it was made
        update(new, 3)
        assert (replication(new)["role"], is_promoted(new.epoch)) == ("leader", True)
        leader.kill()
        back = leader.changed(follow=standby.address)
        back.start()
        with connected(back) as copy:
            await_same(standby, back)
            assert replication(copy)["commits_taken"] == 0  # it had all that the standby had then
        back.kill()
    standby.stop()


@pytest.mark.parametrize("point", ["promote:lineage", "promote:epoch"])
def test_a_promotion_that_is_cut_off_is_ended_by_the_next_start(pair, point):
    leader, standby = pair.leader, pair.standby.changed(dies_at=point, follow=pair.leader.address)
    leader.start()
    standby.start()
    with connected(leader) as old:
        make_tables(old)
        update(old, 1)
        await_same(leader, standby)
    leader.kill()
    with connected(standby) as new:
        promoting = threading.Thread(target=new.promote)
        promoting.start()
        standby.await_death()
        standby.start()
        promoting.join(PATIENCE_S)
    with connected(standby) as new:
        assert (replication(new)["role"], is_promoted(new.epoch)) == ("leader", True)
        update(new, 2)
        assert applied_counts(new)[1:3] == [1, 1]
        back = leader.changed(follow=standby.address)
        back.start()
        await_same(standby, back)
        back.kill()
    standby.stop()


def test_what_the_old_leader_had_alone_is_given_up(pair):
    pair.start()
    leader, standby = pair.leader, pair.standby
    with connected(leader) as old, connected(standby) as new:
        make_tables(old)
        update(old, 1)
        await_same(pair.leader, pair.standby)
        standby.kill()
        update(old, 2, 3)
        leader.kill()
        standby.start()
        new.promote()
    with connected(standby) as new:
        update(new, 4)
        back = leader.changed(follow=standby.address)
        back.start()
        with connected(back) as copy:
            await_same(standby, back)
            assert replication(copy)["commits_taken"] == 1
        back.kill()
    standby.stop()


def test_a_write_waits_for_standbys(forks, quick_path):
    pair = Pair(forks, quick_path, standbys=1)
    pair.leader.start()
    with connected(pair.leader) as store:
        done = threading.Event()
        writer = threading.Thread(target=lambda: (make_tables(store), done.set()))
        writer.start()
        await_role(store, writes_waiting=1, standbys=0, standbys_needed=1)
        assert not done.is_set()
        pair.leader.kill()  # and does not forget that it has to wait
        pair.leader.start()
        await_role(store, writes_waiting=1)
        assert not done.is_set()
        pair.standby.start()
        writer.join(PATIENCE_S)
        with connected(pair.standby) as copy:
            assert copy.command == 2
            assert await_role(store, writes_waiting=0)["standbys"] == 1
    pair.kill()


@pytest.mark.parametrize("durability", ["interval", "commands"])
def test_commands_that_a_leader_loses_were_never_sent(forks, quick_path, durability):
    pair = Pair(forks, quick_path, durability=durability, sync_every_s=0.0)
    pair.standby = pair.standby.changed(durability="commands")
    pair.leader.start()
    with connected(pair.leader) as store:
        make_tables(store)
        pair.standby.start()  # now: its first commit is of a leader that has more than that
        for life in range(3):
            await_same(pair.leader, pair.standby)
            with connected(pair.leader) as trainer:
                update(trainer, *range(10 * life, 10 * life + 9))
            pair.leader.kill()
            pair.leader.start()
        epoch = await_same(pair.leader, pair.standby)["epoch"]
        assert epoch == (4 if durability == "interval" else 1)
    pair.kill()


@pytest.mark.parametrize("verb", [c.Update, c.Checkpoint])
def test_an_answer_that_was_lost_is_given_by_the_standby(forks, quick_path, verb):
    pair = Pair(forks, quick_path, standbys=1)
    pair.start()
    with (
        Proxy(pair.leader.address) as proxy,
        connect(proxy.address, timeout_s=PATIENCE_S, transport="grpc") as store,
    ):
        make_tables(store)
        update(store, 1)
        if verb is c.Checkpoint:
            store.checkpoint("one")
        sequence = store.executor.transport._origins._last  # type: ignore[attr-defined]
        pair.leader.kill()
        with connected(pair.standby) as copy:
            copy.promote()
        proxy.upstream = pair.standby.address
        with pytest.raises(OutcomeUnknownError, match=r"the store is in epoch \d{7,}"):
            store.tables()  # whoever reads is told, once
        for _ in range(2):
            found = again(store, verb, sequence)
            assert found.command == 3 if verb is c.Update else found.label == "one"
            pair.standby.kill()
            pair.standby.start()
    with connected(pair.standby) as copy:
        assert applied_counts(copy)[1] == 1
        assert len(copy.checkpoints()) == (verb is c.Checkpoint)
    pair.standby.kill()


def test_the_other_standby_goes_on_with_the_one_that_was_promoted(forks, quick_path):
    pair = Pair(forks, quick_path, standbys=2)
    other = server(forks, quick_path / "other", follow=pair.leader.address)
    pair.start()
    other.start()
    with connected(pair.leader) as store:
        make_tables(store)
        update(store, *range(5))
        store.checkpoint("one")
        update(store, *range(5, 10))
        assert await_role(store, writes_waiting=0)["standbys"] == 2
    pair.leader.kill()
    with connected(pair.standby) as copy:
        copy.promote()
    other.kill()
    other = other.changed(follow=pair.standby.address)
    other.start()
    with connected(pair.standby) as store, connected(other) as copy:
        update(store, 10)
        await_same(pair.standby, other)
        assert replication(copy)["commits_taken"] == 0
    pair.standby.kill()
    other.kill()


@pytest.mark.parametrize("keep", [3, 1])
def test_a_label_of_the_dead_leader_alone_is_none_of_the_promoted_one(forks, quick_path, keep):
    """And the label that the dead leader has dropped for it is there again."""
    leader = server(forks, quick_path / "leader", checkpoints_keep=keep)
    leader.start()
    with Proxy(leader.address) as proxy:
        standby = server(forks, quick_path / "standby", follow=proxy.address)
        standby.start()
        with connected(leader) as store:
            make_tables(store)
            update(store, *range(5))
            store.checkpoint("both")
            update(store, 5)
            await_same(leader, standby)
            proxy.upstream = standby.address  # which is no leader
            proxy.cut()
            store.checkpoint("alone")
        leader.kill()
        with connected(standby) as copy:
            copy.promote()
        leader, standby = standby, leader.changed(follow=standby.address)
        standby.start()
        assert [label for label, *_ in await_same(leader, standby)["checkpoints"]] == ["both"]
        with connected(leader) as store, connected(standby) as copy:
            # a commit that was made for the standby, as the last one lacks a command that it has
            made = store.stats()["commits"]["own_commits"]
            assert (made, replication(copy)["commits_taken"]) == ((1, 1) if keep == 1 else (0, 0))
    standby.stop()
    leader.stop()


def test_nothing_acknowledged_is_lost_with_a_leader(forks, quick_path, soak):
    """The leader is killed under load and its standby promoted, again and again; what was the
    leader follows then. A call that was out is answered if it was applied; else it was not, and its
    trainer is told of the new epoch."""
    sys.stdout.write(f"seed {SEED + soak}\n")
    rng = np.random.default_rng(SEED + soak)
    ledger, pair = Ledger(), Pair(forks, quick_path, standbys=1)
    leader, standby = pair.leader, pair.standby.changed(standbys=1, follow=pair.leader.address)
    leader.start()
    standby.start()
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(leader.address))
        stores = [
            stack.enter_context(connect(proxy.address, timeout_s=PATIENCE_S, transport="grpc"))
            for _ in range(TRAINERS)
        ]
        make_tables(stores[0])
        trainers = [Trainer(store, ledger, count(i, TRAINERS)) for i, store in enumerate(stores)]
        for _ in range(KILLS):
            trainers[0].await_progress(int(rng.integers(1, 30)))
            leader.kill()
            told = max(ledger.acknowledged.values())
            with connected(standby) as copy:
                copy.promote()
                assert copy.command >= told
            proxy.upstream = standby.address
            proxy.cut()
            leader, standby = standby, leader.changed(follow=standby.address)
            standby.start()
        trainers[0].await_progress(5)
        for trainer in trainers:
            trainer.stop()
        ledger.refused |= ledger.unknown
        ledger.unknown.clear()
        with connected(leader) as store:
            ledger.check(store)
            assert is_promoted(store.epoch, KILLS)
        await_same(leader, standby)
    standby.stop()
    leader.stop()
