"""`python -m release.images`: builds the images of HEAD, with a bill of materials for each.

Each image gets a tag, and a file in the target folder that lists what is in the image: the Python
distributions, the Debian packages of the base, and the id of the image (a SHA-256 of its
configuration, which contains the SHA-256 of every layer). The lists are read from a container of
the image. With `--save`, an archive of each image and the checksums of all files are written, too.
Nothing is published.

An image for a GPU is built without one: neither driver nor toolkit are part of it.
"""

import argparse
import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from release import bill, source

KINDS = {"cpu": "server", "cuda12": "server,cuda12", "cuda13": "server,cuda13"}
"""The extras of each kind of image; `cpu` has the plain tag."""
_LIST = """
import json, pathlib
from importlib.metadata import distributions
python = [(d.name, d.version, d.metadata.get("License-Expression")) for d in distributions()]
status = pathlib.Path("/var/lib/dpkg/status")
debian = []
for entry in status.read_text().split("\\n\\n") if status.exists() else ():
    fields = dict(line.split(": ", 1) for line in entry.splitlines() if ": " in line[1:])
    if "Package" in fields:
        debian.append((fields["Package"], fields["Version"]))
print(json.dumps([python, debian]))
"""
"""A program that prints what is installed; it runs in the image, with the image's Python."""


def main() -> None:
    """Build the named kinds of images."""
    parser = argparse.ArgumentParser(prog="python -m release.images", description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="default: all kinds")
    parser.add_argument("--target", type=Path, default=source.ROOT / "dist")
    parser.add_argument("--engine", default=os.environ.get("ENGINE", "podman"))
    parser.add_argument("--base", default=os.environ.get("BASE", ""), help="the base image")
    parser.add_argument("--save", action="store_true", help="write archives of the images")
    given = parser.parse_args()
    given.target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        of = source.export(Path(scratch, "source"))
        for kind in given.kinds or KINDS:
            image = Image(of, kind, given.engine)
            image.build(given.base)
            written = [image.list_contents(given.target)]
            if given.save:
                written.append(image.save(given.target))
            _add_checksums(written)


class Image:
    """An image of one kind."""

    def __init__(self, of: source.Source, kind: str, engine: str) -> None:
        self._source, self._kind, self._engine = of, kind, engine
        suffix = "" if kind == "cpu" else f"-{kind}"
        self.tag = f"embstore:{of.version}{suffix}"

    def build(self, base: str) -> None:
        """Build and tag the image. BUILD_OPTIONS in the environment are more words for `build`."""
        words = ["--file", "docker/Dockerfile", "--tag", self.tag]
        words += ["--build-arg", f"EXTRAS={KINDS[self._kind]}"]
        words += ["--build-arg", f"BASE={base}"] if base else []
        words += os.environ.get("BUILD_OPTIONS", "").split()
        print(f"release: building {self.tag} of {self._source.commit[:12]}", flush=True)
        environment = os.environ | {"BUILDAH_FORMAT": "docker"}  # has a place for HEALTHCHECK
        command = [self._engine, "build", *words, "."]
        subprocess.run(command, cwd=self._source.path, env=environment, check=True)

    def list_contents(self, target: Path) -> Path:
        """Write the image's bill of materials into a folder; return its path."""
        name = f"embstore-{self._source.version}-image-{self._kind}"
        root = bill.package(name, self._source.version, licence="Apache-2.0")
        image_id = self._output("image", "inspect", "--format", "{{.Id}}", self.tag).strip()
        digest = image_id.removeprefix("sha256:")
        root["checksums"] = [{"algorithm": "SHA256", "checksumValue": digest}]
        run = ("run", "--rm", "--no-healthcheck", "--entrypoint", "python")
        python, debian = json.loads(self._output(*run, self.tag, "-c", _LIST))
        packages = [_distribution(*one) for one in python] + [_debian(*one) for one in debian]
        relations = [("SPDXRef-DOCUMENT", "DESCRIBES", root)]
        relations += [(root["SPDXID"], "CONTAINS", one) for one in packages]
        return bill.document(self._source, target, name, [root, *packages], relations)

    def save(self, target: Path) -> Path:
        """Write an archive of the image into a folder; return its path."""
        path = target / f"embstore-{self._source.version}-image-{self._kind}.tar"
        path.unlink(missing_ok=True)
        subprocess.run([self._engine, "save", "--output", path, self.tag], check=True)
        return path

    def _output(self, *words: str) -> str:
        done = subprocess.run([self._engine, *words], check=True, stdout=subprocess.PIPE)
        return done.stdout.decode()


def _distribution(name: str, version: str, licence: str | None) -> dict[str, Any]:
    locator = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    found = bill.package(name, version, locator=locator)
    if licence and "LicenseRef-" in licence:  # an expression of it would need the licence's text
        found["licenseComments"] = licence
    elif licence:
        found["licenseDeclared"] = licence
    return found | {"SPDXID": f"{found['SPDXID']}-python"}


def _debian(name: str, version: str) -> dict[str, Any]:
    found = bill.package(name, version, locator=f"pkg:deb/debian/{name}@{version}")
    return found | {"SPDXID": f"{found['SPDXID']}-debian"}


def _add_checksums(paths: list[Path]) -> None:
    """Add files to the SHA256SUMS of their folder, in place of older files of the same names."""
    sums = paths[0].with_name("SHA256SUMS")
    lines = sums.read_text().splitlines() if sums.exists() else []
    by_name = {line.partition("  ")[2]: line for line in lines}
    for path in paths:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        by_name[path.name] = f"{digest}  {path.name}"
    sums.write_text("".join(f"{by_name[name]}\n" for name in sorted(by_name)))


if __name__ == "__main__":
    main()
