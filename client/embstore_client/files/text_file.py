"""Text with one row per line, compressed or not: .csv and .tsv with a header, .txt and .vec in
GloVe's format.

A line in GloVe's format is a word and its vector, separated by spaces. Line k is the row of key k,
counted from 0. The words are either ignored or hashed. Files of word2vec and fastText begin with a
line of two numbers: the number of words and the width.
"""

from pathlib import Path

from embstore.errors import InvalidArgumentError
from embstore_client.files.column_reader import ColumnReader, key_column, row_columns
from embstore_client.files.columns import TextColumns
from embstore_client.files.packed import Unpacked
from embstore_client.files.values import Hashing

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_LINE_BYTES_MAX = 1 << 20


class Reader(ColumnReader):
    """Reads one file."""

    def __init__(
        self, path: Path, tensor: str | None, key: str | None, hashed: Hashing | None
    ) -> None:
        kinds = [suffix for suffix in path.suffixes if suffix in _SEPARATORS]
        if kinds:
            columns = TextColumns(path, _SEPARATORS[kinds[-1]])
            name = key_column(columns, key, hashed)
            super().__init__(columns, row_columns(columns, tensor, name), name, hashed)
            return
        if tensor is not None or key is not None:
            raise InvalidArgumentError(
                "expected no name of a column for a text file, whose lines are a word and its "
                f"vector, found {tensor or key!r}"
            )
        with Unpacked(path) as file:
            first = file.bytes.readline(_LINE_BYTES_MAX).split()
        skipped = int(len(first) == 2 and all(map(bytes.isdigit, first)))
        columns = TextColumns(path, " ", has_header=False, skipped_lines=skipped)
        word, *rows = columns.schema.names
        super().__init__(columns, rows, None if hashed is None else word, hashed)
        if skipped and self.rows != int(first[0]):
            raise InvalidArgumentError(
                f"expected {int(first[0])} vectors, as the first line of {path.name} says, found "
                f"{self.rows}: the file may be cut off"
            )
