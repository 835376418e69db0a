"""What the tests of profiles, hot sets and their files share."""

import io

import numpy as np

from embstore.profiles.profile import Profile, Samples, TableProfile, Trace, exact_sum


def int64s(*values):
    return np.array(values, np.int64)


def table_of(counts, name="v", rows=0, **facts):
    """Return the profile of a table from a dictionary of counts."""
    keys = sorted(counts)
    numbers = int64s(*(counts[key] for key in keys))
    facts = {"accesses": exact_sum(numbers), **facts}
    return TableProfile(name, rows, int64s(*keys), numbers, **facts)


def trace_of(**changes):
    facts = {
        "rate": 0.5,
        "tables": ("v", "w"),
        "calls": 3,
        "call": np.array([0, 0, 2], np.int32),
        "table": np.array([0, 1, 0], np.int16),
        "keys": int64s(7, 7, 2**40),
        "counts": int64s(1, 2, 3),
        "unique_total": 5,
        "access_total": 9,
    }
    return Trace(**{**facts, **changes})


def whole_profile():
    samples = Samples(("v", "v", "w"), int64s(1, 0, 2, 1, 1, 1).reshape(2, 3), int64s(*range(1, 7)))
    tables = {"v": table_of({0: 3, 7: 300, 2**33: 2**40}, rows=2**34), "w": table_of({}, "w")}
    return Profile(tables, 0.25, 7, samples, trace_of(), "store")


def members_of(content):
    with np.load(io.BytesIO(content)) as file:
        return dict(file)


def archive_of(members):
    file = io.BytesIO()
    np.savez(file, **members)
    return file.getvalue()
