"""Bytes of a row and of its record, whatever its parts."""

import numpy as np
import pytest

from embstore import Adam, Constant, RowWiseAdagrad, Sgd
from embstore.config import TableConfig
from embstore.layout import Layout, record_bytes_of


@pytest.mark.parametrize("dim, state_dim, row_bytes", [
    (1, 0, 16), (4, 0, 16), (4, 1, 32), (16, 1, 80), (64, 64, 512), (4096, 8192, 49_152),
])  # fmt: skip
def test_a_row_is_padded_to_sixteen_bytes(dim, state_dim, row_bytes):
    layout = Layout(dim, state_dim, "adam")
    rows = np.zeros((3, layout.stride), np.float32)
    assert layout.row_bytes == row_bytes == rows[:1].nbytes
    assert layout.record_bytes == 16 + row_bytes == record_bytes_of(rows)


@pytest.mark.parametrize("optimizer, state_dim", [
    (Sgd(0.1), 0), (RowWiseAdagrad(0.1), 1), (Adam(0.1), 10),
])  # fmt: skip
def test_tables_of_equal_parts_have_one_layout(optimizer, state_dim):
    layouts = [
        TableConfig.checked(
            name, dim=5, rows=rows, optimizer=optimizer, initializer=Constant(0.0)
        ).layout
        for name, rows in (("a", 10), ("b", 20))
    ]
    assert layouts == [Layout(5, state_dim, optimizer.kind)] * 2
