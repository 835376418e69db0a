"""A class of the product over 300 lines says in its docstring why it is "one class"."""

import ast

from tests.style.sources import nodes, place, project_files

CLASS_LINES = 300


def test_large_classes_say_why_they_are_one():
    wrong = [
        f"{place(path, node)}: {node.name}"
        for package in ("embstore", "proto", "client", "server")
        for path in project_files(".py", under=package)
        if "_pb2" not in path.name
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
        and (node.end_lineno or 0) - node.lineno >= CLASS_LINES
        and "One class" not in (ast.get_docstring(node) or "")
    ]
    assert not wrong, "\n".join(wrong)
