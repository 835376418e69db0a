"""`embstore digest`: what tables hold, in one line each.

The lines are those of sha256sum, digest first, so that two stores are compared with `diff`.
"""

from typing import Annotated

import typer

from embstore_server.cli import connection, output
from embstore_server.cli.options import ADDRESS, LONG_TIMEOUT_S, Address, AsJson, Timeout, TlsCa


def digest(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="All, if none is named.", show_default=False),
    ] = None,
    *,
    address: Address = ADDRESS,
    timeout: Timeout = LONG_TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Show the digest of tables: equal if, and only if, all bits of their rows are."""
    with connection.connected(address, timeout, tls_ca) as store:
        names = tables or store.tables()
        handles = {name: store.table(name) for name in names}  # before any takes its time
        digests = {}
        with output.progress("digests", len(handles)) as advance:
            for name, table in handles.items():
                digests[name] = table.digest()
                advance(1)
    if as_json:
        output.show_json(digests)
        return
    for name, value in digests.items():
        output.show_text(f"{value}  {name}")
