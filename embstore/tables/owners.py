"""Owners of sessions and clients, by name: a server calls the NAME of a caller OWNER:NAME.

The part before the first colon is the owner, which only the server sets. The caller chooses NAME,
which can contain colons. A name without a colon has no owner; all such names together count as the
names of one owner.

**Forgetting.** The number of names that are kept is bounded, over all owners together. Beyond the
bound, the owner with the most names loses its oldest name, so that no owner displaces names of
another owner by creating many names. The choice depends only on the order in which names were
renewed: a store that executes the same commands again forgets the same names. If several owners
have equally many names, the oldest of all their names is forgotten. If there are no owners, the
oldest name is forgotten.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping


def owner_of(name: str) -> str:
    """Return the owner of a name; "": the name has no owner."""
    owner, colon, _ = name.partition(":")
    return owner if colon else ""


def owned(owner: str, name: str) -> str:
    """Return OWNER:NAME, the full name of an owner's name."""
    return f"{owner}:{name}" if owner else name


class Ages:
    """Names in order of age, for each owner separately."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Start with some names, the oldest name first."""
        self._names: dict[str, OrderedDict[str, int]] = {}
        """For each owner, its names with the numbers of their last renewals, the oldest name first.
        Owners without names are absent."""
        self._renewals = 0
        for name in names:
            self.renew(name)

    def renew(self, name: str) -> None:
        """Make a name the youngest name."""
        owner = owner_of(name)
        names = self._names.get(owner)
        if names is None:
            names = self._names[owner] = OrderedDict()
        self._renewals += 1
        names[name] = self._renewals
        names.move_to_end(name)

    def drop(self, name: str) -> None:
        """Forget a name if it is known."""
        owner = owner_of(name)
        names = self._names.get(owner)
        if names is not None:
            names.pop(name, None)
            if not names:
                del self._names[owner]

    def to_forget(self, counts: Mapping[str, int] | None = None) -> Iterator[str]:
        """Yield names in the order in which they are to be forgotten.

        counts : for each owner, the number that decides which owner has most; None: its number of
            names
        """

        def least(owner: str) -> tuple[int, int]:
            names = self._names[owner]
            count = len(names) if counts is None else counts[owner]
            return -count, next(iter(names.values()))

        for owner in sorted(self._names, key=least):
            yield from self._names[owner]
