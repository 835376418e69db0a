"""What an operator sees of look-ahead sessions: REST, metrics, and the command."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embstore
from embstore_server.admin.sessions import SESSION_EXAMPLE, Sessions
from embstore_server.cli import main
from tests.service.rest import Rest, filled, run
from tests.serving import Server


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a store with two tables."""
    return filled(tmp_path / "store")


def train(store: embstore.Store) -> str:
    """Open a session of "ads", finish the first of three steps; return its member."""
    store.sessions.open("ctr", ["ads"], lookahead_steps_max=4)
    member = store.sessions.join("ctr", 0).member
    store.sessions.announce(member, {step: {"ads": [step, step + 1]} for step in (1, 2, 3)})
    store.sessions.lookup_step(member, 1)
    store.sessions.release_step(member, 1)
    return member


# REST


def test_no_session_is_live(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert (await rest.get("/api/v1/sessions"))["sessions"] == []

    run(data, scenario)


def test_live_sessions_are_listed_by_name(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.on_engine(train)
        await rest.on_engine(lambda store: store.sessions.open("a", ["ads/stats"], world_size=2))
        found = await rest.get("/api/v1/sessions")
        Sessions.model_validate(found)
        first, second = found["sessions"]
        assert (first["name"], first["tables"], first["ranks_joined"]) == ("a", ["ads/stats"], 0)
        assert (second["name"], second["last_step"], second["announced_step"]) == ("ctr", 1, 3)
        assert (second["lookup_keys"], second["lookup_hits"], second["hit_rate"]) == (2, 2, 1.0)
        assert second.keys() == SESSION_EXAMPLE.keys()
        assert found["planning"]["planned_keys"] >= 2
        assert found["context"]["store_id"]

    run(data, scenario)


def test_a_session_is_told_without_its_members(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        member = await rest.on_engine(train)
        assert member not in json.dumps(await rest.get("/api/v1/sessions"))

    run(data, scenario)


# Metrics


def test_metrics_of_a_session_end_with_it(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert (await rest.samples())["embstore_sessions"] == 0
        member = await rest.on_engine(train)
        samples = await rest.samples()
        assert samples["embstore_sessions"] == 1
        assert samples["embstore_session_last_step{ctr}"] == 1
        assert samples["embstore_session_announced_step{ctr}"] == 3
        assert samples["embstore_session_steps_finished_total{ctr}"] == 1
        assert samples["embstore_session_lookup_hits_total{ctr}"] == 2
        assert samples["embstore_lookahead_planned_keys_total"] >= 2
        await rest.on_engine(lambda store: store.sessions.close(member))
        assert not [name for name in await rest.samples() if name.endswith("{ctr}")]

    run(data, scenario)


# The command


@pytest.fixture
def server(data: Path) -> Iterator[Server]:
    server = Server(lambda: embstore.open(data, cache_bytes=1 << 20), data)
    with server:
        yield server


@pytest.fixture
def typed(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return what types `embstore sessions` with more words, and returns what it says."""
    for name in [name for name in os.environ if name.startswith("EMBSTORE_")]:
        monkeypatch.delenv(name)

    def typing(*words: str) -> str:
        assert main(["sessions", "--address", server.address, *words]) == 0
        return capsys.readouterr().out

    return typing


def test_the_command_says_that_no_session_is_live(typed: Callable[..., str]) -> None:
    assert typed() == "no session is live\n"
    assert json.loads(typed("--json")) == []


def test_the_command_shows_live_sessions(server: Server, typed: Callable[..., str]) -> None:
    server.on_engine(train)
    shown = typed()
    assert "last step" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("ctr")]
    assert "1 of 1" in line
    assert "100.0%" in line
    (found,) = json.loads(typed("--json"))
    assert (found["name"], found["last_step"]) == ("ctr", 1)
