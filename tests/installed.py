"""Names the packages that a part of the tests needs and does not find, dependencies included.

A machine that is lent for its GPU has some wheels without the wheels that those need. An import
alone shows that: FastAPI may be there, and fail for want of opentelemetry-api.
"""

from collections.abc import Iterable
from importlib import import_module

SERVER = (
    "fastapi",
    "uvicorn",
    "grpc_health",
    "grpc_reflection",
    "numba",
    "prometheus_client",
    "typer",
)
"""Modules that a server imports, of the extra `server` and the command line."""


def lacking(modules: Iterable[str]) -> str | None:
    """Import modules, and return which cannot be found; None where all are there."""
    absent: dict[str, None] = {}
    for name in modules:
        try:
            import_module(name)
        except ModuleNotFoundError as exc:
            absent[exc.name or name] = None
    return f"not installed: {', '.join(absent)}" if absent else None
