"""docs/stability.md: the list of public names, and the versions of formats."""

import re

from embstore.storage.format import BACKUP_FORMAT, FORMAT
from embstore_proto.v1 import embstore_pb2 as pb
from tests import public_names
from tests.style.sources import ROOT, table_rows

PAGE = (ROOT / "docs" / "stability.md").read_text()


def test_public_names_are_those_of_the_list():
    """Where a change is meant, `python -m tests.public_names` writes the list anew."""
    expected = public_names.PATH.read_text().splitlines()
    found = public_names.listed()
    missing = [line for line in expected if line not in set(found)]
    new = [line for line in found if line not in set(expected)]
    assert (missing, new) == ([], [])
    assert found == expected


def test_the_list_has_names_of_each_kind():
    lines = public_names.PATH.read_text().splitlines()
    for kind in (
        r"embstore\.Table\.lookup\(keys",
        r"embstore\.commands\.Lookup\(",
        r"embstore\.torch\.\w+",
        r"embstore serve --cache-bytes",
        r"embstore table create --dim",
        r"embstore\.v1\.Embstore\.Lookup\(LookupRequest\) RowsReply",
        r"embstore\.v1\.Context\.store_id = \d",
    ):
        assert any(re.match(kind, line) for line in lines), kind


def test_formats_of_the_page_are_those_of_the_code():
    found = {name: version for name, version, *_ in table_rows(PAGE, "format")}
    assert found == {
        "store": str(FORMAT),
        "backup": str(BACKUP_FORMAT),
        "wire": f"`{pb.DESCRIPTOR.package}`",
    }
