"""Certificates of an authority of the test's own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import trustme


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

    def credentials(self, pair: tuple[Path, Path] | None = None) -> Any:
        """Return gRPC's credentials of a client that shows this certificate."""
        chain, key = (None, None) if pair is None else (path.read_bytes() for path in pair)
        return grpc.ssl_channel_credentials(self.file.read_bytes(), key, chain)


def server_settings(authority: Authority, file: str = "server") -> dict[str, Path]:
    """Return the settings of a server on loopback that has a certificate."""
    cert, key = authority.pair(file, "127.0.0.1", "localhost")
    return {"tls_cert": cert, "tls_key": key}
