"""`embstore sessions`: list look-ahead sessions, and end one."""

from functools import partial
from typing import Annotated

import typer

from embstore_server.cli import output
from embstore_server.cli.connection import Connect, on_server
from embstore_server.cli.flags import YES
from embstore_server.cli.output import Shown
from embstore_server.cli.stats import side_by_side


@on_server(is_watched=True, of_one=True)
def list(connect: Connect) -> Shown:
    """Show the live look-ahead sessions: progress, hits, stalls, leases.

    This is what `embstore sessions` shows, too.
    """
    from embstore.lookahead.stats import SessionStats

    with connect() as store:
        found = store.stats()["sessions"]["open"]
    drawn = partial(side_by_side, SessionStats, found)
    return found, drawn if found else "no session is live"


@on_server()
def close(
    connect: Connect,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    *,
    yes: Annotated[bool, YES] = False,
) -> Shown:
    """End a session for all its ranks, whose calls then fail; its position is kept.

    Use it for a session whose trainer hangs, or was killed while its lease is long.
    """
    with connect() as store:
        if not yes:
            output.ask(f"End session {name!r} for all its ranks?", f"session {name!r}", "ended")
        store.sessions.end(name)
    return {"name": name}, f"ended session {name}"
