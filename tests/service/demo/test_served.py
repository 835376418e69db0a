"""The demo as it is run: a server of its own, with a session and without one, by its flags."""

import json

import pytest

from embstore_server.cli import exits, main
from embstore_server.demo import Job

SMALL = ["demo", "--samples", "8000", "--batch", "500", "--scale", "0.002", "--json"]


def test_a_server_gives_every_row_in_time_and_the_same_bits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = []
    for flags in (["--lookahead", "4"], ["--no-session"]):
        assert main([*SMALL, *flags]) == exits.OK
        found.append(json.loads(capsys.readouterr().out))
    ahead, alone = found
    assert ahead["exact"] and alone["exact"]
    assert ahead["digest"] == alone["digest"]
    assert ahead["session"]["lookahead"] == 4
    assert ahead["session"]["hit_rate"] == 1
    assert ahead["session"]["steps_in_parts"] == 0
    assert 0 <= ahead["session"]["early_share"] < 1
    assert alone["session"] is None
    assert alone["hit_rate_unique"] < 1


def test_lookahead_without_a_session_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--no-session", "--lookahead", "4"]) == exits.USAGE
    assert "--lookahead" in capsys.readouterr().err


def test_help_tells_how_far_a_session_looks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["demo", "--help"]) == exits.OK
    shown = capsys.readouterr().out
    assert "--no-session" in shown
    assert f"announces ahead. Default: {Job.lookahead}." in shown
