"""An emulated runtime that counts what a call of a store costs."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.kernels.emulation.runtime import EmulatedRuntime

VERBS = {
    "launch": "kernels",
    "fill": "fills",
    "upload": "uploads",
    "download": "downloads",
    "copy": "copies",
}


class CountingRuntime(EmulatedRuntime):
    """Counts what it is asked for, not by a planner's thread; waits for work not done yet."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._thread = threading.get_ident()
        self.counts: Counter[str] = Counter()
        for verb, name in VERBS.items():
            setattr(self, verb, partial(self._counted, name, getattr(super(), verb)))

    def _counted(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.counts[name] += threading.get_ident() == self._thread
        return call(*arguments, **options)

    def wait(self, mark: Any) -> None:
        if threading.get_ident() == self._thread:
            self.counts["waits"] += not self.streams.is_reached(mark)
        super().wait(mark)

    def counted(self, call: Callable[[], object]) -> dict[str, int]:
        """Return what a call costs."""
        self.counts.clear()
        call()
        return {name: count for name, count in self.counts.items() if count}
