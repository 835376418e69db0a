"""Commands for a running server: their common flags, the connection, and the output."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embstore_server.cli import output
from embstore_server.cli.flags import flag, option, replace_parameters
from embstore_server.cli.output import Shown
from embstore_server.cli.signals import ended_by_signals
from embstore_server.cli.watching import watch

if TYPE_CHECKING:
    from embstore.handles.store import Store

Connect = Callable[[], AbstractContextManager["Store"]]
"""Connects to the server; leaving the with block closes the connection."""

ADDRESS = "127.0.0.1:50051"
TIMEOUT_S = 60.0
LONG_TIMEOUT_S = 3600.0
"""The timeout of commands that read or write whole tables."""
CONNECT_TIMEOUT_S = 5.0
"""Seconds to wait for a server that is starting. If no server listens on the port, the error comes
at once."""
EVERY_S = 2.0
_PANEL = "Connection (each also as a variable: EMBSTORE_ADDRESS for --address)"
_connection = partial(flag, rich_help_panel=_PANEL, show_envvar=False)
FILES = {
    "tls_ca": "PEM file of the authorities to trust. Default: no TLS.",
    "client_cert": "PEM file of the client's certificate, for mutual TLS.",
    "client_key": "PEM file of the key of that certificate.",
    "token_file": "File with the token. Default: EMBSTORE_TOKEN has the token.",
}
"""The flags whose values are files."""
_INSECURE = _connection("Send a token to other hosts in clear text.", envvar="EMBSTORE_INSECURE")
_WATCH = flag("Repeat until Ctrl-C; with --json a line each time.", None, "--watch")
EVERY_FLAG = flag("Time between two looks.", "SECONDS", "--every", min=0.1)


def on_server(
    timeout_s: float = TIMEOUT_S, *, is_watched: bool = False, of_one: bool = False
) -> Callable[[Callable[..., Shown]], Any]:
    """Return a decorator that adds to a command the flags of a connection, and --json.

    The command's first parameter, `connect`, is not a flag: calling it connects to the server that
    the flags name. A command can therefore check its own arguments before it connects. The
    command's return value is shown. `timeout_s` is the default of --timeout. If `is_watched`, the
    command can be repeated, and its result is shown each time. If `of_one`, the command concerns
    only the server at the address, even if that server is a shard of a cluster.

    SIGTERM and a closed terminal end the command as an error does, so that it cleans up first.
    """
    seconds = _connection("Deadline of each call.", "SECONDS", envvar="EMBSTORE_TIMEOUT", min=0.001)
    flags = [
        option(
            "address",
            str,
            _connection("gRPC address of the server.", "HOST:PORT", envvar="EMBSTORE_ADDRESS"),
            ADDRESS,
        ),
        option("timeout", float, seconds, timeout_s),
        *(
            option(
                name,
                Path | None,
                _connection(
                    text, "FILE", envvar=f"EMBSTORE_{name.upper()}", exists=True, dir_okay=False
                ),
            )
            for name, text in FILES.items()
        ),
        option("insecure", bool, _INSECURE, False),
        option("as_json", bool, output.JSON_FLAG, False),
    ]
    if is_watched:
        flags.append(option("watch", bool, _WATCH, False))
        flags.append(option("every_s", float, EVERY_FLAG, EVERY_S))

    def decorate(command: Callable[..., Shown]) -> Any:
        @wraps(command)
        def connecting(
            *, address: str, timeout: float, insecure: bool, as_json: bool, **given: Any
        ) -> None:
            files = {name: given.pop(name) for name in FILES}
            connect = partial(connected, address, timeout, files, insecure, of_one)
            with ended_by_signals():
                every_s = given.pop("every_s", EVERY_S)
                if not given.pop("watch", False):
                    output.show(*command(connect=connect, **given), as_json=as_json)
                    return
                with connect() as store:  # one connection for all repetitions
                    look = partial(command, connect=partial(nullcontext, store), **given)
                    watch(look, every_s, as_json=as_json)

        _, *own = signature(command).parameters.values()
        return replace_parameters(connecting, [*own, *flags])

    return decorate


def connected(
    address: str,
    timeout_s: float,
    files: Mapping[str, Path | None],
    insecure: bool,
    of_one: bool = False,
) -> AbstractContextManager["Store"]:
    """Connect to a server, or, unless `of_one`, to all shards of its cluster.

    Raises EmbstoreError if the server cannot be reached. If the server's port is closed, this error
    is raised at once.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the error that is raised contains the reason
    from embstore_client.connecting import connect, connect_one

    token = files["token_file"]
    return (connect_one if of_one else connect)(
        address,
        timeout_s=timeout_s,
        connect_timeout_s=min(timeout_s, CONNECT_TIMEOUT_S),
        wait=False,
        label="embstore command line",
        tls_ca=files["tls_ca"],
        tls_cert=files["client_cert"],
        tls_key=files["client_key"],
        token=None if token is None else token.read_text().strip(),
        insecure=insecure,
    )
