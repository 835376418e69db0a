"""`embstore demo`: the main job on real input, checked to the bit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embstore.errors import InvalidArgumentError
from embstore_server.cli import parameters
from embstore_server.cli.exits import FAILED
from embstore_server.cli.options import AsJson

if TYPE_CHECKING:
    from embstore_server.demo import HotCold
    from embstore_server.demo.ways import Way


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
    cache_share: Annotated[
        float | None, _option("SHARE", "Instead: of the tables' bytes. Default: 0.2.")
    ] = None,
    policy: Annotated[
        str | None,
        _option(
            "lru|lfu|rank",
            "Which rows leave the cache first. For rank the file is counted before, and the cache "
            "is warmed. Default: lru.",
        ),
    ] = None,
    lookahead: Annotated[
        int | None, _option("COUNT", "Steps that the session announces ahead. Default: 16.")
    ] = None,
    no_session: Annotated[
        bool, typer.Option("--no-session", help="Train by single lookups and updates.")
    ] = False,
    hotcold: Annotated[
        bool,
        typer.Option(
            "--hotcold", help="Train samples whose rows are all hot on a replica, without a call."
        ),
    ] = False,
    budget: Annotated[
        str | None, _option("BYTES", "Of the hot rows of --hotcold. Default: 4MiB.")
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Run LRU, LFU, rank, look-ahead and hot/cold one after the other, each with a "
            "server of its own, and show them side by side.",
        ),
    ] = False,
    keep: Annotated[
        Path | None, _option("DIR", "Keep file and store here. Default: keep nothing.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a DLRM through a server of its own, and compare every bit with a dense check.

    A session announces its keys, so that lookups find their rows in the cache; without one the
    policy decides how many do. The bits are the same. Ends with 1 if one bit differs.
    """
    _check_flags(
        compare=compare,
        hotcold=hotcold,
        no_session=no_session,
        others={
            "--policy": policy,
            "--lookahead": lookahead,
            "--budget": budget,
            "--cache-bytes": cache_bytes,
            "--cache-share": cache_share,
        },
    )
    from embstore_server import demo as demos

    hot_cold = demos.HotCold(
        **_given(
            budget_bytes=parameters.byte_count("--budget", budget),
            lookahead=lookahead,
        )
    )
    job = demos.Job(
        **_given(
            samples=samples,
            batch=batch,
            dim=dim,
            scale=scale,
            cache_bytes=parameters.byte_count("--cache-bytes", cache_bytes),
            cache_share=cache_share,
            policy=policy,
        ),
        way=_way(hot_cold, no_session=no_session, hotcold=hotcold),
    )
    if compare:
        exact = demos.compare(data, job, hot_cold=hot_cold, directory=keep, json=as_json).exact
    else:
        exact = demos.run(data, job, directory=keep, json=as_json).exact
    if not exact:
        raise typer.Exit(FAILED)


def _check_flags(*, compare: bool, hotcold: bool, no_session: bool, others: dict[str, Any]) -> None:
    """Refuse flags that say two things, or say them of nothing.

    Raises
    ------
    InvalidArgumentError
    """
    given = {flag for flag, value in others.items() if value is not None}
    if no_session and "--lookahead" in given:
        raise InvalidArgumentError("--lookahead is of a session: leave it out, or --no-session")
    if no_session and hotcold:
        raise InvalidArgumentError("--hotcold trains in a session: leave it out, or --no-session")
    if compare and (no_session or hotcold or "--policy" in given):
        raise InvalidArgumentError(
            "--compare runs every policy and way: leave out --policy, --no-session and --hotcold"
        )
    if "--budget" in given and not (hotcold or compare):
        raise InvalidArgumentError("--budget is of --hotcold, or --compare: give one, or leave it")
    if {"--cache-bytes", "--cache-share"} <= given:
        raise InvalidArgumentError("--cache-share is instead of --cache-bytes: leave one out")


def _way(hot_cold: "HotCold", *, no_session: bool, hotcold: bool) -> "Way":
    from embstore_server import demo as demos

    if hotcold:
        return hot_cold
    return demos.Calls() if no_session else demos.Ahead(hot_cold.lookahead)


def _given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None: the others are the demo's own defaults."""
    return {name: value for name, value in values.items() if value is not None}
