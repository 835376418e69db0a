"""`embstore serve`: every setting as a flag.

What a flag says goes to `embstore_server.settings` as it was written, to be read there with the
environment and the file of settings, so that a bad value is told the same way wherever it stands.
Defaults are shown from there, too.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from embstore_server.cli.output import bytes_text
from embstore_server.parsing import BYTES
from embstore_server.settings import KINDS, Settings, flag_of, load


def _setting(name: str, help_text: str, metavar: str | None = None, panel: str = "Store") -> Any:
    """Return the option of a setting."""
    return typer.Option(
        flag_of(name) if metavar else f"{flag_of(name)}/--no-{flag_of(name)[2:]}",
        metavar=metavar,
        help=f"{help_text}{_default(name)}",
        rich_help_panel=panel,
        show_default=False,
    )


def _default(name: str) -> str:
    value = getattr(Settings, name, None)  # the default, as long as it is asked of the class
    if value is None or isinstance(value, bool):
        return ""
    if KINDS[name] is BYTES:
        return f" Default: {bytes_text(value)}."
    return f" Default: {value:g}." if isinstance(value, float) else f" Default: {value}."


_Text = str | None
_Switch = bool | None


def serve(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file of settings; or EMBSTORE_CONFIG.",
            show_default=False,
        ),
    ] = None,
    *,
    data: Annotated[
        _Text, _setting("data", "Directory of the store, made if need be. Required.", "DIR")
    ] = None,
    cache_bytes: Annotated[
        _Text,
        _setting(
            "cache_bytes",
            "Of the device's memory, for resident rows, their index and staging.",
            "BYTES",
        ),
    ] = None,
    policy: Annotated[
        _Text, _setting("policy", "Which rows leave the cache first.", "lru|lfu|rank")
    ] = None,
    warm_up: Annotated[
        _Text,
        _setting(
            "warm_up",
            "Of the cache's slots, filled at start with the rows of most accesses.",
            "SHARE",
        ),
    ] = None,
    count_rate: Annotated[
        _Text,
        _setting("count_rate", "Of lookups, those whose keys are counted, for profiles.", "SHARE"),
    ] = None,
    checkpoints_keep: Annotated[
        _Text, _setting("checkpoints_keep", "Labels that can be restored.", "COUNT")
    ] = None,
    read_only: Annotated[
        _Switch, _setting("read_only", "Share the directory with other readers and write nothing.")
    ] = None,
    device: Annotated[
        _Text,
        _setting(
            "device",
            "What keeps and computes rows; auto: the first GPU if there is one, else the CPU. "
            "The bits do not depend on it.",
            "auto|cpu|cuda|cuda:N",
        ),
    ] = None,
    threads: Annotated[
        _Text,
        _setting(
            "threads",
            "Of the CPU device, or those that copy to and from a GPU; none: one a core, at most 4 "
            "or 8.",
            "COUNT",
        ),
    ] = None,
    listen: Annotated[
        _Text,
        _setting(
            "listen", "Where gRPC is served; port 0: any free one.", "HOST:PORT", panel="Network"
        ),
    ] = None,
    admin: Annotated[
        _Text,
        _setting("admin", "Where REST and metrics are served.", "HOST:PORT|off", panel="Network"),
    ] = None,
    tls_cert: Annotated[
        _Text,
        _setting("tls_cert", "PEM file of the certificate and its chain.", "FILE", panel="Network"),
    ] = None,
    tls_key: Annotated[
        _Text, _setting("tls_key", "PEM file of its key.", "FILE", panel="Network")
    ] = None,
    insecure: Annotated[
        _Switch,
        _setting("insecure", "Serve addresses other than loopback in the clear.", panel="Network"),
    ] = None,
    queue_calls_max: Annotated[
        _Text, _setting("queue_calls_max", "Calls that may wait.", "COUNT", panel="Limits")
    ] = None,
    inflight_bytes_max: Annotated[
        _Text,
        _setting(
            "inflight_bytes_max", "Requests and replies held at once.", "BYTES", panel="Limits"
        ),
    ] = None,
    unary_bytes_max: Annotated[
        _Text,
        _setting(
            "unary_bytes_max",
            "Of one unary message; larger ones are streamed.",
            "BYTES",
            panel="Limits",
        ),
    ] = None,
    call_timeout_s: Annotated[
        _Text,
        _setting(
            "call_timeout_s", "Deadline of a call that brings none.", "SECONDS", panel="Limits"
        ),
    ] = None,
    call_timeout_max_s: Annotated[
        _Text,
        _setting(
            "call_timeout_max_s", "Later deadlines are cut to this.", "SECONDS", panel="Limits"
        ),
    ] = None,
    drain_s: Annotated[
        _Text,
        _setting(
            "drain_s",
            "For calls that run when the server is told to stop.",
            "SECONDS",
            panel="Limits",
        ),
    ] = None,
    slow_call_ms: Annotated[
        _Text, _setting("slow_call_ms", "Calls that take as long are logged.", "MS", panel="Log")
    ] = None,
    log_format: Annotated[
        _Text,
        _setting("log_format", "For people, or one JSON object a line.", "plain|json", panel="Log"),
    ] = None,
    log_level: Annotated[
        _Text,
        _setting(
            "log_level", "The least level that is logged.", "debug|info|warning|error", panel="Log"
        ),
    ] = None,
) -> None:
    """Serve a store by gRPC, and by REST to operators, until SIGTERM, SIGINT or a lost device.

    Each setting is a flag, a variable of the environment (EMBSTORE_CACHE_BYTES for --cache-bytes)
    or a key of the TOML file of settings (cache_bytes); the first of these that says it wins.

    When the device fails, the server ends with status 70; started again, it opens the store at its
    last checkpoint.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it would print is said by our own log
    with _ending_at_once():
        from embstore_server.app import serve as run

        flags = {name: value for name, value in context.params.items() if name in KINDS}
        raise typer.Exit(run(load(flags, os.environ, config)))


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """Let a signal end the process with 0 until the server has handlers of its own.

    Nothing has been opened by then. As process 1 of a container, SIGTERM would else be ignored, and
    the container killed after its grace period.
    """
    before = {n: signal.signal(n, _end) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
