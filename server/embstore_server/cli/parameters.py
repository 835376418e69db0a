"""Values of flags that need more than a type: bytes, files, initializers, optimizers."""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from inspect import Parameter
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from embstore.errors import InvalidArgumentError
from embstore_server.cli.flags import option
from embstore_server.setup.parsing import BYTES

if TYPE_CHECKING:
    from embstore.config import Initializer, Optimizer


def byte_count(flag: str, text: str | None) -> int | None:
    """Return the number of bytes in a text like 1073741824 or 1GiB; None stays None."""
    if text is None:
        return None
    try:
        count: int = BYTES.read(text)
    except ValueError as exc:
        raise InvalidArgumentError(f"{flag}: expected {BYTES.expected}, found {text!r}") from exc
    return count


def check_output(flag: str, path: Path, others: Iterable[Path | None] = ()) -> None:
    """Refuse an output file that cannot be written, before the work for it begins.

    An existing file that is not regular, such as a device or a pipe, is refused too, because it
    would be replaced. A file in `others`, the files that the command also reads or writes, is
    refused for the same reason. Raises InvalidArgumentError if the file is refused.
    """
    from embstore.profiles.archive import why_not_replaced

    if realpath(path) in {realpath(other) for other in others if other is not None}:
        raise InvalidArgumentError(
            f"{flag}: expected a file of its own, found {path}, which the command also reads or "
            "writes: give another name"
        )
    if why := why_not_replaced(path):
        raise InvalidArgumentError(
            f"{flag}: expected a regular file, or a new one in an existing folder, found {path}: "
            f"{why}"
        )


def initializer_forms() -> str:
    """Return the forms in which initializers are written: uniform:LOW,HIGH, ..."""
    from embstore.config import INITIALIZERS

    forms = [
        f"{kind}:{','.join(field.name.upper() for field in fields(known))}"
        for kind, known in INITIALIZERS.items()
    ]
    return f"{', '.join(forms[:-1])} or {forms[-1]}"


def initializer(text: str) -> "Initializer":
    """Return the initializer that a text like "uniform:-0.01,0.01" describes."""
    from embstore.config import INITIALIZERS

    kind, _, written = text.partition(":")
    known = INITIALIZERS.get(kind)
    try:
        values = [float(value) for value in written.split(",")]
    except ValueError:
        values = []
    if known is None or len(values) != len(fields(known)):
        raise InvalidArgumentError(f"--initializer: expected {initializer_forms()}, found {text!r}")
    made: Initializer = known(*values)
    return made


def optimizer_options() -> Iterator[Parameter]:
    """Yield a flag for each parameter of an optimizer, except the learning rate."""
    from embstore.config import OPTIMIZERS

    defaults: dict[str, dict[str, Any]] = {}
    for kind, known in OPTIMIZERS.items():
        for field in fields(known):
            defaults.setdefault(field.name, {})[kind] = field.default
    del defaults["learning_rate"]
    shown: Any = {"show_default": False, "rich_help_panel": "Parameters of the optimizer"}
    for name, by_kind in defaults.items():
        text, kinds = f"For {', '.join(by_kind)}.", {type(value) for value in by_kind.values()}
        if kinds == {bool}:
            switch = typer.Option("--" + name.replace("_", "-"), help=text, **shown)
            yield option(name, bool | None, switch)
        else:
            values = ", ".join(f"{default:g}" for default in dict.fromkeys(by_kind.values()))
            about = typer.Option(help=f"{text} Default: {values}.", **shown)
            yield option(name, float | None, about)


def optimizer(kind: str, **parameters: float | bool | None) -> "Optimizer":
    """Return the optimizer of a kind; parameters that are None get their defaults."""
    from embstore.config import OPTIMIZERS

    if kind not in OPTIMIZERS:
        raise InvalidArgumentError(
            f"--optimizer: expected one of {', '.join(OPTIMIZERS)}, found {kind!r}"
        )
    given = {name: value for name, value in parameters.items() if value is not None}
    unknown = sorted(given.keys() - {field.name for field in fields(OPTIMIZERS[kind])})
    if unknown:
        flags = ", ".join("--" + name.replace("_", "-") for name in unknown)
        raise InvalidArgumentError(f"the optimizer {kind} has no {flags}; leave it out")
    made: Optimizer = OPTIMIZERS[kind](**given)
    return made
