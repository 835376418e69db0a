"""A file's description of the table that was exported to it, as JSON in the file's metadata."""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from embstore.arrays import Keys
from embstore.config import TableConfig
from embstore.errors import EmbstoreError, InvalidArgumentError
from embstore.handles.scan import Scan

METADATA = "embstore"
"""The key of the JSON object in a file's metadata."""
_VERSION = 1
_NONE = b64encode(zlib.compress(b""))


def packed(keys: Keys) -> str:
    """Return ascending keys as text: their differences, compressed, in base64."""
    gaps = np.diff(keys, prepend=0).astype("<i8")
    return b64encode(zlib.compress(gaps.tobytes())).decode() if len(keys) else ""


@dataclass(frozen=True)
class FileOrigin:
    """The table and the command from which a file was made."""

    config: TableConfig
    """The configuration, with the number of rows and the learning rate that the table had after the
    command `command`."""
    command: int
    """The number of the last command whose effect the rows include."""
    t: int
    """The table's t, the number of its updates, after the command `command`."""
    label: str | None = None
    """The checkpoint that was read. None: the export read a commit without a label."""
    since: str | None = None
    """The file contains the rows written after this checkpoint. None: all written rows."""
    since_command: int = 0
    since_t: int = 0
    """The table's t at the checkpoint `since`."""
    since_rows: int = 0
    """The number of written rows at the checkpoint `since`."""
    since_sample: Mapping[str, str] = field(default_factory=dict)
    """Hashes of some rows that were not written after `since`, by key; see
    `embstore_client.files.base`."""
    deleted: str = ""
    """The keys whose rows were deleted after `since`, in the form of `packed`."""

    @property
    def deleted_keys(self) -> Keys:
        """The keys whose rows were deleted after the checkpoint `since`, ascending."""
        try:
            gaps = np.frombuffer(zlib.decompress(b64decode(self.deleted or _NONE)), "<i8")
        except (ValueError, zlib.error) as exc:
            raise InvalidArgumentError(
                f"expected the keys of deleted rows in the metadata of a file, found: {exc}"
            ) from exc
        keys: Keys = np.cumsum(gaps, dtype=np.int64)
        return keys

    @classmethod
    def of(cls, scan: Scan) -> "FileOrigin":
        """Return the description of a scan; the caller adds `since_rows`, `since_sample` and
        `deleted` later."""
        return cls(
            *(scan.config, scan.command, scan.t, scan.label),
            *(scan.since, scan.since_command, scan.since_t),
        )

    def to_json(self) -> str:
        """Return the description as JSON text for a file."""
        config = self.config
        described = {
            "identity": config.identity(),
            "rows": config.rows,
            "learning_rate": config.optimizer.learning_rate,
        }
        return json.dumps({"version": _VERSION} | asdict(self) | {"config": described})

    @classmethod
    def from_json(cls, text: str | bytes) -> "FileOrigin":
        """Return the description in a JSON text. Raises InvalidArgumentError."""
        try:
            given: dict[str, Any] = json.loads(text)
            version, config = given.pop("version"), given.pop("config")
            if version != _VERSION:
                raise InvalidArgumentError(
                    f"expected version {_VERSION} of embstore's metadata, found {version}: read "
                    "the file with the release that wrote it"
                )
            rows, rate = config["rows"], config["learning_rate"]
            made = TableConfig.from_identity(config["identity"], rows=rows, learning_rate=rate)
            return cls(config=made, **given)
        except (EmbstoreError, ValueError, TypeError, KeyError, AttributeError) as exc:
            raise InvalidArgumentError(
                f"expected embstore's metadata in the file, found it damaged or edited: {exc}"
            ) from exc
