"""The flags that every command for a running server has, with one name and meaning each."""

from pathlib import Path
from typing import Annotated

import typer

Address = Annotated[
    str,
    typer.Option(
        envvar="EMBSTORE_ADDRESS", metavar="HOST:PORT", help="Where the server serves gRPC."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        envvar="EMBSTORE_TIMEOUT", metavar="SECONDS", min=0.001, help="Deadline of each call."
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="EMBSTORE_TLS_CA",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="PEM file of the authorities to trust. Default: no TLS.",
        show_default=False,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="One JSON document on standard output, nothing else.")
]

ADDRESS = "127.0.0.1:50051"
TIMEOUT_S = 60.0
LONG_TIMEOUT_S = 3600.0
"""For what takes as long as the disk needs to read or write everything."""
