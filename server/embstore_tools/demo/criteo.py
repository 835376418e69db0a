r"""The Criteo format, read as a stream of blocks.

A line stands for one advertisement that was shown. It has 40 fields, separated by tabs; every field
except the label can be empty.

    field 1        label        1 if it was clicked, else 0
    fields 2-14    13 integers  decimal, mostly counts, some negative
    fields 15-40   26 categories, each a hash of up to eight hexadecimal digits

An empty integer or category reads as 0, as in the preprocessing that DLRM publishes. Lines end with
\n or \r\n; the last line needs no end. A malformed line is refused with its number: silently
skipped lines would shift every result.

A file can be compressed, because the data set is distributed in this form
(`embstore_client.files.packed`).

The files are large (45 million lines), so lines are read in blocks, and a block is parsed as one
array of bytes. The separators make a (lines, 40) grid of fields. All numbers of a grid are parsed
together, one digit per pass. This reads about 650,000 lines a second; split and int() read 225,000.
Only a block with a mistake is parsed line by line, to find the mistake.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError

INTEGERS = 13
CATEGORIES = 26
FIELDS = 1 + INTEGERS + CATEGORIES

_LINE_BYTES_MAX = 4096
"""The most bytes of a line, so that a file without newlines is not read as a whole. Real lines have
fewer than 500."""
_DIGITS_MAX = {10: 18, 16: 8}
"""The largest number of digits of a number, by its base: integers are below 2**63, categories below
2**32."""
_DIGIT_VALUES = np.full(256, 255, np.uint8)
"""The value of each byte as a digit, in any base; 255 if it is no digit."""
_DIGIT_VALUES[[*b"0123456789abcdef"]] = range(16)
_DIGIT_VALUES[[*b"ABCDEF"]] = range(10, 16)
_TAB, _NEWLINE, _RETURN, _MINUS = b"\t\n\r-"

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Samples:
    """Parsed lines: labels (n,) float32, integers (n, 13) int64 and categories (n, 26)."""

    labels: NDArray[np.float32]
    integers: Ints
    categories: NDArray[Any]
    """int64, or the text of the fields, at most 8 bytes each."""

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> "Samples":
        """Return the samples [start, stop) as a copy, because a view would keep the whole block
        alive."""
        return Samples(
            self.labels[start:stop].copy(),
            self.integers[start:stop].copy(),
            self.categories[start:stop].copy(),
        )


def read(path: Path, *, limit: int, block: int, as_text: bool = False) -> Iterator[Samples]:
    """Yield the first `limit` lines of a file (or all, if it has fewer), `block` lines at a time;
    with `as_text`, categories are the text of the fields.

    Raises
    ------
    InvalidArgumentError : there is no such file, it is empty, or a line is malformed. The message
        contains the line and the expected format. Blocks before that line have already been
        yielded.
    """
    for samples, _ in read_lines(path, limit=limit, block=block, as_text=as_text):
        yield samples


def read_lines(
    path: Path, *, limit: int | None, block: int, as_text: bool = False
) -> Iterator[tuple[Samples, int]]:
    """Yield pairs: a block of `read`, and roughly the number of bytes that the block takes in the
    file. If `limit` is None, all lines are read."""
    from embstore_client.files.packed import Unpacked  # imported here, because only a run needs it

    taken = read = 0
    with _readable(path), Unpacked(path) as file:
        lines_left = islice(iter(partial(file.bytes.readline, _LINE_BYTES_MAX), b""), limit)
        while lines := list(islice(lines_left, block)):
            try:
                samples = parse(lines, first_line=taken + 1, as_text=as_text)
            except InvalidArgumentError as exc:
                raise InvalidArgumentError(f"{path}, {exc}") from exc
            before, read = read, file.read_bytes
            yield samples, read - before
            taken += len(lines)
    if not taken:
        raise InvalidArgumentError(f"{path}: expected at least one line, found an empty file")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise InvalidArgumentError(
            f"expected a readable file, found {path}: {exc.strerror or exc}"
        ) from exc


def parse(lines: list[bytes], *, first_line: int = 1, as_text: bool = False) -> Samples:
    """Return the samples of whole lines; messages count lines from `first_line`."""
    text = b"".join(lines) + (b"" if lines[-1].endswith(b"\n") else b"\n")
    # Every number is read as if it had the greatest length, so the end of the block is padded by
    # that length.
    array = np.frombuffer(text + bytes(_DIGITS_MAX[10] + 1), np.uint8)
    starts, lengths = _fields(array, lines, first_line)
    decimals, bad_decimals = _decimals(array, starts[:, :14], lengths[:, :14])
    categories, bad_categories = _numbers(array, starts[:, 14:], lengths[:, 14:], 16)
    bad_decimals[:, 0] |= (lengths[:, 0] != 1) | (decimals[:, 0] > 1)
    bad = np.concatenate([bad_decimals, bad_categories], axis=1)
    if bad.any():
        line, field = divmod(int(np.argmax(bad)), FIELDS)
        start = int(starts[line, field])
        found = text[start : start + int(lengths[line, field])]
        raise InvalidArgumentError(
            f"line {first_line + line}: expected {_expected(field)}, found {_shown(found)}"
        )
    fields = _texts(array, starts[:, 14:], lengths[:, 14:]) if as_text else categories
    return Samples(decimals[:, 0].astype(np.float32), decimals[:, 1:], fields)


def _fields(array: NDArray[np.uint8], lines: list[bytes], first_line: int) -> tuple[Ints, Ints]:
    """Return the start of every field, (lines, 40), and the length of every field, (lines, 40)."""
    ends = np.flatnonzero((array == _TAB) | (array == _NEWLINE))
    # The only newline of a line is at its end. So if each line has 39 tabs, the grid is right.
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
            hint = " (the label is missing, as in a test set)" if fields == FIELDS - 1 else ""
            raise InvalidArgumentError(
                f"line {number}: expected {FIELDS} fields separated by tabs (a label, {INTEGERS} "
                f"integers, {CATEGORIES} categories), found {fields}{hint}: {_shown(line)}"
            )
    raise AssertionError("every line has its fields, and yet the block has not")


def _numbers(array: NDArray[np.uint8], starts: Ints, lengths: Ints, base: int) -> tuple[Ints, Mask]:
    """Return the value of each field, 0 if it is empty, and a mask of the fields that are no
    number."""
    digits_max = _DIGITS_MAX[base]
    values = np.zeros(starts.shape, np.int64)
    bad = lengths > digits_max
    for place in range(min(int(lengths.max(initial=0)), digits_max)):
        inside = place < lengths
        digits = _DIGIT_VALUES[array[starts + np.minimum(place, lengths)]]
        bad |= inside & (digits >= base)
        values = np.where(inside, values * base + digits, values)
    return values, bad


def _texts(array: NDArray[np.uint8], starts: Ints, lengths: Ints) -> NDArray[np.bytes_]:
    """Return categories as their text in the file."""
    places = np.arange(_DIGITS_MAX[16])
    characters = array[starts[..., None] + places] * (places < lengths[..., None])
    texts: NDArray[np.bytes_] = characters.view(f"S{len(places)}")[..., 0]
    return texts


def _decimals(array: NDArray[np.uint8], starts: Ints, lengths: Ints) -> tuple[Ints, Mask]:
    """Parse like `_numbers` in base 10, but allow a minus sign before the digits."""
    negative = (lengths > 0) & (array[starts] == _MINUS)
    values, bad = _numbers(array, starts + negative, lengths - negative, 10)
    return np.where(negative, -values, values), bad | (negative & (lengths == 1))


def _expected(field: int) -> str:
    if field == 0:
        return "the label (field 1) to be 0 or 1"
    what, kind, base = f"integer {field}", "decimal", 10
    if field > INTEGERS:
        what, kind, base = f"category {field - INTEGERS}", "hexadecimal", 16
    return f"{what} (field {field + 1}) to be empty or {kind} of at most {_DIGITS_MAX[base]} digits"


def _shown(found: bytes) -> str:
    """Return `found` in a form for messages: short, and printable."""
    text = found[:40].decode("ascii", "backslashreplace")
    return repr(text) + ("..." if len(found) > 40 else "")
