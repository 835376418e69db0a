"""Functions over 60 lines and files over 500 deserve a second thought: these are reported.

Kernels are exempt. The report goes to the terminal of `make check`; xdist's workers have none. A
class of the product over 300 lines says in its docstring why it is "one class".
"""

import ast

import pytest

from tests.style.sources import ROOT, parse, place, project_files

FUNCTION_LINES = 60
FILE_LINES = 500
CLASS_LINES = 300


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


def test_large_classes_say_why_they_are_one() -> None:
    wrong = [
        f"{place(path, node)}: {node.name}"
        for package in ("embstore", "proto", "client", "server")
        for path in project_files(".py", under=package)
        if "_pb2" not in path.name
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
        and (node.end_lineno or 0) - node.lineno >= CLASS_LINES
        and "One class" not in (ast.get_docstring(node) or "")
    ]
    assert not wrong, "\n".join(wrong)


def test_functions_are_measured_from_def_to_last_line() -> None:
    body = "\n".join(["    pass"] * FUNCTION_LINES)
    tree = ast.parse(f"def at_61():\n{body}\n\ndef at_2():\n    pass\n")
    assert [(name, lines) for name, lines, _ in long_functions(tree)] == [("at_61", 61)]
