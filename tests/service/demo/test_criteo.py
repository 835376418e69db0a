"""The parser of the Criteo format: what it reads, and what it says of what it cannot read."""

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError
from embstore_tools.demo.criteo import parse, read

REAL = (
    b"0\t1\t1\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t2\t68fd1e64\t80e26c9b\tfb936136\t7b4723c4\t"
    b"25c83c98\t7e0ccccf\tde7995b8\t1f89b562\ta73ee510\ta8cd5504\tb2cb9c98\t37c9c164\t2824a5f6\t"
    b"1adce6ef\t8ba8b39a\t891b62e7\te5ba7672\tf54016b9\t21ddcdc9\tb1252a9d\t07b5194c\t\t3a171ecb\t"
    b"c5c50484\te8b83407\t9727dd16\n"
)
"""The first line of the public sample, two of its fields empty."""
EMPTY = b"1" + b"\t" * 39 + b"\n"


def fields(**changed: bytes) -> bytes:
    """Return REAL with some fields replaced: f2=b"7" is the second of 40."""
    parts = REAL.rstrip(b"\n").split(b"\t")
    for name, value in changed.items():
        parts[int(name[1:]) - 1] = value
    return b"\t".join(parts) + b"\n"


def test_real_line_is_read_as_python_reads_it():
    samples = parse([REAL])
    parts = REAL.decode().rstrip("\n").split("\t")
    assert samples.labels.tolist() == [0.0]
    assert samples.integers.tolist() == [[int(x or "0") for x in parts[1:14]]]
    assert samples.categories.tolist() == [[int(x or "0", 16) for x in parts[14:]]]
    assert samples.labels.dtype == np.float32


def test_missing_values_read_as_zero():
    samples = parse([EMPTY, EMPTY])
    assert samples.labels.tolist() == [1.0, 1.0]
    assert not samples.integers.any() and not samples.categories.any()


def test_signs_short_and_capital_digits():
    samples = parse([fields(f3=b"-3", f4=b"999999999999999999", f15=b"F", f40=b"FfFfFfFf")])
    assert samples.integers[0, 1:3].tolist() == [-3, 999999999999999999]
    assert samples.categories[0, [0, 25]].tolist() == [15, 0xFFFFFFFF]


def test_windows_line_ends_and_none_at_the_end():
    windows = [REAL[:-1] + b"\r\n", EMPTY[:-1] + b"\r\n", REAL[:-1]]
    found, expected = parse(windows), parse([REAL, EMPTY, REAL])
    assert found.categories.tolist() == expected.categories.tolist()
    assert found.integers.tolist() == expected.integers.tolist()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (REAL[2:], r"line 8: expected 40 fields .* found 39 \(the label is missing"),
        (b"\n", "line 8: expected 40 fields .* found 1"),
        (REAL[:-1] + b"\t\n", "line 8: expected 40 fields .* found 41"),
        (fields(f1=b""), r"line 8: expected the label \(field 1\) to be 0 or 1, found ''"),
        (fields(f1=b"2"), "line 8: expected the label .* found '2'"),
        (fields(f1=b"01"), "line 8: expected the label .* found '01'"),
        (fields(f3=b"1.5"), r"line 8: expected integer 2 \(field 3\) .* found '1.5'"),
        (fields(f3=b"-"), "line 8: expected integer 2 .* found '-'"),
        (fields(f3=b"1\r"), r"line 8: expected integer 2 .* found '1\\r'"),
        (fields(f14=b"9" * 19), "line 8: expected integer 13 .* at most 18 digits, found '9999"),
        (fields(f15=b"xyz"), r"line 8: expected category 1 \(field 15\) .* found 'xyz'"),
        (fields(f40=b"123456789"), "line 8: expected category 26 .* found '123456789'"),
        (fields(f40=b"\0" * 99), r"line 8: expected category 26 .* found '\\x00"),
        (fields(f20=b"\xff"), r"line 8: expected category 6 .* found '\\\\xff'"),
    ],
)
def test_malformed_line_is_named_with_what_was_expected(line, message):
    with pytest.raises(InvalidArgumentError, match=message):
        parse([REAL, line, REAL], first_line=7)


def test_fields_that_slip_into_the_next_line_are_found():
    parts = REAL.rstrip(b"\n").split(b"\t")
    short, long = b"\t".join(parts[:39]) + b"\n", b"\t".join([*parts, b"a"]) + b"\n"
    with pytest.raises(InvalidArgumentError, match=r"line 2: expected 40 fields .* found 39"):
        parse([REAL, short, long])


def test_blocks_end_with_the_file_or_the_limit(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes(REAL * 7)
    assert [len(s) for s in read(path, limit=100, block=3)] == [3, 3, 1]
    assert [len(s) for s in read(path, limit=5, block=3)] == [3, 2]


def test_line_number_counts_over_blocks(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes(REAL * 7 + b"junk\n" + REAL)
    blocks = read(path, limit=100, block=3)
    assert len(next(blocks)) == len(next(blocks)) == 3
    with pytest.raises(InvalidArgumentError, match=r"train.txt, line 8: .* found 1: 'junk"):
        next(blocks)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidArgumentError, match="No such file"):
        next(read(tmp_path / "absent", limit=1, block=1))
    with pytest.raises(InvalidArgumentError, match="expected a readable file"):
        next(read(tmp_path, limit=1, block=1))
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidArgumentError, match="found an empty file"):
        next(read(tmp_path / "empty", limit=1, block=1))


def test_file_without_newlines_is_not_read_whole(tmp_path):
    (tmp_path / "zeros").write_bytes(bytes(1 << 20))
    with pytest.raises(InvalidArgumentError, match="line 1: expected 40 fields"):
        next(read(tmp_path / "zeros", limit=100, block=100))
