"""UTF-8 text: a binary column to a string column and back."""

from __future__ import annotations

import pyarrow as pa

from ottla.client.formats.base import Decoded, Format, binary_column, decode_rows, one_array
from ottla.client.formats.errors import UnsupportedColumn


class TextFormat(Format):
    """Values are UTF-8. Bytes that are not are rejected.

    >>> import pyarrow as pa
    >>> decoded = TextFormat().decode(pa.array([b"caf\\xc3\\xa9", None, b"\\xff"]))
    >>> decoded.array.to_pylist(), decoded.rejected_count
    (['café', None, None], 1)
    """

    name = "text"

    def decode(self, values: pa.Array | pa.ChunkedArray) -> Decoded:
        return decode_rows(binary_column(values), _validated, pa.string())

    def encode(self, column: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> pa.Array:
        """The column's values as text: strings as they are, numbers and times as Arrow prints them.

        A table with one column is that column.
        """
        if isinstance(column, pa.RecordBatch | pa.Table):
            if column.num_columns != 1:
                raise UnsupportedColumn(
                    f"text is made of one column, not of {column.num_columns}: pick one, "
                    "or encode the table as JSON"
                )
            column = column.column(0)
        array = one_array(column)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
            return array.cast(pa.binary())
        try:
            return array.cast(pa.string()).cast(pa.binary())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise UnsupportedColumn(f"{array.type} has no form as text: {error}") from error


def _validated(values: pa.Array) -> pa.Array:
    # The cast checks every byte; it does not copy them.
    return values.cast(pa.string())
