"""The bytes of requests and replies that the process holds at once, and their bound.

A request reserves its bytes; a streamed request reserves its bytes as they arrive. Bytes that are
announced and not yet sent take no memory. If such bytes counted, a client that announces much and
sends little would block all other clients. Therefore the start of a stream only checks that there
is space for all of it, and the stream may still be refused later, if other calls have taken the
space. If several streams grow together, at least one of them is received as a whole.

A call that finds no space is refused (OverloadedError), and its client backs off. If such calls
waited instead, a client that sends slowly could block all other clients. One message always fits,
however large it is. So with a small bound calls run one after another, but no call is impossible.
The rows of a reply are reserved before they are read, and count until the client has received them;
a client that reads nothing is disconnected. The rest of a reply is never refused, because its work
is done.

The arrays that a rank sends for a step of a session count until the session has received them. From
then on the session keeps them until the arrays of the other ranks arrive. If they counted during
that time, arrays that together exceed the bound would block each other, and their step would never
end.

A step that arrives before its **turn**, while earlier steps are unfinished, waits for calls that
arrive later, and must not block them. While it waits, its bytes count as lent, see below. If too
many bytes are lent, the step is refused, and the client sends it again.

**Shared memory** that a connection keeps between its calls is lent. Lent bytes take space from
calls. Therefore at most half of the bound can be lent, so that calls can continue. One segment,
like one message, always fits.

**Owners.** Calls of one token have a bound of their own, with the same rules, which is lower than
the bound of all calls. Event loop only.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from embstore.errors import OverloadedError

_LENT_SHARE = 2
"""The bound divided by this number is the most that can be lent."""


class Inflight:
    """The number of bytes in flight, and its bound."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.reserved_bytes = 0
        self.owned_bytes: Counter[str] = Counter()
        """Reserved bytes by owner, for owners with a name."""
        self.lent_bytes = 0
        """The lent part of the reserved bytes."""
        self.owned_lent_bytes: Counter[str] = Counter()

    def lend(self, owner: str, most: int | None, count: int) -> "Reservation":
        """Count `count` bytes of memory that is shared with a client; `release` ends the loan.

        `owner` is the client's owner, which can use `most` bytes. Raises OverloadedError.
        """
        loan = Loan(self, owner, most)
        loan.check_may_lend(count)
        loan.add_unchecked(count)
        return loan

    def reservation(self, owner: str = "", most: int | None = None) -> "Reservation":
        """Return a reservation for an owner that can use `most` bytes (None: up to the bound).

        The reservation is a context manager, which at its end releases the reserved bytes.
        """
        return Reservation(self, owner, most)


class Reservation:
    """The bytes that one call has reserved; a context manager."""

    def __init__(self, inflight: Inflight, owner: str, most: int | None) -> None:
        self._inflight = inflight
        self._owner, self._most = owner, most
        self.reserved_bytes = 0

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def check_room(self, count: int) -> None:
        """Raise OverloadedError if other calls leave no space for `count` bytes more."""
        inflight = self._inflight
        owned = inflight.owned_bytes[self._owner] if self._owner else 0
        by_others = owned - inflight.owned_lent_bytes[self._owner] - self.reserved_bytes
        own_most = self._most if self._most is not None else inflight.bytes_max
        if by_others > 0 and owned + count > own_most:
            raise OverloadedError(
                f"{owned} bytes of calls of {self._owner!r} are in flight, {count} more would "
                f"exceed its inflight_bytes ({own_most}); back off, then retry"
            )
        reserved, most = inflight.reserved_bytes, inflight.bytes_max
        if reserved - inflight.lent_bytes > self.reserved_bytes and reserved + count > most:
            raise OverloadedError(
                f"{reserved} bytes of calls are in flight, {count} more would exceed "
                f"limits.inflight_bytes_max ({most}); back off, then retry"
            )

    def add(self, count: int) -> None:
        """Reserve `count` bytes more, or raise OverloadedError."""
        if self._inflight.reserved_bytes != self.reserved_bytes:  # other calls have reserved bytes
            self.check_room(count)
        self.add_unchecked(count)

    def add_unchecked(self, count: int) -> None:
        """Reserve `count` bytes more, even above the bound, because a reply that exists must be
        sent."""
        self._inflight.reserved_bytes += count
        self.reserved_bytes += count
        if self._owner:
            self._inflight.owned_bytes[self._owner] += count

    @contextmanager
    def before_turn(self) -> Iterator[None]:
        """Count the bytes as lent inside the block, so that they block no other call.

        The block waits for other calls. Raises OverloadedError.
        """
        count = self.reserved_bytes
        self.check_may_lend(count)
        self._note_lent(count)
        try:
            yield
        finally:
            self._note_lent(-count)

    def check_may_lend(self, count: int) -> None:
        """Raise OverloadedError if `count` bytes more would exceed the bound of lent bytes."""
        inflight, owner = self._inflight, self._owner
        lent, most = inflight.lent_bytes, inflight.bytes_max
        _check_lent(lent, count, most, "limits.inflight_bytes_max")
        if owner and self._most is not None:
            lent = inflight.owned_lent_bytes[owner]
            _check_lent(lent, count, self._most, f"the inflight_bytes of {owner!r}")

    def _note_lent(self, more: int) -> None:
        self._inflight.lent_bytes += more
        if self._owner:
            self._inflight.owned_lent_bytes[self._owner] += more

    def release(self) -> None:
        """Release all bytes that were reserved; bytes that are added later count again."""
        count, self.reserved_bytes = self.reserved_bytes, 0
        self._inflight.reserved_bytes -= count
        if self._owner:
            self._inflight.owned_bytes[self._owner] -= count


class Loan(Reservation):
    """A reservation for memory that is shared with one client; all its bytes count as lent."""

    def add_unchecked(self, count: int) -> None:
        """Count `count` bytes more."""
        super().add_unchecked(count)
        self._note_lent(count)

    def release(self) -> None:
        """End the loan of the memory."""
        self._note_lent(-self.reserved_bytes)
        super().release()


def _check_lent(lent: int, count: int, bound: int, name: str) -> None:
    if lent and lent + count > bound // _LENT_SHARE:
        raise OverloadedError(
            f"{lent} bytes are shared with clients, or belong to steps that wait for their turn; "
            f"{count} more would exceed half of {name} ({bound}); keep fewer results, or back "
            "off, then retry"
        )
