"""Links of the pages outside the site: their files and headings exist. mkdocs checks the site's."""

import re

import pytest

from tests.style.sources import ROOT

PAGES = sorted(path.name for path in ROOT.glob("*.md"))


def anchors_of(text):
    """Return the anchors that GitHub and mkdocs give to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if path.startswith(("https://", "http://", "mailto:")):
            continue
        target = ROOT / (path or name)
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target.read_text()), link
