"""Tests that need a CUDA device and CuPy: ``python -m pytest -m gpu``; elsewhere they are skipped.

Beside Python they need NumPy, CuPy, Numba, pytest and Hypothesis, no more.

compute-sanitizer runs every verb of the device once, small, and finds what a test of results does
not: accesses out of bounds, and races within a block. `make gpu` has it as two parts; by hand, from
the repository's root:

    compute-sanitizer --tool memcheck --error-exitcode 99 python -m tests.gpu.every_verb
    compute-sanitizer --tool racecheck --error-exitcode 99 python -m tests.gpu.every_verb

and over the kernel tests, where they are given a CUDA device as well:

    compute-sanitizer --tool memcheck --error-exitcode 99 python -m pytest -q tests/kernels
"""
