"""What an error tells its reader to do can be done: the commands, flags and functions that texts of
the product name are there."""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

import embstore
from embstore.handles.store import Store
from embstore.handles.table import Table
from embstore_server.cli.commands import app
from embstore_server.setup.settings import declared
from tests.style.sources import ROOT, nodes, place, project_files

PACKAGES = "embstore", "client", "server"
COMMAND = re.compile(r"`embstore ([a-z-]+)|\bembstore ([a-z-]+ (?:[A-Z]{2,}|\{))")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
CALL = re.compile(r"(?<![\w.`'\"])((?:store|table|run|step|embstore)\.)?([a-z_]+)\((?!s\))")
NO_PROSE = "server/embstore_tools/report/page.py", "embstore/arithmetic/codegen.py"
"""Their texts are CSS, and C."""
OTHERS = {"--upgrade", "--network", "--shm-size", "--ipc", "--gpus", "--ulimit"}
"""Flags of pip and docker."""
OTHER_FUNCTIONS = {"state_dict", *dir(builtins)}


@cache
def texts() -> list[tuple[str, str]]:
    """Return the texts of the product that are no docstrings, each with its place; {} is what is
    put into them."""
    found = []
    for package in PACKAGES:
        for path in project_files(".py", under=package):
            if str(path.relative_to(ROOT)) in NO_PROSE:
                continue
            docs = {id(e.value) for e in nodes(path) if isinstance(e, ast.Expr)}
            parts = {id(v) for j in nodes(path) if isinstance(j, ast.JoinedStr) for v in j.values}
            for node in nodes(path):
                if id(node) in docs:
                    continue
                if isinstance(node, ast.JoinedStr):
                    found.append((place(path, node), "".join(map(_text_of, node.values))))
                elif isinstance(node, ast.Constant) and id(node) not in parts:
                    text = node.value if isinstance(node.value, str) else ""
                    found.append((place(path, node), text))
    return found


def _text_of(part: ast.expr) -> str:
    return part.value if isinstance(part, ast.Constant) else "{}"


@cache
def commands() -> dict[str, Any]:
    """Return the commands of the command line by name, those of groups as "group command"."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return dict(_commands_of(group, ""))


def _commands_of(group: Any, above: str) -> Iterator[tuple[str, Any]]:
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield above + name, command
        if hasattr(command, "list_commands"):
            yield from _commands_of(command, f"{name} ")


def test_commands_that_texts_name_are_there():
    wrong = [
        f"{where}: embstore {name}"
        for where, text in texts()
        for quoted, plain in COMMAND.findall(text)
        if (name := (quoted or plain).split()[0]) not in commands()
    ]
    assert not wrong, "\n".join(wrong)


def test_flags_that_texts_name_are_there():
    options = [option for command in commands().values() for option in command.params]
    flags = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
    flags |= {setting.flag for setting in declared().values()} | OTHERS | {"--help"}
    wrong = [
        f"{where}: {flag}"
        for where, text in texts()
        if " " in text
        for flag in FLAG.findall(text)
        if flag not in flags and not any(known.startswith(flag) for known in flags)
    ]
    assert not wrong, "\n".join(wrong)


def test_functions_that_texts_name_are_there():
    owners = {"store.": Store, "table.": Table, "embstore.": embstore}
    defined = OTHER_FUNCTIONS | {
        node.name
        for package in PACKAGES
        for path in project_files(".py", under=package)
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    wrong = [
        f"{where}: {owner}{name}()"
        for where, text in texts()
        if " " in text
        for owner, name in CALL.findall(text)
        if not (hasattr(owners[owner], name) if owner in owners else name in defined)
    ]
    assert not wrong, "\n".join(wrong)
