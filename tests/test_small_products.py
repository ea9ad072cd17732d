"""Batches of small products, whose kernel follows from their sizes: values against sums in float64,
and bits that depend on a row and a column alone."""

import numpy as np
import pytest

import wengert as wg

from support import generator

SIZES = [(16, 16, 16), (5, 9, 16), (13, 20, 48), (12, 16, 33), (7, 300, 16), (24, 8, 17), (4, 5, 8)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_elements_depend_on_their_row_and_column_alone(size, dtype):
    (m, k, n), rng = size, generator("small products", size)
    a = (rng.standard_normal((6, m, k)) * 8).astype(dtype)
    b = (rng.standard_normal((6, k, n)) * 8).astype(dtype)
    y = (wg.tensor(a) @ wg.tensor(b)).numpy()
    want = a.astype(np.float64) @ b.astype(np.float64)
    tolerance = {"float32": 1e-6, "float64": 1e-14, "int32": 0}[dtype] * k
    np.testing.assert_allclose(y, want, rtol=0, atol=tolerance * max(np.abs(want).max(), 1))

    def product(a, b):
        return (wg.tensor(np.ascontiguousarray(a)) @ wg.tensor(np.ascontiguousarray(b))).numpy()

    # Fewer columns, fewer rows, one matrix, and results and operands that lie otherwise.
    for columns in {1, n // 2, n - 1, 16} & set(range(1, n)):
        assert np.array_equal(product(a, b[..., :columns]), y[..., :columns])
        assert np.array_equal(product(a, b[..., -columns:]), y[..., -columns:])
    for rows in {1, m // 2, m - 1} & set(range(1, m)):
        assert np.array_equal(product(a[:, -rows:], b), y[:, -rows:])
    assert np.array_equal(product(a[2], b[2]), y[2])
    turned = wg.tensor(np.ascontiguousarray(a.transpose(0, 2, 1))).mT
    assert np.array_equal((turned @ wg.tensor(b)).numpy(), y)
    turned = wg.tensor(np.ascontiguousarray(b.transpose(0, 2, 1))).mT
    assert np.array_equal((wg.tensor(a) @ turned).numpy(), y)
