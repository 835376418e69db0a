"""Tables as files of other programs: written by `export_table`, read by `import_table`.

    exporting     a scan of a table to a file
    importing     a file's rows into a table
    formats       the format of a name, its reader and its writer
    about         a file's description of the table it was made of
    base          the state on which a file of changes has to be put
    places        paths and URLs; a file has its name when it is whole
    packed        files that are packed
    values        ids and rows of other programs, in the forms that tables have
    tensors, column_reader    rows out of named tensors, and out of named columns
    safetensors_file, parquet_file, npy_file, text_file, torch_file    the formats

Both go batch by batch, so that memory is bounded by a batch, for tables of any size; over any
store, embedded or a server's. The libraries of a format are imported when a file of it is opened
(extra `data`; PyTorch for its own checkpoints).

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
