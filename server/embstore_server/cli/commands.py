"""The tree of commands, and the module of each command, which is imported when the command is
called."""

from collections.abc import Mapping
from importlib import import_module
from inspect import getdoc
from keyword import iskeyword
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from embstore.storage.format import BACKUP_FORMAT, FORMAT
from embstore.version import __version__, build
from embstore_server.cli import exits, output

_COMMANDS = {
    "embstore_server.cli.serving": ["serve"],
    "embstore_tools.commands.demo": ["demo"],
    "embstore_server.cli.stats": ["stats"],
    "embstore_server.cli.top": ["top"],
    "embstore_server.cli.store": (
        ["checkpoint", "set-retention", "restore", "backup", "digest", "call"]
    ),
    "embstore_server.cli.upkeep": (
        [
            "flush",
            "resize-cache",
            "set-policy",
            "check-integrity",
            "clear-counts",
            "promote",
            "set-shard-map",
        ]
    ),
    "embstore_server.cli.doctor": ["doctor"],
    "embstore_tools.commands.compile": ["compile"],
    "embstore_server.cli.directory": ["verify", "restore-from"],
    "embstore_server.cli.files": ["export", "import"],
    "embstore_tools.commands.bench": ["bench"],
    "embstore_tools.commands.profile": ["profile"],
    "embstore_tools.commands.size": ["size"],
    "embstore_tools.commands.hotset": ["hotset"],
    "embstore_tools.commands.report": ["report"],
    "embstore_server.cli.frequency": (
        ["export-profile", "import-profile", "warm", "pin-hotset", "unpin-hotset"]
    ),
}
_PANELS = {
    "Serve and watch": "serve stats top doctor compile call check-integrity",
    "Tables and files": "table export import digest",
    "Checkpoints and backups": "checkpoint set-retention restore backup verify restore-from",
    "Cache and profiles": (
        "flush resize-cache set-policy clear-counts profile size hotset export-profile "
        "import-profile warm pin-hotset unpin-hotset"
    ),
    "Sessions, tokens, replication": "sessions token promote cluster set-shard-map",
    "Try and measure": "demo bench report",
}
"""The topics of the commands, which are headings in the help of `embstore`."""
_TOKEN_COMMANDS = {"embstore_server.cli.tokens": ["add", "grant", "limit", "remove", "list"]}
_SESSION_COMMANDS = {"embstore_server.cli.sessions": ["list", "close"]}
_CLUSTER_COMMANDS = {"embstore_cluster.commands": ["start", "status", "grow", "drain", "stop"]}
_TABLE_COMMANDS = {
    "embstore_server.cli.tables": (
        ["create", "list", "show", "grow", "set-learning-rate", "clear", "drop"]
    ),
}


def _lazy(commands_of: Mapping[str, list[str]], default: str = "") -> type[TyperGroup]:
    """Return a class of groups that import a command when it is called.

    default : the command that runs if the user names no command; empty: the user must name one
    """
    places = {name: module for module, names in commands_of.items() for name in names}

    class Lazy(TyperGroup):
        def __init__(self, *, commands: Any = None, **options: Any) -> None:
            known: dict[str, Any] = dict.fromkeys(places) | dict(commands or {})
            super().__init__(commands=known, **options)

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            is_named = bool(args) and not (args[0].startswith("-") and args[0] not in _HELP)
            is_typed = is_named or ctx.resilient_parsing  # or a shell completes the next word
            return super().parse_args(ctx, args if is_typed or not default else [default, *args])

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name in places and self.commands[cmd_name] is None:
                module = import_module(places[cmd_name])
                alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
                name = cmd_name.replace("-", "_")
                name += "_" if iskeyword(name) else ""
                command = getattr(module, name)
                text, panel = _paragraphs(command), _panel(cmd_name)
                alone.command(cmd_name, help=text, rich_help_panel=panel)(command)
                self.commands[cmd_name] = get_command(alone)
            return super().get_command(ctx, cmd_name)

    return Lazy


def _paragraphs(command: Any) -> str:
    """Return the text of a command's help, with one line per paragraph, because Rich keeps line
    ends."""
    return "\n\n".join(" ".join(text.split()) for text in (getdoc(command) or "").split("\n\n"))


def _panel(name: str) -> str | None:
    """Return the heading under which the help lists a command; None for the commands of a group,
    which have one common heading."""
    return next((panel for panel, names in _PANELS.items() if name in names.split()), None)


_HELP = ["-h", "--help"]
app = typer.Typer(
    cls=_lazy(_COMMANDS),
    help="An exact embedding store for training recommender models.",
    epilog=exits.LEGEND,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,  # developers read tracebacks as Python prints them
    context_settings={"help_option_names": _HELP},
)
_TABLE_HELP = "Create, list, show, grow and drop tables."
_tables = typer.Typer(cls=_lazy(_TABLE_COMMANDS), help=_TABLE_HELP, no_args_is_help=True)
app.add_typer(_tables, name="table", rich_help_panel=_panel("table"))
_SESSION_HELP = "Show look-ahead sessions, or end one."
_sessions = typer.Typer(
    cls=_lazy(_SESSION_COMMANDS, "list"), help=_SESSION_HELP, no_args_is_help=False
)
app.add_typer(_sessions, name="sessions", rich_help_panel=_panel("sessions"))
_TOKEN_HELP = "Manage tokens: who may call a server, and do what."
_tokens = typer.Typer(cls=_lazy(_TOKEN_COMMANDS), help=_TOKEN_HELP, no_args_is_help=True)
app.add_typer(_tokens, name="token", rich_help_panel=_panel("token"))
_CLUSTER_HELP = "Start, show, grow, shrink and stop a cluster of shards on Ray."
_cluster = typer.Typer(cls=_lazy(_CLUSTER_COMMANDS), help=_CLUSTER_HELP, no_args_is_help=True)
app.add_typer(_cluster, name="cluster", rich_help_panel=_panel("cluster"))


def _show_version(wanted: bool) -> None:
    if wanted:
        output.show_text(f"embstore {__version__}")
        output.show_text(f"build {build()}")
        output.show_text(f"formats: store {FORMAT}, backup {BACKUP_FORMAT}, wire embstore.v1")
        raise typer.Exit


@app.callback()
def above(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show version, build and formats.",
        ),
    ] = False,
) -> None:
    """Take the flags that precede the command."""
