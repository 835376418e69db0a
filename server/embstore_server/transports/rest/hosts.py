"""The name in a `Host` header. It is parsed strictly, so that no other parser can find another
name."""

import re
from ipaddress import ip_address

_PRIVATE_ENDS = (".svc", ".local", ".internal", ".localhost", ".home.arpa")
"""Endings of names that no public server resolves: RFC 6762, 6761 and 8375, and Kubernetes."""

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::([0-9]{0,5}))?", re.ASCII | re.IGNORECASE)
_NAME = re.compile(r"\w[\w-]*(?:\.\w[\w-]*)*\.?", re.ASCII)
_PORT_MAX = 65535


def name_of(host: str) -> str | None:
    """Return the name in a `Host` header, in lower case, without the dot that ends a full name.

    None: the header contains neither a name nor an address. Only IPv6 addresses have brackets, and
    no address ends with a dot.
    """
    match = _HOST.fullmatch(host)
    if match is None or int(match[3] or 0) > _PORT_MAX:
        return None
    if match[1]:
        return match[1].lower() if ":" in match[1] and is_address(match[1]) else None
    name = match[2].lower()
    bare = name.removesuffix(".")
    return bare if _NAME.fullmatch(name) and not (name != bare and is_address(bare)) else None


def is_private(name: str) -> bool:
    """Return whether a name is an address, or a name that no public server resolves."""
    return name.endswith(_PRIVATE_ENDS) or is_address(name)


def is_address(name: str) -> bool:
    """Return whether a name is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
