"""Integers in text: ASCII digits; a minus may precede them, and blanks may surround them.

Other readers of numbers accept more forms, and differ from each other: pyarrow reads 0x10 as 16;
Python accepts 1_000 and the digits of all scripts. With such forms the keys of a file would depend
on the reader, so these forms are refused.
"""

import re
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyarrow import compute

_BLANKS = " \t"
_DECIMAL = "-?[0-9]+"
_DIGITS_MAX = 20
"""The largest number of digits of a 64-bit integer, without leading zeros."""


class NotDecimalError(ValueError):
    """A text is no integer of 64 bits in decimal digits."""

    def __init__(self, position: int, found: str) -> None:
        super().__init__(found)
        self.position = position
        self.found = found


def decimals(column: Any, *, are_sparse: bool) -> Any:
    """Return an Arrow array of text as an array of int64; missing values stay missing.

    Parameters
    ----------
    are_sparse : also accept unsigned 64-bit integers, as int64 with the same bits

    Raises
    ------
    NotDecimalError : a text is no accepted integer; the error contains the first such text.
    """
    text = column
    if not _are_all(compute.ascii_is_decimal(text)):
        text = compute.utf8_trim(column, _BLANKS)
    if text is column or _are_all(compute.match_substring_regex(text, f"^{_DECIMAL}$")):
        with suppress(pa.ArrowInvalid):  # too large
            return _sparse(text) if are_sparse else text.cast(pa.int64())
    high = 1 << (64 if are_sparse else 63)
    raise next(
        NotDecimalError(position, one)
        for position, one in enumerate(column.to_pylist())
        if one is not None and not _is_within(one.strip(_BLANKS), high)
    )


def _sparse(text: Any) -> Any:
    is_negative = compute.starts_with(text, "-")
    signed = compute.if_else(is_negative, text, "0").cast(pa.int64())
    unsigned = compute.if_else(is_negative, "0", text).cast(pa.uint64())
    bits = pa.Array.from_buffers(pa.int64(), len(text), unsigned.buffers(), offset=unsigned.offset)
    return compute.if_else(is_negative, signed, bits)


def _is_within(text: str, high: int) -> bool:
    digits = text.lstrip("-").lstrip("0") or "0"
    if not re.fullmatch(_DECIMAL, text) or len(digits) > _DIGITS_MAX:
        return False
    return int(digits) <= 1 << 63 if text.startswith("-") else int(digits) < high


def _are_all(found: Any) -> bool:
    """Return whether all values are true; missing values are ignored."""
    return compute.all(found).as_py() is not False
