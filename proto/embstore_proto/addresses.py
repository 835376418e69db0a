"""Addresses of servers: how they are written, and who can reach them."""

import re
from ipaddress import ip_address

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[^\s:\[\]]+):([0-9]{1,5})")


def split_address(address: str) -> tuple[str, int]:
    """Return host, without brackets, and port of "host:port" or "[IPv6]:port"; else ValueError."""
    match = _ADDRESS.fullmatch(address)
    if not match or int(match[2]) > 65535:
        raise ValueError(address)
    if match[1].startswith("["):
        ip_address(match[1][1:-1])
    return match[1].strip("[]"), int(match[2])


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach `host`. Of names, only "localhost" is known to be.

    Other names are not resolved: their address may change afterwards.
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
