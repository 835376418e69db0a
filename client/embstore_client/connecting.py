"""Connecting to a server: the choice of the transport, and the first calls.

Arguments are checked before the connection is made, so that a bad argument is an error at once.
Then the server is asked for its facts (`ServerInfo`), so a wrong address fails here and not at the
first lookup. If the server does not answer, the client waits for `connect_timeout_s`. If the server
answers that it is starting, the client waits as long as the server makes progress. A failure that
waiting cannot mend, such as the address of a REST port, is an error at once.

A shard returns the addresses of the other shards (cluster.py).
"""

import os
from functools import partial
from typing import Any, cast

from embstore.errors import DeadlineError, InvalidArgumentError
from embstore.handles.store import Store
from embstore_client import tracing
from embstore_client.executor import RemoteExecutor
from embstore_client.grpc_wire import GrpcWire
from embstore_client.nearest_wire import NearestWire
from embstore_client.shared_memory import SharedMemoryWire
from embstore_client.tls import PathLike, TlsFiles
from embstore_client.transport import Transport, checked_seconds
from embstore_client.wire import Wire
from embstore_proto.addresses import is_loopback, split_address
from embstore_proto.narrow import WIRE_DTYPES

CONNECT_TIMEOUT_S = 10.0
"""Long enough for a server that was just started to begin to listen, and short enough that a wrong
address is reported soon."""

CALL_TIMEOUT_S = 60.0
TOKEN_VARIABLE = "EMBSTORE_TOKEN"
TRANSPORTS = ("auto", "grpc", "shared_memory")
_SOCKET = "unix:"


def connect(
    address: str,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    wait: bool = True,
    label: str = "",
    tls_ca: PathLike | None = None,
    tls_cert: PathLike | None = None,
    tls_key: PathLike | None = None,
    token: str | None = None,
    insecure: bool = False,
    transport: str = "auto",
    wire_dtype: str = "float32",
) -> Store:
    """Connect to a server and return its store, or for a shard the store of its whole cluster.

    Parameters
    ----------
    address : "host:port" of the server's gRPC port, or "unix:PATH", its socket on this host. The
        address of any shard stands for the whole cluster: the client connects to the other shards
        at the addresses of the cluster's map, with the same arguments
    timeout_s : deadline of every call in seconds, including its retries. The wait for a server that
        is starting ends when the server has made no progress for this time
    connect_timeout_s : how many seconds to wait for a server to listen at the address
    wait : False: fail at once if no server listens; still wait for a server that is starting
    label : shown in the server's log of slow calls
    tls_ca : PEM file of the certificates to trust; None: no TLS
    tls_cert, tls_key : PEM files of the client's own certificate and its key, for mutual TLS
    token : the caller's secret for the server; None: the value of EMBSTORE_TOKEN, if it is set
    insecure : True: send the token to another host in clear text, if there is no TLS
    transport : "grpc"; "shared_memory", to a server of the same user on this host; "auto": shared
        memory where possible, else gRPC
    wire_dtype : the type in which looked-up rows and gradients are sent, for links that are slower
        than the machine: "float32", exact; "float16" or "bfloat16", rounded to nearest, ties to
        even, at half the bytes. Sums by key are made in float32, then rounded. If a finite gradient
        is too large, the call is refused, not sent; too large a value in a row becomes infinity. If
        several keys are bad, an error may name another one with a rounded type than with "float32"

    Raises
    ------
    DeadlineError : no server answered.
    UnauthenticatedError : the server requires authentication, and does not know this caller.
    StoreClosedError : with wait=False, no server listens; with transport="shared_memory", the
        server is not on this host.
    InvalidArgumentError : a bad argument; the address is not a gRPC port; only one of client and
        server uses TLS; the server is too old for `wire_dtype`; a server is not the shard that the
        map names, or has another map.

    An error of a shard other than the shard at `address` names its shard.
    """
    options = dict(locals())
    del options["address"]
    store = connect_one(address, **options)
    info = cast(RemoteExecutor, store.executor).info
    if info is None or info.shard_map is None:
        return store
    from embstore_client.cluster import whole  # rarely needed: most servers are no shards

    return whole(store, partial(connect_one, **options))


def connect_one(
    address: str,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    wait: bool = True,
    label: str = "",
    tls_ca: PathLike | None = None,
    tls_cert: PathLike | None = None,
    tls_key: PathLike | None = None,
    token: str | None = None,
    insecure: bool = False,
    transport: str = "auto",
    wire_dtype: str = "float32",
) -> Store:
    """Connect to this one server only, even if it is a shard. The arguments are as in `connect`.
    For operators."""
    arguments = {name: value for name, value in locals().items() if name != "token"}
    _check(address, label, transport, wire_dtype)
    checked_seconds(timeout_s, "timeout_s")
    checked_seconds(connect_timeout_s, "connect_timeout_s")
    tls = TlsFiles.of(tls_ca, tls_cert, tls_key)
    token = _token(token, address, is_safe=insecure or tls is not None)
    is_traced = tracing.is_installed()
    wire = _wire(address, transport, label, token, tls, is_traced=is_traced)
    transport_of = tracing.TracedTransport if is_traced else Transport
    executor = RemoteExecutor(
        transport_of(wire, address, timeout_s=timeout_s, waits=wait), wire_dtype
    )
    executor.connected_by = arguments
    try:
        return Store(executor, timeout_s=connect_timeout_s)
    except DeadlineError as exc:
        executor.close()
        raise DeadlineError(f"no embstore server was ready at {address}: {exc}") from None
    except BaseException:
        executor.close()
        raise


def _check(address: str, label: str, transport: str, wire_dtype: str) -> None:
    """Refuse arguments that no connection can have."""
    if wire_dtype not in WIRE_DTYPES:
        raise InvalidArgumentError(
            f"expected wire_dtype to be {_one_of(WIRE_DTYPES)}, found {wire_dtype!r}"
        )
    if not _is_address(address):
        raise InvalidArgumentError(
            f'expected an address "host:port", with a port up to 65535, or "unix:PATH", found '
            f"{address!r}"
        )
    if transport not in TRANSPORTS:
        raise InvalidArgumentError(
            f"expected transport to be {_one_of(TRANSPORTS)}, found {transport!r}"
        )
    if address.startswith(_SOCKET) and transport == "grpc":
        raise InvalidArgumentError(
            f'{address} is a socket for shared memory: expected "host:port" for transport="grpc"'
        )
    if not _is_plain(label):
        raise InvalidArgumentError(f"expected a label of printable ASCII, found {label!r}")


def _is_address(address: Any) -> bool:
    if not isinstance(address, str):
        return False
    try:
        return address.startswith(_SOCKET) or bool(split_address(address))
    except ValueError:
        return False


def _token(given: str | None, address: str, *, is_safe: bool) -> str:
    """Return the token for calls, "" for none. The token is a secret: no message contains it."""
    token = os.environ.get(TOKEN_VARIABLE, "") if given is None else given
    if not _is_plain(token):
        raise InvalidArgumentError(
            "expected a token of printable ASCII characters, found others: look at the file or "
            "variable that it comes from"
        )
    host = address.rpartition(":")[0].strip("[]")
    if token and not (is_safe or address.startswith(_SOCKET) or is_loopback(host)):
        raise InvalidArgumentError(
            f"a token would be sent to {address} in clear text: give tls_ca, the file of the "
            "authorities to trust, or insecure=True if the network is trusted"
        )
    return token


def _wire(
    address: str,
    transport: str,
    label: str,
    token: str,
    tls: TlsFiles | None,
    *,
    is_traced: bool,
) -> Wire:
    """Return the connection object (`Wire`) for a transport."""
    traceparent = tracing.traceparent if is_traced else None
    options: dict[str, Any] = {"label": label, "token": token, "traceparent": traceparent}
    if address.startswith(_SOCKET):
        return SharedMemoryWire(address.removeprefix(_SOCKET), **options)
    wire = GrpcWire(address, tls=tls, **options)
    if transport == "grpc":
        return wire
    return NearestWire(wire, must_share=transport == "shared_memory", **options)


def _one_of(names: Any) -> str:
    return " or ".join(f'"{name}"' for name in names)


def _is_plain(text: Any) -> bool:
    return isinstance(text, str) and (not text or (text.isascii() and text.isprintable()))
