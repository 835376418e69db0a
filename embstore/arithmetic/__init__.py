"""The arithmetic of the contract, which defines the bits of rows, sums, pooled replies and digests.

Client, engine, hot replica and the kernels of every device must agree to the last bit. Therefore
the formulas of contract.md are written only here, in vectorised NumPy, one idea per file:

    philox      rule 10   initial rows from (seed, key)
    sums        2, 3, 6   keys made unique; sums over occurrences, over dim, over ranks; the
                and 9     sums that an update accepts
    pooling     rule 8    bags to rows, and a bag's gradient to its occurrences
    optimizers  rule 4    the scale, the host scalars, one update of distinct rows, the first state
    digest      rule 11   leaves and root
    partitions  rule 12   which part of a table a row belongs to
    xxh3        -         the hash of ids that are no keys ("Hashed ids")
    nans        rule 1    the one NaN that a row may contain
    denormals   rule 1    the check of the calling thread
    choice      -         NumPy or compiled code, for functions that take much of a client's time

NumPy can keep the contract: every ufunc over float32 arrays rounds each element once, to nearest
even, and two ufuncs never contract into an FMA. Functions that could break it are avoided:
`np.sum`, `np.add.reduce` and `np.dot` choose their own order. NumPy also decides when a Python
float in an operation with an array is rounded to fp32; therefore scalars are passed as np.float32.

All functions accept non-finite values, and give no warning. `unaccepted` finds the sums that rule 9
refuses; the caller refuses these sums. A NaN has its canonical bits only in rows and pooled
replies, not in sums. The caller has checked the arguments; a wrong argument is a bug of ours. Each
function is pure, or writes only to arrays that it is given, and can run in any thread. Functions
that sum over keys, bags or ranks, or apply an update, first ensure that the calling thread keeps
denormals.

Rejected: one file with each formula in two versions (NumPy and Numba), which would be unreadable;
and Numba alone, because a trainer's client would wait for a compiler that it does not otherwise
need. For the same reason, importing this package imports only NumPy, and does not choose a version
yet.
"""

from embstore.arithmetic.choice import (
    Implementation,
    by_shard,
    force,
    implementation,
    sum_by_key,
    unique,
    update_rows,
)
from embstore.arithmetic.denormals import check_denormals
from embstore.arithmetic.digest import (
    BLOCK_KEYS,
    LEAF_RECORD,
    Root,
    checksum,
    leaf,
    leaf_records,
    leaves,
    root,
)
from embstore.arithmetic.nans import CANONICAL_NAN, canonicalize_nans
from embstore.arithmetic.optimizers import (
    OWN_SCALARS,
    SCALARS,
    apply_formulas,
    apply_update,
    initial_state,
    scalars_of,
    scale_sums,
    update_scalars,
)
from embstore.arithmetic.partitions import partitions, partitions_of_blocks
from embstore.arithmetic.philox import initial_rows, philox4x32
from embstore.arithmetic.pooling import Pooling, bag_gradients, pool_rows
from embstore.arithmetic.sums import (
    CHUNK_OCCURRENCES,
    LARGE,
    add_ranks,
    largest,
    sum_over_dim,
    unaccepted,
)

__all__ = [
    "BLOCK_KEYS",
    "CANONICAL_NAN",
    "CHUNK_OCCURRENCES",
    "LARGE",
    "LEAF_RECORD",
    "OWN_SCALARS",
    "SCALARS",
    "Implementation",
    "Pooling",
    "Root",
    "add_ranks",
    "apply_formulas",
    "apply_update",
    "bag_gradients",
    "by_shard",
    "canonicalize_nans",
    "check_denormals",
    "checksum",
    "force",
    "implementation",
    "initial_rows",
    "initial_state",
    "largest",
    "leaf",
    "leaf_records",
    "leaves",
    "partitions",
    "partitions_of_blocks",
    "philox4x32",
    "pool_rows",
    "root",
    "scalars_of",
    "scale_sums",
    "sum_by_key",
    "sum_over_dim",
    "unaccepted",
    "unique",
    "update_rows",
    "update_scalars",
]
