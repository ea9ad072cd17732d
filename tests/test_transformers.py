"""Attention and what is built of it: options, caches, positions, transformers; packed sequences."""

import copy

import numpy as np
import pytest

import wengert as wg
from wengert import nn

from references import attention
from support import array, same


def near(got, want, tolerance=1e-5):
    got = got.detach().numpy()
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mask", [None, (4, 6), (4, 4, 6), (2, 1, 4, 6)])
def test_heads_share_keys_and_values_in_groups(mask):
    q, k, v = array(2, 4, 4, 3), array(2, 2, 6, 3, seed=1), array(2, 2, 6, 5, seed=2)
    mask = None if mask is None else array(*mask, seed=3) > -0.5
    got = nn.scaled_dot_product_attention(q, k, v, mask=mask, enable_gqa=True)
    k, v = (np.repeat(x.numpy(), 2, 1) for x in (k, v))
    near(got, attention(q.numpy(), k, v, mask=None if mask is None else mask.numpy()))


def test_attention_refuses_heads_and_probabilities():
    q, k = wg.ones((4, 3, 2)), wg.ones((3, 3, 2))
    with pytest.raises(wg.ShapeError, match=r"4.*do not divide"):
        nn.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    with pytest.raises(ValueError, match=r"probability, got 1\.5"):
        nn.scaled_dot_product_attention(q, q, q, dropout_p=1.5)
    with pytest.raises(ValueError, match=r"4 heads.*3"):
        nn.MultiHeadAttention(8, 4, num_kv_heads=3)
    with pytest.raises(ValueError, match="probability, got True"):
        nn.MultiHeadAttention(8, 4, True)


def test_dropout_of_attention_zeroes_weights_and_keeps_their_mean():
    q, k = array(8, 2), array(500, 2, seed=1)
    ones, one = wg.ones((500, 1)), wg.eye(500)

    def f(p, v):
        wg.random.seed(3)
        return nn.scaled_dot_product_attention(q, k, v, dropout_p=p)

    weights = f(0.25, one)
    kept = wg.where(weights > 0, weights * 0.75, f(0.0, one))
    near(kept, attention(q.numpy(), k.numpy(), np.eye(500)))
    assert abs((weights == 0).astype(wg.float32).mean().item() - 0.25) < 0.03
    near(f(0.25, ones), np.ones((8, 1)), 0.2)
    assert f(1.0, ones).tolist() == [[0.0]] * 8
    captured = wg.compile(lambda: nn.scaled_dot_product_attention(q, k, ones, dropout_p=0.25))
    wg.random.seed(3)
    same(captured(), f(0.25, ones))
    grad = wg.grad(lambda v: f(0.25, v).sum())(ones)
    near(grad[:, 0], weights.sum(axis=0).numpy())


class Stack(nn.Module):
    """Two layers of attention, of which the second attends to what the first gives."""

    def __init__(self, kv):
        self.layers = [nn.MultiHeadAttention(8, 4, num_kv_heads=kv) for _ in range(2)]

    def forward(self, x, caches=(None, None), causal=True):
        for attn, cache in zip(self.layers, caches, strict=True):
            x = x + attn(x, is_causal=causal, cache=cache)
        return x


@pytest.mark.parametrize("kv", [1, 4])
@pytest.mark.parametrize("record", [False, True])
def test_a_cache_fills_in_place_and_gives_what_the_whole_gives(kv, record):
    model, x = Stack(kv), array(2, 7, 8)
    whole = model(x)
    caches = [[a.new_cache(2, 7) for a in model.layers] for _ in range(2)]
    with wg.no_grad() if not record else wg.enable_grad():
        step = wg.compile(lambda x: model(x, caches[0]))
        start = 0
        for size in (3, 1, 1, 2):
            part = x[:, start : start + size]
            y = step(part)
            near(y, whole[:, start : start + size].detach().numpy())
            same(model(part, caches[1]), y)
            start += size
            assert [int(c.length) for c in caches[0]] == [start] * 2
        before = [copy.deepcopy(c) for c in caches[0]]
        for full in (step, lambda x: model(x, caches[1])):
            with pytest.raises(IndexError, match="7"):
                full(x[:, :1])
    assert step.traces <= 3
    for cache, was in zip(caches[0], before, strict=True):
        same(cache.keys, was.keys)
        same(cache.values, was.values)
        assert int(cache.length) == 7 and not cache.keys.requires_grad
    caches[0][0].reset()
    assert int(caches[0][0].length) == 0


def test_a_cache_hands_on_gradients_and_knows_its_shapes():
    attn, x = nn.MultiHeadAttention(4, 2), array(1, 3, 4)
    masked = wg.arange(5) < 3
    wanted = wg.grad(lambda x: (attn(x) ** 2).sum())(x)
    cache = attn.new_cache(1, 5)
    near(wg.grad(lambda x: (attn(x, cache=cache) ** 2).sum())(x), wanted.numpy())
    cache.reset()
    near(attn(x, mask=masked, cache=cache), attn(x).detach().numpy())
    assert attn.state_dict().keys() == nn.MultiHeadAttention(4, 2).state_dict().keys()
    with pytest.raises(wg.ShapeError, match=r"keys.*\(2, 2, 3, 2\).*\(1, 2, 3, 2\)"):
        attn(array(2, 3, 4), cache=cache)
    with pytest.raises(ValueError, match="self-attention"):
        attn(x, x + 1, cache=cache)
    assert attn.to(wg.float64).new_cache(1, 2).keys.dtype == wg.float64


def test_positions():
    x = array(2, 3, 5, 6)
    turned = nn.rotary(x, base=100.0)
    near((turned**2).sum(axis=-1), (x.numpy() ** 2).sum(-1))
    later = nn.rotary(x, positions=wg.arange(5) + 11, base=100.0)
    products = turned @ wg.matrix_transpose(turned), later @ wg.matrix_transpose(later)
    near(products[0], products[1].numpy(), 1e-4)  # they depend on distances only
    each = nn.rotary(x, positions=wg.tensor([[[0, 1, 2, 3, 4]], [[2, 2, 2, 2, 2]]]), base=100.0)
    near(each[0], turned[0].numpy())
    near(each[1, :, 2], turned[1, :, 2].numpy())
    assert nn.rotary(x.astype(wg.float16)).dtype == wg.float16
    with pytest.raises(wg.ShapeError, match="size 3, wanted an even one"):
        nn.rotary(wg.ones((2, 3)))
    table = nn.sinusoidal_positions(50, 4, dtype=wg.float64).numpy()
    p = np.arange(50)
    want = np.stack([np.sin(p), np.cos(p), np.sin(p / 100), np.cos(p / 100)], -1)
    np.testing.assert_allclose(table, want, atol=1e-15)


# PyTorch's: Transformer(4, 2, 1, 2, dim_feedforward=6, activation="gelu"), parameters in the order
# of their names filled with 0.3 sin(0, 1, …) + their number, inputs as in the test.
TORCH = {
    False: ([0.02205, -0.183934, 0.270956, 0.495476, 0.010792, -0.195277, 0.2489, 0.528012,
             0.021658, -0.184552, 0.271449, 0.496196, 0.010274, -0.195922, 0.249357, 0.528681],
            [0.06322, 0.04197, 0.77785, 0.27059, 0.30719, 0.19269, 0.53568, 0.26218]),
    True: ([-0.17001, -0.106491, -0.283896, 0.507357, -0.516586, -0.136982, -0.344132, 0.229306,
            -0.126299, -0.162375, -0.18376, 0.621054, -0.514603, -0.123016, -0.297045, 0.160086],
           [0.03346, 0.01343, 1.04629, 0.32827, 0.58021, 0.19072, 1.04639, 0.44678]),
}  # fmt: skip


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_a_transformer_is_pytorch_s(first, mode):
    model = nn.Transformer(
        4, 2, 1, 2, dim_feedforward=6, dropout=0.0, activation="gelu", norm_first=first
    )
    with wg.no_grad():
        for k, (_, p) in enumerate(sorted(model.named_parameters())):
            values = 0.3 * np.sin(np.arange(p.numpy().size) + k)
            p.assign(wg.asarray(values.reshape(p.shape).astype("f")))
    src = wg.asarray(np.cos(np.arange(24)).reshape(2, 3, 4).astype("f"))
    tgt = wg.asarray(np.sin(np.arange(16) * 0.7).reshape(2, 2, 4).astype("f"))
    padding = wg.tensor([[False, False, True], [False, False, False]])

    def loss():
        y = model(
            src, tgt, tgt_mask=nn.Transformer.generate_square_subsequent_mask(2),
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        (y * y).sum().backward()
        return y

    values, norms = TORCH[first]
    near((loss if mode == "eager" else wg.compile(loss))().reshape(-1), values)
    grads = [p.grad for _, p in sorted(model.named_parameters())]
    np.testing.assert_allclose([wg.vector_norm(g).item() for g in grads[:8]], norms, atol=2e-5)
    causal = model(src, tgt, tgt_is_causal=True, src_key_padding_mask=padding,
                   memory_key_padding_mask=wg.where(padding, -np.inf, 0.0))  # fmt: skip
    near(causal.reshape(-1), values)


def test_layers_of_a_stack_are_copies_and_dropout_is_of_training():
    wg.random.seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.5, activation=nn.SiLU())
    stack = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(4))
    names = list(stack.state_dict())
    assert names[0] == "layers.0.self_attn.in_proj_weight" and names[-1] == "norm.bias"
    x = array(3, 4)
    assert not np.array_equal(stack(x).detach().numpy(), stack(x).detach().numpy())
    stack.eval()
    same(stack(x), stack(x[None])[0])
    near(stack.layers[0](x), layer.eval()(x).detach().numpy())
    with pytest.raises(ValueError, match="batch_first"):
        nn.TransformerEncoderLayer(4, 2, batch_first=False)
    with pytest.raises(ValueError, match=r"activation.*'swish'"):
        nn.TransformerDecoderLayer(4, 2, activation="swish")


@pytest.mark.parametrize("first", [False, True])
def test_packed_sequences_are_padded_ones_with_lengths(first):
    net = nn.GRU(3, 4, batch_first=first)
    parts = [array(n, 3, seed=n) for n in (2, 5, 3)]
    x, lengths = nn.pad_sequence(parts, batch_first=first), [2, 5, 3]
    packed = nn.pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
    y, last = net(packed)
    padded, found = nn.pad_packed_sequence(y, batch_first=True, padding_value=-1.0)
    assert found.tolist() == lengths and padded.shape == (3, 5, 4)
    want, end = net(x, lengths=wg.tensor(lengths))
    same(last, end)
    want = want if first else wg.swapaxes(want, 0, 1)
    mask = nn.length_mask(wg.tensor(lengths), 5)
    same(padded, wg.where(mask[..., None], want, -1.0))
    for a, b in zip(nn.unpad_sequence(x, lengths, batch_first=first), parts, strict=True):
        same(a, b)
    with pytest.raises(wg.ShapeError, match=r"\(2,\).*\(3,\)"):
        nn.pack_padded_sequence(x, [2, 5], batch_first=first)
    with pytest.raises(ValueError, match="batch_first"):
        nn.GRU(3, 4, batch_first=not first)(packed)
    with pytest.raises(wg.ShapeError, match="pad_sequence"):
        nn.pad_sequence([wg.ones((2, 3)), wg.ones((2, 4))])
    with pytest.raises(ValueError, match="none"):
        nn.pad_sequence([])
