"""When the planner's thread looks for work again."""

from types import SimpleNamespace
from typing import Any

from embstore.lookahead.planner import Planner


class Trainer:
    """A session whose trainer is between two steps, but no longer when it is asked again."""

    error, last_step, noted_step, planned_step, waits_at, pause_s = None, 0, 2, 1, -1, 0.1
    mode, facts, near_step = SimpleNamespace(group=1), SimpleNamespace(lookahead_steps_max=4), 2

    def __init__(self) -> None:
        self._asked = 0

    @property
    def is_between_steps(self) -> bool:
        self._asked += 1
        return self._asked == 1

    def announced_by_all(self, _: int) -> bool:
        return False


def test_a_pause_that_ends_while_work_is_looked_for_is_not_missed(monkeypatch):
    sessions: Any = {"run": Trainer()}
    planner = Planner(SimpleNamespace(), sessions)  # type: ignore[arg-type]
    planner.end_expired = lambda: None

    def wait(timeout: float | None) -> None:
        raise AssertionError(f"waits {timeout} s for somebody to say something")

    monkeypatch.setattr(planner.changed, "wait", wait)
    assert planner._next_job() is not None
