"""Which package knows which, where libraries are used, and what importing the client loads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style.sources import ROOT, place, project_files, run_python
from tests.style.test_imports import imports, top

PACKAGES = {
    "embstore": {"embstore", "embstore_training"},  # `Store.run` loads its loop when it is called
    "embstore/__init__.py": {"embstore", "embstore_client", "embstore_training"},  # when used
    **{f"embstore/{name}.py": {"embstore_client"} for name in ("files", "jax", "keras", "torch")},
    "embstore/engine": {"embstore", "embstore_proto"},  # `open`: what a command log is written in
    "proto": {"embstore", "embstore_proto"},
    "client/embstore_client": {"embstore", "embstore_proto", "embstore_client"},
    "client/embstore_training": {"embstore", "embstore_training"},
    "server/embstore_server": {"embstore", "embstore_proto", "embstore_server"},
    "server/embstore_server/cli": {
        "embstore",
        "embstore_proto",
        "embstore_server",
        "embstore_client",
    },
    "server/embstore_cluster": {
        "embstore",
        "embstore_client",
        "embstore_server",
        "embstore_cluster",
    },
    "server/embstore_tools": {
        "embstore",
        "embstore_cluster",
        "embstore_server",
        "embstore_client",
        "embstore_training",
        "embstore_tools",
    },
}
"""What of this project each folder or file imports; the innermost counts."""

LIGHT = {
    "arithmetic",
    "arrays",
    "bags",
    "checks",
    "choices",
    "cluster_checkpoints",
    "commands",
    "config",
    "errors",
    "handles",
    "hashing",
    "layout",
    "optimizers",
    "parts",
    "profiles",
    "results",
    "sharding",
    "step_sums",
    "values",
    "version",
}
"""What of embstore draws in neither Numba nor a device: all that proto and client may use."""

LIBRARIES = {
    "google": ("proto", "server/embstore_server/transports/grpc/rpc.py"),
    "fastapi": ("server/embstore_server/transports/rest",),
    "starlette": ("server/embstore_server/transports/rest",),
    "jax": ("client/embstore_client/jax/",),
    "keras": ("client/embstore_client/keras/",),
    "opentelemetry": (
        "client/embstore_client/tracing.py",
        "server/embstore_server/telemetry/tracing.py",
    ),
    "tensorflow": ("client/embstore_client/keras/",),
    "ray": ("server/embstore_cluster/",),
    "torch": (
        "client/embstore_client/files/torch_file.py",
        "client/embstore_client/torch/",
        "client/embstore_training/hotcold/torch_replica.py",
        "server/embstore_tools/demo/frameworks/torch_learner.py",
    ),
    "xxhash": ("embstore/arithmetic/xxh3.py",),
    "typer": ("server/embstore_server/cli", "server/embstore_tools"),
}
"""Where alone a library is used; the rest of the project does not know it."""


def folder_of(path: Path) -> str:
    """Return the innermost folder of PACKAGES that holds a file; '' for a test."""
    name = str(path.relative_to(ROOT))
    return max(
        (folder for folder in PACKAGES if f"{name}/".startswith(f"{folder}/")), key=len, default=""
    )


def product_imports() -> Iterator[tuple[Path, str, str]]:
    """Yield (file, imported module, place) of all product files."""
    for path in project_files(".py"):
        if folder_of(path):
            yield from ((path, module, place(path, node)) for module, node in imports(path))


def test_packages_import_what_they_may():
    found: dict[str, set[str]] = {folder: set() for folder in PACKAGES}
    for path, module, _ in product_imports():
        if module.startswith("embstore"):
            found[folder_of(path)].add(top(module))
    assert found == PACKAGES


def test_wire_and_client_use_the_light_part_of_embstore():
    wrong = [
        f"{where}: imports {module}"
        for path, module, where in product_imports()
        if folder_of(path).startswith(("proto", "client"))
        and module.startswith("embstore.")
        and module.split(".")[1] not in LIGHT
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_used_in_its_places_alone(library):
    users = [
        (str(path.relative_to(ROOT)), where)
        for path, module, where in product_imports()
        if top(module) == library
    ]
    assert users
    assert not [where for name, where in users if not name.startswith(LIBRARIES[library])]


NOT_AT_IMPORT = """if True:
    import sys
    import embstore_client
    print(*sorted(name for name in sys.modules if name.startswith(("numpy", "grpc", "google"))))
    import numpy, grpc
    from google.protobuf import descriptor_pool
    before = set(sys.modules)
    from embstore_client import connect
    print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""

SLOW_TO_IMPORT = {
    "asyncio",
    "rich",
    "typer",
    "multiprocessing",
    "uuid",
    "zipfile",
    "lzma",
    "secrets",
}


def test_importing_the_client_costs_little_beyond_its_libraries():
    """Importing NumPy, gRPC and protobuf is most of the time, and happens at the first use."""
    at_import, at_use = run_python(NOT_AT_IMPORT).split("\n")
    assert not at_import
    assert not SLOW_TO_IMPORT & set(at_use.split())


LOADED = """if True:
    import sys
    from embstore.handles.store import Store
    from embstore_client import connect
    from embstore.commands import Lookup
    tops = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
    known = ("_", "embstore", "grpc")  # grpc loads parts of its own that are installed
    print(*sorted(name for name in tops if not name.startswith(known)))
    print("embstore.engine" in sys.modules)
"""


def test_importing_the_client_loads_numpy_grpc_and_protobuf_alone():
    loaded, engine = run_python(LOADED).split("\n")
    assert set(loaded.split()) <= {"numpy", "google", "cython_runtime", "typing_extensions"}
    assert engine == "False"
