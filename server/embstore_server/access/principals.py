"""A caller: its name, its rights by pattern (`embstore.rights`), its sessions and the ids of its
calls.

**Sessions** belong to the principal that opened them. Their full names begin with the principal:
`train` of the token `ads` is the session `ads:train`, whose resume position (its last finished
step) no other token can use or read. A principal with the right to write everything can also use
full names, which lists of sessions show; in this way an operator can end any session. A session
`train` that was opened when the server had no tokens has no owner. If the server gets tokens later,
a principal with the right to write everything continues this session by the name `:train`.

**Scans** also belong to the principal that opened them.

**Calls that are sent again** are remembered by client and principal, so that no principal gets or
replaces the answer of another principal. The id of a client includes its owner, so that the many
clients of one principal do not displace the clients of another in the deduplication window.

**Tables of other principals** are refused by name, before anything is looked up. The answer is
therefore the same whether such a table exists or not.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from embstore.commands import Right
from embstore.errors import PermissionDeniedError
from embstore.results import KeptCheckpoint, TableDescription
from embstore.rights import EVERYTHING, matches
from embstore.storage.states import KeptState
from embstore.tables.owners import owned, owner_of
from embstore_proto.envelope import CLIENT_ID_CHARACTERS_MAX, Origin

_REMEMBERED_MAX = 4096
_OWNER_CHARACTERS = 16
"""The number of characters of the owner in a client id; the rest of the id is a hash of 188
bits."""


@dataclass(frozen=True)
class Principal:
    """A caller, and its rights by pattern; `name` is empty on a server without tokens."""

    name: str
    rights: Mapping[str, Right]
    limits: Mapping[str, int] = field(default_factory=dict)
    """The principal's limits (`access.shares`), by name."""
    _found: dict[str, Right] = field(default_factory=dict, compare=False, repr=False)

    def right_on(self, name: str) -> Right:
        """Return the principal's highest right on a table or session of this name; KNOWN if no
        right is granted."""
        right = self._found.get(name)
        if right is None:
            granted = (r for pattern, r in self.rights.items() if matches(name, pattern))
            right = max(granted, default=Right.KNOWN)
            if len(self._found) >= _REMEMBERED_MAX:
                self._found.clear()
            self._found[name] = right
        return right

    def check(self, right: Right, names: Iterable[str]) -> None:
        """Raise PermissionDeniedError unless the principal has `right` on all of these names."""
        for name in names:
            if self.right_on(name) < right:
                where = "everything (*)" if name == EVERYTHING else repr(name)
                raise PermissionDeniedError(
                    f"expected the right to {right.name.lower()} on {where}; {self._granted}"
                )

    def check_somewhere(self, right: Right) -> None:
        """Raise PermissionDeniedError unless the principal has `right` on at least one name."""
        if right > max(self.rights.values(), default=Right.KNOWN):
            raise PermissionDeniedError(
                f"expected the right to {right.name.lower()} on some table; {self._granted}"
            )

    @property
    def _granted(self) -> str:
        granted = [f"{r.name.lower()} on {p!r}" for p, r in sorted(self.rights.items())]
        return f"{self.name!r} is granted {', '.join(granted) or 'nothing'}"

    # Sessions

    @property
    def _has_all_sessions(self) -> bool:
        return self.right_on(EVERYTHING) >= Right.WRITE

    def session(self, name: str) -> str:
        """Return the full name of this principal's session `name`."""
        if not self.name or not name:  # no token, or an empty name, which the engine refuses
            return name
        if ":" in name and self._has_all_sessions:
            return name.removeprefix(":")
        return owned(self.name, name)

    def check_session(self, name: str) -> None:
        """Raise PermissionDeniedError unless the principal may use the session `name`, a full
        name."""
        if not self.owns_session(name):
            raise PermissionDeniedError(
                "expected a session that you opened, found one of another caller"
            )

    def owns_session(self, name: str) -> bool:
        """Return whether the principal may use the session `name`, a full name."""
        return self._has_all_sessions or owner_of(name) == self.name

    def scan(self, name: str) -> str:
        """Return the full name of this principal's scan."""
        return owned(self.name, name)

    # Calls that are sent again

    def origin(self, origin: Origin) -> Origin:
        """Return a call's origin (client id and sequence number) with a client id that no other
        principal can have; return an invalid origin as it is.

        The owner in the new client id (`tables.owners`) is a hash of the principal's name, because
        a name can be as long as the id. If the principal has no name, the new client id has no
        owner, even if the client sent an id that looks as if it had one.
        """
        client_id = origin.client_id
        is_bad = not 0 < len(client_id) <= CLIENT_ID_CHARACTERS_MAX
        if is_bad or (not self.name and not owner_of(client_id)):
            return origin
        owner = self.name and _hash(self.name)[:_OWNER_CHARACTERS]
        own = owned(owner, _hash(f"{self.name}\0{client_id}"))
        return replace(origin, client_id=own[:CLIENT_ID_CHARACTERS_MAX])

    # Results

    def visible(self, value: Any, kept: Callable[[str], KeptState | None]) -> Any:
        """Return the part of a command's result that the principal can read.

        `kept` returns the checkpoint that is kept under a label, or None if there is none.
        """
        if self.right_on(EVERYTHING) >= Right.READ:
            return value
        match value:
            case KeptCheckpoint(label):
                state = kept(label)
                content = "" if state is None else state.content_of(self._may_read)
                return replace(value, tables=None, content=content)
            case tuple():
                readable = [one for one in value if self._may_read(_name_of(one))]
                return tuple(self.visible(one, kept) for one in readable)
        return value

    def _may_read(self, name: str) -> bool:
        return self.right_on(name) >= Right.READ


def _hash(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def _name_of(described: Any) -> str:
    match described:
        case TableDescription(config):
            return config.name
        case KeptCheckpoint(label):
            return label
    raise TypeError(type(described))


ANYBODY = Principal("", {EVERYTHING: Right.ADMIN})
"""The caller of a server that has no tokens."""
