"""`embstore export-profile`, `import-profile`, `warm`, `pin-hotset`, `unpin-hotset`.

What a running server counts, is told of frequencies, and keeps in its cache. Profiles and hot sets
are files, which `embstore profile`, `size` and `hotset` make and read.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embstore_server.cli import connection, output
from embstore_server.cli.options import ADDRESS, LONG_TIMEOUT_S, Address, AsJson, Timeout, TlsCa
from embstore_server.cli.output import bytes_text
from embstore_server.parsing import renames

if TYPE_CHECKING:
    from embstore.frequency.profile import Profile
    from embstore.results import HotSetFacts

_File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]


def export_profile(
    *,
    to: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Written whole, or not at all.")
    ],
    source: Annotated[
        str,
        typer.Option(
            metavar="counted|imported", help="What the server has counted, or was given to import."
        ),
    ] = "counted",
    address: Address = ADDRESS,
    timeout: Timeout = LONG_TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Write the profile of a running server to a file: which rows are asked for how often."""
    from embstore_server.cli.profile import check_output

    check_output("--output", to)
    with connection.connected(address, timeout, tls_ca) as store, output.progress("profile"):
        profile = store.export_profile(source=source)
    profile.save(to)
    _show(profile, f"{to}: ", as_json)


def import_profile(
    file: _File,
    *,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A=B",
            help="Table A of the profile is table B of the server. Several times.",
            show_default=False,
        ),
    ] = None,
    address: Address = ADDRESS,
    timeout: Timeout = LONG_TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Rank the rows of a running server by a profile, for its cache; kept when it restarts."""
    from embstore.frequency.profile import Profile

    renamed = renames("--rename", rename or [])
    profile = Profile.load(file)
    with connection.connected(address, timeout, tls_ca) as store, output.progress("profile"):
        store.import_profile(profile, rename=renamed)
    _show(profile, "imported ", as_json)


def _show(profile: "Profile", what: str, as_json: bool) -> None:
    tables = {
        name: {"rows": len(table.keys), "accesses": table.accesses, "error": table.error}
        for name, table in sorted(profile.tables.items())
    }
    if as_json:
        output.show_json({"rate": profile.rate, "tables": tables})
        return
    rows, accesses = (sum(t[name] for t in tables.values()) for name in ("rows", "accesses"))
    output.show_text(
        f"{what}{rows:,} rows of {len(tables)} tables, {accesses:,} accesses counted at a rate of "
        f"{profile.rate:g}"
    )


def warm(
    *,
    share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Of the cache's slots. Default: 0.7.", show_default=False
        ),
    ] = None,
    address: Address = ADDRESS,
    timeout: Timeout = LONG_TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Bring the most frequent rows into the cache of a running server.

    Calls go on meanwhile, and so does the server when this command is ended early.
    """
    given: dict[str, Any] = {} if share is None else {"share": share}
    with (
        connection.connected(address, timeout, tls_ca) as store,
        output.progress_of("rows") as progress,
    ):
        rows = store.warm_cache(progress=progress, **given)
    if as_json:
        output.show_json({"rows": rows})
    else:
        output.show_text(f"warmed: {rows:,} rows brought in")


def pin_hotset(
    file: _File,
    *,
    address: Address = ADDRESS,
    timeout: Timeout = LONG_TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Keep the rows of a hot set in the cache of a running server.

    It takes the place of the one before, whose version must be lower; rows of both stay all the
    time.
    """
    from embstore.frequency.hotset import HotSet

    hot_set = HotSet.load(file)
    with connection.connected(address, timeout, tls_ca) as store, output.progress("hot set"):
        _show_pinned(store.pin_hot_set(hot_set), as_json)


def unpin_hotset(
    *,
    address: Address = ADDRESS,
    timeout: Timeout = LONG_TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Let the rows of the pinned hot set leave the cache of a running server, like others."""
    with connection.connected(address, timeout, tls_ca) as store:
        _show_pinned(store.pin_hot_set(None), as_json)


def _show_pinned(facts: "HotSetFacts", as_json: bool) -> None:
    if as_json:
        output.show_json(vars(facts))
    elif facts.version:
        output.show_text(
            f"pinned version {facts.version}: {facts.pinned_rows:,} of {facts.rows:,} rows, "
            f"{bytes_text(facts.bytes)}"
        )
    else:
        output.show_text("no hot set is pinned")
