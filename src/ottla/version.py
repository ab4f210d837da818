"""The version, apart from the package's own names: every room may know it."""

__version__ = "0.2.0.dev0"
