"""What a caller can get wrong with a format. (A bad row is not an exception: see `Decoded`.)"""

from __future__ import annotations


class FormatError(ValueError):
    """A format cannot do what was asked of it."""


class MissingPackage(FormatError, ImportError):
    """The format stands on a package that is not installed; the message names the extra."""


class UnsupportedColumn(FormatError, TypeError):
    """The column's type has no counterpart in the format."""


class SchemaMismatch(FormatError):
    """A schema cannot be read, or does not fit the column or the other schema."""


class RegistryError(FormatError):
    """The schema registry refused a request, or did not answer.

    `status` is the HTTP status (0 when there was no answer), `code` the registry's own error code.
    """

    def __init__(self, message: str, status: int = 0, code: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
