"""Kinds of values that people write and read: addresses, amounts of bytes, times, switches.

A value is given as text (by a flag, or an environment variable), or already has a type (in TOML, or
in a test). A `Kind` reads both forms and describes the accepted values in words. An error can then
name the source of the value, too: "EMBSTORE_CACHE_BYTES: expected a number of bytes ..., found
'1GIG'".
"""

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from embstore.errors import InvalidArgumentError
from embstore.host.facts import THREADS_MAX
from embstore_proto.addresses import split_address

OFF = "off"
"""The value that is written in place of an address to turn its port off."""
SECONDS_MAX = 1e8
"""The longest time in a setting: three years, far below the limit of the system's timers."""

UNARY_BYTES_LIMIT = 256 << 20
"""The largest value of `unary_bytes_max`; gRPC counts a message's bytes in 31 bits.

The server receives messages up to a multiple of `unary_bytes_max`, so that it can refuse a large
message with a reason.
"""
_UNARY_BYTES_MIN = 64 << 10
_CACHE_BYTES_MIN = 64 << 10
"""The smallest cache; a smaller cache would have room for hardly one row of a table."""

_AMOUNT = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_NAME = re.compile(r"\*|(\*\.)?[\w-]+(\.[\w-]+)*")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SWITCHES = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(
    ("false", "no", "off", "0"), False
)


@dataclass(frozen=True)
class Kind:
    """A kind of value: how a value is read, and how the kind is described."""

    expected: str
    metavar: str
    """The placeholder for the value in the help."""
    read: Callable[[Any], Any]
    """Returns the value; raises ValueError for anything else."""
    show: Callable[[Any], str] = str
    """Returns a value in the form in which a person writes it."""


def bytes_text(count: int) -> str:
    """Return a number of bytes for people: 1.5 GiB."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def one_of(*names: str) -> Kind:
    """Return the kind of a value that is one of these words."""

    def read(value: Any) -> str:
        if value not in names:
            raise ValueError(value)
        return str(value)

    return Kind(" or ".join(f'"{name}"' for name in names), "|".join(names), read)


def _device(value: Any) -> str:
    from embstore.device.choice import is_device_name  # help does not need NumPy

    if not isinstance(value, str) or not is_device_name(value):
        raise ValueError(value)
    return value


def _cache(value: Any) -> int | str:
    from embstore.device.choice import memory_share

    if memory_share(value) is not None:
        return str(value).strip()
    return _within(_CACHE_BYTES_MIN, sys.maxsize, _byte_count)(value)


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError(value)
    return Path(value)


def _path_or_url(value: Any) -> str:
    return str(_path(value)) if isinstance(value, Path) or "://" not in str(value) else str(value)


def _address(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    split_address(value)
    return value


def _names(value: Any) -> tuple[str, ...]:
    names = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
    if not names or not all(isinstance(n, str) and _NAME.fullmatch(n) for n in names):
        raise ValueError(value)
    return names


def _byte_count(value: Any) -> int:
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value.strip())
        if not match:
            raise ValueError(value)
        unit = (match[2] or "").lower()
        base = 1024 if unit.endswith("i") else 1000
        value = Decimal(match[1]) * base ** _POWERS[unit.rstrip("i")]
        if value != int(value):
            raise ValueError(value)
        value = int(value)
    return _count(value)


def _count(value: Any) -> int:
    if isinstance(value, bool | float):
        raise ValueError(value)
    number = int(value)
    if number < 1:
        raise ValueError(value)
    return number


def _within(low: int, high: int, read: Callable[[Any], int]) -> Callable[[Any], int]:
    """Return a function that reads a whole number in [low, high]."""

    def bounded(value: Any) -> int:
        number = read(value)
        if not low <= number <= high:
            raise ValueError(value)
        return number

    return bounded


def _count_or_none(value: Any) -> int:
    return 0 if not isinstance(value, bool) and str(value).strip() == "0" else _count(value)


def _number(low: float, high: float) -> Callable[[Any], float]:
    """Return a function that reads a number in [low, high]."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not low <= float(value) <= high:
            raise ValueError(value)
        return float(value)

    return read


def pairs(place: str, form: str, texts: Iterable[str]) -> dict[str, str]:
    """Return {A: B} from texts "A=B". A and B must not be empty, and each A must occur once.

    `place` is the flag or parameter that contained the texts; `form` describes their form, such as
    COLUMN=NAME.
    """
    found: dict[str, str] = {}
    for text in texts:
        left, equals, right = text.rpartition("=")
        if not (left and equals and right):
            raise InvalidArgumentError(f"{place}: expected {form}, found {text!r}")
        if left in found:
            raise InvalidArgumentError(f"{place}: expected each {form} once, found {left} twice")
        found[left] = right
    return found


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in _SWITCHES:
        raise ValueError(value)
    return _SWITCHES[value.lower()]


_MOST, _short = f"{SECONDS_MAX:.0f}", "{:g}".format
DIRECTORY = Kind("a path", "DIR", _path)
FILE = Kind("a path", "FILE", _path)
PATH_OR_URL = Kind('a path, or a URL as "s3://bucket/backups"', "DIR|URL", _path_or_url)
SOCKET = Kind('a path, or "off"', "PATH|off", lambda v: OFF if v == OFF else str(_path(v)))
DEVICE = Kind('"auto", "cpu", "cuda" or "cuda:N", as "cuda:0"', "auto|cpu|cuda|cuda:N", _device)
ADDRESS = Kind('host:port, as "127.0.0.1:50051" or "[::1]:0"', "HOST:PORT", _address)
ADDRESS_OR_OFF = Kind(
    'host:port, as "127.0.0.1:8080" or "[::1]:0", or "off"',
    "HOST:PORT|off",
    lambda value: OFF if value == OFF else _address(value),
)
BYTES = Kind(
    'a number of bytes above 0, as 1073741824, "1GiB" or "10GB"', "BYTES", _byte_count, bytes_text
)
BYTES_OR_NONE = Kind(
    f"{BYTES.expected}, or 0",
    "BYTES",
    lambda value: 0 if str(value) == "0" else _byte_count(value),
    bytes_text,
)
BYTES_OR_SHARE = Kind(
    f'a number of bytes, {bytes_text(_CACHE_BYTES_MIN)} or more, as 1073741824, "1GiB" or '
    '"10GB", or a share of the device\'s memory above 0, as "80%"',
    "BYTES|SHARE%",
    _cache,
    lambda value: value if isinstance(value, str) else bytes_text(value),
)
MESSAGE_BYTES = Kind(
    f"a number of bytes from {bytes_text(_UNARY_BYTES_MIN)} to {bytes_text(UNARY_BYTES_LIMIT)}",
    "BYTES",
    _within(_UNARY_BYTES_MIN, UNARY_BYTES_LIMIT, _byte_count),
    bytes_text,
)
COUNT = Kind("an integer above 0", "COUNT", _count)
NAMES = Kind('names with commas between, as "a.example,*.b.example"', "NAMES", _names, ",".join)
THREADS = Kind(f"an integer from 1 to {THREADS_MAX}", "COUNT", _within(1, THREADS_MAX, _count))
NUMBER = Kind("an integer, 0 or more", "COUNT", _count_or_none)
_ANY, _ABOVE_0 = sys.float_info.max, sys.float_info.min
MILLISECONDS = Kind("a number of milliseconds, 0 or more", "MS", _number(0, _ANY), _short)
SECONDS = Kind(f"a number of seconds, 0 to {_MOST}", "SECONDS", _number(0, SECONDS_MAX), _short)
POSITIVE_SECONDS = Kind(
    f"a number of seconds above 0, up to {_MOST}",
    "SECONDS",
    _number(_ABOVE_0, SECONDS_MAX),
    _short,
)
SHARE = Kind("a share, 0 to 1", "SHARE", _number(0, 1), _short)
SWITCH = Kind("true or false", "", _switch)
