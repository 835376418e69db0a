"""What `-m gpu`, and what begins so, collects: the folders that have such tests, and no others.

A machine that is lent for its GPU has CuPy, but may lack what the service's tests import, and
pytest's plugins; what is not imported need not be there.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent
MARK = "pytest.mark.gpu"
SERVICE = re.compile(r"^from tests\.(conformance\.(gate|served)|serving) ", re.MULTILINE)
"""How a test imports a server."""
LEASE_S = 600.0


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Have pyproject.toml's `timeout` accepted, and without effect, where its plugin is absent."""
    if not pluginmanager.has_plugin("timeout"):
        parser.addini("timeout", "seconds a test may take, by pytest-timeout")
    parser.addoption("--soak", type=int, default=1, help="how many times tests that kill are run")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what takes a `soak` that many times, each with a number of its own for its seed."""
    if "soak" in metafunc.fixturenames:
        metafunc.parametrize("soak", range(metafunc.config.getoption("soak")))


def pytest_configure(config: pytest.Config) -> None:
    """Have no case of Hypothesis fail for how slow the machine is, where Hypothesis is."""
    try:
        from hypothesis import HealthCheck, settings
    except ModuleNotFoundError:
        return
    unhurried: dict[str, Any] = {
        "deadline": None,
        "suppress_health_check": [HealthCheck.too_slow],
    }
    settings.register_profile("unhurried", **unhurried)
    if not config.getoption("--hypothesis-profile", None):
        settings.load_profile("unhurried")


@pytest.fixture(autouse=True, scope="session")
def leases() -> Iterator[None]:
    """Have no lease run out because the machine is busy: it does when a test says so.

    Sessions of a server's process have those that they ask for.
    """
    from embstore.lookahead.session import Session

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "lease_s", LEASE_S)
        yield


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where tests marked gpu alone are asked for, leave out what has none, and what needs more."""
    if not re.match(r"gpu\b", config.getoption("markexpr")):
        return None
    if collection_path.is_dir():
        return (
            None if any(map(_has_marks, (collection_path, *_conftests(collection_path)))) else True
        )
    is_test = collection_path.suffix == ".py"
    return True if is_test and SERVICE.search(collection_path.read_text("utf-8")) else None


@cache
def _has_marks(place: Path) -> bool:
    files = place.rglob("*.py") if place.is_dir() else [place]
    return any(MARK in path.read_text(encoding="utf-8") for path in files)


def _conftests(folder: Path) -> list[Path]:
    """Return those above a folder whose fixtures its tests use, this one left out."""
    above = [parent / "conftest.py" for parent in folder.parents if ROOT in parent.parents]
    return [path for path in above if path.exists()]
