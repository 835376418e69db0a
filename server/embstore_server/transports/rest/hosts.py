"""The name in a `Host` header, read strictly, so that no other reader of it finds another name."""

import re
from ipaddress import ip_address

_PRIVATE_ENDS = (".svc", ".local", ".internal", ".localhost", ".home.arpa")
"""Endings of names that no public server resolves: RFC 6762, 6761 and 8375, and Kubernetes."""

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::[0-9]{0,5})?", re.ASCII | re.IGNORECASE)


def name_of(host: str) -> str | None:
    """Return the name in a `Host`, in small letters; None where it is no name and no address."""
    match = _HOST.fullmatch(host)
    return match and (match[1] or match[2]).lower().rstrip(".")


def is_private(name: str) -> bool:
    """Return whether a name is an address, or one that no public server resolves."""
    return name.endswith(_PRIVATE_ENDS) or is_address(name)


def is_address(name: str) -> bool:
    """Return whether a name is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
