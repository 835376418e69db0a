"""No file is over 500 lines, no function over 60, and no class over 300, but one that says why.

A class of more lines says in its docstring why it is "one class". Kernels count as other code does:
a device function has one idea and a name, and the compiler puts it where it is called.
"""

import ast
import re
from pathlib import Path

from embstore.kernels.sources import VERBS, kernels_of, source
from tests.style.sources import nodes, place, project_files

FILE_LINES, FUNCTION_LINES, CLASS_LINES = 500, 60, 300
PACKAGES = ("embstore", "proto", "client", "server", "tests")
CUDA = (".cu", ".cuh")
CUDA_HEAD = re.compile(r'template <|__device__ |extern "C" __global__ ')


def sources(*suffixes: str) -> list[Path]:
    return [
        path
        for package in PACKAGES
        for path in project_files(*suffixes, under=package)
        if "_pb2" not in path.name
    ]


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def cuda_functions(text: str) -> dict[str, tuple[int, int]]:
    """Return the line and the lines of each function, by name and line.

    One begins with its head at the margin, and ends with the brace at the margin.
    """
    found, begin, name = {}, 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if CUDA_HEAD.match(line):
            begin = begin or number
            name = (re.findall(r"(\w+)\(", line) or [""])[-1]
        elif line == "}":
            found[f"{name}:{begin}"] = begin, number - begin + 1
        if line.startswith("}"):
            begin = 0
    return found


def test_files_are_short():
    counts = {path: len(path.read_text("utf-8").splitlines()) for path in sources(".py", *CUDA)}
    wrong = [f"{place(path)}: {n} lines" for path, n in counts.items() if n > FILE_LINES]
    assert not wrong, "\n".join(wrong)


def test_functions_are_short():
    wrong = [
        f"{place(path, node)}: {node.name}, {lines_of(node)} lines"
        for path in sources(".py")
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and lines_of(node) > FUNCTION_LINES
    ]
    assert not wrong, "\n".join(wrong)


def test_functions_of_kernels_are_short():
    wrong = [
        f"{place(path)}:{begin}: {name}, {lines} lines"
        for path in sources(*CUDA)
        for name, (begin, lines) in cuda_functions(path.read_text("utf-8")).items()
        if lines > FUNCTION_LINES
    ]
    assert not wrong, "\n".join(wrong)


def test_functions_of_kernels_are_seen():
    for verb in VERBS:
        found = cuda_functions(source(verb))
        assert set(kernels_of(verb)) <= {name.partition(":")[0] for name in found}
    assert cuda_functions(
        "template <int N>\n__device__ int f(\n    int a) {\n    return N;\n}\n"
    ) == {"f:1": (1, 5)}


def test_large_classes_say_why_they_are_one():
    wrong = [
        f"{place(path, node)}: {node.name}"
        for path in sources(".py")
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
        and lines_of(node) > CLASS_LINES
        and "One class" not in (ast.get_docstring(node) or "")
    ]
    assert not wrong, "\n".join(wrong)
