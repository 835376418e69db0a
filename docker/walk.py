"""What `walk.sh` has a trainer and a browser do.

`train` trains a table, step by step, until it is ended. As a trainer should, it tries a step again
that found no room, since a call that was refused has changed nothing. `look` opens the page in
Chromium, gives it the operator's token, and keeps a picture when its curves have some points.
"""

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

TABLE, ROWS, DIM = "ads", 200_000, 32
BATCH_KEYS = 2_000
PAUSE_S = 0.2
"""Between steps: as long as a small dense model takes."""
LOOKS = 10
"""So many points the curves of the picture have at least; the page looks every two seconds."""

app = typer.Typer()
console = Console(soft_wrap=True)


@app.command()
def train(address: Annotated[str, typer.Argument(help="host:port of gRPC")]) -> None:
    """Train with the token of EMBSTORE_TOKEN, until a signal ends it."""
    import embstore
    from embstore import RowWiseAdagrad, Uniform
    from embstore.errors import CapacityError

    rng = np.random.default_rng(7)
    optimizer, initializer = RowWiseAdagrad(learning_rate=0.05), Uniform(-0.01, 0.01)
    with embstore.connect(address, insecure=True) as store:
        table = store.create_table(
            TABLE, dim=DIM, rows=ROWS, optimizer=optimizer, initializer=initializer
        )
        while True:
            keys = (rng.random(BATCH_KEYS) ** 2 * ROWS).astype(np.int64)
            try:
                table.update(keys, table.lookup(keys) - np.float32(1))
            except CapacityError as exc:
                console.print(f"waiting: {exc}")
            time.sleep(PAUSE_S)


@app.command()
def look(
    admin: Annotated[str, typer.Argument(help="host:port of the admin port")],
    token: Annotated[Path, typer.Argument(help="file of the operator's token")],
    picture: Annotated[Path, typer.Argument(help="file that the picture becomes")],
) -> None:
    """Keep a picture of the page; fail where a request went elsewhere, or the console erred."""
    from tests.page.browser import SIZES, browsing

    with browsing(admin) as browser:
        browser.screen(*SIZES["desktop"], "light")
        browser.open()
        browser.until("it asks for a token", lambda: browser.find("#dialog").is_displayed())
        browser.console()  # 401 until then, as a browser logs it
        browser.write("#field-token", token.read_text().strip())
        browser.press("#confirm")
        browser.until("it is ready", lambda: browser.text("#state") == "ready")
        browser.until("curves are drawn", lambda: browser.all("#main canvas"))
        time.sleep(LOOKS * 2)
        browser.shoot(picture, whole=True)
        said, elsewhere = browser.console(), browser.foreign()
    if said or elsewhere:
        raise SystemExit(f"console: {said}; requests elsewhere: {elsewhere}")


if __name__ == "__main__":
    app()
