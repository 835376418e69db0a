"""The sizes of a program: a frozen dataclass, each field of which gives its value for the full size
and for each other size.

The goals are stated for the full size. The other sizes show that everything runs, in seconds or a
few minutes; their figures mean little.
"""

from dataclasses import field, fields
from typing import Any, TypeVar

SizesT = TypeVar("SizesT")


def sized(full: Any, **others: Any) -> Any:
    """Return a field that is `full`, or another value in the sizes that are named."""
    return field(default=full, metadata=others)


def of_size(kind: type[SizesT], size: str) -> SizesT:
    """Return the sizes of a run that is "full", "quick" or "emulated"."""
    found = {one.name: one.metadata for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: others[size] for name, others in found.items() if size in others})
