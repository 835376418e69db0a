"""The commands: what they write where, what `--json` gives, and how they end.

An embedded store stands where the server's would be: both have the methods that commands use.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import errors
from embstore.errors import CapacityError, DeadlineError, EmbstoreError
from embstore_server.cli import bench, connection, exits, main
from embstore_server.cli.output import bytes_text
from embstore_server.demo import Calls, HotCold, Job
from embstore_server.settings import Settings

ADS = ["--dim", "8", "--rows", "1000", "--optimizer", "rowwise_adagrad", "--learning-rate", "0.01"]
UNIFORM = ["--initializer", "uniform:-0.01,0.01"]


@dataclass
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What standard output holds, which must be one JSON document and nothing else."""
        return json.loads(self.out)


class Shell:
    """Types commands."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Ended:
        status = main(words)
        said = self._capsys.readouterr()
        return Ended(status, said.out, said.err)


class Terminal(io.StringIO):
    """Where a person types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    for name in [name for name in os.environ if name.startswith("EMBSTORE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(capsys)


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


def test_version(shell: Shell) -> None:
    assert shell("--version") == Ended(0, f"embstore {embstore.__version__}\n", "")


@pytest.mark.parametrize("words", [["--help"], ["-h"]])
def test_help_names_commands_and_exit_statuses(words: list[str], shell: Shell) -> None:
    shown = shell(*words)
    assert shown.status == 0
    for word in ("serve", "demo", "table", "stats", "checkpoint", "digest", "bench"):
        assert word in shown.out
    assert "3  no such table or checkpoint" in shown.out


def test_help_loads_nothing_heavy() -> None:
    code = """if True:
        import sys
        from embstore_server.cli import main
        assert main(["--help"]) == 0
        heavy = {"numpy", "numba", "grpc", "google", "fastapi", "uvicorn", "asyncio"}
        sys.stderr.write(" ".join(sorted(heavy & {m.partition(".")[0] for m in sys.modules})))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_runs_as_a_module() -> None:
    words = [sys.executable, "-m", "embstore_server", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"embstore {embstore.__version__}\n"


@pytest.mark.parametrize("words", [["tabel"], ["stats", "--bogus"], ["table", "create", "ads"]])
def test_a_command_line_that_makes_no_sense_ends_with_2(words: list[str], shell: Shell) -> None:
    ended = shell(*words)
    assert (ended.status, ended.out) == (exits.USAGE, "")


def test_every_error_has_an_exit_status() -> None:
    classes = {c for c in vars(errors).values() if isinstance(c, type)} - {EmbstoreError}
    assert exits.EXITS.keys() == classes


def test_an_error_is_told_in_a_line_without_a_trace(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreached(*way: Any) -> Any:
        raise DeadlineError("no server answered")

    monkeypatch.setattr(connection, "connected", unreached)
    assert shell("stats", "--json") == Ended(exits.NO_ANSWER, "", "error: no server answered\n")


def test_a_mistake_of_ours_is_not_hidden(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "connected", lambda *way: nullcontext(None))
    with pytest.raises(AttributeError):
        shell("stats")


def test_flags_and_variables_say_where_the_server_is(
    shell: Shell, store: embstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[Any] = []

    def connected(*way: Any) -> Any:
        ways.append(way)
        return nullcontext(store)

    monkeypatch.setattr(connection, "connected", connected)
    monkeypatch.setenv("EMBSTORE_ADDRESS", "there:1")
    monkeypatch.setenv("EMBSTORE_TIMEOUT", "5")
    shell("stats")
    shell("stats", "--address", "here:2", "--timeout", "7")
    assert ways == [("there:1", 5.0, None), ("here:2", 7.0, None)]


def test_bytes_are_written_for_people() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1 << 20, 3 << 29)] == [
        "0 B",
        "1023 B",
        "1 MiB",
        "1.5 GiB",
    ]


# Tables


def test_table_create_makes_the_table(shell: Shell, store: embstore.Store) -> None:
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
    assert shell("table", "create", "ads", *ADS, *UNIFORM, "--epsilon", "1e-6").status == 0


@pytest.mark.parametrize(
    ("kind", "more", "made"),
    [
        ("sgd", [], embstore.Sgd(0.5)),
        ("adagrad", ["--initial-accumulator", "0.1"], embstore.Adagrad(0.5, 1e-8, 0.1)),
        ("adam", ["--beta1", "0.8", "--beta2", "0.9"], embstore.Adam(0.5, 0.8, 0.9)),
    ],
)
def test_table_create_knows_every_optimizer(
    kind: str, more: list[str], made: Any, shell: Shell, store: embstore.Store
) -> None:
    words = ["--dim", "4", "--rows", "10", "--optimizer", kind, "--learning-rate", "0.5", *more]
    ended = shell("table", "create", "a/b", *words, "--initializer", "normal:0,0.02", "--seed", "9")
    assert ended.status == 0
    assert store.table("a/b").optimizer == made
    assert store.table("a/b").initializer == embstore.Normal(0.0, 0.02)
    assert store.table("a/b").seed == 9


@pytest.mark.parametrize(
    "words",
    [
        ["--initializer", "uniform"],
        ["--initializer", "uniform:1"],
        ["--initializer", "uniform:1,0"],
        ["--initializer", "constant:x"],
        ["--initializer", "zipf:1"],
        [*UNIFORM, "--optimizer", "sgdd"],
        [*UNIFORM, "--beta1", "0.5"],
        [*UNIFORM, "--dim", "0"],
        [*UNIFORM, "--learning-rate", "nan"],
    ],
)
def test_table_create_refuses_what_no_table_can_be(
    words: list[str], shell: Shell, store: embstore.Store
) -> None:
    ended = shell("table", "create", "ads", *ADS, *words)
    assert (ended.status, ended.out) == (exits.USAGE, "")
    assert ended.err.startswith("error: ")
    assert store.tables() == []


def test_table_create_with_another_identity_is_a_conflict(
    shell: Shell, store: embstore.Store
) -> None:
    add_ads(store)
    ended = shell("table", "create", "ads", *ADS, "--initializer", "constant:0")
    assert ended.status == exits.CONFLICT


def test_table_list(shell: Shell, store: embstore.Store) -> None:
    assert shell("table", "list", "--json").document == []
    add_ads(store)
    (listed,) = shell("table", "list", "--json").document
    assert listed == {"name": "ads", **store.table("ads").stats()}
    shown = shell("table", "list").out
    assert "rowwise_adagrad" in shown
    assert "1,000" in shown


def test_table_show(shell: Shell, store: embstore.Store) -> None:
    add_ads(store).update([1, 2], np.ones((2, 8), np.float32))
    shown = shell("table", "show", "ads", "--json").document
    assert (shown["rows"], shown["dim"], shown["t"], shown["dirty_rows"]) == (1000, 8, 1, 2)
    for_people = shell("table", "show", "ads").out
    assert "uniform low=-0.01 high=0.01" in for_people
    assert str(store.table("ads").seed) in for_people
    assert shell("table", "show", "nope").status == exits.NOT_FOUND


def test_table_drop_with_yes(shell: Shell, store: embstore.Store) -> None:
    add_ads(store)
    dropped = shell("table", "drop", "ads", "--yes", "--json")
    assert dropped.document == {"name": "ads", "command": store.command}
    assert store.tables() == []
    assert shell("table", "drop", "ads", "--yes").status == exits.NOT_FOUND


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1)])
def test_table_drop_asks_on_a_terminal(
    answer: str,
    status: int,
    shell: Shell,
    store: embstore.Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_ads(store)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert shell("table", "drop", "ads").status == status
    assert store.tables() == ["ads"][:status]


def test_table_drop_without_anyone_to_ask_drops_nothing(
    shell: Shell, store: embstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_ads(store)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    ended = shell("table", "drop", "ads")
    assert ended.status == exits.USAGE
    assert "--yes" in ended.err
    assert store.tables() == ["ads"]


# The store


def test_stats(shell: Shell, store: embstore.Store) -> None:
    add_ads(store).lookup([1, 1, 2])
    found = shell("stats", "--json").document
    assert found["store_id"] == store.store_id
    assert found["tables"].keys() == {"ads"}
    assert found["device_facts"] == store.device_facts
    shown = shell("stats").out
    assert store.store_id in shown
    assert "free of" in shown
    assert "0.0% of 2" in shown


def test_checkpoint_and_its_list(shell: Shell, store: embstore.Store) -> None:
    add_ads(store)
    made = shell("checkpoint", "step-1", "--metadata", '{"step": 1}', "--json").document
    assert made == {"label": "step-1", "command": 1, "tables": 1, "metadata": {"step": 1}}
    assert shell("checkpoint", "step-[2]").status == 0
    listed = shell("checkpoint", "--list", "--json").document
    assert [c["label"] for c in listed] == ["step-1", "step-[2]"]
    assert listed[0] == made
    assert "step-[2]" in shell("checkpoint", "--list").out
    assert shell("checkpoint", "step-1").status == exits.CONFLICT


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["a", "--list"],
        ["--list", "--metadata", "{}"],
        ["a", "--metadata", "{"],
        ["a", "--metadata", "[]"],
        [""],
    ],
)
def test_checkpoint_refuses_bad_arguments(
    words: list[str], shell: Shell, store: embstore.Store
) -> None:
    assert shell("checkpoint", *words).status == exits.USAGE
    assert store.checkpoints() == []


def test_digest_of_all_and_of_some(shell: Shell, store: embstore.Store) -> None:
    expected = {"ads": add_ads(store).digest()}
    shell("table", "create", "users", *ADS, "--initializer", "constant:1")
    expected["users"] = store.table("users").digest()
    assert shell("digest", "--json").document == expected
    assert shell("digest", "users").out == f"{expected['users']}  users\n"
    ended = shell("digest", "ads", "nope")
    assert (ended.status, ended.out) == (exits.NOT_FOUND, "")


# Load


BENCH = ["bench", "--rows", "100", "--dim", "4", "--keys", "50", "--calls", "5"]


def test_bench_measures_and_drops_its_table(shell: Shell, store: embstore.Store) -> None:
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
def test_bench_drops_its_table_when_it_fails(
    raised: BaseException, shell: Shell, store: embstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise raised

    monkeypatch.setattr(bench, "_timed", fail)
    assert shell(*BENCH).status != 0
    assert store.tables() == []


def test_bench_tells_what_failed_first(
    shell: Shell, store: embstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        store.close()  # so that the table cannot be dropped either
        raise CapacityError("full")

    monkeypatch.setattr(bench, "_timed", fail)
    ended = shell(*BENCH)
    assert (ended.status, ended.err) == (exits.FAILED, "error: full\n")


# The server and the demo


def serve_with(monkeypatch: pytest.MonkeyPatch, status: int = 0) -> list[Settings]:
    """Put a server in place that takes its settings and ends; return where they are put."""
    served: list[Settings] = []

    def serve(settings: Settings) -> int:
        served.append(settings)
        return status

    monkeypatch.setitem(sys.modules, "embstore_server.app", SimpleNamespace(serve=serve))
    return served


def test_serve_takes_every_setting_as_a_flag(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve_with(monkeypatch)
    expected = Settings(
        data=Path("d"),
        listen="[::1]:0",
        admin="off",
        device="cpu",
        cache_bytes=1 << 29,
        policy="lfu",
        checkpoints_keep=2,
        read_only=True,
        insecure=True,
        tls_cert=Path("c"),
        tls_key=Path("k"),
        threads=2,
        log_format="json",
        log_level="debug",
        queue_calls_max=7,
        inflight_bytes_max=1 << 28,
        unary_bytes_max=1 << 20,
        call_timeout_s=5.0,
        call_timeout_max_s=6.0,
        slow_call_ms=1.0,
        drain_s=2.0,
    )
    words = []
    for name, value in vars(expected).items():
        flag = "--" + name.replace("_", "-")
        words += [flag] if value is True else [flag, str(value)]
    assert shell("serve", *words).status == 0
    assert served == [expected]


def test_serve_ends_with_the_servers_status(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_with(monkeypatch, status=1)
    assert shell("serve", "--data", "d").status == 1


def test_serve_reads_environment_and_file(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served = serve_with(monkeypatch)
    config = tmp_path / "e.toml"
    config.write_text('data = "d"\nread_only = true\n')
    monkeypatch.setenv("EMBSTORE_POLICY", "lfu")
    assert shell("serve", "--config", str(config), "--no-read-only").status == 0
    assert (served[0].data, served[0].policy, served[0].read_only) == (Path("d"), "lfu", False)


def test_serve_tells_all_that_is_wrong(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve_with(monkeypatch)
    ended = shell("serve", "--listen", "0.0.0.0:1", "--threads", "x")
    assert ended.status == exits.USAGE
    assert len(ended.err.splitlines()) == 3
    assert all(line.startswith("error: ") for line in ended.err.splitlines())
    assert served == []


def run_with(monkeypatch: pytest.MonkeyPatch, exact: bool) -> list[Any]:
    """Put demos in place that take their arguments and end; return where they are put."""
    ran: list[Any] = []

    def run(*given: Any, **options: Any) -> Any:
        ran.append((*given, options))
        return SimpleNamespace(exact=exact)

    monkeypatch.setattr("embstore_server.demo.run", run)
    monkeypatch.setattr("embstore_server.demo.compare", run)
    return ran


def test_demo_passes_on_what_was_given(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_with(monkeypatch, exact=True)
    assert shell("demo").status == 0
    words = ["--data", "f", "--samples", "9", "--keep", "k", "--cache-bytes", "1MiB", "--json"]
    assert shell("demo", *words).status == 0
    assert shell("demo", "--no-session", "--policy", "lfu").status == 0
    assert shell("demo", "--hotcold", "--budget", "1MiB", "--lookahead", "2").status == 0
    assert shell("demo", "--compare", "--cache-share", "0.1", "--budget", "1MiB").status == 0
    nothing = {"directory": None, "json": False}
    assert ran == [
        (None, Job(), nothing),
        (Path("f"), Job(samples=9, cache_bytes=1 << 20), {"directory": Path("k"), "json": True}),
        (None, Job(policy="lfu", way=Calls()), nothing),
        (None, Job(way=HotCold(1 << 20, lookahead=2)), nothing),
        (None, Job(cache_share=0.1), nothing | {"hot_cold": HotCold(1 << 20)}),
    ]


def test_demo_that_is_not_exact_ends_with_1(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    run_with(monkeypatch, exact=False)
    assert shell("demo").status == exits.FAILED
    assert shell("demo", "--compare").status == exits.FAILED


def test_demo_refuses_bad_bytes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_with(monkeypatch, exact=True)
    for flags in (["--cache-bytes"], ["--hotcold", "--budget"]):
        ended = shell("demo", *flags, "much")
        assert (ended.status, ran) == (exits.USAGE, [])
        assert ended.err.startswith(f"error: {flags[-1]}: expected a number of bytes")


def test_demo_tells_the_defaults_that_hold(shell: Shell) -> None:
    shown = shell("demo", "--help").out
    budget = f"{HotCold.budget_bytes >> 20}MiB"
    shares = str(Job.scale), str(Job.cache_share)
    for default in (f"{Job.samples:,}", f"{Job.batch:,}", str(Job.dim), *shares, budget):
        assert f"Default: {default}." in shown
