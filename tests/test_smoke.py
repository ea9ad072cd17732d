"""Two seconds of everything: what fails here makes the rest not worth running."""

import gc

import numpy as np

import wengert as wg
from wengert import nn, optim


def test_arithmetic_and_backward():
    x = wg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = wg.tensor([4.0, 5.0, 6.0], requires_grad=True)
    (x * y).sum().backward()
    assert x.grad.tolist() == [4.0, 5.0, 6.0] and y.grad.tolist() == [1.0, 2.0, 3.0]


def test_products_views_and_reductions():
    a = np.random.default_rng(0).standard_normal((5, 7)).astype("float32")
    t = wg.asarray(a)
    np.testing.assert_allclose((t @ t.T).numpy(), a @ a.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(t[::-1, 2:].numpy(), a[::-1, 2:])
    np.testing.assert_allclose(t.mean(axis=0).numpy(), a.mean(0), rtol=1e-5, atol=1e-6)


def test_a_model_learns():
    wg.random.seed(0)
    x = wg.random.normal((128, 2))
    label = (x[:, 0] * x[:, 1] > 0).astype(wg.int64)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = nn.cross_entropy(model(x), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_nothing_is_left():
    gc.collect()
    assert wg.graph_stats()["nodes"] == 0
    x = wg.tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).exp().sum()
    assert wg.graph_stats()["nodes"] == 3
    y.backward()
    del y
    assert wg.graph_stats()["nodes"] == 0
