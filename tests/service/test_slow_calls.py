"""What the log says of a slow call: who asked for what, and where the time went; never a secret."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.handles.store import Store
from embstore_server.telemetry.logs import JsonLines
from tests.service.access.tenants import secrets, token_of, write_tokens
from tests.serving import Server, patient

DIM = 4
Log = pytest.LogCaptureFixture


@pytest.fixture
def log(caplog: Log) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "embstore")
    return caplog


def lines(log: Log) -> list[str]:
    """Return the lines of the log, as a collector gets them."""
    own = (record for record in log.records if record.name == "embstore")
    return [JsonLines().format(record) for record in own]


def slow(log: Log, verb: str) -> dict[str, Any]:
    """Return the latest slow call of a verb."""
    events = [json.loads(line) for line in lines(log)]
    return next(e for e in reversed(events) if (e["event"], e["verb"]) == ("slow call", verb))


@pytest.fixture
def server(tmp_path: Path, log: Log) -> Iterator[Server]:
    def open_store() -> Store:
        data = tmp_path / "store"
        store = embstore.open(data, device="cpu", cache_bytes=1 << 22, durability="commands")
        for name in ("ads", "users"):
            sgd, zero = embstore.Sgd(0.1), embstore.Constant(0.0)
            store.create_table(name, dim=DIM, rows=100, optimizer=sgd, initializer=zero)
        return store

    tokens = write_tokens(tmp_path / "tokens")
    settings = {"tokens": tokens, "slow_call_ms": 0.0, "socket": str(tmp_path / "s")}
    with Server(open_store, tmp_path, **settings) as server:
        yield server


def test_a_slow_call_says_of_which_tables_it_was_and_where_its_time_went(server, log):
    with patient(server.address, token=token_of("trainer"), label="job-7") as store:
        store.update({"ads": ([1, 2, 3], np.ones((3, DIM), np.float32))})
        store.lookup({"ads": [1, 2, 3], "users": [4]})
        store.table("ads").digest()
    update, lookup, digest = (slow(log, verb) for verb in ("Update", "Lookup", "GetDigest"))
    assert (update["tables"], update["keys"], update["session"]) == ("ads", 3, "")
    assert (update["token"], update["client"]) == ("trainer", "job-7")
    assert {"unique", "probe", "apply", "durable"} <= update["stage_ms"].keys()
    assert (lookup["tables"], lookup["keys"]) == ("ads, users", 4)
    assert "gather" in lookup["stage_ms"]
    assert digest["tables"] == "ads"
    assert "thread" in digest["stage_ms"]
    for one in (update, lookup):
        stages = sum(ms for name, ms in one["stage_ms"].items() if name != "durable")
        assert stages <= one["run_ms"] + 0.5, "stages are parts of the time on the engine"
    assert len({one["request"] for one in (update, lookup, digest)} - {""}) == 3


def test_a_slow_step_says_of_which_session_it_was(server, log):
    with patient(server.address, token=token_of("trainer")) as store:
        with store.session(["ads"], name="job", lookahead=2) as session:
            for step in session.steps([np.arange(5)] * 3, keys=lambda batch: {"ads": batch}):
                step.update({"ads": np.ones_like(step.lookup()["ads"])})
    for verb, keys in (("LookupStep", 0), ("UpdateStep", 5)):
        found = slow(log, verb)
        assert (found["session"], found["rank"], found["step"]) == ("trainer:job", 0, 3)
        assert found["keys"] == keys
    assert "step" in slow(log, "LookupStep")["stage_ms"]


def test_a_lookup_that_waits_for_nothing_says_it_too(server, log):
    with patient(f"unix:{server.socket}", token=token_of("trainer")) as store:
        for _ in range(2):  # the second is answered at once
            store.table("users").lookup([1, 2])
    found = slow(log, "Lookup")
    assert (found["tables"], found["keys"]) == ("users", 2)


def test_each_event_is_one_line_of_json_without_a_secret(server, log):
    for name in ("trainer", "operator"):
        with patient(server.address, token=token_of(name)) as store:
            store.table("ads").lookup([1])
            with store.session(["ads"], name="job") as session:
                for _ in session.steps([np.arange(3)], keys=lambda batch: {"ads": batch}):
                    pass
            if name == "operator":
                store.drop_table("users")
    with pytest.raises(embstore.errors.UnauthenticatedError):
        patient(server.address, token="trainer.nothing-that-is-known")
    assert lines(log)
    for line in lines(log):
        assert "\n" not in line
        assert json.loads(line).keys() >= {"time", "level", "event"}
        assert not any(secret in line for secret, _ in secrets().values())
        assert "nothing-that-is-known" not in line
