"""What `embstore demo` makes of its flags."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embstore_server.cli import exits
from embstore_tools.demo import Ahead, Calls, HotCold, Job
from embstore_tools.demo.frameworks.registry import PACKAGES


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put demos in place that are not exact, and end; return what they are given."""
    ran: list[Any] = []

    def run(*given: Any, **options: Any) -> Any:
        ran.append((*given, options))
        return SimpleNamespace(exact=False)

    monkeypatch.setattr("embstore_tools.demo.run", run)
    monkeypatch.setattr("embstore_tools.demo.compare", run)
    return ran


NOTHING: dict[str, Any] = {"directory": None, "json": False}
GIVEN: list[tuple[str, Any]] = [
    ("", (None, Job(), NOTHING)),
    (
        "--data f --samples 9 --keep k --cache-bytes 1MiB --json",
        (Path("f"), Job(samples=9, cache_bytes=1 << 20), {"directory": Path("k"), "json": True}),
    ),
    ("--framework torch", (None, Job(framework="torch"), NOTHING)),
    ("--framework torch --device cuda:0", (None, Job(framework="torch", device="cuda:0"), NOTHING)),
    ("--sparse", (None, Job(sparse=True), NOTHING)),
    ("--no-session --policy lfu", (None, Job(policy="lfu", way=Calls()), NOTHING)),
    (
        "--hotcold --budget 1MiB --lookahead 2",
        (None, Job(way=HotCold(1 << 20, lookahead=2)), NOTHING),
    ),
    (
        "--compare --cache-share 0.1 --budget 1MiB",
        (None, Job(cache_share=0.1), NOTHING | {"hot_cold": HotCold(1 << 20)}),
    ),
    ("--cluster --policy lfu", (None, Job(policy="lfu"), NOTHING | {"cluster": True})),
    ("--address h:1 --hotcold", (None, Job(way=HotCold()), NOTHING | {"address": "h:1"})),
]


@pytest.mark.parametrize(("words", "given"), GIVEN, ids=lambda value: value or "nothing")
def test_what_was_given_is_passed_on_and_1_says_that_it_was_not_exact(words, given, shell, ran):
    assert shell("demo", *words.split()).status == exits.FAILED
    assert ran == [given]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--no-session --hotcold", "--hotcold"),
        ("--sparse --compare", "--sparse"),
        ("--sparse --hotcold", "--sparse"),
        ("--sparse --policy rank", "--sparse"),
        ("--no-session --lookahead 4", "--lookahead"),
        ("--compare --policy lfu", "--policy"),
        ("--compare --framework torch", "--framework"),
        ("--hotcold --framework torch", "--framework"),
        ("--framework flax", "framework"),
        ("--device cuda", "give --framework torch"),
        ("--cluster --framework torch --device cuda", "--cluster"),
        ("--address h:1 --framework torch --device cuda", "--device"),
        ("--compare --no-session", "--no-session"),
        ("--budget 1MiB", "--budget"),
        ("--report run.html --no-session", "--report"),
        ("--report no/such/run.html", "--report"),
        ("--cache-bytes 1MiB --cache-share 0.1", "--cache-share"),
        ("--cache-bytes much", "--cache-bytes: expected a number of bytes"),
        ("--hotcold --budget much", "--budget: expected a number of bytes"),
        ("--policy oldest", "policy"),
        ("--hotcold --budget 0", "budget"),
        ("--compare --cluster", "--cluster"),
        ("--compare --address h:1", "--address"),
        ("--cluster --address h:1", "--address"),
        ("--address h:1 --cache-share 0.1 --policy lfu", "--cache-share and --policy"),
    ],
)
def test_flags_that_contradict_are_refused(flags, named, shell, ran):
    ended = shell("demo", *flags.split())
    assert (ended.status, ran) == (exits.USAGE, [])
    assert named in ended.err


def test_help_tells_the_defaults(shell):
    shown = shell("demo", "--help").out
    budget = f"{HotCold.budget_bytes >> 20}MiB"
    shares = str(Job.scale), str(Job.cache_share)
    for default in (f"{Job.samples:,}", f"{Job.batch:,}", str(Job.dim), *shares, budget):
        assert f"Default: {default}." in shown
    assert f"announces ahead. Default: {Ahead.lookahead}." in shown
    assert f"What computes the model. Default: {Job.framework}." in shown
    assert "|".join(PACKAGES) in shown
