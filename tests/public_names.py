"""The public names, as docs/public-names.txt lists them: `python -m tests.public_names` writes it.

One name a line: of Python with its parameters or fields, of the command line with its flags, of
settings, and of the wire with its numbers. docs/stability.md says what is promised of them.
"""

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer

import embstore
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.cli.commands import app
from embstore_server.setup.settings import declared
from tests.style.sources import ROOT, parse

PATH = ROOT / "docs" / "public-names.txt"
MODULES = ("embstore.commands", "embstore.config", "embstore.results", "embstore.profiles.hotset")
MODULES += ("embstore.profiles.profile",)
ADAPTERS = ("files", "jax", "keras", "torch")
"""Modules `embstore.NAME` that need an extra: their names are read without loading them."""


def listed() -> list[str]:
    """Return the lines of the list."""
    return [*sorted({*_of_python()}), *sorted(_of_commands()), *sorted(_of_wire())]


def _of_python() -> Iterator[str]:
    for name in {*embstore.__all__, "open"}:
        yield from _of_value(f"embstore.{name}", getattr(embstore, name))
    for module in map(import_module, MODULES):
        for name, value in vars(module).items():
            is_own = getattr(value, "__module__", "").startswith(module.__name__)
            if is_own and not name.startswith("_") and callable(value):
                yield from _of_value(f"{module.__name__}.{name}", value)
    for adapter in ADAPTERS:
        tree = parse(ROOT / "client" / "embstore_client" / adapter / "__init__.py")
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
                yield from (f"embstore.{adapter}.{name}" for name in names)


def _of_value(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield name + _parameters(value)
    elif issubclass(value, BaseException):
        bases = [base.__name__ for base in value.__bases__]
        yield f"{name}({', '.join(bases)})"
    elif dataclasses.is_dataclass(value):
        yield f"{name}({', '.join(field.name for field in dataclasses.fields(value))})"
    else:
        yield name
        ours = [each for each in value.__mro__ if each.__module__.startswith("embstore")]
        for member, found in {
            k: v for each in reversed(ours) for k, v in vars(each).items()
        }.items():
            if not member.startswith("_"):
                found = getattr(found, "__func__", found)  # of a class or static method
                is_called = inspect.isroutine(found)
                yield f"{name}.{member}{_parameters(found) if is_called else ''}"


def _parameters(function: Any) -> str:
    return str(
        inspect.Signature(
            [
                parameter.replace(annotation=inspect.Parameter.empty)
                for parameter in inspect.signature(function).parameters.values()
                if parameter.name != "self"
            ]
        )
    )


def _of_commands() -> Iterator[str]:
    yield from (f"embstore serve {each.flag}" for each in declared().values())
    yield from _of_command("embstore", typer.main.get_command(app))


def _of_command(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    for parameter in command.params:
        for flag in parameter.opts if parameter.param_type_name == "option" else []:
            yield f"{name} {flag}"
    for each in command.list_commands(context) if hasattr(command, "list_commands") else []:
        yield from _of_command(f"{name} {each}", command.get_command(context, each))
    yield name


def _of_wire() -> Iterator[str]:
    file = pb.DESCRIPTOR
    for service in file.services_by_name.values():
        for method in service.methods:
            yield f"{method.full_name}({method.input_type.name}) {method.output_type.name}"
    messages = list(file.message_types_by_name.values())
    enums = list(file.enum_types_by_name.values())
    for message in messages:
        messages += message.nested_types
        enums += message.enum_types
        yield from (f"{field.full_name} = {field.number}" for field in message.fields)
    for enum in enums:
        yield from (f"{enum.full_name}.{each.name} = {each.number}" for each in enum.values)


if __name__ == "__main__":
    PATH.write_text("\n".join(listed()) + "\n")
