"""The size of an element is written once: whoever wants bytes of a row asks embstore.layout."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.style.sources import ROOT, nodes, place, project_files

ROWS = re.compile(r"\b(\w*dims?|\w*stride|elements)\b")
"""Names whose product with 4 is bytes of rows."""


def products_with_4(path: Path) -> Iterator[ast.BinOp]:
    for node in nodes(path):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            factors = [node.left, node.right]
            fours = [f for f in factors if isinstance(f, ast.Constant) and f.value == 4]
            if fours and any(ROWS.search(ast.unparse(f)) for f in factors):
                yield node


def test_no_bytes_of_rows_are_counted_with_a_literal():
    found = [
        place(path, node)
        for package in ("embstore", "client", "server", "proto")
        for path in project_files(".py", under=package)
        if path != ROOT / "embstore" / "layout.py"
        for node in products_with_4(path)
    ]
    assert not found, f"use embstore.layout: {found}"
