"""Functions over 60 lines and files over 500 deserve a second thought: reported, never enforced.

Kernels are exempt. The report goes to the terminal of `make check`; xdist's workers have none.
"""

import ast

import pytest

from tests.style.sources import ROOT, parse, place, project_files

FUNCTION_LINES = 60
FILE_LINES = 500


def long_functions(tree: ast.Module) -> list[tuple[str, int, ast.AST]]:
    """Return (name, lines, node) of every function with more than FUNCTION_LINES lines."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    sized = [(f.name, (f.end_lineno or f.lineno) - f.lineno + 1, f) for f in functions]
    return [entry for entry in sized if entry[1] > FUNCTION_LINES]


def report() -> list[str]:
    """Return a line for everything that is larger than the style guide's stops."""
    lines = []
    for path in project_files(".py"):
        if path.parent == ROOT / "embstore" / "kernels":
            continue
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > FILE_LINES:
            lines.append(f"{place(path)}: {count} lines")
        lines += [
            f"{place(path, f)}: {name} has {n} lines" for name, n, f in long_functions(parse(path))
        ]
    return lines


def test_report_of_sizes(pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    large = report()
    if terminal is not None and large:
        with capsys.disabled():
            terminal.write_line("")
            for line in large:
                terminal.write_line(f"large: {line}", yellow=True)


def test_functions_are_measured_from_def_to_last_line() -> None:
    body = "\n".join(["    pass"] * FUNCTION_LINES)
    tree = ast.parse(f"def at_61():\n{body}\n\ndef at_2():\n    pass\n")
    assert [(name, lines) for name, lines, _ in long_functions(tree)] == [("at_61", 61)]
