# ruff: noqa: RUF009 - the calls declare fields
"""The settings of a server, each declared once: name, kind, help, default.

A setting can be given in four places. The first that has it wins:

1. a flag, `--cache-bytes 4GiB`
2. an environment variable, `EMBSTORE_CACHE_BYTES=4GiB` (an empty one counts as not given)
3. a key of the TOML file named by `--config` or `EMBSTORE_CONFIG`, `cache_bytes = "4GiB"`
4. the default

The flags of `embstore serve` and the documented table are made from the declarations. A setting
that is an option of the store has its default and help from there (`embstore.options`). An unknown
name in the file or in the environment is refused, with the nearest known one: a misspelt setting
that is ignored is found months later. All problems are reported together, so that a configuration
is corrected in one go.
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
from embstore.cache_split import SPLITS
from embstore.durability import LEVELS
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
"""The file of settings, and the variables of the commands that call a server."""
_SERVICE_LINK = re.compile(
    r"EMBSTORE_(\w+_)?"
    r"(SERVICE_(HOST|PORT)\w*=.*|PORT_[0-9]+_(TCP|UDP|SCTP)\w*=.*|PORT=(tcp|udp|sctp)://.*)"
)
"""Kubernetes sets these in every container of a namespace with a service called embstore."""


@dataclass(frozen=True)
class Setting:
    """How one setting is given and shown; its field has its name and default."""

    name: str
    kind: Kind
    help: str
    panel: str
    """Heading in the help of `embstore serve`."""
    default: Any

    @property
    def flag(self) -> str:
        """The flag: --cache-bytes."""
        return "--" + self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as a person writes it."""
        for value, text in ((MISSING, "required"), (None, "none"), (False, "no")):
            if self.default is value:
                return text
        return self.kind.show(self.default)


def setting(kind: Kind, help: str, default: Any = MISSING, *, panel: str = "Store") -> Any:
    """Declare a setting, as a field of `Settings`."""
    return field(default=default, metadata={"kind": kind, "help": help, "panel": panel})


def of_store(
    name: str, kind: Kind, default: Any = MISSING, *, of: type[StoreOptions] = StoreOptions
) -> Any:
    """Declare the setting of a store's option: its text, and its default unless one is given."""
    text = descriptions(of).get(name, "")
    return setting(
        kind,
        f"{text[:1].upper()}{text[1:]}.",
        getattr(of, name) if default is MISSING else default,
    )


_network = partial(setting, panel="Network")
_limit = partial(setting, panel="Limits")
_log = partial(setting, panel="Log")


@dataclass(frozen=True)
class Settings:
    """All settings, checked: raises InvalidArgumentError if two contradict each other."""

    data: Path = setting(kinds.DIRECTORY, "Directory of the store; created if missing.")
    cache_bytes: int | str = of_store("cache_bytes", kinds.BYTES_OR_SHARE)
    host_cache_bytes: int | None = of_store("host_cache_bytes", kinds.BYTES_OR_NONE)
    cache_split: str = of_store("cache_split", one_of(*SPLITS))
    policy: str = of_store("policy", one_of(*POLICIES))
    warm_up: float = of_store("warm_up", kinds.SHARE)
    # A counted lookup takes about twice as long.
    count_rate: float = of_store("count_rate", kinds.SHARE, 0.01)
    checkpoints_keep: int = of_store("checkpoints_keep", kinds.COUNT)
    # It takes 6 % of a trainer's rate on two cores, independently of the disk's sync time, where
    # `commands` takes 18 to 40 %; and a crash loses a second, not the ten minutes of `checkpoint`.
    durability: str = of_store("durability", one_of(*LEVELS), "interval")
    sync_every_s: float = of_store("sync_every_s", kinds.SECONDS)
    recovery_s: float = of_store("recovery_s", kinds.SECONDS)
    commit_every_s: float = of_store("commit_every_s", kinds.SECONDS)
    dirty_bytes: int | None = of_store("dirty_bytes", kinds.BYTES)
    # A few thousandths of a core, and a terabyte in a day and a half.
    scrub_bytes_per_s: int = of_store("scrub_bytes_per_s", kinds.BYTES_OR_NONE, 8 << 20)
    # Clients must not write to every path that the server's user can write to.
    backup_within: str | None = setting(
        kinds.PATH_OR_URL,
        "Directory or URL below which clients name the folders of backups; none: clients "
        "cannot make backups.",
        None,
    )
    follow: str = setting(
        kinds.ADDRESS_OR_OFF,
        "Be a standby of the server at this address: have its tables, and take no writes until "
        "promoted; off: be a leader.",
        OFF,
    )
    follow_ca: Path | None = setting(
        kinds.FILE,
        "PEM file of the certificate authorities to trust when following; none: without TLS.",
        None,
    )
    follow_token: Path | None = setting(
        kinds.FILE, "File with the token to follow with, which administrates everything.", None
    )
    # Waiting for a standby that may not be there is a choice.
    standbys: int = setting(
        kinds.NUMBER,
        "Number of standbys that must persist a write before it is acknowledged; while there are "
        "fewer, writes wait.",
        0,
    )
    shard_map: Path | None = setting(
        kinds.FILE,
        "File of a cluster's map, as JSON: be one of its shards; with --shard. None: be a store of "
        "its own.",
        None,
    )
    shard: int | None = setting(
        kinds.NUMBER, "Number of the shard to be: the place of its address in the map.", None
    )
    read_only: bool = of_store("read_only", kinds.SWITCH)
    device: str = of_store("device", kinds.DEVICE)
    threads: int | None = of_store("threads", kinds.THREADS)
    # gRPC's customary port, on loopback, because every client that reaches it may write all tables.
    listen: str = _network(
        kinds.ADDRESS, "Address of gRPC; port 0: any free one.", "127.0.0.1:50051"
    )
    # Trainers on the host find it by themselves.
    socket: str | None = _network(
        kinds.SOCKET,
        "Unix socket at which trainers of the same user on this host share memory with the server. "
        "Default: the file socket in the data directory; with --read-only none.",
        None,
    )
    admin: str = _network(
        kinds.ADDRESS_OR_OFF, "Address of REST and metrics; off: none.", "127.0.0.1:8080"
    )
    # Names with a dot are the ones that others can make.
    allowed_hosts: tuple[str, ...] | None = _network(
        kinds.NAMES,
        "Further names by which REST may be called, as a.example or *.b.example; *: any. An "
        "address, a name without a dot and one that ends with .svc, .local or .internal always "
        "may; on loopback only localhost.",
        None,
    )
    tls_cert: Path | None = _network(
        kinds.FILE, "PEM file of the certificate and its chain, for gRPC and REST.", None
    )
    tls_key: Path | None = _network(kinds.FILE, "PEM file of its key.", None)
    tls_client_ca: Path | None = _network(
        kinds.FILE,
        "PEM file of the authorities of client certificates (mutual TLS); gRPC takes no others.",
        None,
    )
    tokens: Path | None = _network(
        kinds.FILE,
        "File of tokens and their rights; embstore token writes it. None: all calls are allowed.",
        None,
    )
    first_token: bool = _network(
        kinds.SWITCH,
        "Where no token of that file has every right, make one, and print it, this one time.",
        False,
    )
    insecure: bool = _network(
        kinds.SWITCH, "Serve addresses other than loopback without TLS, or without tokens.", False
    )
    # Far more than trainers have, and a fourth of a process's open files on most systems.
    connections_max: int = _limit(kinds.COUNT, "Connections to each port; more are ended.", 1024)
    # The slowest network takes less.
    handshake_timeout_s: float = _limit(
        kinds.POSITIVE_SECONDS,
        "Time after which a connection that is not set up (gRPC), or has not sent the head of a "
        "request (REST), is ended.",
        10.0,
    )
    # A megabyte at a megabit a second takes eight.
    read_timeout_s: float = _limit(
        kinds.POSITIVE_SECONDS,
        "Time after which a client that reads nothing of its reply is cut off.",
        30.0,
    )
    # Seconds of work: more calls would time out in the queue.
    queue_calls_max: int = _limit(
        kinds.COUNT, "Calls that may wait for the engine; more are refused.", 1024
    )
    # Four of the largest calls.
    inflight_bytes_max: int = _limit(
        kinds.BYTES, "Bytes of requests and replies in flight.", 4 << 30
    )
    # Measured: up to about this, unary is faster.
    unary_bytes_max: int = _limit(
        kinds.MESSAGE_BYTES, "Size of a unary message; larger ones are streamed.", 16 << 20
    )
    call_timeout_s: float = _limit(
        kinds.POSITIVE_SECONDS, "Deadline of a call that has none.", 60.0
    )
    # The digest of a large table takes most of it.
    call_timeout_max_s: float = _limit(
        kinds.POSITIVE_SECONDS, "Latest deadline; later ones are cut to it.", 3600.0
    )
    # Supervisors kill after as much.
    drain_s: float = _limit(
        kinds.SECONDS, "Time to finish running calls when the server stops.", 30.0
    )
    # Two hundred times the time of a batch.
    slow_call_ms: float = _log(kinds.MILLISECONDS, "Calls that take as long are logged.", 1000.0)
    log_format: str = _log(one_of("plain", "json"), "For people, or a JSON object a line.", "plain")
    log_level: str = _log(
        one_of("debug", "info", "warning", "error"), "Lowest level that is logged.", "info"
    )

    def __post_init__(self) -> None:
        problems = [problem for _, problem in _conflicts(vars(self))]
        if problems:
            raise InvalidArgumentError("\n".join(problems))

    @property
    def socket_path(self) -> Path | None:
        """Where the socket is; None: nowhere."""
        if self.socket is None:
            return None if self.read_only else self.data / "socket"
        return None if self.socket == OFF else Path(self.socket)

    def store_options(self, of: type[StoreOptions] = StoreOptions) -> dict[str, Any]:
        """Return those that are options of the store."""
        return {f.name: getattr(self, f.name) for f in fields(of) if hasattr(self, f.name)}

    def describe(self) -> dict[str, Any]:
        """Return all settings as JSON values; of certificate and key, their paths."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: _as_json(v) for name, v in values.items()}

    def given(self) -> dict[str, Any]:
        """Return those that are not at their defaults."""
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

    `config` None is the file that EMBSTORE_CONFIG names, if it does. Raises InvalidArgumentError
    with every problem, one a line, each naming where the value came from.
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
    """The values of each source, by the settings' names, with their places; and the problems."""

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
        except ValueError as exc:  # not UTF-8, or not TOML
            self.problems.append(f"{path}: expected TOML: {exc}")
            return
        self._check_names(str(path), found, self.known)
        self.given |= {k: (f"{path}: {k}", v) for k, v in found.items() if k in self.known}

    def read_environment(self, environ: Mapping[str, str]) -> None:
        """Read the variables of settings."""
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
        """Return the value of each setting, of the last source that has it."""
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
