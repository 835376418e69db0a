"""Values of flags that are more than one word: amounts of bytes, initializers, optimizers."""

from dataclasses import fields
from typing import TYPE_CHECKING

from embstore.errors import InvalidArgumentError
from embstore_server.parsing import BYTES

if TYPE_CHECKING:
    from embstore.config import Initializer, Optimizer


def byte_count(flag: str, text: str | None) -> int | None:
    """Return the number of bytes of 1073741824 or "1GiB"; None stays None.

    Raises
    ------
    InvalidArgumentError
    """
    if text is None:
        return None
    try:
        count: int = BYTES.read(text)
    except ValueError as exc:
        raise InvalidArgumentError(f"{flag}: expected {BYTES.expected}, found {text!r}") from exc
    return count


def initializer(text: str) -> "Initializer":
    """Return what "uniform:-0.01,0.01", "normal:0,0.02" or "constant:0" says.

    Raises
    ------
    InvalidArgumentError
    """
    from embstore.config import INITIALIZERS

    kind, _, written = text.partition(":")
    try:
        values = [float(value) for value in written.split(",")]
        known = INITIALIZERS[kind]
    except (ValueError, KeyError):
        values, known = [], None
    if known is None or len(values) != len(fields(known)):
        raise InvalidArgumentError(
            '--initializer: expected "uniform:LOW,HIGH", "normal:MEAN,STD" or "constant:VALUE", '
            f"found {text!r}"
        )
    made: Initializer = known(*values)
    return made


def optimizer(kind: str, **parameters: float | None) -> "Optimizer":
    """Return the optimizer of a kind with its parameters; those that are None were not given.

    Raises
    ------
    InvalidArgumentError : there is no such kind, or it has no such parameter.
    """
    from embstore.config import OPTIMIZERS

    if kind not in OPTIMIZERS:
        raise InvalidArgumentError(
            f"--optimizer: expected one of {', '.join(OPTIMIZERS)}, found {kind!r}"
        )
    given = {name: value for name, value in parameters.items() if value is not None}
    strange = sorted(given.keys() - {field.name for field in fields(OPTIMIZERS[kind])})
    if strange:
        flags = ", ".join("--" + name.replace("_", "-") for name in strange)
        raise InvalidArgumentError(f"the optimizer {kind} has no {flags}")
    made: Optimizer = OPTIMIZERS[kind](**given)
    return made
