"""What `-m gpu`, and what begins so, collects: the folders that have such tests, and no others.

A machine that is lent for its GPU has CuPy, but may lack what the service's tests import, and
pytest's plugins; what is not imported need not be there.

`make test` runs what is not marked slow, `make test-rest` what is slow and not complete, and `make
test-all` the others, too. The marks are set here alone, from measured times: `tests/slow.txt` has
functions that take long, and how many of their cases `make test` and `make test-rest` run all the
same. Of conformance they run each case in the embedded store and on one more backend, which depends
on the case's name alone; on the others it is complete, and so are all cases on one with a large
level two. Of variants of sparse tables `make test` has every SPARSE_TURN-th of the embedded ones,
and none on other backends: what would be quick there is slow. `tests/times.py` measures, and writes
the list.
"""

import re
import signal
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent
MARK = "pytest.mark.gpu"
SERVICE = re.compile(r"^from tests\.(conformance\.(gate|served)|serving) ", re.MULTILINE)
"""How a test imports a server."""
LEASE_S = 600.0
OTHER_BACKENDS = "emulated", "level-two", "served", "shared", "sharded", "two-shards"
"""Of conformance, beside the embedded store: each case has its turn on one of them."""
COMPLETE_BACKEND = "large-level-two"
"""It has no turn."""
OTHER_BACKEND = re.compile(
    rf"^tests/conformance/.*?[-\[]({'|'.join((*OTHER_BACKENDS, COMPLETE_BACKEND))})[-\]]"
)
SPARSE = re.compile(
    rf"^tests/conformance/.*?[-\[](embedded|{'|'.join((*OTHER_BACKENDS, COMPLETE_BACKEND))})-sparse"
)
SPARSE_TURN = 2
"""Of the quick cases of a function every so many are quick where their tables are sparse."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Have pyproject.toml's `timeout` accepted, and without effect, where its plugin is absent."""
    if not pluginmanager.has_plugin("timeout"):
        parser.addini("timeout", "seconds a test may take, by pytest-timeout")
    parser.addoption("--soak", type=int, default=1, help="how many times tests that kill are run")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what takes a `soak` that many times, each with a number of its own for its seed."""
    if "soak" in metafunc.fixturenames:
        metafunc.parametrize("soak", range(metafunc.config.getoption("soak")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, before `-m` looks at the marks."""
    listed = slow_tests((ROOT / "slow.txt").read_text("utf-8"))
    for item in items:
        for mark in marks(item.nodeid, listed):
            item.add_marker(mark)


def slow_tests(text: str) -> dict[str, tuple[int, int]]:
    """Return the functions of a list: of the cases of each, every nth is quick, and of the others
    every mth is not complete; of 0, none."""
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {name: (int(nth), int(mth)) for nth, mth, name in lines}


def marks(nodeid: str, listed: Mapping[str, tuple[int, int]]) -> Sequence[str]:
    """Return the marks of a case; always the same of its name."""
    turns = listed.get(nodeid.partition("[")[0], (1, 1))
    backend, is_sparse = OTHER_BACKEND.match(nodeid), SPARSE.match(nodeid) is not None
    if is_sparse:
        turns = SPARSE_TURN * turns[0], turns[1]
    if backend is not None:
        nodeid = nodeid.replace(backend[1], "")
        of_case = -zlib.crc32(nodeid.encode()) % len(OTHER_BACKENDS)
        if backend[1] != OTHER_BACKENDS[of_case]:
            return "slow", "complete"
    is_quick, is_in_rest = (
        nth > 0 and zlib.crc32(nodeid.encode(), tier) % nth == 0
        for tier, nth in enumerate(turns, 1)
    )
    if is_sparse and backend is not None:
        is_quick, is_in_rest = False, is_quick
    return () if is_quick else ("slow",) if is_in_rest else ("slow", "complete")


def pytest_configure(config: pytest.Config) -> None:
    """Have Ctrl-C end what tests start; have no case of Hypothesis fail for a slow machine."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)  # else it is of children, too
    try:
        from hypothesis import HealthCheck, settings
    except ModuleNotFoundError:
        return
    unhurried: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
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
