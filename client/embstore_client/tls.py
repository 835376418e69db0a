"""The files of a client's TLS. They are read once for gRPC, and again after a failed connection."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from embstore.errors import InvalidArgumentError

if TYPE_CHECKING:
    import ssl

PathLike = str | os.PathLike[str]


class TlsFiles(NamedTuple):
    """PEM files: the authorities to trust and, for mutual TLS, a certificate and its key."""

    ca: PathLike
    cert: PathLike | None = None
    key: PathLike | None = None

    @classmethod
    def of(
        cls, ca: PathLike | None, cert: PathLike | None, key: PathLike | None
    ) -> "TlsFiles | None":
        """Return the files that were passed; None: no TLS. Raises InvalidArgumentError if one of
        the files requires another that is missing."""
        if (cert is None) != (key is None) or (cert is not None and ca is None):
            raise InvalidArgumentError(
                "expected tls_ca, tls_cert and tls_key, all for mutual TLS, tls_ca alone for TLS"
            )
        return None if ca is None else cls(ca, cert, key)

    def credentials(self) -> Any:
        """Return the files as gRPC credentials."""
        pair = [None if path is None else Path(path).read_bytes() for path in (self.key, self.cert)]
        return grpc.ssl_channel_credentials(Path(self.ca).read_bytes(), *pair)

    def context(self) -> "ssl.SSLContext":
        """Return the files as a context for sockets. Raises ssl.SSLError if they are invalid."""
        import ssl

        context = ssl.create_default_context(cafile=self.ca)
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        return context
