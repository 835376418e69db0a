"""`embstore export-profile`, `import-profile`, `warm`, `pin-hotset`, `unpin-hotset`.

Profiles and hot sets are files, which `embstore profile`, `size` and `hotset` make and read.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from embstore_server.cli import output, parameters
from embstore_server.cli.connection import LONG_TIMEOUT_S, Connect, on_server
from embstore_server.cli.flags import flag
from embstore_server.cli.output import Shown
from embstore_server.setup.parsing import bytes_text, pairs

if TYPE_CHECKING:
    from embstore.commands import ProfileSource
    from embstore.profiles.profile import Profile
    from embstore.results import HotSetFacts

_File = Annotated[Path, typer.Argument(metavar="FILE")]


@on_server(LONG_TIMEOUT_S)
def export_profile(
    connect: Connect,
    *,
    to: Annotated[Path, flag("The profile.", "FILE", "-o", "--output")],
    source: Annotated[
        str, flag("Counted by the server, or imported.", "counted|imported")
    ] = "counted",
) -> Shown:
    """Write the profile of a running server, its counts of accesses, to a file."""
    parameters.check_output("--output", to)
    with connect() as store, output.progress("profile"):
        profile = store.export_profile(source=cast("ProfileSource", source))
    profile.save(to)
    return _shown(profile, f"{to}: ")


@on_server(LONG_TIMEOUT_S)
def import_profile(
    connect: Connect,
    file: _File,
    *,
    rename: Annotated[
        list[str] | None, flag("Table A of the profile is table B here; several times.", "A=B")
    ] = None,
) -> Shown:
    """Import a profile into a running server, which then ranks rows by it.

    It does so after a restart, too.
    """
    from embstore.profiles.profile import Profile

    renamed = pairs("--rename", "A=B", rename or [])
    profile = Profile.load(file)
    with connect() as store, output.progress("profile"):
        store.import_profile(profile, rename=renamed)
    return _shown(profile, "imported ")


def _shown(profile: "Profile", what: str) -> Shown:
    tables = {
        name: {"rows": len(table.keys), "accesses": table.accesses, "error": table.error}
        for name, table in sorted(profile.tables.items())
    }
    rows, accesses = (sum(t[name] for t in tables.values()) for name in ("rows", "accesses"))
    text = (
        f"{what}{rows:,} rows of {len(tables)} tables, {accesses:,} accesses counted at a rate of "
        f"{profile.rate:g}"
    )
    return {"rate": profile.rate, "tables": tables}, text


@on_server(LONG_TIMEOUT_S)
def warm(
    connect: Connect,
    *,
    share: Annotated[
        float | None, flag("Share of the cache's slots. Default: 0.7.", "SHARE")
    ] = None,
) -> Shown:
    """Bring the most frequent rows into the cache of a running server.

    Other calls continue meanwhile. If this command is interrupted, the server continues.
    """
    given: dict[str, Any] = {} if share is None else {"share": share}
    with connect() as store, output.progress_of("rows") as progress:
        rows = store.warm_cache(progress=progress, **given)
    return {"rows": rows}, f"warmed: {rows:,} rows brought in"


@on_server(LONG_TIMEOUT_S)
def pin_hotset(connect: Connect, file: _File) -> Shown:
    """Pin the rows of a hot set in the cache of a running server.

    It replaces the pinned set, whose version must be lower; rows of both stay in the cache.
    """
    from embstore.profiles.hotset import HotSet

    hot_set = HotSet.load(file)
    with connect() as store, output.progress("hot set"):
        return _pinned(store.pin_hot_set(hot_set))


@on_server(LONG_TIMEOUT_S)
def unpin_hotset(connect: Connect) -> Shown:
    """Unpin the hot set of a running server: its rows may be evicted again."""
    with connect() as store:
        return _pinned(store.pin_hot_set(None))


def _pinned(facts: "HotSetFacts") -> Shown:
    rows = f"{facts.pinned_rows:,} of {facts.rows:,} rows, {bytes_text(facts.bytes)}"
    text = f"pinned version {facts.version}: {rows}" if facts.version else "no hot set is pinned"
    return vars(facts), text
