"""The version of the distribution, named here alone; the build reads it too."""

__version__ = "0.1.0"
