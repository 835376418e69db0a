"""Constants that Python and CUDA both name have one value."""

import re
from importlib.resources import files

import pytest

from embstore import arrays, layout, score
from embstore.arithmetic import compiled
from embstore.device import gpu_work, runtime
from embstore.kernels import probe, select_victims

PYTHON = {
    name: value
    for module in (arrays, layout, compiled, gpu_work, runtime, probe, select_victims, score)
    for name, value in vars(module).items()
    if name.isupper() and not name.startswith("_")
}
DEFINITION = re.compile(r"^#define (\w+) (.+?)(?: *//.*)?$", re.MULTILINE)
TEXT = "".join(
    entry.read_text(encoding="utf-8")
    for entry in files("embstore.kernels").iterdir()
    if entry.name.endswith((".cu", ".cuh"))
)
CUDA = dict(DEFINITION.findall(TEXT))


def value_of(expression):
    """Return the value of a C expression as an int64."""
    expression = re.sub(r"static_cast<int64>|(?<=\d)u?ll\b|(?<=\d)u\b", "", expression)
    names = {name: value_of(CUDA[name]) for name in re.findall(r"[A-Z]\w+", expression)}
    value = int(eval(expression, {}, names))
    return value - (1 << 64) if value >= 1 << 63 else value


@pytest.mark.parametrize("name", sorted(PYTHON.keys() & CUDA.keys()))
def test_a_constant_is_the_same_in_python_and_cuda(name):
    assert value_of(CUDA[name]) == int(PYTHON[name])


def test_the_constants_that_matter_are_compared():
    assert {"PENDING", "PINS_MAX", "ELEMENT_BYTES", "KEY_BITS", "BINS", "REFUSED"} <= (
        PYTHON.keys() & CUDA.keys()
    )
