"""The file of tokens: names, and the rights of each name.

    {"version": 2, "checksum": "blake2b:HASH", "tokens": {
        "ads":  {"secret": "sha256:HASH", "rights": {"ads/*": "write"}},
        "dash": {"certificate": true, "rights": {"*": "read"}, "limits": {"queue_calls": 8}}}}

A token is `NAME.SECRET`. The file contains only a hash of the secret. The secret cannot be guessed,
because it is always 32 random bytes, which `embstore token add` makes. A hash that is slow on
purpose (scrypt, argon2) would therefore protect nothing, and attackers could use it to keep the
server busy. With an scrypt that takes 8 ms, guesses occupied every core and kept valid tokens out,
and 500 entries blocked the event loop for 4 s at SIGHUP. SHA-256 takes a microsecond. A name with a
`certificate` has no secret: the caller shows a certificate with that name instead.

The file is replaced as a whole, and only its owner can read it. A writer locks a lock file in the
same directory. Only `embstore token` may write the file. The checksum of the entries detects damage
and edits, which could change a right or a name. A running server reads the file again at SIGHUP.
"""

import errno
import fcntl
import hmac
import json
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from secrets import token_urlsafe
from time import monotonic, sleep
from typing import Any

from embstore.commands import Right
from embstore.errors import EmbstoreError, InvalidArgumentError, StorageError, StoreInUseError
from embstore.rights import EVERYTHING, is_pattern

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}", re.ASCII)
_HASH = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_VERSION = 2
_NOT_ONE = "is no file of tokens, which `embstore token add --tokens FILE` makes"
_FIRST = "admin"
LOCK_WAIT_S = 60.0
"""The longest time that a change of the file waits for changes by other processes. A change takes
milliseconds."""
_LOOK_S = 0.02
LIMITS = (
    "queue_calls",
    "call_bytes",
    "inflight_bytes",
    "sessions",
    "announced_bytes",
    "scans",
    "scan_bytes",
    "cache_bytes",
    "tables",
    "rows",
    "disk_bytes",
)
"""The names of a token's limits; `access.shares` describes them."""
RIGHTS = {right.name.lower(): right for right in (Right.READ, Right.WRITE, Right.ADMIN)}
"""The rights that can be granted, by name."""


@dataclass(frozen=True)
class Entry:
    """The entry of one name. `secret` is the hash of the secret; None: the name has no secret, and
    its caller shows a certificate."""

    name: str
    secret: str | None
    rights: Mapping[str, Right] = field(default_factory=dict)
    """Rights by pattern."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits by name (`LIMITS`)."""

    def has(self, secret: str) -> bool:
        """Return whether `secret` is the entry's secret, in a time that does not depend on the
        answer."""
        return hmac.compare_digest(_hashed(secret), self.secret or _NO_HASH)


_NO_HASH = "sha256:"
NOBODY = Entry("", None)
"""The entry that is checked for an unknown name, so that the answer takes as long as for a known
name."""


def _hashed(secret: str) -> str:
    return f"sha256:{sha256(secret.encode(errors='surrogatepass')).hexdigest()}"


def new_secret() -> tuple[str, str]:
    """Return a new secret, and its hash for the file."""
    secret = token_urlsafe(32)
    return secret, _hashed(secret)


def split_token(token: str) -> tuple[str, str]:
    """Return name and secret of a token."""
    name, _, secret = token.rpartition(".")
    return name, secret


def check_name(name: str) -> None:
    """Raise InvalidArgumentError, unless a token can have this name."""
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            "expected a token's name of at most 64 letters, digits, and _ . @ - after the first, "
            f"found {name[:80]!r}"
        )


def right_named(text: str) -> Right:
    """Return the right with this name."""
    if text not in RIGHTS:
        raise InvalidArgumentError(f"expected a right of {', '.join(RIGHTS)}, found {text!r}")
    return RIGHTS[text]


def check_pattern(text: str) -> str:
    """Return `text` if it is a pattern of names; raise InvalidArgumentError otherwise."""
    if not is_pattern(text):
        raise InvalidArgumentError(
            f"expected a name of tables, or a pattern as 'team/*' or '*', found {text!r}"
        )
    return text


def check_limit(name: str) -> str:
    """Return `name` if it is the name of a limit; raise InvalidArgumentError otherwise."""
    if name not in LIMITS:
        raise InvalidArgumentError(f"expected a limit of {', '.join(LIMITS)}, found {name!r}")
    return name


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidArgumentError(f"{name}: expected an integer, 0 or more, found {value!r}")
    return value


def read(path: Path) -> dict[str, Entry]:
    """Return the entries of a file, by name.

    Raises InvalidArgumentError if there is no such file, or if any part of the file is not
    understood, because a misread right could grant too much.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would wait
            raise InvalidArgumentError(f"tokens {path}: expected a regular file")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise InvalidArgumentError(
            f"tokens {path}: expected a file of tokens: {exc.strerror}; make one by embstore token "
            f"add NAME --right write --tables 'NAME/*' --tokens {path}"
        ) from exc
    except ValueError as exc:
        raise InvalidArgumentError(f"tokens {path}: {_NOT_ONE} ({exc})") from exc
    try:
        return _entries(document)
    except InvalidArgumentError as exc:
        raise InvalidArgumentError(f"tokens {path}: {exc}") from exc
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise InvalidArgumentError(f"tokens {path}: {_NOT_ONE} ({exc!r})") from exc


def _entries(document: Any) -> dict[str, Entry]:
    if document["version"] != _VERSION:
        raise InvalidArgumentError(f"expected version {_VERSION}, found {document['version']!r}")
    _check_keys("the file", document, {"version", "checksum", "tokens"})
    if document["checksum"] != _checksum(document["tokens"]):
        raise InvalidArgumentError(
            "the checksum does not match: the file was damaged, or edited by hand; put back a "
            "copy, or remove it and add its tokens again by embstore token"
        )
    return {name: _entry(name, one) for name, one in document["tokens"].items()}


def _checksum(tokens: Any) -> str:
    return f"blake2b:{blake2b(json.dumps(tokens).encode(), digest_size=32).hexdigest()}"


def _entry(name: str, one: dict[str, Any]) -> Entry:
    check_name(name)
    _check_keys(name, one, {"secret", "certificate", "rights", "limits"})
    if ("secret" in one) == (one.get("certificate") is True):
        raise InvalidArgumentError(f"{name}: expected a secret, or certificate true, and not both")
    rights = {check_pattern(p): right_named(r) for p, r in one["rights"].items()}
    limits = {check_limit(n): _count(n, v) for n, v in one.get("limits", {}).items()}
    if "secret" in one and not _HASH.fullmatch(one["secret"]):
        raise InvalidArgumentError(f"{name}: expected a secret as sha256:HASH; add the name again")
    return Entry(name, one.get("secret"), rights, limits)


def _check_keys(where: str, found: Any, known: set[str]) -> None:
    if unknown := sorted(found.keys() - known):
        raise InvalidArgumentError(f"{where}: expected {', '.join(sorted(known))}, found {unknown}")


def write(path: Path, entries: Mapping[str, Entry]) -> None:
    """Replace the file by a file with these entries; it is durable on return."""
    tokens = {
        name: ({"certificate": True} if one.secret is None else {"secret": one.secret})
        | {"rights": {pattern: right.name.lower() for pattern, right in one.rights.items()}}
        | ({"limits": dict(one.limits)} if one.limits else {})
        for name, one in entries.items()
    }
    document = {"version": _VERSION, "checksum": _checksum(tokens), "tokens": tokens}
    text = json.dumps(document, indent=1) + "\n"
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def make_first(path: Path) -> str:
    """Make a token named `admin` that has every right, and return it; return "" without a change if
    a name already has every right.

    This is for a server that other machines can reach from its first start on. The token is durable
    on return.
    """
    rights = {EVERYTHING: Right.ADMIN}
    with _named(path):
        is_there = path.exists()
    there = read(path).values() if is_there else ()
    if any(rights.items() <= one.rights.items() for one in there):
        return ""
    secret, hashed = new_secret()
    entry = Entry(_FIRST, hashed, rights)
    change(path, lambda entries: entries.update({_FIRST: entry}), may_be_new=True)
    return f"{_FIRST}.{secret}"


def change(path: Path, how: Callable[[dict[str, Entry]], Any], *, may_be_new: bool = False) -> None:
    """Change the entries of a file by `how`, one process at a time; the change is durable on
    return.

    A symbolic link is followed, so that a server that reads the file through the link reads the
    change.
    """
    path = Path(os.path.realpath(path))
    with _named(path):
        if path.is_symlink():  # a loop of links
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if not path.parent.is_dir():
            raise InvalidArgumentError(
                f"tokens {path}: expected a directory {path.parent}, found none; make it: "
                f"mkdir -p {shlex.quote(str(path.parent))}"
            )
        with _locked(path):
            entries = {} if may_be_new and not path.exists() else read(path)
            how(entries)
            write(path, entries)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn errors of the system into a StorageError that names the file of tokens."""
    try:
        yield
    except EmbstoreError:
        raise
    except OSError as exc:
        text = f"cannot write tokens {path}: {exc.strerror}: {exc.filename or path}"
        raise StorageError(exc.errno, text) from exc


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing a file inside the block.

    A symbolic link in place of the lock file is not followed, because that would create a file
    elsewhere; a pipe is refused, because opening it would wait.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    place = path.with_name(f"{path.name}.lock")
    lock = os.open(place, flags, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            raise OSError(errno.EEXIST, "expected none, or a regular file", str(place))
        _take(lock, place)
        yield
    finally:
        os.close(lock)


def _take(lock: int, place: Path) -> None:
    until = monotonic() + LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            if monotonic() >= until:
                raise StoreInUseError(
                    f"tokens {place.with_suffix('')}: another process has held {place} for "
                    f"{LOCK_WAIT_S:g} seconds; end it (`fuser {shlex.quote(str(place))}` shows "
                    "which), and try again"
                ) from exc
        sleep(_LOOK_S)
