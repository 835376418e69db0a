"""Bills of materials as SPDX 2.3: of a release with its dependencies, and of images.

Dependencies are listed with the bounds that the package declares, and without versions, which are
chosen at installation. Vendored code is listed with its version and licence.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from release.source import Source

_NONE = "NOASSERTION"
_UPLOT = "server/embstore_server/page/vendor/uPlot.iife.min.js"
_UPLOT_VERSION = re.compile(r"uPlot \(v([\d.]+)\)")
_EXTRAS = ("cli", "fast", "server", "cuda12", "cuda13", "data", "torch", "jax", "keras", "otel")
_EXTRAS += ("ray", "remote")
"""The extras for users; the other extras are for developers of embstore."""


def write(source: Source, target: Path) -> Path:
    """Write the bill of materials of the files in a folder into that folder; return its path."""
    root = package("embstore", source.version, licence="Apache-2.0")
    vendored = (source.path / _UPLOT).read_text()[:200]
    match = _UPLOT_VERSION.search(vendored)
    assert match is not None, f"{_UPLOT} does not begin with its version"
    uplot = package("uPlot", match[1], licence="MIT", locator=f"pkg:npm/uplot@{match[1]}")
    files = [_artifact(path) for path in sorted(target.iterdir())]
    needed = dependencies(source)
    packages = {each["SPDXID"]: each for each in [root, uplot, *files]}
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", root), (root["SPDXID"], "CONTAINS", uplot)]
    relations += [(root["SPDXID"], "PACKAGE_OF", each) for each in files]
    for needs, extra in needed:
        packages[needs["SPDXID"]] = needs
        if extra:
            relations.append((needs["SPDXID"], "OPTIONAL_DEPENDENCY_OF", root))
        else:
            relations.append((root["SPDXID"], "DEPENDS_ON", needs))
    return document(source, target, f"embstore-{source.version}", packages.values(), relations)


def document(
    source: Source,
    target: Path,
    name: str,
    packages: Iterable[dict[str, Any]],
    relations: list[tuple[str, str, dict[str, Any]]],
) -> Path:
    """Write a bill of materials into a folder; return its path. A relation is (id of a package,
    type, other package)."""
    by_id = {one["SPDXID"]: one for one in packages}
    content = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{source.commit}",
        "creationInfo": {
            "created": f"{datetime.fromtimestamp(source.time_s, UTC):%Y-%m-%dT%H:%M:%SZ}",
            "creators": ["Organization: embstore"],
        },
        "packages": [by_id[one] for one in sorted(by_id)],
        "relationships": _sorted(relations),
    }
    path = target / f"{name}.spdx.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def dependencies(source: Source) -> list[tuple[dict[str, Any], str]]:
    """Return each package that pyproject.toml and package.json name, with the extra that needs it;
    "": the package is always required."""
    project = tomllib.loads((source.path / "pyproject.toml").read_text())["project"]
    wanted = [(line, "") for line in project["dependencies"]]
    for extra in _EXTRAS:
        wanted += [(line, extra) for line in project["optional-dependencies"][extra]]
    found = []
    for line, extra in wanted:
        match = re.match(r"([\w.-]+)(\[.*?\])?(.*)", line)
        assert match is not None, line
        name, bound = match[1], match[3].partition(";")[0].strip()
        if name != "embstore":
            comment = f"{bound}, for the extra {extra}" if extra else bound
            found.append((_dependency("pypi", name, comment), extra))
    node = json.loads((source.path / "client" / "node" / "package.json").read_text())
    for name, bound in node["dependencies"].items():
        comment = f"{bound}, for the client for Node"
        found.append((_dependency("npm", name.replace("@", "%40"), comment), "node"))
    return found


def _sorted(relations: list[tuple[str, str, dict[str, Any]]]) -> list[dict[str, str]]:
    triples = sorted({(one, kind, other["SPDXID"]) for one, kind, other in relations})
    return [
        {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
        for one, kind, other in triples
    ]


def package(name: str, version: str, licence: str = _NONE, locator: str = "") -> dict[str, Any]:
    """Return a package of a bill. `licence` is an SPDX expression, `locator` a package URL."""
    described: dict[str, Any] = {
        "name": name,
        "SPDXID": f"SPDXRef-{re.sub(r'[^A-Za-z0-9.-]', '-', name)}",
        "downloadLocation": _NONE,
        "filesAnalyzed": False,
        "licenseConcluded": licence,
        "licenseDeclared": licence,
        "copyrightText": _NONE,
    }
    if version:
        described["versionInfo"] = version
    if locator:
        reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl"}
        described["externalRefs"] = [{**reference, "referenceLocator": locator}]
    return described


def _dependency(registry: str, name: str, comment: str) -> dict[str, Any]:
    found = package(name.replace("%40", "@"), "", locator=f"pkg:{registry}/{name}")
    return found | {"comment": comment}


def _artifact(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    checksums = [{"algorithm": "SHA256", "checksumValue": digest}]
    found = package(path.name, "", licence="Apache-2.0")
    return found | {"packageFileName": path.name, "checksums": checksums}
