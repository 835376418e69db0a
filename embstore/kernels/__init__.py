"""Kernels, one verb per file: the CPU twin (Numba, `<verb>.py`) and its CUDA source, `<verb>.cu`.

A kernel knows arrays and indices, no tables and no policies. One that can be split over threads
takes `low, high` and does that part of its range alone; its bits never depend on the split, because
every element of the result is computed by one thread, in an order that the contract fixes. Where a
kernel takes a list of arrays of one shape each (the segments of a batch), it takes their addresses.

Importing a module here compiles nothing (`embstore.arithmetic.jit`).
"""
