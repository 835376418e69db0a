"""Configuration as data: initializers, limits, a table's identity and tunables.

A table's **identity** (name, dim, dtypes, key space, seed, initializer, and the optimizer with its
fixed parameters) determines its bits (contract.md, rule 11) and can never change. A call that
creates an existing table again must give the same identity. **Tunables** (the learning rate, and
the number of rows, which can only grow) can change and are not part of the digest.

The optimizers are defined in `embstore.optimizers`; this module exports their names too.
"""

import hashlib
import json
import re
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from embstore.arrays import DIM_MAX, ROWS_MAX, SPARSE_ROWS, fp32_scalar, refusal
from embstore.errors import InvalidArgumentError
from embstore.layout import ELEMENT, Layout
from embstore.optimizers import *  # noqa: F403
from embstore.optimizers import OPTIMIZERS, Optimizer

KeySpace = Literal["dense", "sparse"]
KEY_SPACES: tuple[KeySpace, ...] = get_args(KeySpace)
_NAME = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
NAME_BYTES_MAX = 255


@dataclass(frozen=True)
class Uniform:
    """Every element is uniform in [low, high), computed by Philox from (seed, key)."""

    low: float
    high: float
    kind: ClassVar[str] = "uniform"

    def __post_init__(self) -> None:
        low = fp32_scalar(self.low, "low", minimum=None)
        high = fp32_scalar(self.high, "high", minimum=None)
        with np.errstate(over="ignore"):
            span = np.float32(high) - np.float32(low)
        if not (low <= high and np.isfinite(span)):
            raise InvalidArgumentError(
                f"expected low <= high with high - low finite in fp32, found low {self.low!r}, "
                f"high {self.high!r}"
            )


@dataclass(frozen=True)
class Normal:
    """Every element is close to normal (a sum of eight uniforms), computed by Philox from (seed,
    key)."""

    mean: float
    std: float
    kind: ClassVar[str] = "normal"

    def __post_init__(self) -> None:
        fp32_scalar(self.mean, "mean", minimum=None)
        fp32_scalar(self.std, "std")


@dataclass(frozen=True)
class Constant:
    """Every element has the same value."""

    value: float
    kind: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        fp32_scalar(self.value, "value", minimum=None)


Initializer = Uniform | Normal | Constant
INITIALIZERS: dict[str, type[Any]] = {c.kind: c for c in (Uniform, Normal, Constant)}


def default_seed(name: str) -> int:
    """Return the seed of a table created without one: 8 bytes of blake2b-256 of its name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=32).digest()[:8], "little")


def check_name(name: Any) -> str:
    """Return `name` if it is a valid table name: parts of [A-Za-z0-9_.-] joined by '/', none of
    which is '.' or '..'."""
    if (
        not isinstance(name, str)
        or not _NAME.fullmatch(name)
        or len(name) > NAME_BYTES_MAX
        or any(part in (".", "..") for part in name.split("/"))
    ):
        raise InvalidArgumentError(
            f"expected a table name of at most {NAME_BYTES_MAX} characters of [A-Za-z0-9_.-], "
            f"parts joined by '/', found {name!r}"
        )
    return name


def _check_int(value: Any, name: str, low: int, high: int) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or not low <= value <= high
    ):
        raise InvalidArgumentError(
            f"expected {name} to be an integer in [{low}, {high}], found {value!r}"
        )
    return int(value)


def check_rows(rows: Any, name: str) -> int:
    """Return `rows` if table `name` can have this number of rows (0 to 2**40)."""
    return _check_int(rows, f"table {name!r}: rows", 0, ROWS_MAX)


def _rows_of(key_space: Any, rows: Any, name: str) -> int:
    """Return the number of rows of a table, which is the number of its keys."""
    if key_space not in KEY_SPACES:
        raise refusal(name, f"key_space to be one of {', '.join(KEY_SPACES)}", repr(key_space))
    if key_space == "dense":
        return check_rows(rows, name)
    if rows not in (None, SPARSE_ROWS):
        raise refusal(
            name, "rows to be left out for sparse keys, which are any 64-bit integers", rows
        )
    return SPARSE_ROWS


@dataclass(frozen=True)
class Limits:
    """Named bounds of a store. A call that exceeds a bound raises an error that names the bound.

    The last four bounds control the background work of storage. A segment of the log is sealed at
    `segment_bytes` (128 MiB: large enough that sealing is rare, small enough to merge in little
    memory). A fold, which moves rows from the log to the base, starts when `fold_bytes` or
    `fold_segments` can be moved; a compaction of small segments starts at `fold_segments`. Files of
    the base have about `base_segment_bytes`: they must not be too large, because a merge rewrites
    at least one file, nor too small, because a process can map at most 65,000 files.
    """

    call_bytes_max: int = 1 << 30
    """Bytes of one call's arrays, results included. This bounds the memory that the process needs
    for one call."""
    announced_bytes_max: int = 1 << 30
    """Bytes of the keys of all announced steps; planning needs about five times this memory."""
    scan_bytes_max: int = 512 << 20
    """Bytes that open scans keep for the keys and locations of rows: 24 bytes for each row of the
    scanned tables that is in the log, and up to 6 MiB for the piece that each scan reads."""
    tables_max: int = 4096
    log_rows_max: int = 1 << 26
    """Rows in the log index. A row takes at most about 46 bytes of memory, 70 while the index
    grows."""
    metadata_bytes_max: int = 64 << 10
    """Bytes of one checkpoint's metadata as JSON. The metadata is part of the catalogue, a file
    that each commit rewrites as a whole."""
    segment_bytes: int = 128 << 20
    base_segment_bytes: int = 256 << 20
    fold_bytes: int = 64 << 20
    fold_segments: int = 16

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_int(getattr(self, field.name), f"limits.{field.name}", 1, 1 << 62)
        if self.segment_bytes % 4096 or self.base_segment_bytes % 4096:
            raise InvalidArgumentError("expected segment sizes to be multiples of 4096")


@dataclass(frozen=True)
class TableConfig:
    """The configuration of a table.

    `rows` and the optimizer's learning rate are its tunables; all other parameters are its
    identity. A table whose `key_space` is "sparse" has SPARSE_ROWS rows.
    """

    name: str
    dim: int
    rows: int
    optimizer: Optimizer
    initializer: Initializer
    seed: int
    key_space: KeySpace = "dense"

    @classmethod
    def checked(
        cls,
        name: Any,
        *,
        dim: Any,
        rows: Any = None,
        optimizer: Any,
        initializer: Any,
        seed: Any = None,
        key_space: Any = "dense",
    ) -> "TableConfig":
        """Return the configuration, or raise InvalidArgumentError for the first wrong argument."""
        check_name(name)
        if type(optimizer) not in OPTIMIZERS.values():
            raise refusal(name, f"an optimizer ({_names_of(OPTIMIZERS)})", repr(optimizer))
        if type(initializer) not in INITIALIZERS.values():
            raise refusal(name, f"an initializer ({_names_of(INITIALIZERS)})", repr(initializer))
        return cls(
            name=name,
            dim=_check_int(dim, f"table {name!r}: dim", 1, DIM_MAX),
            rows=_rows_of(key_space, rows, name),
            optimizer=optimizer,
            initializer=initializer,
            seed=default_seed(name)
            if seed is None
            else _check_int(seed, f"table {name!r}: seed", 0, 2**64 - 1),
            key_space=key_space,
        )

    @property
    def is_sparse(self) -> bool:
        """Whether keys are sparse: every 64-bit value but one is a key."""
        return self.key_space == "sparse"

    @property
    def state_dim(self) -> int:
        """The number of fp32 elements of optimizer state in a row."""
        return self.optimizer.state_dim(self.dim)

    @property
    def layout(self) -> Layout:
        """The layout of the table's rows."""
        return Layout(self.dim, self.state_dim, self.optimizer.kind)

    def identity(self) -> dict[str, Any]:
        """Return the parameters that the digest covers, without tunables; rule 11 of contract.md
        calls them J."""
        dtypes = {"weights": ELEMENT.name} | ({"state": ELEMENT.name} if self.state_dim else {})
        optimizer = _parameters(self.optimizer)
        for name in self.optimizer.unnamed:
            del optimizer[name]
        return {
            "dim": self.dim,
            "dtypes": dtypes,
            "initializer": _parameters(self.initializer),
            "key_space": self.key_space,
            "name": self.name,
            "optimizer": optimizer,
            "seed": self.seed,
        }

    def identity_json(self) -> bytes:
        """Return the identity (J in contract.md) as JSON, in the bytes that the digest hashes."""
        text = json.dumps(
            self.identity(),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=True,
            allow_nan=False,
        )
        return text.encode()

    def differences(self, other: "TableConfig") -> list[tuple[str, Any, Any]]:
        """Return (name, here, there) for each part of the identity that differs in `other`.

        For two optimizers or initializers of the same kind, return each parameter that differs.
        """
        ours, theirs = self.identity(), other.identity()
        found = []
        for what in ours:
            here, there = ours[what], theirs[what]
            if what == "dtypes" or here == there:  # the optimizer determines the dtypes
                continue
            if not isinstance(here, dict):
                found.append((what, here, there))
            elif here["kind"] != there["kind"]:
                found.append((what, here["kind"], there["kind"]))
            else:
                found += [
                    (f"{what} {name}", here.get(name, 0.0), there.get(name, 0.0))
                    for name in {**here, **there}
                    if here.get(name, 0.0) != there.get(name, 0.0)
                ]
        return found

    @classmethod
    def from_identity(
        cls, identity: dict[str, Any], *, rows: int, learning_rate: float
    ) -> "TableConfig":
        """Return the configuration with this identity, in the form of `identity()`, and these
        tunables. Every value is checked again."""
        optimizer = dict(identity["optimizer"])
        initializer = dict(identity["initializer"])
        return cls.checked(
            identity["name"],
            dim=identity["dim"],
            rows=rows,
            optimizer=OPTIMIZERS[optimizer.pop("kind")](learning_rate=learning_rate, **optimizer),
            initializer=INITIALIZERS[initializer.pop("kind")](**initializer),
            seed=identity["seed"],
            key_space=identity["key_space"],
        )


def _names_of(kinds: dict[str, type[Any]]) -> str:
    return ", ".join(kind.__name__ for kind in kinds.values())


def _parameters(part: Any) -> dict[str, Any]:
    """Return {"kind": ..., parameter: float or bool, ...} of an optimizer or initializer."""
    return {"kind": part.kind} | {f.name: _plain(getattr(part, f.name)) for f in fields(part)}


def _plain(value: Any) -> float | bool:
    return bool(value) if isinstance(value, bool | np.bool_) else float(value)
