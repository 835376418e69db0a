"""Kernels, one verb per file: the CPU twin (Numba, `<verb>.py`) and its CUDA source, `<verb>.cu`.

A kernel knows arrays and indices, no tables and no policies. One that can be split over threads
takes `low, high` and does that part of its range alone; its bits never depend on the split, because
every element of the result is computed by one thread, in an order that the contract fixes. Where a
kernel takes a list of arrays of one shape each (the segments of a batch), it takes their addresses.

What several CUDA sources need is in headers, one idea each, with its theory on top; a file includes
what it names, and headers include one another one way:

    types         integers, threads, the type of an element
    keys          row keys             score     its fields
    slabs         addresses of slots   index     the slot of a key
    segments      a batch              findings  what the host is told
    floats        NaN, large sums      pieces    rows, moved by groups of lanes
    block_sums    over a block         tiles     over all items, in one pass
    search        for victims
    updates       rows that are updated, in two ways: by_element, by_row

Importing a module here compiles nothing (`embstore.arithmetic.jit`).
"""
