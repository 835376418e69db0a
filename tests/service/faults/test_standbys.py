"""A standby has what its leader has, to the bit, whatever is killed in between."""

from pathlib import Path

from tests.faults.forks import Forks
from tests.service.faults.following import await_same, connected, server, standing
from tests.service.faults.ledger import gradients, make_tables


def test_a_standby_follows_from_nothing(forks: Forks, quick_path: Path) -> None:
    leader = server(forks, quick_path / "leader")
    standby = server(forks, quick_path / "standby", follow=leader.address)
    leader.start()
    with connected(leader) as store:
        make_tables(store)
        for n in range(5):
            store.update(gradients(n))
        standby.start()
        with connected(standby) as copy:
            await_same(store, copy)
            for n in range(5, 10):
                store.update(gradients(n))
            store.checkpoint("one", {"step": 9})
            store.update(gradients(10))
            await_same(store, copy)
            assert standing(copy)["role"] == "standby"
            assert standing(store)["standbys"] == 1
    standby.stop()
    leader.stop()
