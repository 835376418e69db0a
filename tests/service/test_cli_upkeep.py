"""Commands for operators: every verb that is not a trainer's has one; what is lost is asked for."""

from typing import Any

import numpy as np
import pytest

from embstore.commands import COMMANDS, Command
from embstore_client.executor import RemoteExecutor
from embstore_server.cli import exits
from tests.service.frequency_samples import DIM
from tests.service.test_rest_sessions import train

CREATE = (
    "table create new --dim 4 --rows 9 --optimizer sgd --learning-rate 1 --initializer constant:0"
)
COMMAND_OF = {
    "GetServerInfo": "table list",
    "GetStats": "stats",
    "ResizeCache": "resize-cache 2MiB",
    "SetPolicy": "set-policy rank",
    "CheckIntegrity": "check-integrity",
    "CreateTable": CREATE,
    "GetTable": "table show ads",
    "ListTables": "table list",
    "ClearTable": "table clear users --yes",
    "DropTable": "table drop users --yes",
    "GrowTable": "table grow ads 100000",
    "SetLearningRate": "table set-learning-rate ads 0.5",
    "GetDigest": "digest ads",
    "GetLeaves": "digest ads --leaves",
    "Flush": "flush ads",
    "Checkpoint": "checkpoint one",
    "ListCheckpoints": "checkpoint --list",
    "SetRetention": "set-retention one protected",
    "Restore": "restore one --yes",
    "Backup": "backup {folder}/backups",
    "Promote": "promote --yes",
    "OpenScan": "export ads -o {folder}/ads.npy",
    "ReadScan": "export ads -o {folder}/ads.npy",
    "CloseScan": "export ads -o {folder}/ads.npy",
    "EndSession": "sessions close ctr --yes",
    "ExportProfile": "export-profile -o {folder}/profile",
    "ClearCounts": "clear-counts --yes",
    "WarmCache": "warm",
    "UnpinHotSet": "unpin-hotset",
}
OF_FILES = {"ImportProfile", "PinHotSet", "SetShardMap"}
"""Their commands take files that others make; tests of access frequencies and shards have them."""
OF_CLUSTERS = {"PauseWrites", "ResumeWrites"}
"""Given by whoever moves partitions; an operator has `embstore call`."""
OF_TRAINERS = {
    *("Lookup", "LookupPooled", "ReadRows", "Update", "UpdatePooled", "UpdateRanks"),
    *(
        "Assign",
        "PutRows",
        "DeleteRows",
        "OpenSession",
        "JoinSession",
        "RenewLease",
        "CloseSession",
    ),
    *("Announce", "LookupStep", "LookupStepPooled", "ReadStep", "UpdateStep", "ReleaseStep"),
    *("SkipStep", "PutStepRows", "GetHotSet"),
}


def test_every_verb_of_an_operator_has_a_command():
    assert COMMAND_OF.keys() | OF_FILES | OF_CLUSTERS | OF_TRAINERS == COMMANDS.keys()
    assert not COMMAND_OF.keys() & OF_TRAINERS


def test_the_command_of_a_verb_sends_it(typed, server, tmp_path, monkeypatch):
    sent: set[str] = set()
    execute: Any = RemoteExecutor.execute

    def noted(self: RemoteExecutor, command: Command[Any], **how: Any) -> Any:
        sent.add(type(command).__name__)
        return execute(self, command, **how)

    monkeypatch.setattr(RemoteExecutor, "execute", noted)
    server.on_engine(lambda store: store.table("ads").assign([1], np.ones((1, DIM), np.float32)))
    for verb, words in COMMAND_OF.items():
        if verb == "EndSession":
            server.on_engine(train)
        sent.clear()
        ended = typed(*words.format(folder=tmp_path).split())
        assert verb in sent, (words, ended)
        assert ended.status == 0, (words, ended)


@pytest.mark.parametrize(
    "words", ["clear-counts", "promote", "sessions close ctr", "table drop ads", "restore one"]
)
def test_what_is_lost_is_asked_for(words, typed, server):
    server.on_engine(train)
    server.on_engine(lambda store: store.checkpoint("one"))
    before = server.on_engine(lambda store: store.command)
    ended = typed(*words.split())
    assert (ended.status, ended.out) == (exits.USAGE, "")
    assert "expected --yes, because standard input is no terminal" in ended.err
    assert server.on_engine(lambda store: store.command) == before
    assert server.on_engine(lambda store: len(store.sessions.stats())) == 1


def test_upkeep_says_what_it_did(typed, server):
    rows = server.on_engine(lambda store: store.table("ads").rows)
    grown = typed("table", "grow", "ads", str(rows + 5), "--json").document
    assert grown == {"name": "ads", "rows": rows + 5, "command": 3}
    assert typed("table", "grow", "ads", str(rows)).status == exits.USAGE
    assert typed("table", "set-learning-rate", "ads", "0.5").status == 0
    assert server.on_engine(lambda store: store.table("ads").learning_rate) == 0.5
    assert typed("resize-cache", "2MiB", "--json").document == {"cache_bytes": 2 << 20}
    assert server.on_engine(lambda store: store.cache_bytes) == 2 << 20
    assert typed("resize-cache", "much").status == exits.USAGE
    assert typed("flush", "--json").document == {"table": None, "rows": 0}
    assert typed("flush", "none").status == exits.NOT_FOUND
    assert typed("promote", "-y").out == "the server is the leader\n"


def test_a_violated_invariant_is_an_error(typed, server, monkeypatch):
    def violated(*_: Any, **__: Any) -> None:
        raise AssertionError("two slots have key 1")

    assert typed("check-integrity").out == "every invariant holds\n"
    engine: Any = server.store.executor
    monkeypatch.setattr(engine.tables, "check_integrity", violated)
    ended = typed("check-integrity")
    assert ended.status == exits.FAILED
    assert ended.err == "error: an invariant does not hold: two slots have key 1\n"


# Completion in a shell


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("embstore ta", ["table"]),
        ("embstore sessions ", ["close", "list"]),
        ("embstore table g", ["grow"]),
        ("embstore restore --w", ["--wait"]),
        ("embstore serve --cache", ["--cache-bytes", "--cache-split"]),
    ],
)
def test_a_shell_completes(line, offered, shell, monkeypatch):
    monkeypatch.setenv("_EMBSTORE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    assert sorted(shell().out.split()) == offered
