"""The memory of open scans, and the bounds of this memory: for all scans, and for the scans of one
owner.

A scan is registered as a `ScanPlace` from the beginning of its opening to its end. The bytes that
the scan needs are counted in this registration before they are allocated. If an owner
(`embstore.tables.owners`) has only one scan, this scan always gets its bytes, however large the
table is: scans of other owners cannot prevent this.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from embstore.errors import CapacityError
from embstore.tables.owners import owner_of

SCANS_MAX = 64
_MEND = "close one, or read it to its end"


@dataclass(eq=False)
class ScanPlace:
    """The registration of one scan."""

    owner: str
    bytes: int = 0


class ScanPlaces:
    """The registrations of all scans. Any thread."""

    def __init__(self, bytes_max: int) -> None:
        self.owner_scans_max: Callable[[str], int | None] = lambda _: None
        self.owner_bytes_max: Callable[[str], int | None] = lambda _: None
        """Functions that return the maximum number of scans of one owner, and the maximum bytes of
        its scans; None: only the bounds for all owners hold."""
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._taken: set[ScanPlace] = set()

    def used(self, owner: str | None = None) -> tuple[int, int]:
        """Return the number of scans, and the bytes of these scans, of all owners or of one
        owner."""
        with self._lock:
            own = self._of(owner, None)
        return len(own), sum(place.bytes for place in own)

    def _of(self, owner: str | None, replaced: ScanPlace | None) -> list[ScanPlace]:
        taken = [place for place in self._taken if place is not replaced]
        return [place for place in taken if owner is None or place.owner == owner]

    def take(self, scan: str, replaced: ScanPlace | None) -> ScanPlace:
        """Register a new scan, and return its registration.

        `replaced` is the registration of a scan that will end; it does not count for the limits.

        Raises CapacityError if there are too many scans.
        """
        place = ScanPlace(owner_of(scan))
        with self._lock:
            own, most = self._of(place.owner, replaced), self.owner_scans_max(place.owner)
            if most is not None and len(own) >= most:
                raise CapacityError(
                    f"{place.owner!r} has {len(own)} scans open, one more would exceed its limit "
                    f"of {most} (scans): {_MEND}"
                )
            if len(self._of(None, replaced)) >= SCANS_MAX:
                raise CapacityError(f"{SCANS_MAX} scans are open: {_MEND}")
            self._taken.add(place)
        return place

    def reserve(self, place: ScanPlace, replaced: ScanPlace | None, more: int) -> None:
        """Add `more` bytes, which a scan will need, to its registration. Raises CapacityError if
        the registered bytes would exceed a bound."""
        with self._lock:
            own = self._of(place.owner, replaced)
            if len(own) > 1:
                everyone, most = self._of(None, replaced), self.owner_bytes_max(place.owner)
                _check(more, everyone, "limits.scan_bytes_max", self._bytes_max)
                if most is not None:
                    _check(more, own, f"the scan_bytes of {place.owner!r}", most)
            place.bytes += more

    def leave(self, places: Iterable[ScanPlace]) -> None:
        """Remove registrations. It is no error if some of them were removed before."""
        with self._lock:
            self._taken.difference_update(places)


def _check(more: int, places: list[ScanPlace], name: str, most: int) -> None:
    reserved = sum(place.bytes for place in places)
    if reserved + more > most:
        raise CapacityError(
            f"open scans hold {reserved} bytes, {more} more would exceed {name} ({most}): {_MEND}; "
            "after a fold of the log a scan of the same table holds less"
        )
