"""Measures tests, and writes the list of those that `make test` and `make test-rest` leave out.

As a plugin, `-p tests.times`, it writes a line for each test in `build/times`: its name, its
seconds, and its seconds of CPU, those of its child processes included. These hardly depend on what
else the machine does, so the list is made of them. `python -m tests.times` adds them up by folder,
and writes `tests/slow.txt` anew: each function may take as many seconds of `make test`, and of
`make test-rest`, as keeps all of them within BUDGETS_S.
"""

import json
import math
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.conftest import ROOT, marks

TIMES = ROOT.parent / "build" / "times"
BUDGETS_S = {"quick": 600.0, "slow": 1100.0}
"""Of CPU in `make test` and `make test-rest`: five minutes of two cores, and nine."""
LIMITS_S = 16, 12, 8, 6, 4, 3, 2, 1, 0.5, 0.25
"""What a function may take."""
WHOLE = tuple(
    f"tests/{name}.py"
    for name in ("docs/test_examples", "service/access/test_matrix", "service/test_json_calls")
)
"""Files whose cases are verbs or pages, each of which it alone checks: none is left out."""
TURN_MAX = 12
"""`make test-rest` has at least every 12th case of a function."""
LONG_S = 60.0
"""A function whose shortest case takes longer is left to `make test-all`."""
HEAD = """\
# What takes long, by CPU seconds that were measured: `make times` writes this list. Of the cases of
# a function `make test` runs every nth, the first number, and `make test-rest` every mth of the
# others, the second; of 0, none. Only `make test-all` runs what is left: of 0 0, where a case takes
# more than a minute, all.
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


def tier(name: str, slow: Mapping[str, tuple[int, int]]) -> str:
    """Return "quick", "slow" or "slow complete"."""
    return " ".join(marks(name, slow)) or "quick"


def turns(times: dict[str, float], quick_s: float, rest_s: float) -> tuple[int, int]:
    """Return which turns of a function's cases stay, when it may take so many seconds of each
    tier: of each, unless all its cases take longer than LONG_S, at least one in some tier."""
    function = next(iter(times)).partition("[")[0]

    def seconds(which: str, nth: int, mth: int) -> list[float]:
        of_list = {function: (nth, mth)}
        return [cpu for name, cpu in times.items() if tier(name, of_list) == which]

    def every(total_s: float, limit_s: float) -> int:
        nth = max(1, math.ceil(total_s / limit_s))
        return nth if nth <= len(times) else 0

    nth = every(sum(seconds("quick", 1, 1)), quick_s)
    left = seconds("slow", nth, 1)
    mth = every(sum(left), rest_s)
    if len(left) > TURN_MAX and not 0 < mth < TURN_MAX:
        mth = TURN_MAX
    if function.startswith(WHOLE):
        mth = 1
    elif min(times.values()) > LONG_S:
        mth = 0
    elif not seconds("quick", nth, mth) + seconds("slow", nth, mth):  # the cheapest that has one
        some = range(1, 8 * len(times))
        mth = min(some, key=lambda turn: sum(seconds("slow", nth, turn)) or math.inf)
    return nth, mth


def listed(times: dict[str, float], quick_s: float, rest_s: float) -> dict[str, tuple[int, int]]:
    """Return a list in which no function takes more than about so many seconds of each tier."""
    functions: dict[str, dict[str, float]] = defaultdict(dict)
    for name, cpu in sorted(times.items()):
        functions[name.partition("[")[0]][name] = cpu
    found = {name: turns(cases, quick_s, rest_s) for name, cases in functions.items()}
    return {name: both for name, both in found.items() if both != (1, 1)}


def within(times: dict[str, float]) -> tuple[float, float]:
    """Return what a function may take of each tier, that all stay within BUDGETS_S."""

    def fits(which: str, quick_s: float, rest_s: float) -> bool:
        slow = listed(times, quick_s, rest_s)
        taken = sum(cpu for name, cpu in times.items() if tier(name, slow) == which)
        return taken < BUDGETS_S[which]

    least = LIMITS_S[-1]
    quick_s = next((s for s in LIMITS_S if fits("quick", s, least)), least)
    return quick_s, next((s for s in LIMITS_S if fits("slow", quick_s, s)), least)


def main() -> None:
    """Write the list, and say what is in it."""
    times = measured()
    limits = within(times)
    slow = listed(times, *limits)
    lines = [f"{nth} {mth} {name}\n" for name, (nth, mth) in slow.items()]
    (ROOT / "slow.txt").write_text(HEAD + "".join(lines))
    folders: dict[str, Counter[str]] = defaultdict(Counter)
    for name, cpu in times.items():
        for folder in ("/".join(name.partition("::")[0].split("/")[1:-1]), "all"):
            folders[folder][f"{tier(name, slow)}, tests"] += 1
            folders[folder][f"{tier(name, slow)}, s"] += cpu
    sys.stdout.write(f"each function: at most {limits} s\n")
    for folder, found in sorted(folders.items()):
        sys.stdout.write(
            f"{folder:24} { ({what: round(count) for what, count in found.items()}) }\n"
        )


if __name__ == "__main__":
    main()
