"""`embstore report`: draws the steps of a training run into one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from embstore_server.cli import output, parameters
from embstore_server.cli.flags import flag


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN.json", help="A file of RunHistory.save.")],
    *,
    out: Annotated[Path, flag("The report.", "FILE", "--output", "-o")] = Path("run.html"),
    as_json: output.AsJson = False,
) -> None:
    """Draw a training run: hit rates, stalls, bytes, times and cache sizes.

    The file needs no network and no script.
    """
    from embstore.profiles.archive import replace_file
    from embstore_tools.report.page import page
    from embstore_tools.report.reading import read

    found = read(run)
    parameters.check_output("--output", out, [run])
    replace_file(out, page(found).encode())
    document = {"path": str(out), "steps": int(found.total("step"))}
    output.show(document, f"{document['steps']:,} steps, drawn in {out}", as_json=as_json)
