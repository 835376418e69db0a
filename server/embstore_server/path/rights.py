"""The check whether a caller has the right to a command; the check also completes names of sessions
and scans.

One function serves every transport. The command's class defines the required right
(`Command.needs`). The tables on which the right is required are those that the command names, or
those of its session. Administrative commands are noted for the audit log, even if they are refused,
together with whether the caller has the right.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from embstore.commands import Command, Right, Trait
from embstore.config import NAME_BYTES_MAX
from embstore.errors import InvalidArgumentError
from embstore.lookahead.sessions import Sessions
from embstore.rights import EVERYTHING, concerned
from embstore_server.access.principals import Principal
from embstore_server.path.caller import Caller

C = TypeVar("C", bound=Command[Any])

_AUDITED_CHARACTERS_MAX = 400


def _subject(command: Any) -> str:
    """Return the subject of a command, for the log."""
    if getattr(command, "force", False):
        return f"{command.label}, ending open sessions"
    for field in ("name", "label", "destination"):
        if said := getattr(command, field, None):
            return str(said)
    return ", ".join(concerned(command))


def _own_members(
    principal: Principal, members: tuple[str, ...], sessions: Callable[[], Sessions]
) -> tuple[str, ...]:
    found = [(member, sessions().facts(member=member, name="")) for member in members]
    return tuple(m for m, facts in found if facts and principal.owns_session(facts.name))


def permitted(caller: Caller, command: C, sessions: Callable[[], Sessions]) -> C:
    """Return a command with the full names of its sessions and scans. Any thread.

    Raises PermissionDeniedError if the caller lacks the right; InvalidArgumentError if a name is
    longer than any valid name.
    """
    principal = caller.principal
    given: Any = command
    if (session := getattr(given, "name", None)) is not None:
        given = replace(given, name=principal.session(session))
    if (scan := getattr(given, "scan", None)) is not None:
        given = replace(given, scan=principal.scan(scan))
    if members := getattr(given, "members", ()):
        given = replace(given, members=_own_members(principal, members, sessions))
    command = cast(C, given)
    names = concerned(command)
    caller.tables = () if names == (EVERYTHING,) else names
    if max(map(len, names)) > NAME_BYTES_MAX:  # too long a name is neither remembered nor logged
        raise InvalidArgumentError(f"expected names of at most {NAME_BYTES_MAX} characters")
    if command.right is Right.ADMIN or Trait.AUDITED in command.traits:
        caller.audited = _subject(command)[:_AUDITED_CHARACTERS_MAX]
    if command.right is Right.KNOWN or principal.right_on(EVERYTHING) >= command.needs:
        caller.is_let_in = bool(principal.rights)  # without rights, the caller only reads facts
        return command
    is_named = session is not None and names == (EVERYTHING,)
    member = None if is_named else getattr(command, "member", None)
    if is_named or member is not None:
        facts = sessions().facts(member=member, name=getattr(command, "name", ""))
        named = () if names == (EVERYTHING,) else names
        if facts is not None:
            principal.check_session(facts.name)
            named = (*facts.tables, *named)
        elif not named:  # the engine raises the error
            return command
        names = named
    principal.check(command.needs, names)
    caller.is_let_in = True
    return command
