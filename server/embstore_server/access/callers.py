"""Authentication: finds the principal of a token or a certificate.

Every call is authenticated anew, which takes microseconds. The server keeps no state about failed
attempts.

SIGHUP makes the server read the file of tokens again. A removed token is refused from its next call
on. If the file is invalid, the server logs this, and the tokens that it read before stay in use.
Event loop only.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from embstore.errors import InvalidArgumentError, UnauthenticatedError
from embstore_server.access.principals import ANYBODY, Principal
from embstore_server.access.tokens import NOBODY, Entry, read, split_token
from embstore_server.telemetry.logs import event

_SCHEME = "bearer "


def names_of_peer(auth_context: Mapping[str, Sequence[bytes]]) -> tuple[str, ...]:
    """Return the names in the certificate of a peer, which gRPC has verified; no names if there is
    no certificate."""
    if not (found := auth_context.get("x509_pem_cert", ())):
        return ()
    from embstore_server.access.certificate_names import names_in_pem  # few servers need it

    return names_in_pem(bytes(found[0]))


class Callers:
    """The callers that a server accepts; without a file of tokens, all callers."""

    def __init__(self, path: Path | None, limits: Mapping[str, int]) -> None:
        """Read the file of tokens at `path`; `limits` are the default limits, by name.

        Raises InvalidArgumentError if the file is invalid.
        """
        self._path = path
        self._limits = limits
        self._entries: dict[str, Entry] = {}
        self._principals: dict[str, Principal] = {}
        if path is not None:
            self._take(read(path))

    def _take(self, entries: dict[str, Entry]) -> None:
        self._entries = entries
        self._principals = {
            name: Principal(name, one.rights, {**self._limits, **one.limits})
            for name, one in entries.items()
        }

    @property
    def known(self) -> Collection[Principal]:
        """All principals with a name."""
        return self._principals.values()

    def named(self, name: str) -> Principal | None:
        """Return the principal with this name; None if there is none. Any thread."""
        return self._principals.get(name)

    def reload(self) -> None:
        """Read the file of tokens again; it decides about all calls from now on."""
        if self._path is None:
            return
        try:
            self._take(read(self._path))
        except InvalidArgumentError as exc:
            event(
                logging.ERROR, "tokens not read", reason=str(exc), note="the old ones stay in use"
            )
        else:
            event(logging.INFO, "tokens read", names=len(self._entries))

    def principal_of(self, context: Any) -> Principal:
        """Return the principal of a gRPC call, by its context. Raises UnauthenticatedError."""
        authorization = dict(context.invocation_metadata() or ()).get("authorization", "")
        return self.principal(str(authorization), names_of_peer(context.auth_context()))

    def principal(self, authorization: str, certificate_names: Collection[str]) -> Principal:
        """Return the principal of a call.

        `authorization` is the text of the header Authorization. If it is not empty, its token
        decides which principal this is. Otherwise the name in a verified certificate decides; a
        certificate with several names is refused.

        Raises UnauthenticatedError if the caller is unknown.
        """
        if self._path is None:
            return ANYBODY
        if not authorization:
            if len(certificate_names) > 1 or "" in certificate_names:
                found = len(certificate_names) if any(certificate_names) else "an empty one"
                raise UnauthenticatedError(
                    "expected a certificate of one name (its DNS names and mail addresses, and its "
                    f"common name where it has none of these), found {found}"
                )
            for name in certificate_names:
                entry = self._entries.get(name)
                if entry is not None and entry.secret is None:
                    return self._principals[name]
            raise UnauthenticatedError(
                "expected a token: connect(..., token=...), --token-file FILE of commands, "
                "EMBSTORE_TOKEN, or the header "
                "Authorization: Bearer TOKEN; or, with mutual TLS, a certificate of a known name"
            )
        token = authorization[len(_SCHEME) :].strip()
        if not authorization.lower().startswith(_SCHEME) or not token:
            raise UnauthenticatedError("expected the header Authorization: Bearer TOKEN")
        name, secret = split_token(token)
        if not self._entries.get(name, NOBODY).has(secret):
            raise UnauthenticatedError(
                "the token is unknown, or was removed; ask the operator of this server for a new "
                "one"
            )
        return self._principals[name]
