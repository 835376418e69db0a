"""The version of the distribution, named here alone, and how its extras are installed.

The build reads the version too.
"""

__version__ = "0.1.0"


def pip_install(extra: str) -> str:
    """Return the command that installs an extra, as errors give it."""
    return f'pip install ".[{extra}]" (in a clone of embstore)'
