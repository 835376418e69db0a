"""The contract's arithmetic, once: what the bits of a row, a sum, a pooled reply and a digest are.

Client, engine, hot replica and the kernels of every device must agree to the last bit, so the
formulas of contract.md stand here and nowhere else, in vectorised NumPy, one idea per file:

    philox      rule 10   initial rows from (seed, key)
    sums        2, 3, 6   keys made unique; sums over occurrences, over dim, over ranks; which
                and 9     sums an update accepts
    pooling     rule 8    bags to rows, and a bag's gradient to its occurrences
    optimizers  rule 4    the scale, the host scalars, one update of distinct rows, the first state
    digest      rule 11   leaves and root
    partitions  rule 12   which part of a table a row belongs to
    xxh3        -         the hash of ids that are no keys ("Hashed ids")
    nans        rule 1    the one NaN that a row may hold
    denormals   rule 1    the check of the calling thread
    choice      -         NumPy, or the compiled twin, of what takes the time of a client

Why NumPy can keep the contract: every ufunc over float32 arrays rounds each element once, to
nearest even, and two ufuncs never contract into an FMA. What could break it is left out:
`np.sum`, `np.add.reduce` and `np.dot` choose their own order, and a Python float beside an array
is rounded to fp32 where NumPy likes, so scalars arrive here as np.float32.

Non-finite values are legal in all of this and run through without a warning; `unaccepted` finds
the sums of rule 9, and refusing them is the caller's part. A NaN has its canonical bits in rows and
pooled replies only, not in sums. Arguments have been checked by the caller; a wrong one is a bug of
ours. Everything is pure, or writes to the arrays it is given, and may run in any thread; what sums
over keys, bags or ranks, or applies an update, first checks that its thread keeps denormals.

Rejected: one file with each formula written twice (NumPy beside Numba), which nobody can read;
and Numba alone, which would make a trainer's client wait for a compiler it does not otherwise
need. Importing this package therefore imports NumPy only, and decides nothing.
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
