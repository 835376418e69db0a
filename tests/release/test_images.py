"""Bills of materials of images, without an engine that would build them."""

import hashlib
import json
import subprocess
import sys

import pytest

from release import bill, images
from tests.release.test_archives import HERE


def test_the_list_has_what_an_interpreter_can_import():
    """It runs in the image; here it runs with this environment."""
    done = subprocess.run([sys.executable, "-c", images._LIST], check=True, capture_output=True)
    python, debian = json.loads(done.stdout)
    by_name = {name: (version, licence) for name, version, licence in python}
    assert {"embstore", "numpy", "grpcio"} <= by_name.keys()
    assert by_name["embstore"][1] == "Apache-2.0"
    assert all(len(one) == 2 for one in debian)


class Listed(images.Image):
    """An image whose engine answers from here."""

    def _output(self, *words):
        if words[0] == "image":
            return "sha256:" + "ab" * 32 + "\n"
        own = ["nvidia-x", "1", "LicenseRef-NVIDIA-Proprietary"]
        python = [["numpy", "2.0", "BSD-3-Clause"], ["x", "1", None], own]
        return json.dumps([python, [["libc6", "2"]]])


@pytest.mark.parametrize(("kind", "tag"), [("cpu", "embstore:0.1.0"), ("cuda12", ":0.1.0-cuda12")])
def test_a_bill_names_the_image_and_what_is_in_it(tmp_path, kind, tag):
    image = Listed(HERE, kind, "none")
    assert image.tag.endswith(tag)
    content = json.loads(image.list_contents(tmp_path).read_text())
    packages = {one["SPDXID"]: one for one in content["packages"]}
    root = packages[f"SPDXRef-embstore-0.1.0-image-{kind}"]
    assert root["checksums"] == [{"algorithm": "SHA256", "checksumValue": "ab" * 32}]
    assert packages["SPDXRef-numpy-python"]["licenseDeclared"] == "BSD-3-Clause"
    assert packages["SPDXRef-x-python"]["licenseDeclared"] == bill._NONE
    own = packages["SPDXRef-nvidia-x-python"]
    assert own["licenseComments"] == "LicenseRef-NVIDIA-Proprietary"
    assert own["licenseDeclared"] == bill._NONE
    locator = packages["SPDXRef-libc6-debian"]["externalRefs"][0]["referenceLocator"]
    assert locator == "pkg:deb/debian/libc6@2"
    related = {one["relatedSpdxElement"] for one in content["relationships"]}
    assert related == packages.keys()


def test_checksums_are_added_in_place_of_older_ones(tmp_path):
    sums, bill_file = tmp_path / "SHA256SUMS", tmp_path / "image.spdx.json"
    sums.write_text("11  a.whl\n22  image.spdx.json\n")
    bill_file.write_bytes(b"new")
    images._add_checksums([bill_file])
    digest = hashlib.sha256(b"new").hexdigest()
    assert sums.read_text() == f"11  a.whl\n{digest}  image.spdx.json\n"
