"""What the project's files may not say. A failing test names the places."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.style.sources import ROOT, nodes, parse, place, project_files

BANNED_NAMES = {"utils", "helpers", "common", "manager", "misc"}
LEFT_TO_DO = re.compile(r"\b(?:[T]ODO|[F]IXME)\b(?!.*#\d)")  # [T]: this line is read too
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:root|home|Users)\b(?=/)")


@cache
def text_lines() -> list[tuple[str, str]]:
    """Return every line of every text file of the project with its place."""
    contents = [(path, path.read_bytes()) for path in project_files()]
    return [
        (f"{place(path)}:{n}", line)
        for path, content in contents
        if b"\0" not in content  # else it is no text
        for n, line in enumerate(content.decode(errors="replace").splitlines(), 1)
    ]


def all_nodes(*, under: str = "") -> Iterator[tuple[Path, ast.AST]]:
    """Yield every syntax node of every Python file of the project with its file."""
    for path in project_files(".py", under=under):
        yield from ((path, node) for node in nodes(path))


def test_tests_never_sleep():
    sleeps = [
        place(path, node)
        for path, node in all_nodes(under="tests")
        if _is_sleep(node)
        and not path.is_relative_to(ROOT / "tests" / "bench")  # programs, no tests
    ]
    assert not sleeps, f"wait for an event instead: {sleeps}"


def _is_sleep(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="time"), attr="sleep"):
            return True
        case ast.ImportFrom(module="time", names=names):
            return any(alias.name == "sleep" for alias in names)
    return False


def test_what_is_left_to_do_names_its_issue():
    found = [where for where, line in text_lines() if LEFT_TO_DO.search(line)]
    assert not found, f"write the issue's number (#N) on the line: {found}"


def test_no_paths_of_one_machine():
    checkout = re.compile(rf"(?<![\w.]){re.escape(str(ROOT))}(?![\w-])")
    patterns = [MACHINE_PATH, *([checkout] if len(ROOT.parts) > 2 else [])]
    found = [where for where, line in text_lines() if any(p.search(line) for p in patterns)]
    assert not found


def test_no_text_installs_from_an_index_before_there_is_a_release():
    """Documents say `pip install ".[extra]"` in a clone: nothing is published yet. Errors say
    otherwise where embstore is installed: pip then has the extra in its metadata (version.py)."""
    named = re.compile(r"\bembstore\[\w|pip3? install (?:[\"']?embstore\b)")
    asked = [
        (w, line)
        for w, line in text_lines()
        if not w.startswith(("pyproject.toml", "embstore/version.py"))
    ]
    assert not [where for where, line in asked if named.search(line)]


def test_no_error_is_swallowed():
    swallowed = [place(path, node) for path, node in all_nodes() if _swallows(node)]
    assert not swallowed, f"catch what you can answer: {swallowed}"


def _swallows(node: ast.AST) -> bool:
    """Tell whether a node drops every error: `except Exception: pass`, suppress(Exception)."""
    match node:
        case ast.ExceptHandler(
            type=caught, body=[ast.Pass() | ast.Continue() | ast.Expr(ast.Constant())]
        ):
            return caught is None or _is_broad(caught)
        case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=args):
            return any(_is_broad(arg) for arg in args)
    return False


def _is_broad(caught: ast.expr) -> bool:
    parts = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(p, ast.Name) and p.id in ("Exception", "BaseException") for p in parts)


def test_no_name_that_says_nothing():
    banned = [
        place(path)
        for path in project_files(".py")
        if BANNED_NAMES & {*path.relative_to(ROOT).parent.parts, path.stem.removeprefix("test_")}
    ]
    assert not banned, f"name the idea: {banned}"


def test_every_module_of_the_engine_has_a_docstring():
    bare = [
        place(path)
        for path in project_files(".py", under="embstore")
        if not (ast.get_docstring(parse(path)) or "").strip()
    ]
    assert not bare
