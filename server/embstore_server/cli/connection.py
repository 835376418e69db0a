"""Commands for a running server: the flags that each of them has, the connection, what it shows."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embstore_server.cli import output
from embstore_server.cli.flags import flag, option, replace_parameters

if TYPE_CHECKING:
    from embstore.handles.store import Store

Connect = Callable[[], AbstractContextManager["Store"]]
"""Connects to the server; leaving the with block closes the connection."""
Shown = tuple[Any, str | Callable[[], None]]
"""What a command has to show: a JSON document, and what people get, as text or drawn."""

ADDRESS = "127.0.0.1:50051"
TIMEOUT_S = 60.0
LONG_TIMEOUT_S = 3600.0
"""For commands that read or write whole tables."""
CONNECT_TIMEOUT_S = 5.0
"""A running server answers at once; a person who mistyped the address waits for this."""


def on_server(timeout_s: float = TIMEOUT_S) -> Callable[[Callable[..., Shown]], Any]:
    """Return a decorator that gives a command the flags of a connection, and --json.

    The command's first parameter, `connect`, is not a flag: calling it connects to the server that
    the flags name, so a command checks its own arguments before. What it returns is shown.
    `timeout_s` is the default of --timeout.
    """
    text = "PEM file of the certificate authorities to trust. Default: no TLS."
    seconds = flag("Deadline of each call.", "SECONDS", envvar="EMBSTORE_TIMEOUT", min=0.001)
    flags = [
        option(
            "address",
            str,
            flag("gRPC address of the server.", "HOST:PORT", envvar="EMBSTORE_ADDRESS"),
            ADDRESS,
        ),
        option("timeout", float, seconds, timeout_s),
        option(
            "tls_ca",
            Path | None,
            flag(text, "FILE", envvar="EMBSTORE_TLS_CA", exists=True, dir_okay=False),
        ),
        option("as_json", bool, output.JSON_FLAG, False),
    ]

    def decorate(command: Callable[..., Shown]) -> Any:
        @wraps(command)
        def connecting(
            *, address: str, timeout: float, tls_ca: Path | None, as_json: bool, **given: Any
        ) -> None:
            connect = partial(connected, address, timeout, tls_ca)
            output.show(*command(connect=connect, **given), as_json=as_json)

        _, *own = signature(command).parameters.values()
        return replace_parameters(connecting, [*own, *flags])

    return decorate


def connected(
    address: str, timeout_s: float, tls_ca: Path | None
) -> AbstractContextManager["Store"]:
    """Connect to a server; raises DeadlineError, and InvalidArgumentError for a bad address."""
    from embstore_client import connect

    return connect(
        address,
        timeout_s=timeout_s,
        connect_timeout_s=min(timeout_s, CONNECT_TIMEOUT_S),
        label="embstore command line",
        tls_ca=tls_ca,
    )
