"""The demo as it is run: a server of its own, with a session and without one, by its flags."""

import json

from embstore_server.cli import exits, main

SMALL = ["demo", "--samples", "8000", "--batch", "500", "--scale", "0.002", "--json"]


def test_a_server_gives_every_row_in_time_and_the_same_bits(capsys, monkeypatch, tmp_path):
    """Whatever a crash would leave of it; and a report of the session."""
    found = []
    report = tmp_path / "run.html"
    ahead_flags = ["--lookahead", "4", "--report", str(report)]
    for flags, level in ((ahead_flags, "commands"), (["--no-session"], "checkpoint")):
        monkeypatch.setenv("EMBSTORE_DURABILITY", level)
        assert main([*SMALL, *flags]) == exits.OK
        found.append(json.loads(capsys.readouterr().out))
    ahead, alone = found
    assert ahead["exact"] and alone["exact"]
    assert ahead["digest"] == alone["digest"]
    assert ahead["session"]["lookahead"] == 4
    assert ahead["session"]["hit_rate"] == 1
    assert ahead["session"]["steps_in_parts"] == 0
    assert 0 <= ahead["session"]["early_share"] < 1
    assert f"{ahead['steps']} in " in report.read_text()
    assert json.loads(report.with_suffix(".json").read_text())["accesses"]
    assert alone["session"] is None
    assert alone["hit_rate_unique"] < 1


def test_every_policy_and_way_through_servers(capsys):
    assert main([*SMALL, "--compare", "--cache-share", "0.1", "--budget", "256KiB"]) == exits.OK
    results = json.loads(capsys.readouterr().out)["results"]
    alone, rank = results["LRU"], results["warm rank"]
    assert rank["digest"] == alone["digest"] == results["look-ahead"]["digest"]
    assert rank["popularity"]["warmed_rows"] > 0
    assert rank["hit_rate_access"] > alone["hit_rate_access"]
    hot = results["hot/cold"]
    assert hot["hot"]["hot_share"] > 0 and hot["hot"]["calls_in_hot_batches"] == 0
    assert 0 < hot["network_bytes"] < alone["network_bytes"]
    assert alone["cache_bytes"] == int(0.1 * alone["table_bytes"])
