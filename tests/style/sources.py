"""The project's source files, as the style tests read them."""

import ast
import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SKIPPED = {"__pycache__", "build", "dist"}


def project_files(*suffixes: str, under: str = "") -> Iterator[Path]:
    """Yield the project's files with one of `suffixes` (all, where none is given), in order.

    Folders whose name begins with a dot hold environments and caches, except .ci and .github.
    """
    for folder, folders, names in os.walk(ROOT / under):
        folders[:] = sorted(
            f
            for f in folders
            if f in (".ci", ".github") or not (f.startswith(".") or f in _SKIPPED)
        )
        for name in sorted(names):
            if not suffixes or name.endswith(suffixes):
                yield Path(folder, name)


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file. Shared between tests: do not change it."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    gc.freeze()  # else each collection goes through the nodes of all files
    return tree


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of a Python file."""
    return tuple(ast.walk(parse(path)))


def place(path: Path, node: ast.AST | None = None) -> str:
    """Return where something was found, as path:line below the root, for a test's message."""
    line = getattr(node, "lineno", None)
    return f"{path.relative_to(ROOT)}:{line}" if line else str(path.relative_to(ROOT))


def module_name(path: Path) -> str:
    """Return a module's dotted name: embstore/cache/__init__.py -> embstore.cache."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in ("client", "proto", "server"):  # folders that are on the path
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def table_rows(page: str, header: str) -> list[list[str]]:
    """Return the cells of the one table of a page whose header begins so, `first | second`."""
    form = rf"^\| {re.escape(header)} \|.*\n\|[- |]+\|\n((?:\|.*\n)+)"
    (body,) = re.findall(form, page, re.MULTILINE)
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in body.splitlines()]


def run_python(code: str) -> str:
    """Run `code` in a fresh interpreter at the root and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")
