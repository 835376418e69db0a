"""Owners of sessions and clients, by name: a server names a caller's ones OWNER:NAME.

The part before the first colon is the owner, which only the server sets: NAME is the caller's own,
and may have colons. A name without a colon has no owner, and all such names count as one owner's.

**Forgetting.** A bounded number of names is kept, of all owners together. Beyond it, the owner that
has most loses its oldest name, so that no owner pushes out another's names by making many. The
choice depends only on the order in which names were renewed: a store that executes the same
commands again forgets the same. Among owners that have equally many, the one with the oldest name
loses it; without owners, simply the oldest goes.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping


def owner_of(name: str) -> str:
    """Return the owner of a name; "": none."""
    owner, colon, _ = name.partition(":")
    return owner if colon else ""


def owned(owner: str, name: str) -> str:
    """Return the full name of an owner's name."""
    return f"{owner}:{name}" if owner else name


class Ages:
    """Names by age, for each owner separately."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Have these names, the oldest first."""
        self._names: dict[str, OrderedDict[str, int]] = {}
        """By owner: the names with their renewals, the oldest first; an owner of none is absent."""
        self._renewals = 0
        for name in names:
            self.renew(name)

    def renew(self, name: str) -> None:
        """Have this name be the youngest."""
        owner = owner_of(name)
        names = self._names.get(owner)
        if names is None:
            names = self._names[owner] = OrderedDict()
        self._renewals += 1
        names[name] = self._renewals
        names.move_to_end(name)

    def drop(self, name: str) -> None:
        """Forget a name, if it is here."""
        owner = owner_of(name)
        names = self._names.get(owner)
        if names is not None:
            names.pop(name, None)
            if not names:
                del self._names[owner]

    def to_forget(self, counts: Mapping[str, int] | None = None) -> Iterator[str]:
        """Yield the names in the order in which they are to be forgotten.

        counts : by owner, the number that counts; None: the number of names
        """

        def least(owner: str) -> tuple[int, int]:
            names = self._names[owner]
            count = len(names) if counts is None else counts[owner]
            return -count, next(iter(names.values()))

        for owner in sorted(self._names, key=least):
            yield from self._names[owner]
