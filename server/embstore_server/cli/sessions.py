"""`embstore sessions`: which look-ahead sessions are live, and how far they are."""

from collections.abc import Iterator
from typing import Any

from embstore_server.cli import connection, output
from embstore_server.cli.options import ADDRESS, TIMEOUT_S, Address, AsJson, Timeout, TlsCa

_COLUMNS = (
    *("name", "tables", "ranks", "last step", "planned to", "announced to"),
    *("hits", "early", "stalled s", "held back s", "silent s"),
)


def sessions(
    *,
    address: Address = ADDRESS,
    timeout: Timeout = TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Show the look-ahead sessions that are live, and how far they are.

    Stalled is the time that lookups waited while it was their step's turn.
    """
    with connection.connected(address, timeout, tls_ca) as store:
        found = store.stats()["sessions"]["open"]
    if as_json:
        output.show_json(found)
    elif found:
        output.show_rows(_COLUMNS, map(_line, found))
    else:
        output.show_text("no session is live")


def _line(facts: dict[str, Any]) -> Iterator[Any]:
    yield facts["name"]
    yield ", ".join(facts["tables"])
    yield f"{facts['ranks_joined']} of {facts['world_size']}"
    yield from (facts["last_step"], facts["planned_step"], facts["announced_step"])
    yield f"{facts['hit_rate']:.1%}"
    yield f"{facts['early_share']:.1%}"
    yield from (f"{facts[name]:.1f}" for name in ("stall_s", "held_back_s", "oldest_lease_s"))
