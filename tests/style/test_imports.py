"""Who imports whom in embstore and its server, read from the syntax trees; what importing costs.

A **unit** is a module or folder right under a package; each has a level in LEVELS. A unit imports
its own level and those below. Units of one level may know each other one way only: the graph of
units is acyclic. Imports inside functions and under TYPE_CHECKING count: they are dependencies too.
"""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.style.sources import ROOT, module_name, nodes, parse, place, project_files, run_python

ENGINE_LEVELS = (  # the lowest first
    {"choices", "errors", "score", "stats", "values", "version"},
    {"arrays", "stages"},
    {"layout", "optimizers", "row_keys", "sharding"},
    {"config", "profiles"},
    {"arithmetic", "results"},
    {"cluster_checkpoints", "commands", "hashing", "host", "kernels"},
    {"checks", "device", "parts", "rights", "step_sums", "storage"},
    {"cache"},
    {"options"},
    {"handles", "tables"},
    {"hotness", "lookahead"},
    {"engine"},
    {"__init__", "files", "jax", "keras", "torch"},
)
SERVER_LEVELS = (
    {"setup"},
    {"telemetry"},
    {"access"},
    {"path", "sizing"},
    {"transports"},
    {"replication"},
    {"host"},
    {"doctor"},
    {"cli"},
    {"__init__", "__main__"},
)
LEVELS = {"embstore": ENGINE_LEVELS, "embstore_server": SERVER_LEVELS}
"""The units of each package. A new one is given its level here, on purpose."""

FOREIGN = ("asyncio", "socket", "socketserver", "http", "grpc", "google")
"""The engine has no sockets, no protobuf and no asyncio: those are the server's."""

IMPORT_CUPY = ("embstore/device/cuda.py", "client/embstore_client/cupy_gpu.py")

FILES = list(project_files(".py", under="embstore"))
FILES_OF = {
    "embstore": FILES,
    "embstore_server": list(project_files(".py", under="server/embstore_server")),
}


def unit_of(module: str) -> str:
    """Return the unit of a module of a package; the package itself is '__init__'."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def is_module(module: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


@cache
def imports(path: Path) -> list[tuple[str, ast.AST]]:
    """Return every module that a file imports, as an absolute name, with its node."""
    found: list[tuple[str, ast.AST]] = []
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in nodes(path):
        match node:
            case ast.Import():
                found += ((alias.name, node) for alias in node.names)
            case ast.ImportFrom():
                above = package[: len(package) - node.level + 1] if node.level else []
                source = ".".join([*above, *filter(None, [node.module])])
                for alias in node.names:  # from embstore import errors: a module, not a name
                    inner = f"{source}.{alias.name}"
                    is_inner = source.startswith("embstore") and is_module(inner)
                    found.append((inner if is_inner else source, node))
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if called(node) in (
                "import_module",
                "__import__",
            ):
                found.append((name, node))
    return found


def called(call: ast.Call) -> str:
    """Return the last part of the called name: import_module of importlib.import_module."""
    return str(getattr(call.func, "attr", None) or getattr(call.func, "id", ""))


def top(module: str) -> str:
    return module.partition(".")[0]


def internal_imports(package: str) -> Iterator[tuple[str, str, str]]:
    """Yield (unit, imported unit, place) for every import between two units of a package."""
    for path in FILES_OF[package]:
        unit = unit_of(module_name(path))
        for module, node in imports(path):
            if top(module) == package and unit_of(module) != unit:
                yield unit, unit_of(module), place(path, node)


@pytest.mark.parametrize("package", LEVELS)
def test_every_unit_has_one_level(package):
    listed = sorted(unit for level in LEVELS[package] for unit in level)
    assert listed == sorted({unit_of(module_name(path)) for path in FILES_OF[package]})


@pytest.mark.parametrize("package", LEVELS)
def test_nothing_imports_upward(package):
    levels = LEVELS[package]
    level_of = {unit: n for n, level in enumerate(levels) for unit in level}
    wrong = [
        f"{where}: {unit} (level {level_of[unit]}) imports {other} (level {level_of[other]})"
        for unit, other, where in internal_imports(package)
        if level_of.get(unit, len(levels)) < level_of.get(other, len(levels))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", LEVELS)
def test_units_do_not_import_each_other_in_a_circle(package):
    graph: dict[str, set[str]] = {}
    for unit, other, _ in internal_imports(package):
        graph.setdefault(unit, set()).add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        pytest.fail(" -> ".join(reversed(exc.args[1])))


def test_one_module_of_the_engine_and_one_of_the_client_import_cupy():
    wrong = [
        f"{place(path, node)}: imports {module}"
        for path in project_files(".py")
        for module, node in imports(path)
        if top(module).startswith("cupy")
        and str(path.relative_to(ROOT)) not in IMPORT_CUPY
        and not path.is_relative_to(ROOT / "tests")  # tests of kernels compile them on their own
    ]
    assert not wrong, "\n".join(wrong)


ABOUT_COMPILED_CODE = ("embstore/arithmetic/cached.py", "embstore/arithmetic/compiling.py")
"""Where it is kept, for which processor, and in which environment: before, Numba read it."""


def test_engine_knows_no_network_and_no_environment():
    wrong = [
        f"{place(path, node)}: imports {module}"
        for path in FILES
        for module, node in imports(path)
        if top(module) in FOREIGN
    ]
    wrong += [
        f"{place(path, node)}: reads the environment"
        for path in FILES
        if str(path.relative_to(ROOT)) not in ABOUT_COMPILED_CODE
        for node in nodes(path)
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"))
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and _names_environment(node))
    ]
    assert not wrong, "\n".join(wrong)


def _names_environment(node: ast.ImportFrom) -> bool:
    return any(alias.name in ("environ", "environb", "getenv") for alias in node.names)


def test_modules_only_define():
    """No work at import time: no bare calls or loops at module level, no eager compilation."""
    wrong = [
        f"{place(path, node)}: {type(node).__name__} at module level"
        for path in FILES
        for node in _run_at_import(parse(path).body)
        if isinstance(node, ast.For | ast.While | ast.With)
        or (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant))
    ]
    wrong += [
        f"{place(path, decorator)}: @{called(decorator)} with a signature compiles at import"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        and called(decorator) in ("jit", "njit", "vectorize", "guvectorize", "cfunc")
        and decorator.args
    ]
    assert not wrong, "\n".join(wrong)


def _run_at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported, those in if, try and class too."""
    for node in body:
        yield node
        for inner in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.ClassDef):
                yield from _run_at_import(getattr(node, inner, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _run_at_import(handler.body)


LOADED = "print(*sorted({m.partition('.')[0] for m in sys.modules} & {'numba', 'cupy', 'numpy'}))"


def test_import_embstore_loads_no_numba_cupy_or_numpy():
    assert run_python(f"import sys, embstore; dir(embstore); {LOADED}") == ""


def test_what_a_light_client_imports_loads_no_numba_or_cupy():
    code = f"import sys; from embstore import Adam, CapacityError; import embstore.arrays; {LOADED}"
    assert run_python(code) == "numpy"


def test_importing_every_module_compiles_nothing():
    pytest.importorskip("numba", reason="needs the extra 'fast'")
    loads = {
        ROOT / "embstore" / name for name in ("device/cuda.py", "jax.py", "keras.py", "torch.py")
    }
    modules = [module_name(path) for path in FILES if path not in loads]
    code = f"""if True:
        from importlib import import_module
        from numba.core.dispatcher import Dispatcher
        for name in {modules}:
            for value in vars(import_module(name)).values():
                if isinstance(value, Dispatcher) and value.overloads:
                    print(name, value.__name__)
    """
    assert run_python(code) == ""
