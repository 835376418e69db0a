"""The version of the distribution, named here alone, its build, and how its extras are installed.

The build of the distribution reads the version too.
"""

from pathlib import Path

__version__ = "0.1.0"
_COMMIT = "$Format:%H$"
"""`git archive` puts the commit here (.gitattributes): a release is built of what it exports."""


def build() -> str:
    """Return the commit that this code was released from; "a clone" where it is none."""
    return "a clone" if _COMMIT.startswith("$") else _COMMIT[:12]


def pip_install(extra: str) -> str:
    """Return the command that installs an extra, as errors give it.

    An installation has the extras' packages in its own metadata, so that pip fetches them alone. A
    clone is installed again.
    """
    if Path(__file__).parents[1].joinpath("pyproject.toml").is_file():
        return f'pip install ".[{extra}]" (in a clone of embstore)'
    return f'pip install "embstore[{extra}]"'
