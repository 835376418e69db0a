"""What the server was told: built once, where the process begins, and passed down from there.

Each setting has one name and four places it can be said in. The first that says it wins:

1. a flag, `--cache-bytes 4GiB`
2. a variable of the environment, `EMBSTORE_CACHE_BYTES=4GiB` (an empty one says nothing)
3. a key of the TOML file named by `--config` or `EMBSTORE_CONFIG`, `cache_bytes = "4GiB"`
4. the default

A name that is no setting is refused in the file and in the environment, with the nearest that is
one: a misspelt setting that is passed over is found months later. All problems are said at once,
values and relations between them, so that a configuration is mended in one go.
"""

import difflib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from embstore.errors import InvalidArgumentError
from embstore_server import parsing
from embstore_server.parsing import OFF, Kind, is_loopback, split_address

_PREFIX = "EMBSTORE_"
_OTHER_VARIABLES = {f"{_PREFIX}{name}" for name in ("CONFIG", "ADDRESS", "TIMEOUT", "TLS_CA")}
"""The file of settings, and what the commands that call a server read."""
_SERVICE_LINK = re.compile(
    r"EMBSTORE_(\w+_)?"
    r"(SERVICE_(HOST|PORT)\w*=.*|PORT_[0-9]+_(TCP|UDP|SCTP)\w*=.*|PORT=(tcp|udp|sctp)://.*)"
)
"""Kubernetes sets these in every container that runs beside a service called embstore."""

UNARY_BYTES_LIMIT = 256 << 20
"""gRPC counts a message's bytes in 31 bits, and the server receives some times `unary_bytes_max`
of them, to refuse a large message with a reason."""


@dataclass(frozen=True)
class Settings:
    """All settings, checked: making one raises InvalidArgumentError if two do not go together."""

    data: Path
    """The directory of the store, made if need be. No default: it is where the tables are."""
    listen: str = "127.0.0.1:50051"
    """Where gRPC is served, host:port; port 0: any free one. gRPC's customary port, on loopback,
    because whoever reaches it may write every table."""
    admin: str = "127.0.0.1:8080"
    """Where REST and metrics are served, or "off". HTTP's customary second port, on loopback."""
    device: str = "auto"
    """"cpu", "cuda:N" (GPU number N; "cuda": the first), or "auto": the first GPU, or the CPU where
    there is none. The bits are the same."""
    cache_bytes: int = 1 << 30
    """Of the device's memory, for resident rows, their index and staging: what any host that trains
    can spare."""
    policy: str = "lru"
    """Which rows leave the cache first. "lru" follows a trainer's shifts at once; "lfu" ages;
    "rank" keeps what an imported profile says is asked for most."""
    warm_up: float = 0.0
    """The share of the cache's slots that is filled at start with the rows of most accesses, in the
    background; 0: none, as there is no profile in a new store."""
    count_rate: float = 0.01
    """The share of lookups whose keys are counted and recorded, for profiles; 0: none. Measured: a
    lookup that is counted takes about twice as long, so one in a hundred is not felt."""
    checkpoints_keep: int = 3
    """Labels that can be restored: the last, one before it in case that is bad, one in the making.
    """
    read_only: bool = False
    """Share the directory with other readers and write nothing. A trainer's server writes."""
    insecure: bool = False
    """Serve addresses other than loopback in the clear: never without being told so."""
    tls_cert: Path | None = None
    """PEM file of the certificate and its chain; None: no TLS, which loopback does not need."""
    tls_key: Path | None = None
    """PEM file of its key."""
    threads: int | None = None
    """Of the CPU device, or those that copy to and from a GPU; None: one a core, at most 4 (8 for a
    GPU), beyond which memory is the bound."""
    log_format: str = "plain"
    """"plain" for people, "json" for what collects logs. A person starts the first server."""
    log_level: str = "info"
    """The least level logged. At "info" a healthy server logs its life and slow calls."""
    queue_calls_max: int = 1024
    """Calls that may wait for the engine: seconds of work. More would only time out in the queue.
    """
    inflight_bytes_max: int = 4 << 30
    """Bytes of requests and replies held at once: four of the largest calls."""
    unary_bytes_max: int = 16 << 20
    """Of one unary message; larger ones are streamed. Measured: up to about this, unary is the
    faster. A client whose gRPC has its default limit of 4 MiB streams from there."""
    call_timeout_s: float = 60.0
    """Deadline of a call that brings none: long for a call, short for someone who waits."""
    call_timeout_max_s: float = 3600.0
    """Later deadlines are cut to this. The digest of a large table takes the better part of it."""
    slow_call_ms: float = 1000.0
    """Calls that take as long are logged: two hundred times what a batch usually takes."""
    drain_s: float = 30.0
    """For calls that run when the server is told to stop; what stops servers kills after as much.
    """

    def __post_init__(self) -> None:
        problems = [problem for _, problem in _conflicts(vars(self))]
        if problems:
            raise InvalidArgumentError("\n".join(problems))

    def describe(self) -> dict[str, Any]:
        """Return all settings as JSON holds them; of certificate and key, where they are."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(v) if isinstance(v, Path) else v for name, v in values.items()}


KINDS: dict[str, Kind] = {
    "data": parsing.PATH,
    "listen": parsing.ADDRESS,
    "admin": parsing.ADDRESS_OR_OFF,
    "device": parsing.DEVICE,
    "cache_bytes": parsing.BYTES,
    "policy": parsing.one_of("lru", "lfu", "rank"),
    "warm_up": parsing.SHARE,
    "count_rate": parsing.SHARE,
    "checkpoints_keep": parsing.COUNT,
    "read_only": parsing.SWITCH,
    "insecure": parsing.SWITCH,
    "tls_cert": parsing.PATH,
    "tls_key": parsing.PATH,
    "threads": parsing.COUNT,
    "log_format": parsing.one_of("plain", "json"),
    "log_level": parsing.one_of("debug", "info", "warning", "error"),
    "queue_calls_max": parsing.COUNT,
    "inflight_bytes_max": parsing.BYTES,
    "unary_bytes_max": parsing.BYTES,
    "call_timeout_s": parsing.POSITIVE_SECONDS,
    "call_timeout_max_s": parsing.POSITIVE_SECONDS,
    "slow_call_ms": parsing.MILLISECONDS,
    "drain_s": parsing.SECONDS,
}
"""What each setting is, by its name."""


def load(flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None) -> Settings:
    """Return the settings that flags, environment and configuration file come to.

    Parameters
    ----------
    flags : by the settings' names; those that are None were not given
    environ : the variables of the environment
    config : the TOML file; None: the one that EMBSTORE_CONFIG names, if it does

    Raises
    ------
    InvalidArgumentError : with every problem, one a line, each naming where the value came from.
    """
    assert flags.keys() <= KINDS.keys(), f"no settings: {flags.keys() - KINDS.keys()}"
    if config is None and environ.get("EMBSTORE_CONFIG"):
        config = Path(environ["EMBSTORE_CONFIG"])
    loading = _Loading(flags, environ)
    if config is not None:
        loading.take_file(config)
    return loading.settings()


def flag_of(name: str) -> str:
    """Return the flag of a setting: --cache-bytes."""
    return "--" + name.replace("_", "-")


class _Loading:
    """What each source said, by the settings' names, with where it stands; and what is wrong."""

    def __init__(self, flags: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self._problems: list[str] = []
        self._flags = {name: (flag_of(name), v) for name, v in flags.items() if v is not None}
        self._variables = self._from_environment(environ)
        self._file: dict[str, tuple[str, Any]] = {}

    def _from_environment(self, environ: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
        known = {_PREFIX + name.upper(): name for name in KINDS}
        for variable, value in sorted(environ.items()):
            if (
                variable.startswith(_PREFIX)
                and variable not in known.keys() | _OTHER_VARIABLES
                and not _SERVICE_LINK.fullmatch(f"{variable}={value}")
            ):
                self._refuse_name("the environment", variable, known.keys() | _OTHER_VARIABLES)
        given = [variable for variable in known if environ.get(variable)]
        return {known[variable]: (variable, environ[variable]) for variable in given}

    def take_file(self, path: Path) -> None:
        """Take the keys of a TOML file."""
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as exc:
            self._problems.append(f"{path}: expected a file of settings: {exc.strerror}")
            return
        except ValueError as exc:  # it is no UTF-8, or no TOML
            self._problems.append(f"{path}: expected TOML: {exc}")
            return
        for key, value in found.items():
            if key in KINDS:
                self._file[key] = (f"{path}: {key}", value)
            else:
                self._refuse_name(str(path), key, KINDS.keys())

    def settings(self) -> Settings:
        """Return the settings, or raise InvalidArgumentError with every problem."""
        values = {f.name: f.default for f in fields(Settings) if f.default is not MISSING}
        said = self._file | self._variables | self._flags
        bad = set()
        for name, (source, value) in said.items():
            try:
                values[name] = KINDS[name].read(value)
            except (ValueError, TypeError, ArithmeticError):
                expected = f"expected {KINDS[name].expected}, found {value!r}"
                self._problems.append(f"{source}: {expected}")
                bad.add(name)
        if "data" not in said:
            self._problems.append(
                "expected the directory of the store: --data DIR, EMBSTORE_DATA, or data in the "
                "file of settings"
            )
        self._problems += [text for names, text in _conflicts(values) if not names & bad]
        if self._problems:
            raise InvalidArgumentError("\n".join(self._problems))
        return Settings(**values)

    def _refuse_name(self, place: str, name: str, known: Collection[str]) -> None:
        nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
        hint = f"; did you mean {nearest[0]}?" if nearest else f", expected {', '.join(KINDS)}"
        self._problems.append(f"{place}: no setting is called {name!r}{hint}")


def _conflicts(values: Mapping[str, Any]) -> Iterator[tuple[set[str], str]]:
    """Yield what does not go together: the names of the settings, and the problem."""
    tls = {"tls_cert", "tls_key"}
    if len({values[name] is None for name in tls}) > 1:
        given = next(name for name in sorted(tls) if values[name] is not None)
        yield tls, f"expected tls_cert and tls_key, both or neither, found {given} alone"
    elif values["tls_cert"] is None and not values["insecure"]:
        for name in ("listen", "admin"):
            if _is_open(values[name]):
                yield {name, "insecure", *tls}, _too_open(name, values[name])
    if values["listen"] == values["admin"] and not values["listen"].endswith(":0"):
        yield {"listen", "admin"}, f"expected listen and admin to differ, found {values['listen']}"
    for least, most in (
        ("unary_bytes_max", "inflight_bytes_max"),
        ("call_timeout_s", "call_timeout_max_s"),
    ):
        if values[least] > values[most]:
            yield (
                {least, most},
                f"expected {least} <= {most}, found {values[least]} > {values[most]}",
            )
    if values["unary_bytes_max"] > UNARY_BYTES_LIMIT:
        limit = f"at most {UNARY_BYTES_LIMIT} bytes; larger calls are streamed"
        found = values["unary_bytes_max"]
        yield {"unary_bytes_max"}, f"expected unary_bytes_max to be {limit}, found {found}"


def _is_open(address: str) -> bool:
    return address != OFF and not is_loopback(split_address(address)[0])


def _too_open(name: str, address: str) -> str:
    return (
        f"{name}: {address} is not a loopback address, and whoever reaches it may read and write "
        "every table: give tls_cert and tls_key (--tls-cert FILE --tls-key FILE), or, where the "
        "network is trusted, insecure (--insecure)"
    )
