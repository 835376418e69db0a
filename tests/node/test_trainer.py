"""A trainer in another language, over a connection that is cut: the digests of an embedded store.

The trainer (trainer.js) is a client of the .proto file alone. Its updates follow from the rows that
it has read, so equal digests show that both came through to the bit. Three of its updates are
applied while their answers are lost: of a unary call, of a stream, and of a step of a session. They
are sent again, and are applied once.
"""

import json
from typing import Any

import numpy as np

import embstore
from embstore.config import Adam, Normal, RowWiseAdagrad, Uniform
from embstore_server.setup.launch import ServerProcess
from tests.node.installed import CLIENT, Program, installed, running
from tests.service.faults.proxy import Proxy
from tests.service.faults.served import until
from tests.serving import patient

CONFIGS: dict[str, dict[str, Any]] = {
    "ads": {
        "dim": 8,
        "rows": 1000,
        "optimizer": RowWiseAdagrad(0.1),
        "initializer": Uniform(-0.1, 0.1),
    },
    "wide": {"dim": 256, "rows": 5000, "optimizer": Adam(0.01), "initializer": Normal(0.0, 0.02)},
}
BATCHES = {"ads": 64, "wide": 3000}
PLAIN = ["ads", "ads", "ads", "wide", "wide", "ads", "wide"]
"""The table of each plain step."""
STEPS = 4
"""Of the session; the last one is only read."""
COMPATIBLE = {"Apache-2.0", "MIT", "ISC", "BSD-3-Clause"}


def test_digests_are_those_of_an_embedded_store(tmp_path):
    installed()
    with (
        ServerProcess(tmp_path / "served", "--cache-bytes", "64MiB") as server,
        Proxy(server.address) as proxy,
        running("trainer.js", proxy.address) as trainer,
    ):
        found = conducted(trainer, server.address, proxy)
        assert proxy.cuts == 3
    with embstore.open(tmp_path / "embedded", cache_bytes=1 << 26) as store:
        train(store)
        expected = {name: store.table(name) for name in CONFIGS}
        assert found == {n: {"digest": t.digest(), "t": t.t} for n, t in expected.items()}


def conducted(trainer: Program, address: str, proxy: Proxy) -> dict[str, Any]:
    """Cut the trainer's connection where it says so, when its update is applied and not answered;
    return what it prints at its end."""
    with patient(address) as store:
        for printed in trainer:
            if "tables" in printed:
                tables: dict[str, Any] = printed["tables"]
                return tables
            table = store.table(printed["cut"])
            before = table.t
            proxy.silence()
            trainer.write("go on")
            until(lambda table=table, before=before: table.t > before)
            proxy.cut()
    raise AssertionError("the trainer ended early")


def train(store: embstore.Store) -> None:
    """Do to a store what the trainer does."""
    for name, config in CONFIGS.items():
        store.create_table(name, **config)
    for step, name in enumerate(PLAIN, 1):
        keys = batch_of(step, name)
        table = store.table(name)
        table.update(keys, gradients_of(keys, table.lookup(keys)))
    sessions = store.sessions
    sessions.open("node", list(CONFIGS))
    member = sessions.join("node", 0).member
    sessions.announce(member, {step: step_of(step) for step in range(1, STEPS + 1)})
    for step in range(1, STEPS):
        rows = sessions.lookup_step(member, step)
        keys_of = step_of(step)
        gradients = {name: gradients_of(keys, rows[name]) for name, keys in keys_of.items()}
        sessions.update_step(member, step, gradients)
    sessions.release_step(member, STEPS)
    sessions.close(member, forget=True)


def batch_of(step: int, name: str) -> Any:
    i = np.arange(BATCHES[name])
    return (step * 7919 + i * i * 31) % CONFIGS[name]["rows"]


def step_of(step: int) -> dict[str, Any]:
    """Return the keys of a step of the session, each once, in the order of the batch."""
    names = ["ads", "wide"] if step % 2 else ["ads"]
    return {name: np.array(list(dict.fromkeys(batch_of(step, name).tolist()))) for name in names}


def gradients_of(keys: Any, rows: Any) -> Any:
    return rows - ((keys % 7 - 3) / np.float32(4)).astype(np.float32)[:, None]


def test_packages_are_bounded_below_and_may_be_used():
    """And the lock says nothing of where they were fetched from."""
    lock = json.loads((CLIENT / "package-lock.json").read_text())
    package = json.loads((CLIENT / "package.json").read_text())
    assert all(bound.startswith("^") for bound in package["dependencies"].values())
    packages = {name: facts for name, facts in lock["packages"].items() if name}
    assert {facts["license"] for facts in packages.values()} <= COMPATIBLE
    assert not [name for name, facts in packages.items() if "resolved" in facts]
