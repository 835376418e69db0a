"""`embstore demo`: trains a DLRM through a server on real input, and checks every bit."""

from collections.abc import Set
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from embstore.cache.policies import POLICIES
from embstore.errors import InvalidArgumentError
from embstore_server.cli import parameters
from embstore_server.cli.exits import FAILED
from embstore_server.cli.extras import needing
from embstore_server.cli.flags import flag, option, with_options
from embstore_server.cli.output import AsJson

_FLAGS = (
    ("data", Path, "FILE", "Samples in the Criteo format. Default: a file is written first."),
    ("samples", int, "COUNT", "Samples at most. Default: 300,000."),
    ("batch", int, "COUNT", "Samples of a step. Default: 2,048."),
    ("dim", int, "COUNT", "Elements of a row. Default: 16."),
    ("scale", float, "SHARE", "Rows per category of Criteo Kaggle. Default: 0.02."),
    ("cache_bytes", str, "BYTES", "Cache of the server. Default: a fifth of the tables."),
    ("cache_share", float, "SHARE", "The same, as a share of the tables. Default: 0.2."),
    (
        *("policy", str, "|".join(POLICIES)),
        "Which rows leave the cache first. For rank the file is counted before, and the cache is "
        "warmed. Default: lru.",
    ),
    ("framework", str, "numpy|torch", "What computes the model. Default: numpy."),
    (
        *("device", str, "cpu|cuda|cuda:N"),
        "Where Torch computes the model. On a GPU the store is in the same process, on that GPU, "
        "and rows stay there. Default: cpu.",
    ),
    ("lookahead", int, "COUNT", "Steps that the session announces ahead. Default: 16."),
    ("budget", str, "BYTES", "Hot rows of --hotcold. Default: 4MiB."),
    ("keep", Path, "DIR", "Keep file, store and report here. Default: keep nothing."),
    ("report", Path, "FILE", "Write a report of the session. Default: run.html of --keep."),
)
"""The name, type, metavar and help of each flag. The defaults are in the demo, which the help does
not load."""
_OF_SERVER = {"cache_bytes", "cache_share", "policy", "device"}
_OF_JOB = {
    *("samples", "batch", "dim", "scale", "cache_bytes", "cache_share", "policy", "framework"),
    "device",
}


@with_options(
    option(name, kind | None, flag(text, metavar)) for name, kind, metavar, text in _FLAGS
)
@needing("server")
def demo(
    *,
    no_session: Annotated[
        bool, flag("Train by single lookups and updates.", None, "--no-session")
    ] = False,
    hotcold: Annotated[
        bool,
        flag("Train samples of hot rows without calls to the server.", None, "--hotcold"),
    ] = False,
    compare: Annotated[
        bool, flag("Compare LRU, LFU, rank, look-ahead and hot/cold.", None, "--compare")
    ] = False,
    cluster: Annotated[
        bool, flag("Start a cluster of two shards, on Ray, and no server.", None, "--cluster")
    ] = False,
    sparse: Annotated[
        bool, flag("Hash categories as text, into a table of sparse keys.", None, "--sparse")
    ] = False,
    address: Annotated[
        str | None, flag("Start nothing: train at the store or cluster there.", "HOST:PORT")
    ] = None,
    as_json: AsJson = False,
    **values: Any,
) -> None:
    """Train a DLRM through a server of its own; compare all bits with a dense model.

    A session announces its keys, so that lookups find their rows in the cache. Without a session
    the policy decides how many lookups do. The bits are the same. Status 1: one bit differs.
    """
    given = {name: value for name, value in values.items() if value is not None}
    _check_flags(given.keys(), compare=compare, hotcold=hotcold, no_session=no_session)
    if sparse:
        _check_sparse(compare=compare, hotcold=hotcold, policy=given.get("policy"))
    _check_place(given.keys(), address, compare=compare, cluster=cluster)
    import_module("embstore_server.host.app")  # fails if a package of the server is missing
    from embstore_tools import demo as demos

    if "report" in given:
        parameters.check_output("--report", given["report"])
    for name in given.keys() & {"cache_bytes", "budget"}:
        given[name] = parameters.byte_count("--" + name.replace("_", "-"), given[name])
    hot = {"budget_bytes": given.get("budget"), "lookahead": given.get("lookahead")}
    hot_cold = demos.HotCold(**{name: value for name, value in hot.items() if value is not None})
    way: demos.Way = hot_cold if hotcold else demos.Ahead(hot_cold.lookahead)
    of_job = {name: given[name] for name in given.keys() & _OF_JOB}
    job = demos.Job(**of_job, way=demos.Calls() if no_session else way, sparse=sparse)
    more: dict[str, Any] = {"directory": given.get("keep"), "json": as_json}
    if "report" in given:
        more["report"] = given["report"]
    if compare:
        exact = demos.compare(given.get("data"), job, hot_cold=hot_cold, **more).exact
    else:
        if address is not None:
            more["address"] = address
        if cluster:
            more["cluster"] = True
        with needing("ray") if cluster else nullcontext():
            exact = demos.run(given.get("data"), job, **more).exact
    if not exact:
        raise typer.Exit(FAILED)


def _check_sparse(*, compare: bool, hotcold: bool, policy: str | None) -> None:
    """Refuse flags that need the counts of accesses to be known before the training."""
    if compare or hotcold or policy == "rank":
        counting = "--compare, --hotcold and --policy rank"
        raise InvalidArgumentError(
            "--sparse: sparse tables have no counts of rows before the training; leave out "
            f"{counting}"
        )


def _check_flags(given: Set[str], *, compare: bool, hotcold: bool, no_session: bool) -> None:
    """Refuse flags that contradict each other, or have no effect."""
    problem = ""
    if no_session and "lookahead" in given:
        problem = "--lookahead needs a session: leave out one of --lookahead and --no-session"
    elif no_session and hotcold:
        problem = "--hotcold needs a session: leave out one of --hotcold and --no-session"
    elif "report" in given and (no_session or hotcold or compare):
        problem = "--report is of a session: leave out --no-session, --hotcold and --compare"
    elif "framework" in given and (compare or hotcold):
        problem = "--compare and --hotcold train by numpy: leave out --framework"
    elif compare and (no_session or hotcold or "policy" in given):
        problem = "--compare runs all: leave out --policy, --no-session and --hotcold"
    elif "budget" in given and not (hotcold or compare):
        problem = "--budget needs --hotcold or --compare: give one, or leave it out"
    elif {"cache_bytes", "cache_share"} <= given:
        problem = "--cache-share stands for --cache-bytes: leave one out"
    if problem:
        raise InvalidArgumentError(problem)


def _check_place(given: Set[str], address: str | None, *, compare: bool, cluster: bool) -> None:
    """Refuse flags that contradict --compare, --cluster or --address."""
    problem = ""
    if compare and (cluster or address is not None):
        problem = "--compare starts servers: leave out --cluster and --address"
    elif cluster and address is not None:
        problem = "--cluster starts a cluster: leave out one of --cluster and --address"
    elif cluster and "device" in given:
        problem = "--cluster: each server chooses its own device, so leave out --device"
    elif address is not None and given & _OF_SERVER:
        flags = " and ".join("--" + name.replace("_", "-") for name in sorted(given & _OF_SERVER))
        own = "the server at --address has its own settings"
        problem = f"{flags}: {own}; leave out --address, or these flags"
    if problem:
        raise InvalidArgumentError(problem)
