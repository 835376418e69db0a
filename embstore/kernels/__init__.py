"""Kernels, one verb per file: for the CPU in Numba (`<verb>.py`), for GPUs in CUDA (`<verb>.cu`).

A kernel works on arrays and indices, without a notion of tables or policies. A kernel that can be
split over threads takes `low, high` and processes only this part of its range. The bits of the
result never depend on the split, because each element is computed by one thread, in an order that
the contract fixes. A kernel that needs a list of arrays (the segments of a batch) takes the
addresses of the arrays.

Code that several CUDA sources need is in headers, one idea per header, with its theory at the top.
A file includes the headers whose names it uses, and no header includes itself, directly or through
others:

    types         integers, threads, the type of an element
    keys          row keys             score     fields of a score
    slabs         addresses of slots   index     the slot of a key
    segments      a batch              findings  results for the host
    floats        NaN, large sums      pieces    rows, moved by groups of lanes
    block_sums    sums over a block    tiles     counts over all items, in one pass
    search        the search for victims
    updates       rows that are updated, in two ways: by_element, by_row

Importing a module here compiles nothing (`embstore.arithmetic.jit`).
"""
