"""`embstore serve`: every setting as a flag.

The value of a flag is passed to `embstore_server.setup.settings` as text. That module reads it
together with the environment and the file, so that a bad value gives the same error from each
source.

--help shows the dozen settings that most servers need, each with the first clause of its text, so
that the help fits a screen; --help-all shows all settings with their whole text.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

import embstore
from embstore_server.cli.extras import needing
from embstore_server.cli.flags import flag, option, with_options
from embstore_server.setup.settings import Setting, Settings, declared, load
from embstore_server.telemetry import logs
from embstore_server.telemetry.logs import event


def serving(of: type[Settings] = Settings) -> Callable[..., None]:
    """Return the command `serve` with the flags of these settings."""

    @with_options(map(_flag, declared(of).values()))
    def serve(
        config: Annotated[
            Path | None, flag("TOML file of settings; or EMBSTORE_CONFIG.", "FILE")
        ] = None,
        help_all: Annotated[bool, _help_all(of)] = False,
        **flags: Any,
    ) -> None:
        """Serve a store by gRPC, and by REST to operators.

        Each setting is a flag, an environment variable (EMBSTORE_CACHE_BYTES for --cache-bytes) or
        a key of the TOML file (cache_bytes); if more than one of them sets it, the first one wins.
        --help-all shows all settings.

        SIGTERM and SIGINT stop the server. If the device fails, the server ends with status 70.
        When the server is started again, it opens the store at its last commit.
        """
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the server's log contains its errors
        from embstore_server.path.memory_trim import (
            share_freed_memory,  # --help does not need asyncio
        )

        share_freed_memory()
        os.umask(0o077)  # no other user may read rows, whatever the inherited umask
        with _ending_at_once():
            with needing("server"):
                _look_for_packages()
            settings = load(flags, os.environ, config, of)
            logs.configure(settings)  # before the imports below, which take a second
            event(logging.INFO, "starting", version=embstore.__version__, **settings.given())
            from embstore_server.host.app import serve as run

            _show_first_token(settings)
            raise typer.Exit(run(settings))

    return serve


def _look_for_packages() -> None:
    """Raise ModuleNotFoundError if a package that only the server needs is missing. This does not
    import the packages."""
    for name in ("numba", "fastapi", "grpc_health", "grpc_reflection", "prometheus_client"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _show_first_token(settings: Settings) -> None:
    """Make the first token, if requested, and show it on standard output, but not in the log."""
    if not settings.first_token or settings.tokens is None:
        return
    from embstore_server.access.tokens import make_first

    token = make_first(settings.tokens)
    more = f"embstore token add NAME --right write --tables 'NAME/*' --tokens {settings.tokens}"
    if token:
        typer.echo(f"the first token, shown this one time: {token}\nfor more: {more}")
    else:
        typer.echo(f"the first token was shown at the first start; for another: {more}")


def _flag(setting: Setting) -> Parameter:
    negated = "" if setting.kind.metavar else f"/--no-{setting.flag[2:]}"
    info = flag(
        _text(setting, is_brief=True),
        setting.kind.metavar or None,
        f"{setting.flag}{negated}",
        rich_help_panel=setting.panel,
        hidden=not setting.is_common,
        show_default=False,
    )
    return option(setting.name, (str if setting.kind.metavar else bool) | None, info)


def _text(setting: Setting, *, is_brief: bool) -> str:
    text = f"{setting.brief}." if is_brief else setting.help
    if setting.default is MISSING:
        return f"{text} Required."
    if is_brief and setting.default in (None, False):
        return text
    return f"{text} Default: {setting.default_text}."


def _help_all(of: type[Settings]) -> Any:
    """Return the flag that shows the help with all settings and their whole texts."""
    known = declared(of)

    def show(context: typer.Context, wanted: bool) -> None:
        if not wanted and not context.resilient_parsing:  # so that a shell completes all flags
            return
        for parameter in context.command.params:
            if parameter.name in known:
                shown: Any = parameter
                shown.hidden, shown.help = False, _text(known[parameter.name], is_brief=False)
        if wanted:
            typer.echo(context.get_help())
            raise typer.Exit

    text = "Show all settings, with their whole meaning, and exit."
    return flag(text, None, "--help-all", is_eager=True, callback=show)


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """End the process with status 0 on a signal, until the server has handlers of its own.

    Until then, the process has opened nothing. Without a handler, process 1 of a container would
    ignore SIGTERM, and would be killed after its grace period.
    """
    before = {n: signal.signal(n, lambda *_: sys.exit(0)) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


serve = serving()
