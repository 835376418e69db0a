"""The lists of docs/architecture.md, held against the tree: every path that they name exists.

"How to add" also names no more places than its bound, which is what was promised; some of it is
done in `tests/additions`.
"""

import re

import pytest

from tests.style.sources import ROOT, table_rows

PAGE = (ROOT / "docs" / "architecture.md").read_text()
BOUNDS = {
    "a control verb": 4,
    "a bulk verb": 4,
    "an optimizer": 5,
    "an eviction policy": 3,
    "a transport, beside its own wire and port": 2,
    "a stat": 1,
    "a row dtype, of all tables": 8,
    "an option of a store": 3,
    "a setting": 3,
}


ADDITIONS = table_rows(PAGE, "to add | at most | places")


def paths(text: str) -> list[str]:
    return re.findall(r"`([\w.-]+/[\w./-]+)`", text)


def test_every_path_of_the_page_exists():
    assert not {path for path in paths(PAGE) if not (ROOT / path).exists()}


@pytest.mark.parametrize("row", ADDITIONS, ids=lambda row: row[0])
def test_additions_touch_no_more_places_than_promised(row):
    what, bound, places = row
    assert int(bound) == BOUNDS[what]
    assert 1 <= len(paths(places)) <= BOUNDS[what]


def test_every_addition_is_listed():
    assert [row[0] for row in ADDITIONS] == list(BOUNDS)


def test_every_room_is_listed():
    listed = {
        path
        for row in table_rows(PAGE, "room | what it has | may import")
        for path in paths(row[0])
    }
    rooms = {
        str(folder.parent.relative_to(ROOT))
        for package in ("embstore/*", "proto/*", "client/*", "server/*")
        for folder in ROOT.glob(f"{package}/__init__.py")
    }
    assert rooms == listed


def test_every_module_of_commands_is_in_the_reference():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    listed = re.findall(r"^::: embstore\.commands\.(\w+)$", page, re.MULTILINE)
    folder = ROOT / "embstore" / "commands"
    assert sorted(listed) == sorted(p.stem for p in folder.glob("*.py") if p.stem != "__init__")
