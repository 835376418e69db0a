"""Flags of commands: their form, and flags that are made from declarations in other modules.

Typer reads the flags of a command from its signature. A command that takes `**values` gets a
signature with a flag for each value: settings, or parameters of optimizers.
"""

from collections.abc import Callable, Iterable
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer


def flag(help: str, metavar: str | None = None, *names: str, **options: Any) -> Any:
    """Return the description of a flag, for `Annotated`."""
    return typer.Option(*names, metavar=metavar, help=help, **options)


YES = flag("Do not ask.", None, "--yes", "-y")
"""The flag that skips the question of a command that deletes something, or affects other
clients."""


def option(name: str, kind: Any, info: Any, default: Any = None) -> Parameter:
    """Return a parameter for a signature that Typer reads as a flag: `kind` is the type of the
    value, and `info` is Typer's description (`flag`)."""
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def with_options(
    options: Iterable[Parameter],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that replaces a command's `**values` by flags."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        *own, _ = signature(command).parameters.values()
        return replace_parameters(command, [*own, *options])

    return decorate


def replace_parameters(
    command: Callable[..., Any], parameters: Iterable[Parameter]
) -> Callable[..., Any]:
    """Give a command another signature, and return the command."""
    command.__signature__ = Signature(list(parameters))  # type: ignore[attr-defined]
    command.__annotations__ = {}  # Typer uses the signature's annotations
    return command
