"""Kinds of values that people write: addresses, amounts of bytes, times, switches.

A value comes as text (a flag, a variable of the environment) or already typed (TOML, a test). A
`Kind` reads either and says in words what it takes, so that whoever refuses a value can name its
source beside: "EMBSTORE_CACHE_BYTES: expected a number of bytes ..., found '1GIG'".
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from embstore.errors import InvalidArgumentError

OFF = "off"
"""Stands for an address where nothing shall be served."""
SECONDS_MAX = 1e8
"""Three years: far below what the timers of the system can hold."""

_AMOUNT = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[^\s:\[\]]+):([0-9]{1,5})")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SWITCHES = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True)
class Kind:
    """What a value must be, in words, and what makes one of what was written."""

    expected: str
    read: Callable[[Any], Any]
    """Raises ValueError for anything else."""


def split_address(address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of "host:port" or "[IPv6]:port".

    Raises
    ------
    ValueError : it is neither.
    """
    match = _ADDRESS.fullmatch(address)
    if not match or int(match[2]) > 65535:
        raise ValueError(address)
    if match[1].startswith("["):
        ip_address(match[1][1:-1])
    return match[1].strip("[]"), int(match[2])


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach `host`. Of names, "localhost" alone is known to be.

    Other names are not looked up: what they mean may change after the answer.
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def one_of(*names: str) -> Kind:
    """Return the kind of these words."""

    def read(value: Any) -> str:
        if value not in names:
            raise ValueError(value)
        return str(value)

    return Kind(" or ".join(f'"{name}"' for name in names), read)


def _device(value: Any) -> str:
    from embstore.device.choice import is_device_name  # here: it loads NumPy, and help does not

    if not isinstance(value, str) or not is_device_name(value):
        raise ValueError(value)
    return value


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError(value)
    return Path(value)


def _address(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    split_address(value)
    return value


def _address_or_off(value: Any) -> str:
    return OFF if value == OFF else _address(value)


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


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(value)
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(value)
    return number


def _share(value: Any) -> float:
    if _number(value) > 1:
        raise ValueError(value)
    return _number(value)


def renames(place: str, texts: Iterable[str]) -> dict[str, str]:
    """Return {A: B} of every "A=B"; `place` is where they stand.

    Raises
    ------
    InvalidArgumentError : one is not of that form, or A is there twice.
    """
    renamed: dict[str, str] = {}
    for text in texts:
        old, equals, new = text.partition("=")
        if not (old and equals and new) or old in renamed:
            raise InvalidArgumentError(
                f"{place}: expected A=B, the name in the profile and the table's, each A once, "
                f"found {text!r}"
            )
        renamed[old] = new
    return renamed


def _seconds(value: Any) -> float:
    if _number(value) > SECONDS_MAX:
        raise ValueError(value)
    return _number(value)


def _positive_seconds(value: Any) -> float:
    if _seconds(value) == 0:
        raise ValueError(value)
    return _seconds(value)


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in _SWITCHES:
        raise ValueError(value)
    return _SWITCHES[value.lower()]


PATH = Kind("a path", _path)
DEVICE = Kind('"auto", "cpu", "cuda" or "cuda:N", as "cuda:0"', _device)
ADDRESS = Kind('host:port, as "127.0.0.1:50051" or "[::1]:0"', _address)
ADDRESS_OR_OFF = Kind('host:port, as "127.0.0.1:8080" or "[::1]:0", or "off"', _address_or_off)
BYTES = Kind('a number of bytes above 0, as 1073741824, "1GiB" or "10GB"', _byte_count)
COUNT = Kind("an integer above 0", _count)
MILLISECONDS = Kind("a number of milliseconds, 0 or more", _number)
SECONDS = Kind(f"a number of seconds, 0 to {SECONDS_MAX:.0f}", _seconds)
POSITIVE_SECONDS = Kind(f"a number of seconds above 0, up to {SECONDS_MAX:.0f}", _positive_seconds)
SHARE = Kind("a share, 0 to 1", _share)
SWITCH = Kind("true or false", _switch)
