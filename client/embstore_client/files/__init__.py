"""Tables as files for other programs: `export_table` writes them, `import_table` reads them.

    exporting     a scan of a table to a file
    importing     a file's rows into a table
    formats       the format of a name, its reader and its writer
    file_origin   a file's description of the table from which it was made
    base          the state that a table must have so that a file of changes fits
    places        paths and URLs; a file gets its name when it is complete
    packed        compressed files
    batching      the number of rows per batch
    columns, decimals         named columns of Parquet and text; integers in text
    values        ids and rows of other programs, converted to the types of tables
    tensors, column_reader    rows from named tensors, and from named columns
    safetensors_file, parquet_file, npy_file, text_file, torch_file    the formats

Exports and imports work batch by batch, so their memory is bounded by the size of a batch, for
tables of any size. They work with any store, embedded or on a server. The libraries of a format are
imported when a file of that format is opened (extra `data`; PyTorch for its own checkpoints).

| format | rows | state | description of the table |
| --- | --- | --- | --- |
| .safetensors | tensors `keys` (n,) int64, `weights` (n, dim) float32 | tensor `state` | all |
| .parquet | columns `key` int64, `weights` list of dim float32 | column `state` | all |
| .npy | (rows, dim) float32 by key, initial rows too | no | none |

Files of other programs, in these formats and in .npz, .csv, .tsv, .txt, .vec, .pt, .pth, .bin and
.ckpt, can only be read.
"""

from embstore_client.files.exporting import Exported, export_table
from embstore_client.files.file_origin import FileOrigin
from embstore_client.files.importing import Imported, about_file, import_table

__all__ = [
    "Exported",
    "FileOrigin",
    "Imported",
    "about_file",
    "export_table",
    "import_table",
]
