"""Kernels, one verb per file: the CPU twin (Numba, `<verb>.py`) and its CUDA source, `<verb>.cu`.

A kernel knows arrays and indices, no tables and no policies. A kernel that can be split over
threads takes `low, high` and processes only this part of its range. Its bits never depend on the
split, because one thread computes each element of the result, in an order that the contract fixes.
A kernel that needs a list of arrays (the segments of a batch) takes their addresses.

Code that several CUDA sources need is in headers, one idea each, with its theory at the top. A file
includes the headers whose names it uses, and headers do not include each other in circles:

    types         integers, threads, the type of an element
    keys          row keys             score     its fields
    slabs         addresses of slots   index     the slot of a key
    segments      a batch              findings  results for the host
    floats        NaN, large sums      pieces    rows, moved by groups of lanes
    block_sums    over a block         tiles     over all items, in one pass
    search        for victims
    updates       rows that are updated, in two ways: by_element, by_row

Importing a module here compiles nothing (`embstore.arithmetic.jit`).
"""
