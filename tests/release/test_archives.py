"""Parts of a release: archives of fixed bytes, the page of the .proto file, bill of materials."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

import embstore
from embstore_proto.v1 import embstore_pb2 as pb
from release import archives, bill, reference, source
from tests.style.sources import ROOT

HERE = source.Source(path=ROOT, commit="c0ffee", time_s=1_700_000_000, version="0.1.0")
PROTO = (ROOT / "proto" / "embstore_proto" / "v1" / "embstore.proto").read_text()


@pytest.fixture
def exported(tmp_path: Path) -> source.Source:
    """Return the commit of this clone, exported."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a clone")
    return source.export(tmp_path / "source")


def built(of: source.Source, target: Path) -> dict[str, bytes]:
    """Build the archives; return what each file has."""
    target.mkdir()
    archives.build(of, target)
    return {path.name: path.read_bytes() for path in target.iterdir()}


def test_what_git_exports_knows_its_commit(exported):
    code = "from embstore.version import build; print(build())"
    environment = os.environ | {"PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=exported.path, env=environment, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == exported.commit[:12]
    assert exported.version == embstore.__version__


def test_archives_have_the_same_bytes_whatever_modes_and_times_the_files_have(tmp_path):
    copies = [tmp_path / "one", tmp_path / "two"]
    for copy in copies:
        for part in ("client/node", "client/go", "proto/embstore_proto/v1"):
            shutil.copytree(ROOT / part, copy / part)
        shutil.copy(ROOT / "LICENSE", copy)
    for path in filter(Path.is_file, copies[1].rglob("*")):
        path.chmod(0o600)
        os.utime(path, (0, 0))
    first, second = (built(replace(HERE, path=copy), copy / "dist") for copy in copies)
    assert first == second
    assert sorted(first) == [
        "embstore-client-0.1.0.tgz",
        "embstore-go-0.1.0.tar.gz",
        "embstore-proto-0.1.0.tar.gz",
    ]


def test_the_package_for_node_has_what_it_exports(tmp_path):
    archives.build(HERE, tmp_path)
    with tarfile.open(tmp_path / "embstore-client-0.1.0.tgz") as archive:
        names = archive.getnames()
        package = json.load(archive.extractfile("package/package.json"))
    assert names == sorted(names)
    assert {f"package/{Path(each).name}" for each in package["exports"].values()} <= set(names)
    assert {"package/LICENSE", "package/README.md"} <= set(names)


def test_the_clients_have_the_version_of_the_store():
    folder = ROOT / "client" / "node"
    package, lock = (
        json.loads((folder / name).read_text()) for name in ("package.json", "package-lock.json")
    )
    citation = (ROOT / "CITATION.cff").read_text()
    named = [package["version"], lock["version"], *re.findall(r"^version: (.+)$", citation, re.M)]
    assert named == [embstore.__version__] * 3


def test_the_page_of_the_proto_file_has_every_declaration():
    page = reference.page(PROTO)
    file = pb.DESCRIPTOR
    declared = {*file.services_by_name, *file.message_types_by_name, *file.enum_types_by_name}
    assert sorted(re.findall(r"^## (\w+)$", page, re.M)) == sorted(declared)
    headings = {name.lower() for name in declared}
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= headings
    assert page.startswith("# embstore.v1\n\nThe wire protocol of embstore, version 1.")
    assert "Used by the calls `UpdateStep`" in page


def test_the_bill_has_files_dependencies_and_what_is_vendored(tmp_path):
    archives.build(HERE, tmp_path)
    document = json.loads(bill.write(HERE, tmp_path).read_text())
    packages_of = {each["name"]: each for each in document["packages"]}
    assert packages_of["uPlot"]["licenseDeclared"] == "MIT"
    assert packages_of["uPlot"]["versionInfo"] in (ROOT / "NOTICE").read_text()
    assert packages_of["embstore-client-0.1.0.tgz"]["checksums"][0]["algorithm"] == "SHA256"
    kinds = {
        (each["relationshipType"], each["spdxElementId"], each["relatedSpdxElement"])
        for each in document["relationships"]
    }
    assert ("DEPENDS_ON", "SPDXRef-embstore", "SPDXRef-numpy") in kinds
    assert ("OPTIONAL_DEPENDENCY_OF", "SPDXRef-typer", "SPDXRef-embstore") in kinds
    assert document["creationInfo"]["created"] == "2023-11-14T22:13:20Z"
