"""Files of profiles and hot sets: a JSON header and arrays of integers, in an .npz archive.

Arrays contain unsigned integers. The type of an array is the narrowest type into which its values
fit. A negative sparse key is stored as the unsigned number with the same 64 bits. The same content
always makes the same bytes.

**The content of a file is never trusted.** Nothing is unpickled, and each array is read to its end,
so that its checksum is checked. Sizes are compared before memory is allocated:

    directory    at most DIRECTORY_BYTES_MAX; it is found at the file's end before anything else is
                 read
    members      not compressed, each once, and together no longer than the file: otherwise members
                 could overlap in the file, and one MiB could contain hundreds of MiB
    header       at most HEADER_BYTES_MAX, because JSON becomes objects of up to 28 times its size,
                 and no other thread runs while it is parsed
    arrays       exactly the arrays that the header names; this is checked before any array is
                 read. Each array is read and widened to int64 only when it is used

Therefore, to read a file of n bytes takes memory for the objects of the header, for one array in
its stored form, and at most 8 n bytes for widened arrays. A file is not written if its header or
directory would be refused on reading.

Only NumPy is imported, because clients import this module.
"""

import errno
import io
import json
import math
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError, StorageError
from embstore.profiles.checks import check
from embstore.values import Value

if TYPE_CHECKING:  # it takes a while to import, and most clients read no profile
    import zipfile

_STORED = 0
"""zipfile.ZIP_STORED."""
HEADER_BYTES_MAX = 4 << 20
"""Maximum length of the header: enough for the names and numbers of all tables that a store can
have, with the longest names."""
DIRECTORY_BYTES_MAX = 4 << 20
"""Maximum length of the directory. It takes about 60 bytes for each member; a table has two
members."""

_END, _END_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_FRONT_BYTES, _FIXED_BYTES = 128, 10
"""The number of bytes that NumPy writes before an array of one or two dimensions; and how many of
these bytes have a fixed meaning: eight bytes that name the format, and two bytes with the length of
the array's description."""
_FRONT = re.compile(
    rb"\x93NUMPY\x01\x00(..)"
    rb"{'descr': '([<>|]u[1248])', 'fortran_order': False, "
    rb"'shape': \((\d{1,19}),(?: (\d{1,19}))?\), } *\n",
    re.DOTALL,
)
"""The description of an array (its dtype and shape) is parsed by this expression and not by NumPy.
NumPy calls the parser of Python, which in Python 3.11 sometimes fails if two threads use it at the
same time (SystemError: AST constructor recursion depth mismatch)."""
_REASON_CHARACTERS_MAX = 1000


class Members:
    """The arrays of a file. An array is read when it is taken."""

    def __init__(self, file: "zipfile.ZipFile", content_bytes: int) -> None:
        self._file = file
        self._members = {member.filename: member for member in file.infolist()}
        members = file.infolist()
        check(len(self._members) == len(members), "each array once", "one twice")
        for member in members:
            is_stored = member.compress_type == _STORED
            check(is_stored, "no compression", member.filename)
        total = sum(member.file_size for member in members)
        check(total <= content_bytes, f"{total} bytes of arrays", f"{content_bytes} bytes in all")

    def check_names(self, names: Iterable[str]) -> None:
        """Raise an error unless the arrays that are left are exactly those with the given names."""
        expected = {_filename(name) for name in names}
        missing = sorted(expected - self._members.keys())
        check(not missing, "an array", f"no {''.join(missing[:1])}")
        more = sorted(self._members.keys() - expected)
        check(not more, "no more in it", more[:1])

    def take_header(self) -> bytes:
        """Read the header as JSON text, and remove it from the members."""
        member = self._members[_filename("header")]
        size, most = member.file_size, HEADER_BYTES_MAX + _FRONT_BYTES
        check(size <= most, f"a header of at most {most} bytes", size)
        values = self._read("header")
        check(values.dtype == np.uint8, "a header of bytes", values.dtype)
        return values.tobytes()

    def take(self, name: str) -> NDArray[np.int64]:
        """Read an array, and remove it from the members.

        A value of 2**63 or more becomes negative.
        """
        return self._read(name).astype(np.int64)

    def _read(self, name: str) -> NDArray[np.unsignedinteger[Any]]:
        content = self._file.read(self._members.pop(_filename(name)))
        front = _FRONT.match(content)
        if front is None or front.end() != _FIXED_BYTES + int.from_bytes(front[1], "little"):
            expected = (
                "an array of unsigned integers of 1 or 2 dimensions, as NumPy writes it (1.0)"
            )
            raise InvalidArgumentError(f"expected {expected}, found {content[:_FRONT_BYTES]!r}")
        values = np.frombuffer(content, np.dtype(front[2].decode()), offset=front.end())
        shape = [int(size) for size in front.group(3, 4) if size is not None]
        check(len(values) == math.prod(shape), f"an array of shape {shape}", len(values))
        return values.reshape(shape)


Unpacked = TypeVar("Unpacked")


class Archive:
    """One kind of file: a JSON header and arrays of integers, in an .npz archive."""

    def __init__(self, what: str, version: int) -> None:
        self.what = what
        """The name of the kind in errors, for example "an embstore profile"."""
        self._version = version

    def to_bytes(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
        """Return the content of the file, which depends on the arguments alone.

        Raises
        ------
        InvalidArgumentError : names and numbers are too long, or there are too many tables.
        """
        whole = {"format": self.what, "version": self._version, **header}
        text = json.dumps(whole, allow_nan=False).encode()
        expected = f"{self.what} whose names and figures take at most {HEADER_BYTES_MAX} bytes"
        check(len(text) <= HEADER_BYTES_MAX, expected, len(text))
        file = io.BytesIO()
        narrow: dict[str, Any] = {name: _narrowest(values) for name, values in arrays.items()}
        np.savez(file, header=np.frombuffer(text, np.uint8), **narrow)
        content = file.getvalue()
        _check_directory(content)
        return content

    def read(
        self, content: bytes, what: str, unpack: Callable[[dict[str, Any], Members], Unpacked]
    ) -> Unpacked:
        """Return the result of `unpack` for the header and the arrays of a file's content.

        `unpack` removes all known entries from the header, and calls `Members.check_names` before
        it takes the first array.

        Raises
        ------
        InvalidArgumentError : `content` is not a file of this kind, or `unpack` raises an error or
            leaves some entries of the header; the message names `what`.
        """
        import zipfile

        try:
            _check_directory(content)
            with zipfile.ZipFile(io.BytesIO(content)) as file:
                members = Members(file, len(content))
                header = json.loads(members.take_header())
                self._check_format(header)
                unpacked = unpack(header, members)
            check(not header, "no more in it", [*header])
            return unpacked
        except MemoryError:
            raise  # memory may really have run out
        except Exception as exc:  # zipfile, json and NumPy raise a dozen types for foreign bytes
            reason = str(exc) if isinstance(exc, InvalidArgumentError) else repr(exc)
            raise InvalidArgumentError(
                f"{what}: expected {self.what}, found another file, or a damaged one: "
                f"{reason[:_REASON_CHARACTERS_MAX]}"
            ) from exc

    def _check_format(self, header: Any) -> None:
        check(isinstance(header, dict), "a header", type(header).__name__)
        found = header.pop("format", "none"), header.pop("version", "none")
        expected = f"{self.what} of format version {self._version}"
        check(found == (self.what, self._version), expected, f"{found[0]} of version {found[1]}")


class Saved(Value):
    """Base class of the values that can be saved to files."""

    archive: ClassVar[Archive]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all. A previous file of that name stays until the new
        file is complete.

        Raises
        ------
        StorageError : the disk refused the write.
        """
        replace_file(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file.

        Raises
        ------
        InvalidArgumentError : the file cannot be read, or is of another kind; the error names the
            file.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as exc:
            raise InvalidArgumentError(
                f"{path}: expected {cls.archive.what}, found {exc.strerror}"
            ) from exc
        return cls.from_bytes(content, what=str(path))

    def to_bytes(self) -> bytes:
        """Return the bytes that `save` would write."""
        return self.archive.to_bytes(*self._pack())

    @classmethod
    def from_bytes(cls, content: bytes, what: str = "bytes") -> Self:
        """Return the value whose `to_bytes` is `content`; `what` names the content in errors.

        Raises
        ------
        InvalidArgumentError : the content is of another kind.
        """
        return cls.archive.read(content, what, cls._unpack)

    def _pack(self) -> tuple[dict[str, Any], Mapping[str, NDArray[Any]]]:
        raise NotImplementedError

    @classmethod
    def _unpack(cls, header: dict[str, Any], arrays: Members) -> Self:
        raise NotImplementedError


def _filename(name: str) -> str:
    return f"{name}.npy"


def _check_directory(content: bytes) -> None:
    """Check the length of the list of members, which is recorded at the end of the file.

    zipfile would make an object of half a KiB for each member. This function looks for the end
    record where zipfile looks for it in an archive without a comment, and uses the longer form of
    that record if the file has it.
    """
    end = len(content) - _END.size
    check(end >= 0, "the end of an archive", f"{len(content)} bytes")
    signature, *_, size, _offset, comment = _END.unpack_from(content, end)
    is_end = signature == b"PK\x05\x06" and comment == 0
    check(is_end, "the end of an archive", f"{signature!r}")
    longer = end - _LOCATOR.size - _END_64.size
    if longer >= 0 and content.startswith(b"PK\x06\x07", end - _LOCATOR.size):
        *_, size, _offset = _END_64.unpack_from(content, longer)
    check(size <= DIRECTORY_BYTES_MAX, f"a list of at most {DIRECTORY_BYTES_MAX} bytes", size)


def _narrowest(values: NDArray[Any]) -> NDArray[Any]:
    """Return integers in the narrowest unsigned type into which all fit; int64 values are taken as
    unsigned numbers with the same bits."""
    if values.dtype == np.int64:
        values = values.view(np.uint64)
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def why_not_replaced(path: str | os.PathLike[str]) -> str:
    """Return the reason why no file can be written to a path; "" if no such reason is known
    beforehand.

    A device or a pipe must not be replaced by a file. If the path is a symbolic link, the target of
    the link is checked.
    """
    final = Path(os.path.realpath(path))
    try:
        if not stat.S_ISDIR(os.stat(final.parent).st_mode):
            return os.strerror(errno.ENOTDIR)
        is_file = stat.S_ISREG(os.stat(final).st_mode)
    except FileNotFoundError:
        return "" if final.parent.is_dir() else "there is no such folder"
    except OSError as exc:
        return exc.strerror or str(exc)
    return "" if is_file else "something else is there"


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file in the same directory, and rename it to `path` once it is on the disk.

    If `path` is a symbolic link, the target of the link is replaced.

    Raises
    ------
    StorageError : the disk refused the write, or `path` is no regular file; a previous file is
        unchanged.
    """
    if why := why_not_replaced(path):
        raise StorageError(
            f"{path}: expected a regular file, or none yet in a folder that is there: {why}"
        )
    final = Path(os.path.realpath(path))
    temporary = final.with_name(f".{final.name}.{os.urandom(8).hex()}")
    try:
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(final)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as exc:
        raise StorageError(f"{path}: expected to write {len(content)} bytes, found {exc}") from exc


def keys_to_gaps(keys: Keys) -> NDArray[np.int64]:
    """Return the first of some ascending keys, and then the difference of each key to the key
    before."""
    return np.diff(keys, prepend=np.int64(0))


def gaps_to_keys(gaps: NDArray[np.int64]) -> Keys:
    """Turn the result of `keys_to_gaps` back into keys, in place.

    A sum that is too large wraps around, so that the keys no longer ascend.
    """
    return np.cumsum(gaps, out=gaps)
