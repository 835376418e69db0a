"""Copies of stores that are open: what a killed process would leave."""

import shutil
from contextlib import suppress
from pathlib import Path


def copy_of_open(path: Path, copy: Path) -> Path:
    """Copy the directory of a store that may be removing files that nothing names."""
    return shutil.copytree(path, copy, copy_function=_copied)


def _copied(source: str, target: str) -> None:
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)
