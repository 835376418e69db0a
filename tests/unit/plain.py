"""The contract's formulas in plain Python floats, each operation rounded to fp32.

A double has 53 bits, at least 2 * 24 + 2: the rounded float64 result of one +, -, *, / or sqrt of
fp32 numbers is the fp32 result, denormals apart.
"""

import math

import numpy as np

from embstore.optimizers import power

WORD = 0xFFFFFFFF


def rounded(value):
    with np.errstate(all="ignore"):
        return float(np.float32(value))


def fp32(*values):
    return np.array(values, np.float32)


def bits(values):
    """Return the bits of fp32 values as they are: -0.0 is not 0.0, and one NaN is not another."""
    return np.ascontiguousarray(values).view(np.uint32).tolist()


def random_rows(rng, n, dim, exponents=(-3, 3)):
    """Return fp32 of very different size, so that every order of addition gives other bits."""
    return (rng.standard_normal((n, dim)) * 10.0 ** rng.integers(*exponents, (n, dim))).astype("f4")


# Rules 2 and 3: sums


def add_from_first(rows):
    sums = [float(value) for value in rows[0]]
    for row in rows[1:]:
        sums = [rounded(a + float(b)) for a, b in zip(sums, row, strict=True)]
    return sums


def sum_occurrences(rows):
    return add_from_first([add_from_first(rows[i : i + 64]) for i in range(0, len(rows), 64)])


def sum_over_dim(row):
    partials = [0.0] * 32
    for d, value in enumerate(row):
        partials[d % 32] = rounded((partials[d % 32] if d >= 32 else -0.0) + float(value))
    for half in (16, 8, 4, 2, 1):
        partials = [rounded(partials[i] + partials[i + half]) for i in range(half)]
    return partials[0]


# Rule 4: one update


def scalars(optimizer, t, rate, dim):
    """Return what the formulas take: computed in float64, rounded once."""
    match optimizer.kind:
        case "sgd":
            found = [rate]
        case "adagrad":
            found = [rate, optimizer.epsilon]
        case "rowwise_adagrad":
            found = [rate, optimizer.epsilon, dim]
        case "ftrl":
            found = [rate, optimizer.beta, optimizer.l1, optimizer.l2]
        case "adam":
            b1, b2 = optimizer.beta1, optimizer.beta2
            root = math.sqrt(1.0 - power(b2, t))
            rate_t = rate * root / (1.0 - power(b1, t))
            found = [rate_t, optimizer.epsilon * root, b1, 1.0 - b1, b2, 1.0 - b2]
    return [rounded(value) for value in found]


def sgd(w, state, g, lr):
    return [rounded(x - rounded(lr * y)) for x, y in zip(w, g, strict=True)], []


def adagrad(w, state, g, lr, eps):
    s = [rounded(x + rounded(y * y)) for x, y in zip(state, g, strict=True)]
    steps = [
        rounded(rounded(lr * y) / rounded(rounded(math.sqrt(x)) + eps))
        for x, y in zip(s, g, strict=True)
    ]
    return [rounded(x - step) for x, step in zip(w, steps, strict=True)], s


def rowwise_adagrad(w, state, g, lr, eps, dim):
    mean = rounded(sum_over_dim([rounded(y * y) for y in g]) / dim)
    s = rounded(state[0] + mean)
    rate = rounded(lr / rounded(rounded(math.sqrt(s)) + eps))
    return [rounded(x - rounded(rate * y)) for x, y in zip(w, g, strict=True)], [s]


def adam(w, state, g, lr, eps, b1, c1, b2, c2):
    dim = len(w)
    m = [rounded(rounded(b1 * x) + rounded(c1 * y)) for x, y in zip(state[:dim], g, strict=True)]
    v = [
        rounded(rounded(b2 * x) + rounded(rounded(c2 * y) * y))
        for x, y in zip(state[dim:], g, strict=True)
    ]
    steps = [
        rounded(rounded(lr * x) / rounded(rounded(math.sqrt(y)) + eps))
        for x, y in zip(m, v, strict=True)
    ]
    return [rounded(x - step) for x, step in zip(w, steps, strict=True)], m + v


def ftrl(w, state, g, lr, beta, l1, l2):
    dim = len(w)
    rows, zs, ns = [], [], []
    for x, z, n, y in zip(w, state[:dim], state[dim:], g, strict=True):
        n1 = rounded(n + rounded(y * y))
        root, root1 = rounded(math.sqrt(n)), rounded(math.sqrt(n1))
        sigma = rounded(rounded(root1 - root) / lr)
        z = rounded(rounded(z + y) - rounded(sigma * x))
        divisor = rounded(rounded(rounded(beta + root1) / lr) + l2)
        shrunk = -rounded(rounded(z - math.copysign(l1, z)) / divisor)
        rows.append(0.0 if abs(z) <= l1 else shrunk)
        zs.append(z)
        ns.append(n1)
    return rows, zs + ns


UPDATES = {f.__name__: f for f in (sgd, adagrad, rowwise_adagrad, adam, ftrl)}


# Rule 10: initial rows


def philox(counter, key):
    """Philox4x32-10."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return c0, c1, c2, c3


def words_of_row(seed, key, block, stream):
    return philox((key & WORD, key >> 32, block, stream), (seed & WORD, seed >> 32))


def uniform_row(low, high, seed, key, dim):
    low, high, row = rounded(low), rounded(high), []
    for e in range(dim):
        word = words_of_row(seed, key, e // 4, 0)[e % 4]
        row.append(rounded(low + rounded(rounded(high - low) * ((word >> 8) * 2.0**-24))))
    return row


def normal_row(mean, std, seed, key, dim):
    row = []
    for e in range(dim):
        words = words_of_row(seed, key, e, 1)
        total = sum((word >> 16) + (word & 0xFFFF) for word in words) - 262140
        product = rounded(rounded(std) * rounded(total * rounded(1 / 53509.9)))
        row.append(rounded(rounded(mean) + product))
    return row
