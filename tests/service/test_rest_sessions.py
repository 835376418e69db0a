"""What an operator sees of look-ahead sessions: REST, metrics, and the command."""

import json

import embstore
from embstore.lookahead.stats import SessionStats
from embstore.stats import declared
from embstore_server.cli import exits

END = "/api/v1/commands/EndSession"


def train(store: embstore.Store) -> str:
    """Open a session of "ads", finish the first of three steps; return its member."""
    store.sessions.open("ctr", ["ads"], lookahead_steps_max=4)
    member = store.sessions.join("ctr", 0).member
    store.sessions.announce(member, {step: {"ads": [step, step + 1]} for step in (1, 2, 3)})
    store.sessions.lookup_step(member, 1)
    store.sessions.release_step(member, 1)
    return member


# REST


async def test_no_session_is_live(rest):
    assert (await rest.get("/api/v1/sessions"))["sessions"] == []


async def test_live_sessions_are_listed_by_name(rest):
    await rest.on_engine(train)
    await rest.on_engine(lambda store: store.sessions.open("a", ["ads/stats"], world_size=2))
    found = await rest.get("/api/v1/sessions")
    first, second = found["sessions"]
    assert (first["name"], first["tables"], first["ranks_joined"]) == ("a", ["ads/stats"], 0)
    assert (second["name"], second["last_step"], second["announced_step"]) == ("ctr", 1, 3)
    assert (second["lookup_keys"], second["lookup_hits"], second["hit_rate"]) == (2, 2, 1.0)
    assert second.keys() == {stat.name for stat in declared(SessionStats)}
    assert found["planning"]["planned_keys"] >= 2
    assert found["context"]["store_id"]


async def test_a_session_is_told_without_its_members(rest):
    member = await rest.on_engine(train)
    assert member not in json.dumps(await rest.get("/api/v1/sessions"))


async def test_a_session_is_ended_by_its_name_whatever_that_has(rest):
    """Review: Names were decoded twice, so that of these two the other one was ended."""
    names = ["a/b", "a%2Fb", "100%25", "snow ☃", "a:b/c?d"]
    for name in names:
        await rest.on_engine(lambda store, n=name: store.sessions.open(n, ["ads"], shared=True))
    for name in names[1:]:
        await rest.post(END, {"name": name})
    assert [one["name"] for one in (await rest.get("/api/v1/sessions"))["sessions"]] == ["a/b"]
    refused = await rest.post(END, {"name": "100%25"}, 409)
    assert refused["error"] == "SessionExpiredError"


# Metrics


async def test_metrics_of_a_session_end_with_it(rest):
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


# The command


def test_the_command_shows_live_sessions(server, typed):
    server.on_engine(train)
    lines = [line.split() for line in typed("sessions").out.splitlines()]
    assert lines[0] == ["ctr"]
    for line in ("last step 1", "ranks joined 1", "hit rate 100.0%", "tables ads"):
        assert line.split() in lines
    (found,) = typed("sessions", "--json").document
    assert (found["name"], found["last_step"]) == ("ctr", 1)


def test_the_command_ends_a_session(server, typed):
    server.on_engine(train)
    asked = typed("sessions", "close", "ctr")
    assert asked.status == exits.USAGE and "--yes" in asked.err
    assert typed("sessions", "close", "ctr", "--yes", "--json").document == {"name": "ctr"}
    assert typed("sessions").out == "no session is live\n"
    assert typed("sessions", "--json").document == []
    again = typed("sessions", "close", "ctr", "--yes")
    assert again.status == exits.FAILED and "no session 'ctr' is open" in again.err


async def test_rest_restores_when_sessions_are_ended(rest):
    await rest.post("/api/v1/commands/Checkpoint", {"label": "kept"})
    await rest.on_engine(train)
    refused = await rest.post("/api/v1/commands/Restore", {"label": "kept"}, 409)
    assert refused["error"] == "TableHeldError"
    restored = await rest.post("/api/v1/commands/Restore", {"label": "kept", "force": True})
    assert restored["context"]["epoch"] == "2"
    assert (await rest.get("/api/v1/sessions"))["sessions"] == []
