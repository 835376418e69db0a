"""Certificates of an authority of the test's own."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Authority:
    """An authority, whose files are in a folder."""

    ca: trustme.CA
    folder: Path

    @classmethod
    def new(cls, folder: Path) -> "Authority":
        """Make one; `folder` is made, too."""
        folder.mkdir()
        made = cls(trustme.CA(), folder)
        made.ca.cert_pem.write_to_path(folder / "ca.pem")
        return made

    @property
    def file(self) -> Path:
        """The authority's own certificate."""
        return self.folder / "ca.pem"

    def pair(self, file: str, *names: str, common_name: str | None = None) -> tuple[Path, Path]:
        """Write a certificate for these names; return it, and its key."""
        made = self.ca.issue_cert(*names, common_name=common_name)
        chain, key = self.folder / f"{file}.pem", self.folder / f"{file}.key"
        chain.write_bytes(b"".join(one.bytes() for one in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return chain, key

    def strange_pair(
        self, file: str, common_names: Sequence[str], others: Sequence[x509.GeneralName]
    ) -> tuple[Path, Path]:
        """Write a certificate of any names; return it, and its key."""
        own = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.load_pem_x509_certificate(self.ca.cert_pem.bytes())
        attributes = [x509.NameAttribute(x509.NameOID.ORGANIZATIONAL_UNIT_NAME, "operator")]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an empty one
            attributes += [
                x509.NameAttribute(x509.NameOID.COMMON_NAME, name, _validate=False)
                for name in common_names
            ]
        made = (
            x509.CertificateBuilder(issuer.subject, x509.Name(attributes), own.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(issuer.not_valid_before_utc)
            .not_valid_after(issuer.not_valid_after_utc)
        )
        usage = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CLIENT_AUTH])
        made = made.add_extension(usage, critical=False)
        if others:
            made = made.add_extension(x509.SubjectAlternativeName(others), critical=False)
        key = serialization.load_pem_private_key(self.ca.private_key_pem.bytes(), None)
        signed = made.sign(key, hashes.SHA256())
        pair = self.folder / f"{file}.pem", self.folder / f"{file}.key"
        pair[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        pair[1].write_bytes(
            own.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def credentials(self, pair: tuple[Path, Path] | None = None) -> Any:
        """Return gRPC's credentials of a client that shows this certificate."""
        chain, key = (None, None) if pair is None else (path.read_bytes() for path in pair)
        return grpc.ssl_channel_credentials(self.file.read_bytes(), key, chain)


def server_settings(authority: Authority, file: str = "server") -> dict[str, Path]:
    """Return the settings of a server on loopback that has a certificate."""
    cert, key = authority.pair(file, "127.0.0.1", "localhost")
    return {"tls_cert": cert, "tls_key": key}
