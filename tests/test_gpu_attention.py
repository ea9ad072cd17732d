"""Attention on a GPU: the CPU's values, by blocks of scores instead of their square."""

import numpy as np
import pytest

import wengert as wg
from wengert import nn

# Sizes of queries, keys and values, a mask's dtype and sizes, and whether it is causal.
CASES = {
    "plain": ((2, 3, 17, 8), (2, 3, 17, 8), (2, 3, 17, 8), None, False),
    "causal": ((2, 3, 33, 8), (2, 3, 33, 8), (2, 3, 33, 8), None, True),
    "more queries": ((2, 9, 4), (2, 5, 4), (2, 5, 3), None, True),
    "more keys": ((5, 4), (65, 4), (65, 4), None, True),
    "bool mask": ((2, 1, 5, 8), (3, 9, 8), (3, 9, 4), (bool, (5, 9)), False),
    "added mask": ((2, 3, 5, 8), (2, 3, 9, 8), (2, 3, 9, 4), (np.float32, (3, 1, 9)), True),
    "blocks of heads": ((40, 1, 512, 2), (40, 1, 512, 2), (40, 1, 512, 2), None, False),
    "blocks of queries": ((1, 1, 3000, 4), (1, 1, 3000, 4), (1, 1, 3000, 4), None, True),
}


def data_of(case):
    q, k, v, mask, causal = case
    draws = np.random.default_rng(3)
    arrays = [draws.normal(size=sizes).astype(np.float32) for sizes in (q, k, v)]
    if mask is not None:
        dtype, sizes = mask
        arrays.append(draws.random(sizes) < 0.8 if dtype is bool else draws.normal(size=sizes))
        arrays[-1] = arrays[-1].astype(dtype)
    return arrays, causal


def attend(causal):
    def f(q, k, v, mask=None):
        y = nn.scaled_dot_product_attention(q, k, v, mask=mask, is_causal=causal)
        return [y, *wg.gradients((y * y.sin()).sum(), [q, k, v])]

    return f


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_cpu(name, mode, gpu):
    arrays, causal = data_of(CASES[name])
    results = []
    for device in ("cpu", gpu):
        heads = [wg.tensor(x, device=device, requires_grad=True) for x in arrays[:3]]
        masks = [wg.tensor(x, device=device) for x in arrays[3:]]
        f = attend(causal) if mode == "eager" else wg.compile(attend(causal))
        results.append([x.numpy() for x in f(*heads, *masks)])
    for found, wanted in zip(*reversed(results), strict=True):
        bound = 2e-5 * max(1.0, abs(wanted).max())
        np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [wg.float16, wg.bfloat16])
def test_half_floats_are_rounded_once(dtype, gpu):
    arrays, causal = data_of(CASES["causal"])
    heads = [wg.tensor(x, device=gpu).astype(dtype) for x in arrays]
    found = nn.scaled_dot_product_attention(*heads, is_causal=causal)
    assert found.dtype == dtype
    wide = [x.astype(wg.float32) for x in heads]
    wanted = nn.scaled_dot_product_attention(*wide, is_causal=causal).astype(dtype)
    found, wanted = found.astype(wg.float32).numpy(), wanted.astype(wg.float32).numpy()
    np.testing.assert_array_equal(found, wanted)


def test_rows_that_attend_to_nothing_are_nan_and_others_are_not(gpu):
    arrays, _ = data_of(CASES["plain"])
    mask = np.ones((17, 17), bool)
    mask[3] = False
    y = nn.scaled_dot_product_attention(
        *(wg.tensor(x, device=gpu) for x in arrays), mask=wg.tensor(mask, device=gpu)
    ).numpy()
    assert np.isnan(y[:, :, 3]).all()
    assert np.isfinite(np.delete(y, 3, axis=2)).all()


def test_it_is_one_call_that_differentiates_twice_and_runs_over_examples(gpu):
    arrays, _ = data_of(CASES["plain"])
    seconds = []
    for device in ("cpu", gpu):
        q, k, v = (wg.tensor(x, device=device, requires_grad=True) for x in arrays)
        y = nn.scaled_dot_product_attention(q, k, v)
        (first,) = wg.gradients((y * y).sum(), [q], create_graph=True)
        second = wg.gradients((first * first).sum(), [q, k, v])
        over = wg.vmap(lambda q: nn.scaled_dot_product_attention(q, k[0], v[0]))(q)
        seconds.append([x.numpy() for x in [*second, over]])
    for wanted, found in zip(*seconds, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_its_memory_does_not_grow_with_the_square_of_its_length(mode, gpu):
    """Without blocks the scores of 2 × 8 heads of 2,048 alone are 268 MB."""
    q = wg.ones((2, 8, 2048, 4), device=gpu, requires_grad=True)

    def f(q):
        y = nn.scaled_dot_product_attention(q, q, q, is_causal=True)
        return wg.gradients(y.sum(), [q])[0]

    run = f if mode == "eager" else wg.compile(f)
    wg.synchronize()
    wg.reset_peak_memory(gpu)
    before = wg.memory_stats(gpu)["peak_bytes"]
    run(q).numpy()
    assert wg.memory_stats(gpu)["peak_bytes"] - before < 160e6
