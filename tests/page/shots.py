"""The pictures of the guide: the page of a server that is trained through, and its terminal view.

    python -m tests.page.shots [FOLDER]      or: make screenshots

It looks as long as LOOKS looks of the page take, so that lines have a length.
"""

import io
import re
import sys
import tempfile
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console

from embstore_client import connect
from embstore_server.cli.top_view import StatsSample, drawn
from embstore_server.setup.launch import ServerProcess
from tests.page.browser import SIZES, Browser, browsing
from tests.page.conftest import training
from tests.page.trainer import PATIENCE_S
from tests.style.sources import ROOT

PICTURES = ROOT / "docs" / "guide" / "pictures"
LOOKS = 30
_OPTIONS = ("--cache-bytes", "12MiB", "--count-rate", "1", "--slow-call-ms", "60")
SHOTS = (("desktop", "dark", False), ("desktop", "light", False), ("phone", "dark", False))
"""Size, theme, whether the whole page is shown."""


def _look_on(page: Browser) -> None:
    """Wait for so many looks of the page, and for its prediction."""
    looks = 0
    while looks < LOOKS:
        page.until("it looks", lambda: page.script("return document.readyState") == "complete")
        looks += sum(url.endswith("/stats") for url in page.requests())
        page.script("return new Promise(done => setTimeout(done, 1000))")
    page.until("it predicts", lambda: "today" in page.text("#miss-ratio .legend"))


def shoot(folder: Path) -> None:
    """Write all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data:
        with ServerProcess(Path(data) / "store", *_OPTIONS) as server, training(server.address):
            with connect(server.address, timeout_s=PATIENCE_S) as store:
                store.checkpoint("day-1", {"auc": 0.81})
                store.checkpoint("day-2", {"auc": 0.83})
                before = StatsSample(store.stats(), 0.0)
                with browsing(server.admin) as page:
                    page.screen(*SIZES["desktop"], "dark")
                    page.open()
                    _look_on(page)
                    for size, theme, whole in SHOTS:
                        page.screen(*SIZES[size], theme, mobile=False)
                        page.until("it is drawn", lambda: page.all("#sessions tbody tr"))
                        page.script("return new Promise(done => setTimeout(done, 3000))")
                        page.shoot(folder / f"page-{size}-{theme}.png", whole=whole)
                    page.screen(*SIZES["desktop"], "dark")
                    page.shoot(folder / "page-whole.png", whole=True)
                _terminal(
                    folder / "top.svg", StatsSample(store.stats(), 100.0, (before.stats, 0.0))
                )


def _terminal(path: Path, look: StatsSample) -> None:
    console = Console(record=True, width=120, file=io.StringIO(), force_terminal=True)
    console.print(drawn(look))
    fonts = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)  # which are fetched from elsewhere
    form = fonts.sub("", CONSOLE_SVG_FORMAT)
    form = re.sub(r"<!--.*?-->\s*", "", form)
    console.save_svg(str(path), title="embstore top", code_format=form)


if __name__ == "__main__":
    shoot(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
