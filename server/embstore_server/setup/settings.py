# ruff: noqa: RUF009 - the calls declare fields
"""The settings of a server, each declared once: name, kind, help, default.

A setting can be given in four places. The first of these places that contains the setting wins:

1. a flag, `--cache-bytes 4GiB`
2. an environment variable, `EMBSTORE_CACHE_BYTES=4GiB` (an empty one counts as not given)
3. a key of the TOML file named by `--config` or `EMBSTORE_CONFIG`, `cache_bytes = "4GiB"`
4. the default

The flags of `embstore serve` and the documented table are made from the declarations. If a setting
is an option of the store, its default and help are those of the option (`embstore.options`). An
unknown name in the file or in the environment is refused, and the error contains the nearest known
name, because a misspelt setting that is ignored would be found months later. All problems are
reported together, so that a configuration can be corrected at once.
"""

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from embstore.cache.policies import POLICIES
from embstore.choices import LEVELS, SPLITS
from embstore.errors import InvalidArgumentError
from embstore.options import StoreOptions, descriptions
from embstore_proto.addresses import is_loopback, split_address
from embstore_server.setup import parsing as kinds
from embstore_server.setup.parsing import OFF, Kind, one_of

_PREFIX = "EMBSTORE_"
_CLIENTS = (
    "CONFIG",
    "ADDRESS",
    "TIMEOUT",
    "TLS_CA",
    "CLIENT_CERT",
    "CLIENT_KEY",
    "TOKEN_FILE",
    "TOKEN",
)
_OTHER_VARIABLES = {f"{_PREFIX}{name}" for name in _CLIENTS}
"""Variables that name the file of settings, or are read by commands that call a server."""
_SERVICE_LINK = re.compile(
    r"EMBSTORE_(\w+_)?"
    r"(SERVICE_(HOST|PORT)\w*=.*|PORT_[0-9]+_(TCP|UDP|SCTP)\w*=.*|PORT=(tcp|udp|sctp)://.*)"
)
"""Kubernetes sets these variables in every container of a namespace with a service called
embstore."""
_FIRST_CLAUSE = re.compile(r"[;:.](?= |$)")


@dataclass(frozen=True)
class Setting:
    """The declaration of one setting: how its value is given, and how the help shows it."""

    name: str
    kind: Kind
    help: str
    """The setting's help; the first clause, `brief`, makes sense by itself."""
    panel: str
    """The setting's topic, a heading in the help of `embstore serve`."""
    is_common: bool
    """Whether --help shows the setting; --help-all shows all settings."""
    default: Any

    @property
    def flag(self) -> str:
        """The setting's flag, such as --cache-bytes."""
        return "--" + self.name.replace("_", "-")

    @property
    def brief(self) -> str:
        """The first clause of the setting's help."""
        return _FIRST_CLAUSE.split(self.help)[0]

    @property
    def default_text(self) -> str:
        """The default as a person writes it."""
        for value, text in ((MISSING, "required"), (None, "none"), (False, "no")):
            if self.default is value:
                return text
        return self.kind.show(self.default)


def setting(
    kind: Kind, help: str, default: Any = MISSING, *, panel: str = "Store", is_common: bool = False
) -> Any:
    """Declare a setting, as a field of `Settings`."""
    about = {"kind": kind, "help": help, "panel": panel, "is_common": is_common}
    return field(default=default, metadata=about)


def of_store(
    name: str,
    kind: Kind,
    default: Any = MISSING,
    *,
    of: type[StoreOptions] = StoreOptions,
    panel: str = "Store",
    is_common: bool = False,
) -> Any:
    """Declare a setting that is an option of the store, with the option's text as its help. If
    `default` is missing, the option's default is used."""
    text = descriptions(of).get(name, "")
    return setting(
        kind,
        f"{text[:1].upper()}{text[1:]}.",
        getattr(of, name) if default is MISSING else default,
        panel=panel,
        is_common=is_common,
    )


_cache = partial(of_store, panel="Cache")
_durability = partial(of_store, panel="Durability")
_network = partial(setting, panel="Network")
_access = partial(setting, panel="Access")
_replication = partial(setting, panel="Replication")
_cluster = partial(setting, panel="Cluster")
_limit = partial(setting, panel="Limits")
_log = partial(setting, panel="Log")


@dataclass(frozen=True)
class Settings:
    """All settings, checked: raises InvalidArgumentError if two contradict each other."""

    data: Path = setting(
        kinds.DIRECTORY, "Directory of the store; created if missing.", is_common=True
    )
    device: str = of_store("device", kinds.DEVICE, is_common=True)
    checkpoints_keep: int = of_store("checkpoints_keep", kinds.COUNT, is_common=True)
    read_only: bool = of_store("read_only", kinds.SWITCH)
    threads: int | None = of_store("threads", kinds.THREADS)
    # At this rate, checking takes a few thousandths of a core, and a terabyte takes a day and a
    # half.
    scrub_bytes_per_s: int = of_store("scrub_bytes_per_s", kinds.BYTES_OR_NONE, 8 << 20)
    # Clients must not write to every path that the server's user can write to.
    backup_within: str | None = setting(
        kinds.PATH_OR_URL,
        "Directory or URL below which clients may write backups; none: clients cannot make "
        "backups.",
        None,
    )
    cache_bytes: int | str = _cache("cache_bytes", kinds.BYTES_OR_SHARE, is_common=True)
    host_cache_bytes: int | None = _cache("host_cache_bytes", kinds.BYTES_OR_NONE)
    policy: str = _cache("policy", one_of(*POLICIES), is_common=True)
    cache_split: str = _cache("cache_split", one_of(*SPLITS))
    warm_up: float = _cache("warm_up", kinds.SHARE)
    # A counted lookup takes about twice as long as one that is not counted.
    count_rate: float = _cache("count_rate", kinds.SHARE, 0.01)
    # The default costs 6 % of a trainer's rate on two cores (other runs: 1 to 21 %), and `commands`
    # costs 18 to 40 %. With the default, a crash loses a second of work; with `checkpoint` it
    # loses ten minutes.
    durability: str = _durability("durability", one_of(*LEVELS), "interval", is_common=True)
    sync_every_s: float = _durability("sync_every_s", kinds.SECONDS)
    recovery_s: float = _durability("recovery_s", kinds.SECONDS)
    commit_every_s: float = _durability("commit_every_s", kinds.SECONDS)
    dirty_bytes: int | None = _durability("dirty_bytes", kinds.BYTES)
    # gRPC's customary port, on loopback, because every client that reaches it can write all tables.
    listen: str = _network(
        kinds.ADDRESS, "Address of gRPC; port 0: any free port.", "127.0.0.1:50051", is_common=True
    )
    admin: str = _network(
        kinds.ADDRESS_OR_OFF,
        "Address of the REST port and of metrics; off: the server has no REST port.",
        "127.0.0.1:8080",
        is_common=True,
    )
    # Trainers on the same host find the socket by themselves.
    socket: str | None = _network(
        kinds.SOCKET,
        "Unix socket for shared memory with trainers of the same user on this host. None: the file "
        "named socket in the data directory; with --read-only there is no socket.",
        None,
    )
    # Other machines can use a name of this machine only if the name contains a dot.
    allowed_hosts: tuple[str, ...] | None = _network(
        kinds.NAMES,
        "Further host names of REST, such as a.example or *.b.example; *: any name. A server on "
        "loopback always allows localhost and loopback addresses; on any other address it always "
        "allows IP addresses, names without a dot, and names that end with .svc, .local or "
        ".internal.",
        None,
    )
    tls_cert: Path | None = _access(
        kinds.FILE,
        "PEM file of the certificate and its chain, for gRPC and REST.",
        None,
        is_common=True,
    )
    tls_key: Path | None = _access(
        kinds.FILE, "PEM file of the certificate's key.", None, is_common=True
    )
    tls_client_ca: Path | None = _access(
        kinds.FILE,
        "PEM file of the authorities of client certificates (mutual TLS); gRPC then accepts only "
        "clients with such a certificate.",
        None,
    )
    tokens: Path | None = _access(
        kinds.FILE,
        'File of tokens and their rights, which the command "embstore token" writes; none: every '
        "call is allowed, without a token.",
        None,
        is_common=True,
    )
    first_token: bool = _access(
        kinds.SWITCH,
        "Make a token with every right, and print it once, if the file of tokens is empty.",
        False,
    )
    insecure: bool = _access(
        kinds.SWITCH, "Allow addresses other than loopback without TLS, or without tokens.", False
    )
    follow: str = _replication(
        kinds.ADDRESS_OR_OFF,
        "Address of the leader to follow as a standby: the server copies the leader's tables, and "
        "takes no writes until it is promoted; off: the server is a leader.",
        OFF,
        is_common=True,
    )
    follow_ca: Path | None = _replication(
        kinds.FILE,
        "PEM file of the authorities of the leader's certificate; none: no TLS.",
        None,
    )
    follow_token: Path | None = _replication(
        kinds.FILE,
        "File of the token that the leader requires; the token needs the right admin on '*'.",
        None,
    )
    # The default is 0, because a user must choose to wait for a standby that may not exist.
    standbys: int = _replication(
        kinds.NUMBER,
        "Number of standbys that must persist a write before it is acknowledged; while fewer "
        "standbys are connected, writes wait.",
        0,
    )
    shard_map: Path | None = _cluster(
        kinds.FILE,
        "JSON file of the cluster's map, for a server that is a shard; requires --shard. None: the "
        "store is in no cluster.",
        None,
    )
    shard: int | None = _cluster(
        kinds.NUMBER, "Number of this shard: the position of its address in the map.", None
    )
    # This is far more than trainers need, and a fourth of a process's open files on most systems.
    connections_max: int = _limit(
        kinds.COUNT, "Limit of connections to each port; further connections are closed.", 1024
    )
    # Even the slowest network takes less time.
    handshake_timeout_s: float = _limit(
        kinds.POSITIVE_SECONDS,
        "Longest time to set up a connection; a connection that takes longer is closed. On the "
        "REST port, this is the longest time to send the head of a request.",
        10.0,
    )
    # One megabyte takes eight seconds at a megabit per second.
    read_timeout_s: float = _limit(
        kinds.POSITIVE_SECONDS,
        "Time after which a client that reads nothing of its reply is disconnected.",
        30.0,
    )
    # This number of calls is work for seconds; further calls would time out in the queue.
    queue_calls_max: int = _limit(
        kinds.COUNT, "Limit of calls that wait for the engine; further calls are refused.", 1024
    )
    # This is the size of four of the largest calls.
    inflight_bytes_max: int = _limit(
        kinds.BYTES, "Bytes of requests and replies in flight; further calls are refused.", 4 << 30
    )
    # Up to about this size, unary calls are faster (measured).
    unary_bytes_max: int = _limit(
        kinds.MESSAGE_BYTES, "Largest unary message; larger messages are streamed.", 16 << 20
    )
    call_timeout_s: float = _limit(
        kinds.POSITIVE_SECONDS, "Deadline of a call whose client sets none.", 60.0
    )
    # The digest of a large table takes most of this time.
    call_timeout_max_s: float = _limit(
        kinds.POSITIVE_SECONDS, "Longest deadline of a call; longer deadlines are reduced.", 3600.0
    )
    # Supervisors kill a process after the same time by default.
    drain_s: float = _limit(
        kinds.SECONDS, "Time that running calls get to finish when the server stops.", 30.0
    )
    log_level: str = _log(
        one_of("debug", "info", "warning", "error"),
        "Lowest level that is logged.",
        "info",
        is_common=True,
    )
    log_format: str = _log(
        one_of("plain", "json"), "Plain text, or one JSON object per line.", "plain"
    )
    # This is two hundred times the time of a batch.
    slow_call_ms: float = _log(
        kinds.MILLISECONDS, "Time after which a call is logged as slow.", 1000.0
    )

    def __post_init__(self) -> None:
        problems = [problem for _, problem in _conflicts(vars(self))]
        if problems:
            raise InvalidArgumentError("\n".join(problems))

    @property
    def socket_path(self) -> Path | None:
        """The path of the server's socket; None: there is no socket."""
        if self.socket is None:
            return None if self.read_only else self.data / "socket"
        return None if self.socket == OFF else Path(self.socket)

    def store_options(self, of: type[StoreOptions] = StoreOptions) -> dict[str, Any]:
        """Return the settings that are options of the store."""
        return {f.name: getattr(self, f.name) for f in fields(of) if hasattr(self, f.name)}

    def describe(self) -> dict[str, Any]:
        """Return all settings as JSON values; the certificate and the key are shown as paths."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: _as_json(v) for name, v in values.items()}

    def given(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults."""
        defaults = {f.name: f.default for f in fields(self)}
        return {name: v for name, v in self.describe().items() if v != _as_json(defaults[name])}


def _as_json(value: Any) -> Any:
    match value:
        case Path():
            return str(value)
        case tuple():
            return ",".join(value)
    return value


def declared(of: type[Settings] = Settings) -> dict[str, Setting]:
    """Return the declarations by name, in their order."""
    return {f.name: Setting(name=f.name, default=f.default, **f.metadata) for f in fields(of)}


def markdown_table(of: type[Settings] = Settings) -> str:
    """Return the table of all settings for the documentation."""
    lines = ["| flag | value | default | meaning |", "| --- | --- | --- | --- |"]
    for one in declared(of).values():
        value = one.kind.metavar.replace("|", "\\|")
        lines.append(f"| `{one.flag}` | {value} | {one.default_text} | {one.help} |")
    return "\n".join(lines) + "\n"


def load(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    config: Path | None,
    of: type[Settings] = Settings,
) -> Settings:
    """Return the settings from flags (None: not given), environment and configuration file.

    If `config` is None, the variable EMBSTORE_CONFIG names the file, if it is set. Raises
    InvalidArgumentError with every problem, one per line; each line names the source of the value.
    """
    if config is None and environ.get("EMBSTORE_CONFIG"):
        config = Path(environ["EMBSTORE_CONFIG"])
    loading = _Loading(declared(of))
    if config is not None:
        loading.read_file(config)
    loading.read_environment(environ)
    loading.given |= {k: (loading.known[k].flag, v) for k, v in flags.items() if v is not None}
    values = loading.values()
    if loading.problems:
        raise InvalidArgumentError("\n".join(loading.problems))
    return of(**values)


class _Loading:
    """The given values with their sources, by the settings' names, and the problems that were
    found."""

    def __init__(self, known: Mapping[str, Setting]) -> None:
        self.known = known
        self.given: dict[str, tuple[str, Any]] = {}
        self.problems: list[str] = []

    def read_file(self, path: Path) -> None:
        """Read the keys of a TOML file."""
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as exc:
            self.problems.append(f"{path}: expected a file of settings: {exc.strerror}")
            return
        except ValueError as exc:  # the file is not UTF-8, or not TOML
            self.problems.append(f"{path}: expected TOML: {exc}")
            return
        self._check_names(str(path), found, self.known)
        self.given |= {k: (f"{path}: {k}", v) for k, v in found.items() if k in self.known}

    def read_environment(self, environ: Mapping[str, str]) -> None:
        """Read the environment variables of settings."""
        known = {_PREFIX + name.upper(): name for name in self.known}
        named = [
            variable
            for variable, value in sorted(environ.items())
            if variable.startswith(_PREFIX) and not _SERVICE_LINK.fullmatch(f"{variable}={value}")
        ]
        self._check_names("the environment", named, known.keys() | _OTHER_VARIABLES)
        given = [variable for variable in named if variable in known and environ[variable]]
        self.given |= {known[variable]: (variable, environ[variable]) for variable in given}

    def values(self) -> dict[str, Any]:
        """Return the value of each setting: the value that was read last, or the default. Add
        invalid values and contradictions to `problems`."""
        values, bad = {name: one.default for name, one in self.known.items()}, set()
        for name, (source, value) in self.given.items():
            kind = self.known[name].kind
            try:
                values[name] = kind.read(value)
            except (ValueError, TypeError, ArithmeticError):
                self.problems.append(f"{source}: expected {kind.expected}, found {value!r}")
                bad.add(name)
        if "data" not in self.given:
            self.problems.append(
                "expected the directory of the store: give --data DIR, set EMBSTORE_DATA, or put "
                "data into the file of settings"
            )
        self.problems += [text for names, text in _conflicts(values) if not names & bad]
        return values

    def _check_names(self, place: str, found: Iterable[str], known: Collection[str]) -> None:
        for name in found:
            if name in known:
                continue
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"expected {', '.join(self.known)}"
            self.problems.append(f"{place}: no setting is called {name!r}; {hint}")


def _conflicts(values: Mapping[str, Any]) -> Iterator[tuple[set[str], str]]:
    """Yield each contradiction: the names of the settings, and the problem."""
    tls = {"tls_cert", "tls_key"}
    if len({values[name] is None for name in tls}) > 1:
        given = next(name for name in sorted(tls) if values[name] is not None)
        yield tls, f"expected tls_cert and tls_key, both or neither, found {given} alone"
    elif not values["insecure"] and None in (values["tls_cert"], values["tokens"]):
        for name in ("listen", "admin"):
            address = values[name]
            if address != OFF and not is_loopback(split_address(address)[0]):
                yield (
                    {name, "insecure", "tokens", *tls},
                    f"{name}: {address} is not a loopback address, and any client that reaches it "
                    "may read and write every table: give tls_cert, tls_key and tokens "
                    "(--tls-cert FILE --tls-key FILE --tokens FILE), or, if the network is "
                    "trusted, insecure (--insecure)",
                )
    if values["first_token"] and values["tokens"] is None:
        problem = "expected tokens with first_token, the file to write it to (--tokens FILE)"
        yield {"first_token", "tokens"}, problem
    if values["tls_client_ca"] is not None:
        for other in ("tls_cert", "tokens"):
            if values[other] is None:
                yield {"tls_client_ca", other}, f"expected {other} with tls_client_ca, found none"
    for name, without in (("follow", OFF), ("standbys", 0)):
        if values[name] == without:
            continue
        if values["durability"] != "commands":
            problem = f"expected durability commands with {name}, found {values['durability']}"
            yield {name, "durability"}, problem
        if values["read_only"]:
            yield {name, "read_only"}, f"expected {name} or read_only, found both"
    shard = {"shard_map", "shard"}
    if len({values[name] is None for name in shard}) > 1:
        given = next(name for name in sorted(shard) if values[name] is not None)
        yield shard, f"expected shard_map and shard, both or neither, found {given} alone"
    if values["shard_map"] is not None and values["read_only"]:
        yield {"shard_map", "read_only"}, "expected shard_map or read_only, found both"
    if None not in (values["follow_token"], values["follow"]) and values["follow"] != OFF:
        is_far = not is_loopback(split_address(values["follow"])[0])
        if is_far and values["follow_ca"] is None and not values["insecure"]:
            yield (
                {"follow_token", "follow_ca", "insecure"},
                "follow_token would be sent in clear text: give follow_ca (--follow-ca FILE), or, "
                "if the network is trusted, insecure (--insecure)",
            )
    if values["follow"] == values["listen"]:
        yield {"follow", "listen"}, "expected another server's address to follow, found its own"
    if values["listen"] == values["admin"] and not values["listen"].endswith(":0"):
        yield {"listen", "admin"}, f"expected listen and admin to differ, found {values['listen']}"
    for least, most in (
        ("unary_bytes_max", "inflight_bytes_max"),
        ("call_timeout_s", "call_timeout_max_s"),
    ):
        if values[least] > values[most]:
            found = f"found {values[least]} > {values[most]}"
            yield {least, most}, f"expected {least} <= {most}, {found}"
