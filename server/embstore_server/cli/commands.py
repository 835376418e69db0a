"""The tree of commands, and what stands above them: the help's end, the version."""

from typing import Annotated

import typer

import embstore
from embstore_server.cli import exits, output, tables
from embstore_server.cli.bench import bench
from embstore_server.cli.checkpoint import checkpoint
from embstore_server.cli.demo import demo
from embstore_server.cli.digest import digest
from embstore_server.cli.frequency import (
    export_profile,
    import_profile,
    pin_hotset,
    unpin_hotset,
    warm,
)
from embstore_server.cli.hotset import hotset
from embstore_server.cli.profile import profile
from embstore_server.cli.serving import serve
from embstore_server.cli.sessions import sessions
from embstore_server.cli.size import size
from embstore_server.cli.stats import stats

app = typer.Typer(
    help="An exact embedding store for training recommender models.",
    epilog=exits.LEGEND,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,  # a trace is for whoever mends us: as Python prints it
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        output.show_text(f"embstore {embstore.__version__}")
        raise typer.Exit


@app.callback()
def above(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say which one."),
    ] = False,
) -> None:
    """Take the flags that stand before the command."""


for command in (
    *(serve, demo, stats, sessions, checkpoint, digest, bench, profile, size, hotset),
    *(export_profile, import_profile, warm, pin_hotset, unpin_hotset),
):
    app.command()(command)
app.add_typer(tables.app, name="table")
