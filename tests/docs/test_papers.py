"""The page of the four papers has the table that `tests.bench.papers` makes of its files."""

import json
import re

from tests.bench.papers import newest, table
from tests.style.sources import ROOT

PAGE = (ROOT / "docs" / "papers.md").read_text()


def test_the_table_of_the_page_is_made_of_its_files():
    hot, lookahead = (
        json.loads((ROOT / "docs" / path).read_text())
        for path in re.findall(r"\((figures/[^)]*\.json)\)", PAGE)
    )
    assert table(hot, lookahead) in PAGE


def test_the_newest_results_have_the_part_that_is_needed():
    assert newest("hot", "training").name.startswith("hot-")
    assert "cells" in json.loads(newest("lookahead", "cells").read_text())
