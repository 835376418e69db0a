"""Whose something is, by its name: a server names what belongs to a caller OWNER:NAME.

What stands before the first colon is the owner, whom the server alone sets: NAME is the caller's
own, and may have colons. Without a colon it is nobody's, and all of nobody's counts as one owner's.

**Forgetting.** Of some things so many names are kept, of all owners together. Where there are too
many, the owner that has most loses its oldest one, so that nobody pushes out what is another's by
making names. Which one that is follows from the order in which names were renewed, and from nothing
else: a store that executes the same commands again forgets the same. Of owners that have equally
many it is the one whose oldest is the oldest; where nobody owns anything, simply the oldest.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping


def owner_of(name: str) -> str:
    """Return whose it is; "": nobody's."""
    owner, colon, _ = name.partition(":")
    return owner if colon else ""


def owned(owner: str, name: str) -> str:
    """Return the full name of what an owner calls so."""
    return f"{owner}:{name}" if owner else name


class Ages:
    """Names by age, those of each owner apart."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Have these names, the oldest first."""
        self._names: dict[str, OrderedDict[str, int]] = {}
        """By owner: when each was renewed, the oldest first; an owner of none is absent."""
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

        counts : by owner, what it has; None: names
        """

        def least(owner: str) -> tuple[int, int]:
            names = self._names[owner]
            count = len(names) if counts is None else counts[owner]
            return -count, next(iter(names.values()))

        for owner in sorted(self._names, key=least):
            yield from self._names[owner]
