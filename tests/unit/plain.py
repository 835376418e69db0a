"""fp32 values and their bits, for the tests of the arithmetic."""

import numpy as np


def fp32(*values):
    return np.array(values, np.float32)


def bits(values):
    """Return the bits of fp32 values as they are: -0.0 is not 0.0, and one NaN is not another."""
    return np.ascontiguousarray(values).view(np.uint32).tolist()


def random_rows(rng, n, dim, exponents=(-3, 3)):
    """Return fp32 of very different size, so that every order of addition gives other bits."""
    return (rng.standard_normal((n, dim)) * 10.0 ** rng.integers(*exponents, (n, dim))).astype("f4")
