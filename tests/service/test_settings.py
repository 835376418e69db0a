"""Settings: where each comes from, what is refused, and that all problems are told at once."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import typer

from embstore.errors import InvalidArgumentError
from embstore.options import StoreOptions
from embstore_proto.addresses import is_loopback, split_address
from embstore_server.cli.serving import serving
from embstore_server.setup import parsing
from embstore_server.setup.parsing import bytes_text
from embstore_server.setup.settings import (
    Settings,
    declared,
    load,
    markdown_table,
    of_store,
    setting,
)

DATA = {"data": "store"}
KINDS = {name: one.kind for name, one in declared().items()}


def problems(
    flags: Mapping[str, Any] = DATA,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> list[str]:
    """Return the lines of the refusal."""
    with pytest.raises(InvalidArgumentError) as refused:
        load(flags, environ or {}, config)
    return str(refused.value).splitlines()


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@dataclass(frozen=True)
class More(Settings):
    """All settings, and one that is declared here and nowhere else."""

    pause_s: float = setting(parsing.SECONDS, "Time between two things.", 2.5, panel="Limits")


def test_a_setting_is_declared_in_one_place(tmp_path, capsys):
    config = written(tmp_path / "e.toml", "pause_s = 4")
    assert load(DATA | {"pause_s": "3"}, {}, config, More).pause_s == 3.0
    assert load(DATA, {"EMBSTORE_PAUSE_S": "5"}, config, More).pause_s == 5.0
    assert load(DATA, {}, config, More).describe()["pause_s"] == 4.0
    assert load(DATA, {}, None, More).pause_s == 2.5
    assert "| `--pause-s` | SECONDS | 2.5 | Time between two things. |" in markdown_table(More)
    app = typer.Typer()
    app.command()(serving(More))
    app(["--help-all"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "--pause-s" in shown
    assert "Time between two things. Default: 2.5." in shown


@dataclass(frozen=True, kw_only=True)
class MoreOptions(StoreOptions):
    """All options of a store, and one more.

    Parameters
    ----------
    rest_s : seconds that the store
        rests
    """

    rest_s: float = 1.5


@dataclass(frozen=True)
class MoreOfStore(Settings):
    """All settings, and that of an option that the store has."""

    rest_s: float = of_store("rest_s", parsing.SECONDS, of=MoreOptions)


def test_an_option_of_the_store_is_described_in_one_place():
    assert declared(MoreOfStore)["rest_s"].default == 1.5
    assert "| `--rest-s` | SECONDS | 1.5 | Seconds that the store rests. |" in markdown_table(
        MoreOfStore
    )
    made = load(DATA | {"rest_s": "3"}, {}, None, MoreOfStore)
    assert MoreOptions(**made.store_options(MoreOptions)).rest_s == 3.0


def test_settings_of_the_store_are_its_options():
    options = {f.name: f.default for f in fields(StoreOptions)}
    made = load(DATA, {}, None).store_options()
    assert options.keys() - made.keys() == {"limits"}
    served = {"count_rate": 0.01, "durability": "interval", "scrub_bytes_per_s": 8 << 20}
    assert {name: value for name, value in made.items() if value != options[name]} == served


def test_every_setting_accepts_its_default():
    for one in declared().values():
        if one.default not in (None, MISSING):
            assert one.kind.read(one.default) == one.default


def test_flag_wins_over_variable_over_file_over_default(tmp_path):
    config = written(
        tmp_path / "embstore.toml",
        'data = "from-file"\npolicy = "lfu"\nthreads = 3\ncache_bytes = "3GiB"\ndrain_s = 1\n',
    )
    variables = {"EMBSTORE_THREADS": "2", "EMBSTORE_CACHE_BYTES": "2GiB"}
    made = load({"cache_bytes": "1GiB", "policy": None}, variables, config)
    assert made.cache_bytes == 1 << 30
    assert made.threads == 2
    assert made.policy == "lfu"
    assert made.drain_s == 1.0
    assert made.data == Path("from-file")
    assert made.log_format == "plain"


def test_a_variable_names_the_file_and_a_flag_another(tmp_path):
    first = written(tmp_path / "first.toml", 'data = "first"')
    other = written(tmp_path / "other.toml", 'data = "other"')
    variables = {"EMBSTORE_CONFIG": str(first)}
    assert load({}, variables, None).data == Path("first")
    assert load({}, variables, other).data == Path("other")


DEVICES = "auto", "cpu", "cuda", "cuda:0", "cuda:12"
BYTES = {
    5 << 20: 5 << 20,
    "1073741824": 1 << 30,
    "4GiB": 4 << 30,
    "512 MiB": 512 << 20,
    "10GB": 10 * 10**9,
    "8000k": 8_000_000,
    "1.5GiB": 3 << 29,
    "1_100_000": 1_100_000,
    "80%": "80%",
    " 12.5 % ": "12.5 %",
}


@pytest.mark.parametrize(
    ("flags", "environ", "file", "name", "value"),
    [
        ({}, {"EMBSTORE_TLS_CERT": "", "EMBSTORE_POLICY": ""}, "", "tls_cert", None),
        ({"read_only": False}, {"EMBSTORE_READ_ONLY": "true"}, "", "read_only", False),
        *(({"cache_bytes": said}, {}, "", "cache_bytes", read) for said, read in BYTES.items()),
        *(({"device": one}, {}, "", "device", one) for one in DEVICES),
        *(({}, {"EMBSTORE_DEVICE": one}, "", "device", one) for one in DEVICES),
        *(({}, {}, f'device = "{one}"', "device", one) for one in DEVICES),
        ({}, {}, 'allowed_hosts = ["a.example", "b"]', "allowed_hosts", ("a.example", "b")),
        ({"allowed_hosts": "a.example,b"}, {}, "", "allowed_hosts", ("a.example", "b")),
        ({}, {}, "", "allowed_hosts", None),
    ],
)
def test_a_value_is_read(flags, environ, file, name, value, tmp_path):
    config = written(tmp_path / "e.toml", file)
    assert getattr(load(DATA | flags, environ, config), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("cache_bytes", v) for v in ("0", -1, "1GIG", "", "1.5", "-1GiB", 1.5, True, "1e9")),
        *(("cache_bytes", v) for v in ("0%", "101%", "-5%", "%", "5 percent", "1e1%")),
        *(("cache_bytes", v) for v in (1, "63KiB")),
        *(("unary_bytes_max", v) for v in ("80%", 1, "63KiB", "257MiB")),
        *(("threads", v) for v in ("0", "two", "1.5", 1.0, False, [], 257, 100_000)),
        *(("drain_s", v) for v in ("-1", "nan", "inf", "soon", True, {})),
        *(("call_timeout_s", v) for v in (0, "0", "1e300")),
        *(("slow_call_ms", v) for v in (-1, "inf")),
        *(("read_only", v) for v in ("maybe", 1, "2")),
        *(("policy", v) for v in ("LRU", "fifo", 3, ["lru"])),
        *(("warm_up", v) for v in ("-0.1", "1.1", "nan", "all", True)),
        *(("count_rate", v) for v in (2, "", "5%")),
        *(("device", v) for v in ("gpu", "", "CPU", "cuda:", "cuda:x", "cuda:-1", "cpu:0", 0)),
        *(("data", v) for v in ("", "a\0b", 3)),
        *(("allowed_hosts", v) for v in ("", "a,,b", "a b", 3, [], ["a", ""], "a:80", "a.", "a.*")),
        *(("connections_max", v) for v in (0, "many")),
        *(("handshake_timeout_s", v) for v in (0, "nan")),
        *(("listen", v) for v in ("off", ":1", "localhost", "a:b", "h:65536", "::1:5", "[x]:1", 5)),
        *(("admin", v) for v in ("OFF", "8080", "[::1]")),
    ],
)
def test_a_bad_value_is_refused_by_its_source(name, value, tmp_path):
    (line,) = problems(DATA | {name: value})
    flag = "--" + name.replace("_", "-")
    assert line == f"{flag}: expected {KINDS[name].expected}, found {value!r}"
    if isinstance(value, str) and value:
        (line,) = problems({} if name == "data" else DATA, {f"EMBSTORE_{name.upper()}": value})
        assert line.startswith(f"EMBSTORE_{name.upper()}: expected ")


def test_a_bad_value_in_the_file_names_file_and_key(tmp_path):
    config = written(tmp_path / "e.toml", "threads = 1.5\nread_only = 1\n")
    assert problems(DATA, {}, config) == [
        f"{config}: threads: expected {KINDS['threads'].expected}, found 1.5",
        f"{config}: read_only: expected true or false, found 1",
    ]


def test_an_unknown_key_is_refused_with_the_nearest(tmp_path):
    config = written(tmp_path / "e.toml", "cache-bytes = 1\n[qqq]\nzzz = 1\n")
    near, far = problems(DATA, {}, config)
    assert near.endswith("no setting is called 'cache-bytes'; did you mean cache_bytes?")
    assert "'qqq'; expected data, device" in far


def test_an_unknown_variable_is_refused_with_the_nearest():
    (line,) = problems(DATA, {"EMBSTORE_CHECKPOINT_KEEP": "3"})
    assert line.endswith("did you mean EMBSTORE_CHECKPOINTS_KEEP?")


def test_variables_of_the_client_and_of_others_are_left_alone():
    load(
        DATA,
        {"EMBSTORE_ADDRESS": "h:1", "EMBSTORE_TIMEOUT": "x", "EMBSTORE_TLS_CA": "y", "PATH": "z"},
        None,
    )


def test_variables_that_kubernetes_sets_for_a_service_are_no_settings():
    links = {
        "EMBSTORE_SERVICE_HOST": "10.0.0.1",
        "EMBSTORE_SERVICE_PORT": "50051",
        "EMBSTORE_SERVICE_PORT_GRPC": "50051",
        "EMBSTORE_PORT": "tcp://10.0.0.1:50051",
        "EMBSTORE_PORT_50051_TCP": "tcp://10.0.0.1:50051",
        "EMBSTORE_PORT_50051_TCP_ADDR": "10.0.0.1",
        "EMBSTORE_METRICS_SERVICE_HOST": "10.0.0.2",
        "EMBSTORE_METRICS_PORT": "tcp://10.0.0.2:8080",
    }
    load(DATA, links, None)
    assert len(problems(DATA, links | {"EMBSTORE_PORT": "50051"})) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"data = ", "expected TOML"), (b"data = '\xff'", "expected TOML"), (None, "No such file")],
)
def test_a_file_that_cannot_be_read_is_refused(content, said, tmp_path):
    config = tmp_path / "e.toml"
    if content is not None:
        config.write_bytes(content)
    (line,) = problems(DATA, {}, config)
    assert line.startswith(f"{config}: ")
    assert said in line


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:0", "[::1]:0", "localhost:1"])
@pytest.mark.parametrize("admin", ["off", "127.0.0.1:0"])
def test_loopback_needs_no_tls_and_two_free_ports_are_no_conflict(address, admin):
    made = load(DATA | {"listen": address, "admin": admin}, {}, None)
    assert (made.listen, made.admin) == (address, admin)


@pytest.mark.parametrize("name", ["listen", "admin"])
@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "db.example:1"])
def test_other_addresses_are_refused_with_both_ways_out(name, address):
    (line,) = problems(DATA | {name: address})
    assert line.startswith(f"{name}: {address} is not a loopback address")
    assert "--tls-cert" in line
    assert "--insecure" in line
    load(DATA | {name: address, "insecure": True}, {}, None)
    pair = {"tls_cert": "c", "tls_key": "k"}
    load(DATA | {name: address, "tokens": "t"} | pair, {}, None)
    for half in (pair, {"tokens": "t"}):
        (line,) = problems(DATA | {name: address} | half)
        assert line.startswith(f"{name}: {address} is not a loopback address")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"follow": "host:1"}, "durability commands with follow, found interval"),
        ({"standbys": "2", "durability": "interval"}, "durability commands with standbys"),
        (
            {"follow": "host:1", "durability": "commands", "read_only": True},
            "expected follow or read_only, found both",
        ),
        (
            {"follow": "127.0.0.1:1", "listen": "127.0.0.1:1", "durability": "commands"},
            "expected another server's address to follow",
        ),
        ({"tls_cert": "c"}, "tls_cert and tls_key, both or neither, found tls_cert alone"),
        ({"tls_key": "k"}, "found tls_key alone"),
        ({"listen": "127.0.0.1:5", "admin": "127.0.0.1:5"}, "listen and admin to differ"),
        ({"call_timeout_s": 9, "call_timeout_max_s": 8}, "call_timeout_s <= call_timeout_max_s"),
        (
            {"unary_bytes_max": "1MiB", "inflight_bytes_max": 8},
            "unary_bytes_max <= inflight_bytes_max",
        ),
    ],
)
def test_relations_are_checked(flags, said):
    (line,) = problems(DATA | flags)
    assert said in line


def test_settings_made_directly_are_held_to_the_relations():
    with pytest.raises(InvalidArgumentError, match="loopback"):
        Settings(data=Path("d"), listen="0.0.0.0:1")


def test_all_problems_are_told_at_once(tmp_path):
    config = written(tmp_path / "e.toml", 'polcy = "lfu"\ndrain_s = -1\n')
    lines = problems(
        {"threads": "0", "call_timeout_s": 10, "call_timeout_max_s": 5},
        {"EMBSTORE_LISTEN": "0.0.0.0:1", "EMBSTORE_CACHE": "1GiB"},
        config,
    )
    told = ["polcy", "EMBSTORE_CACHE", "drain_s", "--threads", "--data", "listen", "call_timeout_s"]
    assert len(lines) == len(told)
    assert all(name in line for name, line in zip(told, lines, strict=True))


def test_a_relation_of_a_bad_value_or_of_none_is_not_told():
    (line,) = problems(DATA | {"call_timeout_max_s": "never", "call_timeout_s": 1e6})
    assert line.startswith("--call-timeout-max-s")
    (line,) = problems({})
    assert "--data" in line and "EMBSTORE_DATA" in line


def test_described_settings_are_json_and_hold_no_key():
    described = load(DATA | {"tls_cert": "c.pem", "tls_key": "k.pem"}, {}, None).describe()
    assert described["tls_key"] == "k.pem"
    assert described["data"] == "store"
    assert all(isinstance(v, str | int | float | bool | None) for v in described.values())


def test_bytes_are_written_for_people():
    texts = [bytes_text(n) for n in (0, 1023, 1 << 20, 3 << 29)]
    assert texts == ["0 B", "1023 B", "1 MiB", "1.5 GiB"]


def test_addresses_are_split():
    assert split_address("127.0.0.1:50051") == ("127.0.0.1", 50051)
    assert split_address("[::1]:0") == ("::1", 0)
    assert split_address("localhost:8080") == ("localhost", 8080)
    assert is_loopback("::1")
    assert not is_loopback("::")
