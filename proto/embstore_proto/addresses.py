"""Addresses of servers: how they are written, and which machines can reach them."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[^\s:\[\]]+):([0-9]{1,5})")


def split_address(address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of "host:port" or "[IPv6]:port". Raise
    ValueError for any other text."""
    match = _ADDRESS.fullmatch(address)
    if not match or int(match[2]) > 65535:
        raise ValueError(address)
    if match[1].startswith("["):
        ip_address(match[1][1:-1])
    return match[1].strip("[]"), int(match[2])


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`. "localhost" is the only name for which
    this is True.

    Other names are not resolved, because their address may change after the check.
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


_SOCKET_PATH_BYTES_MAX = 100


@contextmanager
def unix_socket_address(path: Path) -> Iterator[str]:
    """Yield an address of the Unix socket at a path; the path can be of any length."""
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
