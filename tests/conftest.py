"""What `-m gpu`, and what begins so, collects: the folders that have such tests, and no others.

A machine that is lent for its GPU has CuPy, but may lack what the service's tests import, and
pytest's plugins; what is not imported need not be there.

With `--turns` cases take turns, so that a run is about half as long: each case of conformance runs
in the embedded store and on one more backend, which depends on its name alone, and of a test that
is marked `turns(n)` every nth case runs, or none of `turns()`. It is the same choice each time.
"""

import re
import signal
import zlib
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
OTHER_BACKENDS = "emulated", "tiered", "served", "shared", "sharded", "two-shards"
"""Of conformance, of which each case runs on one."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Have pyproject.toml's `timeout` accepted, and without effect, where its plugin is absent."""
    if not pluginmanager.has_plugin("timeout"):
        parser.addini("timeout", "seconds a test may take, by pytest-timeout")
    parser.addoption("--turns", action="store_true", help="leave out cases whose turn it is not")
    parser.addoption("--soak", type=int, default=1, help="how many times tests that kill are run")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what takes a `soak` that many times, each with a number of its own for its seed."""
    if "soak" in metafunc.fixturenames:
        metafunc.parametrize("soak", range(metafunc.config.getoption("soak")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --turns, leave out the cases whose turn it is not."""
    if config.getoption("turns"):
        left = [item for item in items if not _has_turn(item)]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]


def _has_turn(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("turns")
    nth = 1 if mark is None else mark.args[0] if mark.args else 0
    backend = getattr(item, "callspec", None) and item.callspec.params.get("backend")
    if backend not in OTHER_BACKENDS:
        return bool(nth) and zlib.crc32(item.nodeid.encode()) % nth == 0
    number = zlib.crc32(item.nodeid.replace(backend, "").encode())
    return bool(nth) and number % (nth * len(OTHER_BACKENDS)) == OTHER_BACKENDS.index(backend)


def pytest_configure(config: pytest.Config) -> None:
    """Have Ctrl-C end what tests start; have no case of Hypothesis fail for a slow machine."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)  # else it is of children, too
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
