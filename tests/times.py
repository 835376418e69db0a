"""Measures tests, and writes the list of those that `make test` leaves out.

As a plugin, `-p tests.times`, it writes a line for each test in `build/times`: its name, its
seconds, and its seconds of CPU, those of its child processes included. These hardly depend on what
else the machine does, so the list is made of them. `python -m tests.times` adds them up by folder,
and writes `tests/slow.txt` anew: each function may take as many seconds of `make test` as keeps all
of them within BUDGET_S.
"""

import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import OTHER_BACKEND, OTHER_BACKENDS, ROOT, marks

TIMES = ROOT.parent / "build" / "times"
BUDGET_S = 600.0
"""Of CPU in `make test`: five minutes of two cores."""
HEAD = """\
# What `make test` leaves out, by CPU seconds that were measured: `make times` writes this list.
# Of the tests of a file or function every nth case is quick enough to stay; of 0, none.
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Note what a test takes."""
    began, cpu = time.monotonic(), _cpu_s()
    done = yield
    TIMES.mkdir(parents=True, exist_ok=True)
    taken = [item.nodeid, round(time.monotonic() - began, 3), round(_cpu_s() - cpu, 3)]
    with open(TIMES / f"{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps(taken) + "\n")
    return done


def _cpu_s() -> float:
    return sum(os.times()[:4])


def measured() -> dict[str, float]:
    """Return the CPU seconds of each test that was measured; the last measurement counts."""
    files = sorted(TIMES.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return {name: cpu for name, _, cpu in lines}


def listed(times: dict[str, float], limit_s: float) -> dict[str, int]:
    """Return a list in which no function takes more than about `limit_s` of `make test`."""
    functions = defaultdict(list)
    for name, cpu in times.items():
        share = 1 / len(OTHER_BACKENDS) if OTHER_BACKEND.match(name) else 1
        functions[name.partition("[")[0]].append(cpu * share)
    found = {name: -int(-sum(taken) // limit_s) for name, taken in functions.items()}
    return {
        name: 0 if nth > len(functions[name]) else nth
        for name, nth in sorted(found.items())
        if nth > 1
    }


def quick_s(times: dict[str, float], slow: dict[str, int]) -> float:
    """Return the CPU seconds that `make test` takes with a list."""
    return sum(cpu for name, cpu in times.items() if not marks(name, slow))


def main() -> None:
    """Write the list, and say what is in it."""
    times = measured()
    limit_s = next(
        s for s in (16, 12, 8, 6, 4, 3, 2, 1) if quick_s(times, listed(times, s)) < BUDGET_S
    )
    slow = listed(times, limit_s)
    lines = [f"{nth} {name}\n" for name, nth in slow.items()]
    (ROOT / "slow.txt").write_text(HEAD + "".join(lines))
    folders: dict[str, Counter[str]] = defaultdict(Counter)
    for name, cpu in times.items():
        tier = " ".join(marks(name, slow)) or "quick"
        for folder in ("/".join(name.partition("::")[0].split("/")[1:-1]), "all"):
            folders[folder][f"{tier}, tests"] += 1
            folders[folder][f"{tier}, s"] += cpu
    sys.stdout.write(f"each function: at most {limit_s} s\n")
    for folder, found in sorted(folders.items()):
        sys.stdout.write(
            f"{folder:24} { ({what: round(count) for what, count in found.items()}) }\n"
        )


if __name__ == "__main__":
    main()
