"""The distribution's version and build, and the command that installs its extras.

The version is defined here alone; the build of the distribution reads it from here too.
"""

from pathlib import Path

__version__ = "0.1.0"
_COMMIT = "$Format:%H$"
"""The commit, written by `git archive` (.gitattributes). A release is built from such an
archive."""


def build() -> str:
    """Return the commit that this code was released from; "a clone" if it is not a release."""
    return "a clone" if _COMMIT.startswith("$") else _COMMIT[:12]


def pip_install(extra: str) -> str:
    """Return the command that installs an extra, for error messages.

    The metadata of an installation names the extras' packages, so that pip fetches only these
    packages. In a clone, the command installs the clone again.
    """
    if Path(__file__).parents[1].joinpath("pyproject.toml").is_file():
        return f'pip install ".[{extra}]" (in a clone of embstore)'
    return f'pip install "embstore[{extra}]"'
