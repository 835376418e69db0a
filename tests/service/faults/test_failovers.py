"""Two servers that follow each other fail over to and fro, each always with the same flags."""

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from embstore.errors import (
    DeadlineError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PermissionDeniedError,
    StoreClosedError,
)
from embstore_client import connect
from tests.faults.forks import Forks
from tests.service.faults.following import (
    await_role,
    await_same,
    connected,
    contents,
    is_promoted,
    replication,
    server,
    update,
)
from tests.service.faults.ledger import Ledger, gradients, make_tables
from tests.service.faults.processes import ForkedServer
from tests.service.faults.proxy import Proxy
from tests.service.faults.served import PATIENCE_S, until

FAILOVERS = 3
NEVER_S = 10 * PATIENCE_S


class Both:
    """Two servers that follow each other from the first failover on; nothing is killed before it is
    on both."""

    def __init__(self, forks: Forks, path: Path, standbys: int = 0) -> None:
        self.ledger = Ledger()
        self._number = 0
        self.leader = server(forks, path / "a")
        self.standby = server(forks, path / "b", follow=self.leader.address, standbys=standbys)
        self.leader.start()
        self.standby.start()
        with connected(self.leader) as store:
            make_tables(store)
        self.leader.give(follow=self.standby.address, standbys=standbys)

    def update(self, count: int = 3) -> None:
        """Have the leader acknowledge some updates."""
        with connected(self.leader) as store:
            for _ in range(count):
                self._number += 1
                acknowledged = store.update(gradients(self._number)).command
                self.ledger.acknowledged[self._number] = acknowledged

    def fail_over(self) -> ForkedServer:
        """Kill the leader and promote the standby; return the killed one, which is not started."""
        await_same(self.leader, self.standby)
        self.leader.kill()
        with connected(self.standby) as copy:
            copy.promote()
        self.leader, self.standby = self.standby, self.leader
        return self.standby

    def assert_refused(self) -> None:
        """Send a write to the standby, as a trainer does that does not know of the failover. A
        server that learns while it runs that it was replaced is a standby a moment later."""
        self._number += 1
        refusal = f"a standby of {self.leader.address}|was replaced by promotion"
        with connected(self.standby) as store, pytest.raises(PermissionDeniedError, match=refusal):
            for _ in range(5):  # it tells of the leader's epoch when it has it
                with suppress(OutcomeUnknownError):
                    store.update(gradients(self._number))
                    pytest.fail("a standby has acknowledged a write")

    def end(self) -> None:
        """Check that both have what was acknowledged, and no more; end them."""
        await_same(self.leader, self.standby)
        with connected(self.leader) as store:
            self.ledger.check(store)
        self.standby.stop()
        self.leader.stop()


@pytest.fixture
def both(forks: Forks, quick_path: Path) -> Both:
    return Both(forks, quick_path)


@pytest.fixture
def replaced(both: Both) -> Both:
    """After two failovers: the standby is down, and cannot know that it was replaced."""
    both.fail_over().start()
    both.update()
    both.fail_over()
    both.update()
    return both


@pytest.mark.parametrize("standbys", [0, 1])
def test_two_that_follow_each_other_fail_over_to_and_fro(forks, quick_path, standbys):
    both = Both(forks, quick_path, standbys)
    for _ in range(FAILOVERS):
        killed = both.fail_over()
        if not standbys:
            both.update()
        killed.start()
        both.assert_refused()
        both.update()
    with connected(both.leader) as store:
        assert is_promoted(store.epoch, FAILOVERS)
        assert replication(store)["role"] == "leader"
    both.end()


def test_one_that_was_replaced_is_a_standby_before_it_has_taken_a_write(replaced):
    """Though it never assumes that it was not."""
    replaced.standby.give(answer_s=NEVER_S)
    replaced.standby.start()
    replaced.assert_refused()
    with connected(replaced.standby) as copy:
        assert await_role(copy, connected=True)["role"] == "standby"
    replaced.end()


def test_one_that_has_not_followed_its_successor_is_not_promoted(both):
    """Its successor was promoted, and is down: both would lead afterwards, in one epoch."""
    killed = both.fail_over()
    both.update()
    both.leader.kill()
    killed.start()
    with (
        connected(killed) as store,
        pytest.raises(InvalidArgumentError, match="not promoted while this server"),
    ):
        store.promote()
    both.leader.start()
    await_same(both.leader, killed)
    with connected(killed) as copy:
        copy.promote()
    both.leader, both.standby = killed, both.leader
    both.update()
    both.end()


def test_the_leader_remains_it_with_the_flags_of_a_standby(both):
    """Whether the other one is down, or its standby."""
    both.fail_over()
    both.leader.give(answer_s=NEVER_S)
    for is_down in (True, False):
        both.update()
        both.leader.kill()
        both.leader.start()
        both.update()
        if is_down:
            both.standby.start()
    both.end()


def test_one_that_led_before_its_successor_was_there_follows_it_without_a_restart(
    replaced, forks, quick_path
):
    """Its writes are void, as those of any leader that was replaced; its own standby is told."""
    successor, old = replaced.leader, replaced.standby
    await_same(successor, successor)
    successor.kill()
    old.give(log=quick_path / "log")
    old.start()
    other = server(forks, quick_path / "other", follow=old.address)
    other.start()
    with connected(old) as store:
        update(store, 100, 101)
        assert replication(store)["role"] == "leader"
    await_same(old, other)
    successor.start()
    with connected(old) as store:
        await_role(store, role="standby", connected=True, leader=successor.address)
    with connected(other) as copy:
        until(lambda: "a standby of" in (replication(copy)["reason"] or ""))
    other.kill()
    replaced.assert_refused()
    replaced.update()
    assert "commands lost" in (quick_path / "log").read_text()
    await_same(successor, old)
    replaced.fail_over().start()  # and it can be promoted again
    replaced.update()
    replaced.end()


@pytest.mark.parametrize("answers", [False, True], ids=["for a while", "until it has gone"])
def test_one_that_gets_no_answer_takes_no_writes(both, answers):
    """For so long as it waits; the other server is there, and silent."""
    host, _, port = both.leader.address.rpartition(":")
    both.fail_over()
    both.update()
    both.leader.kill()
    with socket.create_server((host, int(port))):
        both.leader.give(answer_s=NEVER_S)
        both.leader.start()
        with (
            connect(both.leader.address, timeout_s=1.0, transport="grpc") as store,
            pytest.raises((StoreClosedError, DeadlineError), match="asked whether it has replaced"),
        ):
            store.update(gradients(100))
        if not answers:
            both.leader.kill()
            both.leader.give(answer_s=0.1)
            both.leader.start()
            both.update()
    both.update()
    both.standby.start()
    both.end()


def test_whoever_moves_from_one_promoted_standby_to_another_is_told(forks, quick_path):
    """Both were promoted from one state; what the first one took alone is lost with it."""
    leader = server(forks, quick_path / "leader")
    standbys = [server(forks, quick_path / n, follow=leader.address) for n in ("one", "two")]
    for each in (leader, *standbys):
        each.start()
    with connected(leader) as store:
        make_tables(store)
    for each in standbys:
        await_same(leader, each)
    leader.kill()
    with ExitStack() as stack:
        for each in standbys:
            stack.enter_context(connected(each)).promote()
        proxy = stack.enter_context(Proxy(standbys[0].address))
        reader, writer = (
            stack.enter_context(connect(proxy.address, timeout_s=PATIENCE_S, transport="grpc"))
            for _ in range(2)
        )
        update(writer, 1)
        assert reader.tables() and reader.epoch == writer.epoch
        proxy.upstream = standbys[1].address
        proxy.cut()
        for told in (reader.tables, lambda: update(writer, 2)):
            with pytest.raises(OutcomeUnknownError):
                told()
    for each in standbys:
        each.kill()


def test_two_empty_servers_that_follow_each_other_wait(forks, quick_path):
    """Neither has a first commit. One that has tables is promoted, and is followed."""
    one = server(forks, quick_path / "one")
    other = server(forks, quick_path / "other", follow=one.address)
    one.give(follow=other.address)
    for each in (one, other):
        each.start()
    for each in (one, other):
        with pytest.raises(DeadlineError, match="first commit"):
            connect(each.address, timeout_s=1.0, transport="grpc")
    one.kill()
    one.give(follow="off")
    one.start()
    with connected(one) as store:
        make_tables(store)
        update(store, 1)
    await_same(one, other)
    one.kill()
    one.give(follow=other.address)
    one.start()
    with connected(one) as store:
        store.promote()
    with connected(one) as store:
        update(store, 2)
        assert is_promoted(contents(store)["epoch"])
    await_same(one, other)
    other.kill()
    one.kill()
