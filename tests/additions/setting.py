"""A setting that only a copy of the packages has: a flag, a variable, a key of the file, and in the
guide."""

import json
import sys
from pathlib import Path
from typing import Any

from embstore_server.setup.launch import ServerProcess
from embstore_server.setup.settings import declared, load, markdown_table

GUIDE = Path("docs/guide/operating.md")


def greetings(data: Path, *options: str) -> list[int]:
    """Return the numbers of the greetings in the log of a server."""
    with ServerProcess(data, *options) as server:
        entries = [json.loads(line) for line in server.log if line.startswith("{")]
    return [one["number"] for one in entries if one["event"] == "greeting"]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    assert markdown_table() in GUIDE.read_text()
    assert declared()["greetings"].flag == "--greetings"
    (folder / "settings.toml").write_text("greetings = 2")
    data = folder / "store"
    assert greetings(data, "--greetings", "3") == [0, 1, 2]
    assert greetings(data, "--config", str(folder / "settings.toml")) == [0, 1]
    given: Any = load({"data": data}, {"EMBSTORE_GREETINGS": "4"}, None)
    assert given.greetings == 4
