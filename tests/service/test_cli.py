"""The commands: what they write where, what `--json` gives, and how they end.

An embedded store stands where the server's would be: both have the methods that commands use.
"""

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGPIPE, SIGTERM
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import config
from embstore.errors import CapacityError, DeadlineError
from embstore.storage.format import BACKUP_FORMAT, FORMAT
from embstore_proto.status import ANSWERS
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.cli import connection, exits, parameters
from embstore_server.setup.settings import Settings, declared
from embstore_tools.commands import bench
from tests.service.shell import Ended, Terminal

ADS = ["--dim", "8", "--rows", "1000", "--optimizer", "rowwise_adagrad", "--learning-rate", "0.01"]
UNIFORM = ["--initializer", "uniform:-0.01,0.01"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[embstore.Store]:
    """Return the store that commands reach."""
    with embstore.open(tmp_path / "store", cache_bytes=64 << 20) as opened:
        monkeypatch.setattr(connection, "connected", lambda *way: nullcontext(opened))
        yield opened


def add_ads(store: embstore.Store) -> embstore.Table:
    return store.create_table(
        "ads",
        dim=8,
        rows=1000,
        optimizer=embstore.RowWiseAdagrad(0.01),
        initializer=embstore.Uniform(-0.01, 0.01),
    )


# The whole


def test_a_mistyped_command_is_answered_with_the_nearest(shell):
    assert "Did you mean 'table'?" in shell("tabel").err


def test_the_package_runs_as_a_module(shell):
    words = [sys.executable, "-m", "embstore_server", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.stdout == shell("--version").out


def test_the_version_says_build_and_formats(shell):
    version, build, formats = shell("--version").out.splitlines()
    assert version == f"embstore {embstore.__version__}"
    assert build == "build a clone"
    assert formats == (
        f"formats: store {FORMAT}, backup {BACKUP_FORMAT}, wire {pb.DESCRIPTOR.package}"
    )


@pytest.mark.parametrize(
    "words", [["stats", "--bogus"], ["table", "create", "ads"], ["table", "maek"]]
)
def test_a_command_line_that_makes_no_sense_ends_with_2(words, shell):
    ended = shell(*words)
    assert (ended.status, ended.out) == (exits.USAGE, "")


def test_every_exit_status_is_explained():
    used = {answer.exit for answer in ANSWERS.values()}
    by_signal = {128 + SIGINT, 128 + SIGPIPE, 128 + SIGTERM}
    assert {exits.OK, exits.FAILED, *used, *by_signal} == exits.MEANINGS.keys()


def test_an_error_is_told_in_a_line_without_a_trace(shell, monkeypatch):
    def unreached(*way: Any) -> Any:
        raise DeadlineError("no server answered")

    monkeypatch.setattr(connection, "connected", unreached)
    assert shell("stats", "--json") == Ended(exits.NO_ANSWER, "", "error: no server answered\n")


def test_a_mistake_of_ours_is_not_hidden(shell, monkeypatch):
    monkeypatch.setattr(connection, "connected", lambda *way: nullcontext(None))
    with pytest.raises(AttributeError):
        shell("stats")


def test_flags_and_variables_say_where_the_server_is(shell, store, monkeypatch):
    ways: list[Any] = []

    def connected(*way: Any) -> Any:
        ways.append(way)
        return nullcontext(store)

    monkeypatch.setattr(connection, "connected", connected)
    monkeypatch.setenv("EMBSTORE_ADDRESS", "there:1")
    monkeypatch.setenv("EMBSTORE_TIMEOUT", "5")
    shell("stats")
    shell("stats", "--address", "here:2", "--timeout", "7")
    files = dict.fromkeys(connection.FILES)
    assert ways == [("there:1", 5.0, files, False, True), ("here:2", 7.0, files, False, True)]


# Tables


def test_table_create_makes_the_table(shell, store):
    made = shell("table", "create", "ads", *ADS, *UNIFORM, "--epsilon", "1e-6", "--json")
    assert made.status == 0
    assert store.table("ads").optimizer == embstore.RowWiseAdagrad(0.01, epsilon=1e-6)
    assert store.table("ads").initializer == embstore.Uniform(-0.01, 0.01)
    assert made.document["optimizer"] == {
        "kind": "rowwise_adagrad",
        "epsilon": 1e-6,
        "initial_accumulator": 0.0,
    }
    assert made.document["initializer"] == {"kind": "uniform", "low": -0.01, "high": 0.01}
    assert made.document["learning_rate"] == 0.01
    assert made.document["seed"] == store.table("ads").seed
    again = shell("table", "create", "ads", *ADS, *UNIFORM, "--epsilon", "1e-6")
    assert (again.status, again.err) == (0, "")


def test_table_create_with_another_learning_rate_names_the_command_that_sets_it(shell, store):
    shell("table", "create", "ads", *ADS, *UNIFORM)
    again = shell("table", "create", "ads", *ADS, *UNIFORM, "--learning-rate", "0.9")
    assert again.status == 0 and store.table("ads").learning_rate == 0.01
    said, _, command = again.err.strip().partition(": embstore ")
    assert said.startswith("hint: ads was there already and keeps its learning rate 0.01")
    assert shell(*command.split()).status == 0
    assert store.table("ads").learning_rate == 0.9


@pytest.mark.parametrize(
    ("kind", "more", "made"),
    [
        ("sgd", [], embstore.Sgd(0.5)),
        ("adagrad", ["--initial-accumulator", "0.1"], embstore.Adagrad(0.5, 1e-8, 0.1)),
        ("adam", ["--beta1", "0.8", "--beta2", "0.9"], embstore.Adam(0.5, 0.8, 0.9)),
        ("ftrl", ["--beta", "2", "--l1", "0.5"], embstore.Ftrl(0.5, beta=2.0, l1=0.5)),
        ("adagrad", ["--weight-decay", "0.1"], embstore.Adagrad(0.5, weight_decay=0.1)),
        (
            "adam",
            ["--weight-decay", "0.1", "--decoupled-weight-decay"],
            embstore.Adam(0.5, weight_decay=0.1, decoupled_weight_decay=True),
        ),
    ],
)
def test_table_create_knows_every_optimizer(kind, more, made, shell, store):
    words = ["--dim", "4", "--rows", "10", "--optimizer", kind, "--learning-rate", "0.5", *more]
    ended = shell("table", "create", "a/b", *words, "--initializer", "normal:0,0.02", "--seed", "9")
    assert ended.status == 0
    assert store.table("a/b").optimizer == made
    assert store.table("a/b").initializer == embstore.Normal(0.0, 0.02)
    assert store.table("a/b").seed == 9


def test_flags_come_from_the_fields_of_optimizers_and_initializers(monkeypatch):
    @dataclass(frozen=True)
    class Toy:
        learning_rate: float
        spring: float = 0.5

    @dataclass(frozen=True)
    class Pair:
        left: float
        right: float

    monkeypatch.setitem(config.OPTIMIZERS, "toy", Toy)
    monkeypatch.setitem(config.INITIALIZERS, "pair", Pair)
    options = {option.name: option for option in parameters.optimizer_options()}
    assert {"epsilon", "spring"} <= options.keys()
    (info,) = options["spring"].annotation.__metadata__
    assert info.help == "For toy. Default: 0.5."
    assert parameters.optimizer("toy", learning_rate=1.0, spring=2.0) == Toy(1.0, 2.0)
    assert parameters.initializer("pair:1,2") == Pair(1.0, 2.0)
    assert "pair:LEFT,RIGHT" in parameters.initializer_forms()


@pytest.mark.parametrize(
    "words",
    [
        ["--initializer", "uniform:1"],
        ["--initializer", "constant:x"],
        ["--initializer", "zipf:1"],
        [*UNIFORM, "--optimizer", "sgdd"],
        [*UNIFORM, "--beta1", "0.5"],
        [*UNIFORM, "--dim", "0"],
    ],
)
def test_table_create_refuses_what_no_table_can_be(words, shell, store):
    ended = shell("table", "create", "ads", *ADS, *words)
    assert (ended.status, ended.out) == (exits.USAGE, "")
    assert ended.err.startswith("error: ")
    assert store.tables() == []


def test_table_create_with_another_identity_is_a_conflict(shell, store):
    add_ads(store)
    ended = shell("table", "create", "ads", *ADS, "--initializer", "constant:0")
    assert ended.status == exits.CONFLICT


def test_table_list(shell, store):
    assert shell("table", "list", "--json").document == []
    add_ads(store)
    (listed,) = shell("table", "list", "--json").document
    assert listed == {"name": "ads", **store.table("ads").stats()}
    shown = shell("table", "list").out
    assert "rowwise_adagrad" in shown
    assert "1,000" in shown


def test_table_show(shell, store):
    add_ads(store).update([1, 2], np.ones((2, 8), np.float32))
    shown = shell("table", "show", "ads", "--json").document
    assert (shown["rows"], shown["dim"], shown["t"], shown["dirty_rows"]) == (1000, 8, 1, 2)
    for_people = shell("table", "show", "ads").out
    assert "uniform low=-0.01 high=0.01" in for_people
    assert str(store.table("ads").seed) in for_people
    assert shell("table", "show", "nope").status == exits.NOT_FOUND


def test_table_drop_with_yes(shell, store):
    add_ads(store)
    dropped = shell("table", "drop", "ads", "--yes", "--json")
    assert dropped.document == {"name": "ads", "command": store.command}
    assert store.tables() == []
    assert shell("table", "drop", "ads", "--yes").status == exits.NOT_FOUND


@pytest.mark.parametrize("words", ["table drop ads", "restore none"])
@pytest.mark.parametrize(
    ("stdin", "status"),
    [(Terminal("y\n"), 0), (Terminal("n\n"), exits.FAILED), (io.StringIO("y\n"), exits.USAGE)],
    ids=["yes", "no", "nobody to ask"],
)
def test_what_is_lost_is_asked_for_on_a_terminal(words, stdin, status, shell, store, monkeypatch):
    store.checkpoint("none")
    add_ads(store)
    stdin.seek(0)  # another test may have read it
    monkeypatch.setattr(sys, "stdin", stdin)
    ended = shell(*words.split())
    assert ended.status == status
    assert ("--yes" in ended.err) == (status == exits.USAGE)
    assert store.tables() == ["ads"] * bool(status)


# The store


def test_stats(shell, store):
    add_ads(store).lookup([1, 1, 2])
    found = shell("stats", "--json").document
    assert found["store_id"] == store.store_id
    assert found["tables"].keys() == {"ads"}
    assert found["device_facts"] == store.device_facts
    shown = shell("stats").out
    assert store.store_id in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["unique", "hit", "rate", "0.0%"] in lines
    assert ["memory", "free", "bytes"] in [line[:3] for line in lines]


def test_restore_waits_for_sessions_or_ends_them(shell, store):
    add_ads(store)
    store.checkpoint("kept")
    store.sessions.open("run", ["ads"])
    ended = shell("restore", "kept", "--wait", "0.01", "--yes")
    assert (ended.status, "session 'run'" in ended.err) == (exits.CONFLICT, True)
    restored = shell("restore", "kept", "--force", "--yes", "--json").document
    assert restored == {"label": "kept", "command": store.command}
    assert shell("restore", "other", "--yes").status == exits.NOT_FOUND


def test_checkpoint_and_its_list(shell, store):
    add_ads(store)
    made = shell("checkpoint", "step-1", "--metadata", '{"step": 1}', "--json").document
    expected = {"label": "step-1", "command": 1, "tables": 1, "metadata": {"step": 1}}
    assert made == expected | {"protected": False}
    assert shell("checkpoint", "step-[2]").status == 0
    listed = shell("checkpoint", "--list", "--json").document
    assert [c["label"] for c in listed] == ["step-1", "step-[2]"]
    assert listed[0] == made
    assert "step-[2]" in shell("checkpoint", "--list").out
    assert shell("checkpoint", "step-1").status == exits.CONFLICT


@pytest.mark.parametrize(
    "words", [[], ["a", "--list"], ["--list", "--metadata", "{}"], ["a", "--metadata", "{"], [""]]
)
def test_checkpoint_refuses_bad_arguments(words, shell, store):
    assert shell("checkpoint", *words).status == exits.USAGE
    assert store.checkpoints() == []


def test_digest_of_all_and_of_some(shell, store):
    expected = {"ads": add_ads(store).digest()}
    shell("table", "create", "users", *ADS, "--initializer", "constant:1")
    expected["users"] = store.table("users").digest()
    assert shell("digest", "--json").document == expected
    assert shell("digest", "users").out == f"{expected['users']}  users\n"
    ended = shell("digest", "ads", "nope")
    assert (ended.status, ended.out) == (exits.NOT_FOUND, "")


# Load


BENCH = ["bench", "--rows", "100", "--dim", "4", "--keys", "50", "--calls", "5"]


def test_bench_measures_and_drops_its_table(shell, store):
    found = shell(*BENCH, "--json").document
    assert found["load"]["keys"] == 50
    for kind in ("lookup", "update"):
        measured = found[kind]
        assert measured["calls"] == 5
        assert 0 < measured["p50_ms"] <= measured["p99_ms"]
        assert measured["keys_per_second"] == pytest.approx(50 * measured["calls_per_second"])
    assert store.tables() == []
    assert "p99 ms" in shell(*BENCH).out


@pytest.mark.parametrize("raised", [CapacityError("full"), KeyboardInterrupt()])
@pytest.mark.parametrize("is_closed", [False, True])
def test_bench_that_fails_drops_its_table_and_tells_what_failed_first(
    raised, is_closed, shell, store, monkeypatch
):
    def fail(*arguments: Any) -> Any:
        if is_closed:  # so that the table cannot be dropped either
            store.close()
        raise raised

    monkeypatch.setattr(bench, "_timed", fail)
    ended = shell(*BENCH)
    assert ended.status != 0
    assert ended.err.endswith("error: full\n") or isinstance(raised, KeyboardInterrupt)
    assert ("may be left" in ended.err) == is_closed
    assert is_closed or store.tables() == []


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_bench_drops_its_table_when_a_signal_ends_it(number, server):
    """In a process of its own, in the middle of its calls: the first ones load libraries, of which
    some swallow an interrupt."""
    words = [*BENCH[:-1], "100000000", "--address", server.address, "--timeout", "600"]
    with subprocess.Popen([sys.executable, "-m", "embstore_server", *words]) as process:
        looked_up = 0
        while looked_up < 5000:
            assert process.poll() is None
            tables = server.on_engine(lambda store: store.stats()["tables"])
            looked_up = sum(t["lookup_keys"] for name, t in tables.items() if "/" in name)
        process.send_signal(number)
        assert process.wait(600) == 128 + number
    assert server.on_engine(lambda store: store.tables()) == ["ads", "users"]


# The server


def serve_with(monkeypatch: pytest.MonkeyPatch, status: int = 0) -> list[Settings]:
    """Put a server in place that takes its settings and ends; return where they are put."""
    served: list[Settings] = []

    def serve(settings: Settings) -> int:
        served.append(settings)
        return status

    monkeypatch.setitem(sys.modules, "embstore_server.host.app", SimpleNamespace(serve=serve))
    return served


def test_serve_takes_every_setting_as_a_flag(shell, monkeypatch):
    served = serve_with(monkeypatch)
    tls = {"tls_cert": Path("c"), "tls_key": Path("k"), "follow_ca": Path("a")}
    tls |= {"tls_client_ca": Path("a"), "tokens": Path("t"), "follow_token": Path("f")}
    flags = {"read_only": True, "insecure": True, "policy": "lfu", "threads": 2}
    halves = {
        name: type(one.default)(one.default / 2)
        for name, one in declared().items()
        if type(one.default) in (int, float)
    }
    flags |= {
        "host_cache_bytes": 1 << 20,
        "dirty_bytes": 1 << 20,
        "backup_within": "backups",
        "socket": "s",
        "allowed_hosts": ("a.b", "c"),
    }
    texts = {"listen": "[::1]:0", "admin": "off", "log_format": "json", "log_level": "debug"}
    expected = Settings(data=Path("d"), device="cpu", **texts, **flags, **halves, **tls)
    given = {name: value for name, value in vars(expected).items() if value is not None}
    assert vars(expected).keys() - given.keys() == {"shard", "shard_map"}  # not if it is read-only
    words = []
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        text = declared()[name].kind.show(value) if isinstance(value, tuple) else str(value)
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, text]
    assert shell("serve", *words).status == 0
    assert served == [expected]


def test_serve_reads_environment_and_file(shell, monkeypatch, tmp_path):
    served = serve_with(monkeypatch, status=1)
    config = tmp_path / "e.toml"
    config.write_text('data = "d"\nread_only = true\n')
    monkeypatch.setenv("EMBSTORE_POLICY", "lfu")
    assert shell("serve", "--config", str(config), "--no-read-only").status == 1
    assert (served[0].data, served[0].policy, served[0].read_only) == (Path("d"), "lfu", False)


def test_serve_tells_all_that_is_wrong(shell, monkeypatch):
    served = serve_with(monkeypatch)
    ended = shell("serve", "--listen", "0.0.0.0:1", "--threads", "x")
    assert ended.status == exits.USAGE
    assert len(ended.err.splitlines()) == 3
    assert all(line.startswith("error: ") for line in ended.err.splitlines())
    assert served == []
