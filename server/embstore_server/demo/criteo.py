r"""The Criteo format, read as a stream of blocks.

A line is one advertisement that was shown: 40 fields, separated by tabs, all but the label may be
empty.

    field 1        label        1 if it was clicked, else 0
    fields 2-14    13 integers  decimal, mostly counts, some negative
    fields 15-40   26 categories, each a hash of up to eight hexadecimal digits

An empty integer or category reads as 0, as in the preprocessing that DLRM publishes. Lines end
with \n or \r\n, the last one with nothing if it likes. What is not such a line is refused by its
number: silently skipped lines would shift every figure.

The files are large (45 million lines), so lines are read in blocks, and a block is parsed as one
array of bytes: the separators make a (lines, 40) grid of fields, and all numbers of a grid grow
together, one digit each per pass. That reads about 650,000 lines a second, split and int()
225,000. Only a block that is wrong is looked at line by line, to say what is wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError

INTEGERS = 13
CATEGORIES = 26
FIELDS = 1 + INTEGERS + CATEGORIES

_LINE_BYTES_MAX = 4096
"""A line is under 500 bytes; a file without newlines must not be read whole to find that out."""
_INTEGER_DIGITS_MAX = 18  # below 2**63
_CATEGORY_DIGITS_MAX = 8
_TAB, _NEWLINE, _RETURN, _MINUS = b"\t\n\r-"
_NO_DIGIT = 255

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Samples:
    """Parsed lines: labels (n,) float32, integers (n, 13) and categories (n, 26) int64."""

    labels: NDArray[np.float32]
    integers: Ints
    categories: Ints

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> "Samples":
        """Return a copy of samples [start, stop): a view would keep the whole block alive."""
        return Samples(
            self.labels[start:stop].copy(),
            self.integers[start:stop].copy(),
            self.categories[start:stop].copy(),
        )


def read(path: Path, *, limit: int, block: int) -> Iterator[Samples]:
    """Yield the first `limit` lines of a file (fewer, if it has fewer), `block` at a time.

    Raises
    ------
    InvalidArgumentError : no such file, an empty one, or a line that is not of this format; its
        message names the line and what was expected. The blocks before it have been yielded.
    """
    try:
        file = path.open("rb")
    except OSError as exc:
        raise InvalidArgumentError(
            f"expected a readable file, found {path}: {exc.strerror}"
        ) from exc
    with file:
        yield from _blocks(file, path, limit, block)


def _blocks(file: BinaryIO, path: Path, limit: int, block: int) -> Iterator[Samples]:
    taken = 0
    lines_left = iter(partial(file.readline, _LINE_BYTES_MAX), b"")
    while lines := list(islice(lines_left, min(block, limit - taken))):
        try:
            yield parse(lines, first_line=taken + 1)
        except InvalidArgumentError as exc:
            raise InvalidArgumentError(f"{path}, {exc}") from exc
        taken += len(lines)
    if not taken:
        raise InvalidArgumentError(f"{path}: expected at least one line, found an empty file")


def parse(lines: list[bytes], *, first_line: int = 1) -> Samples:
    """Return the samples of whole lines; `first_line` is the number of the first, for messages.

    Raises
    ------
    InvalidArgumentError : a line is not of this format.
    """
    text = b"".join(lines) + (b"" if lines[-1].endswith(b"\n") else b"\n")
    # A number is read up to its longest legal length, so the end is padded by that.
    array = np.frombuffer(text + bytes(_INTEGER_DIGITS_MAX + 1), np.uint8)
    starts, lengths = _fields(array, lines, first_line)
    labels, bad_labels = _numbers(array, starts[:, :1], lengths[:, :1], _DECIMAL)
    integers, bad_integers = _signed(array, starts[:, 1:14], lengths[:, 1:14])
    categories, bad_categories = _numbers(array, starts[:, 14:], lengths[:, 14:], _HEXADECIMAL)
    bad_labels |= (lengths[:, :1] != 1) | (labels > 1)
    bad = np.concatenate([bad_labels, bad_integers, bad_categories], axis=1)
    if bad.any():
        line, field = divmod(int(np.argmax(bad)), FIELDS)
        start = int(starts[line, field])
        found = text[start : start + int(lengths[line, field])]
        raise InvalidArgumentError(
            f"line {first_line + line}: expected {_expected(field)}, found {_shown(found)}"
        )
    return Samples(labels[:, 0].astype(np.float32), integers, categories)


def _fields(array: NDArray[np.uint8], lines: list[bytes], first_line: int) -> tuple[Ints, Ints]:
    """Return start and length of every field, (lines, 40) each."""
    ends = np.flatnonzero((array == _TAB) | (array == _NEWLINE))
    # Lines end with their only newline; so if each has 39 tabs, the grid is right.
    if len(ends) != len(lines) * FIELDS or (array[ends[FIELDS - 1 :: FIELDS]] != _NEWLINE).any():
        _refuse_field_count(lines, first_line)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts
    lengths -= (lengths > 0) & (array[ends] == _NEWLINE) & (array[ends - 1] == _RETURN)
    return starts.reshape(-1, FIELDS), lengths.reshape(-1, FIELDS)


def _refuse_field_count(lines: list[bytes], first_line: int) -> None:
    for number, line in enumerate(lines, first_line):
        fields = line.count(b"\t") + 1
        if fields != FIELDS:
            raise InvalidArgumentError(
                f"line {number}: expected {FIELDS} fields separated by tabs (a label, {INTEGERS} "
                f"integers, {CATEGORIES} categories), found {fields}{_hint(fields)}: {_shown(line)}"
            )
    raise AssertionError("every line has its fields, and yet the block has not")


def _hint(fields: int) -> str:
    return " (the label is missing, as in a test set)" if fields == FIELDS - 1 else ""


def _digit_values(digits: bytes) -> NDArray[np.uint8]:
    """Return the value of each byte as a digit, (256,); _NO_DIGIT if it is none."""
    values = np.full(256, _NO_DIGIT, np.uint8)
    for value, digit in enumerate(digits):
        values[[digit, ord(chr(digit).upper())]] = value
    return values


@dataclass(frozen=True)
class _Base:
    base: int
    digits_max: int
    values: NDArray[np.uint8]


_DECIMAL = _Base(10, _INTEGER_DIGITS_MAX, _digit_values(b"0123456789"))
_HEXADECIMAL = _Base(16, _CATEGORY_DIGITS_MAX, _digit_values(b"0123456789abcdef"))


def _numbers(
    array: NDArray[np.uint8], starts: Ints, lengths: Ints, base: _Base
) -> tuple[Ints, Mask]:
    """Return the value of each field, 0 where it is empty, and which fields are no number."""
    values = np.zeros(starts.shape, np.int64)
    bad = lengths > base.digits_max
    for place in range(min(int(lengths.max(initial=0)), base.digits_max)):
        inside = place < lengths
        digits = base.values[array[starts + np.minimum(place, lengths)]]
        bad |= inside & (digits == _NO_DIGIT)
        values = np.where(inside, values * base.base + digits, values)
    return values, bad


def _signed(array: NDArray[np.uint8], starts: Ints, lengths: Ints) -> tuple[Ints, Mask]:
    """As `_numbers`, decimal, with a minus sign allowed before the digits."""
    negative = (lengths > 0) & (array[starts] == _MINUS)
    values, bad = _numbers(array, starts + negative, lengths - negative, _DECIMAL)
    return np.where(negative, -values, values), bad | (negative & (lengths == 1))


def _expected(field: int) -> str:
    if field == 0:
        return "the label (field 1) to be 0 or 1"
    if field <= INTEGERS:
        return (
            f"integer {field} (field {field + 1}) to be empty or decimal of at most "
            f"{_INTEGER_DIGITS_MAX} digits"
        )
    return (
        f"category {field - INTEGERS} (field {field + 1}) to be empty or hexadecimal of at most "
        f"{_CATEGORY_DIGITS_MAX} digits"
    )


def _shown(found: bytes) -> str:
    """Return `found` as it can stand in a message: short, and printable."""
    text = found[:40].decode("ascii", "backslashreplace")
    return repr(text) + ("..." if len(found) > 40 else "")
