"""Archives whose bytes depend only on the files in them: the files are sorted, and their times,
owners and modes are fixed."""

import gzip
import io
import tarfile
from pathlib import Path

from release.reference import page
from release.source import Source

_MODE = 0o644
_PROTO = Path("proto", "embstore_proto", "v1", "embstore.proto")


def build(source: Source, target: Path) -> None:
    """Build the archives of a release into a folder."""
    version = source.version
    proto, licence = source.path / _PROTO, source.path / "LICENSE"
    text = {"embstore.proto": proto.read_bytes(), "LICENSE": licence.read_bytes()}
    reference = page(text["embstore.proto"].decode()).encode()
    path = target / f"embstore-proto-{version}.tar.gz"
    proto_files = {f"embstore_proto/v1/{_PROTO.name}": text["embstore.proto"]}
    proto_files |= {"LICENSE": text["LICENSE"], "reference.md": reference}
    write(path, f"embstore-proto-{version}", proto_files, source.time_s)
    node = _files(source.path / "client" / "node") | text
    # `npm pack` would choose these names of the file and the folder.
    write(target / f"embstore-client-{version}.tgz", "package", node, source.time_s)
    go = _files(source.path / "client" / "go") | text
    write(target / f"embstore-go-{version}.tar.gz", f"embstore-go-{version}", go, source.time_s)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write(path: Path, folder: str, files: dict[str, bytes], time_s: int) -> None:
    """Write an archive of one folder."""
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=time_s) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(files):
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(files[name]), time_s, _MODE
            archive.addfile(entry, io.BytesIO(files[name]))
