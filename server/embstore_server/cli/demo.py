"""`embstore demo`: the main job on real input, checked to the bit."""

from pathlib import Path
from typing import Annotated, Any

import typer

from embstore.errors import InvalidArgumentError
from embstore_server.cli import parameters
from embstore_server.cli.exits import FAILED
from embstore_server.cli.options import AsJson


def _option(metavar: str, help_text: str) -> Any:
    """Return an option whose default is known where the demo is, which is not loaded for a help."""
    return typer.Option(metavar=metavar, help=help_text, show_default=False)


def demo(
    *,
    data: Annotated[
        Path | None,
        _option("FILE", "In the Criteo format. Default: one is written first."),
    ] = None,
    samples: Annotated[int | None, _option("COUNT", "Used at most. Default: 300,000.")] = None,
    batch: Annotated[int | None, _option("COUNT", "Samples of a step. Default: 2,048.")] = None,
    dim: Annotated[int | None, _option("COUNT", "Of the embeddings. Default: 16.")] = None,
    scale: Annotated[
        float | None, _option("SHARE", "Rows per category of Criteo Kaggle. Default: 0.02.")
    ] = None,
    cache_bytes: Annotated[
        str | None, _option("BYTES", "Of the server. Default: a fifth of the tables.")
    ] = None,
    lookahead: Annotated[
        int | None, _option("COUNT", "Steps that the session announces ahead. Default: 16.")
    ] = None,
    no_session: Annotated[
        bool, typer.Option("--no-session", help="Train by single lookups and updates.")
    ] = False,
    keep: Annotated[
        Path | None, _option("DIR", "Keep file and store here. Default: keep nothing.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a DLRM through a server of its own, and compare every bit with a dense check.

    A session announces its keys, so that lookups find their rows in the cache.
    The bits are the same without one. Ends with 1 if one bit differs.
    """
    if no_session and lookahead is not None:
        raise InvalidArgumentError("--lookahead is of a session: leave it out, or --no-session")
    from embstore_server.demo import run

    given: dict[str, Any] = {
        "samples": samples,
        "batch": batch,
        "dim": dim,
        "scale": scale,
        "cache_bytes": parameters.byte_count("--cache-bytes", cache_bytes),
        "lookahead": lookahead,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if no_session:
        given["lookahead"] = None
    if not run(data, directory=keep, json=as_json, **given).exact:
        raise typer.Exit(FAILED)
