"""What capture is measured on, in the words of each engine: `capture.py` holds the figures.

The GPT is the same everywhere: four blocks of layer norm, causal attention over four heads, layer
norm, and a feed-forward network four times as wide; cross entropy over 1024 tokens; AdamW.
"""

import time
from functools import partial

import numpy as np

LAYERS, HEADS, TOKENS = 4, 4, 1024


class Missing(Exception):
    """The engine has nothing comparable."""


def batches(array, length):
    """Gives random token ids and targets, `(size, length)` each."""
    random = np.random.default_rng(0)
    return lambda size: tuple(array(random.integers(0, TOKENS, (size, length))) for _ in range(2))


class Adapter:
    """What an engine lacks unless its adapter says otherwise."""

    def __init__(self, threads):
        pass

    def done(self, y):
        return y

    def gpt(self, width=256, length=256, compiled=True):
        raise Missing

    def new_size(self):
        """Seconds that a known training step takes longer when it meets a new size of batch."""
        step, batch = self.gpt()
        step(*batch(8))
        step(*batch(4))
        found = []
        for size in (5, 6, 7):
            times = []
            for _ in range(3):
                start = time.perf_counter()
                step(*batch(size))
                times.append(time.perf_counter() - start)
            found.append(max(times[0] - min(times[1:]), 0.0))
        return sorted(found)[1]

    def per_node(self, f):
        raise Missing

    def eight_bits(self, rows, compiled=True):
        raise Missing


def build(nn, reshape_heads, attention, width, length):
    """The model over a `torch.nn`-like module of layers."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.gelu = nn.GELU()

        def forward(self, x):
            b, t, d = x.shape
            heads = reshape_heads(self.mix(self.before(x)).reshape(b, t, 3, HEADS, d // HEADS))
            y = attention(heads[0], heads[1], heads[2])
            x = x + self.out(y.swapaxes(1, 2).reshape(b, t, d))
            return x + self.down(self.gelu(self.up(self.after(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(TOKENS, width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, TOKENS)

        def forward(self, ids, places):
            return self.head(self.norm(self.blocks(self.tokens(ids) + self.places(places))))

    return Model()


class Wengert(Adapter):
    """Ours."""

    def __init__(self, threads):
        import wengert as wg

        wg.set_num_threads(threads)
        self.wg, self.compile, self.gradient = wg, wg.compile, wg.grad

    def ones(self, n):
        return self.wg.ones(n)

    def op(self, name):
        return getattr(self.wg, name)

    def gpt(self, width=256, length=256, compiled=True):
        wg, nn = self.wg, self.wg.nn
        attention = partial(nn.scaled_dot_product_attention, is_causal=True)
        model = build(nn, lambda x: x.permute_dims((2, 0, 3, 1, 4)), attention, width, length)
        optimizer = wg.optim.AdamW(model.parameters(), lr=1e-3)

        def step(ids, targets):
            optimizer.zero_grad()
            logits = model(ids, wg.arange(length)).reshape(-1, TOKENS)
            loss = nn.cross_entropy(logits, targets.reshape(-1))
            loss.backward()
            optimizer.step()
            return loss

        run = wg.compile(step) if compiled else step
        self.compiled = run
        return lambda *data: run(*data).item(), batches(wg.asarray, length)

    def eight_bits(self, rows, compiled=True):
        """A layer whose weights are kept as int8, with a scale for each column."""
        wg, random = self.wg, np.random.default_rng(2)
        w = wg.asarray(random.integers(-127, 128, (1024, 4096)).astype(np.int8))
        x, s, b = (
            wg.asarray(random.standard_normal(shape).astype(np.float32))
            for shape in ((rows, 1024), (4096,), (4096,))
        )

        def layer(x, w, s, b):
            return wg.nn.gelu(x @ (w.astype(wg.float32) * s) + b)

        run = wg.compile(layer) if compiled else layer
        return lambda: run(x, w, s, b)

    def new_size(self):
        """The plan alone: the step itself takes a hundred times as long, and less evenly."""
        step, batch = self.gpt()
        step(*batch(8))
        step(*batch(4))
        found = []
        for size in (5, 6, 7, 9, 10):
            data = batch(size)
            start = time.perf_counter()
            self.compiled.plan(*data)
            found.append(time.perf_counter() - start)
        return sorted(found)[2]

    def per_node(self, f):
        """Seconds a node of Python's part of a first call, and of what follows until the plan."""
        wg, spent = self.wg, []

        def timed(x):
            start = time.perf_counter()
            y = f(x)
            spent.append(time.perf_counter() - start)
            return y

        g, x = wg.compile(timed), wg.ones(100)
        start = time.perf_counter()
        plan = g.plan(x)
        whole = time.perf_counter() - start
        nodes = len(g.graph(x).nodes)
        assert len(plan) > 0
        return spent[0] / nodes, (whole - spent[0]) / nodes


class Jax(Adapter):
    """JAX, `jit`."""

    def __init__(self, threads):
        import jax

        self.jax, self.compile, self.gradient = jax, jax.jit, jax.grad

    def ones(self, n):
        return self.jax.numpy.ones(n)

    def op(self, name):
        return getattr(self.jax.numpy, name)

    def done(self, y):
        return y.block_until_ready()

    def _parameters(self, width, length):
        random = np.random.default_rng(1)

        def matrix(*shape):
            return self.jax.numpy.asarray(0.02 * random.standard_normal(shape).astype("f"))

        def linear(a, b):
            return {"w": matrix(a, b), "b": matrix(b)}

        def block():
            return {
                "before": linear(1, width),
                "mix": linear(width, 3 * width),
                "out": linear(width, width),
                "after": linear(1, width),
                "up": linear(width, 4 * width),
                "down": linear(4 * width, width),
            }

        return {
            "tokens": matrix(TOKENS, width),
            "places": matrix(length, width),
            "blocks": [block() for _ in range(LAYERS)],
            "norm": linear(1, width),
            "head": linear(width, TOKENS),
        }

    def _loss(self, p, ids, targets):
        jax, np = self.jax, self.jax.numpy

        def norm(p, x):
            centred = x - x.mean(-1, keepdims=True)
            scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
            return centred * scale * p["w"] + p["b"]

        def linear(p, x):
            return x @ p["w"] + p["b"]

        x = p["tokens"][ids] + p["places"][: ids.shape[1]]
        b, t, d = x.shape
        mask = np.tril(np.ones((t, t), bool))
        for block in p["blocks"]:
            heads = linear(block["mix"], norm(block["before"], x))
            q, k, v = heads.reshape(b, t, 3, HEADS, d // HEADS).transpose(2, 0, 3, 1, 4)
            scores = np.where(mask, q @ k.swapaxes(-1, -2) / (d // HEADS) ** 0.5, -np.inf)
            y = (jax.nn.softmax(scores) @ v).swapaxes(1, 2).reshape(b, t, d)
            x = x + linear(block["out"], y)
            up = jax.nn.gelu(linear(block["up"], norm(block["after"], x)), approximate=False)
            x = x + linear(block["down"], up)
        logits = jax.nn.log_softmax(linear(p["head"], norm(p["norm"], x)))
        return -np.take_along_axis(logits, targets[..., None], -1).mean()

    def gpt(self, width=256, length=256, compiled=True):
        jax = self.jax
        if not compiled:
            raise Missing
        parameters = self._parameters(width, length)
        zeros = jax.tree.map(jax.numpy.zeros_like, parameters)
        state = [parameters, zeros, zeros, 0]

        @jax.jit
        def step(p, m, v, count, ids, targets):
            loss, g = jax.value_and_grad(self._loss)(p, ids, targets)
            count = count + 1
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)

            def update(p, m, v):
                m, v = m / (1 - 0.9**count), v / (1 - 0.999**count)
                return p * (1 - 1e-5) - 1e-3 * m / (jax.numpy.sqrt(v) + 1e-8)

            return loss, jax.tree.map(update, p, m, v), m, v, count

        def run(ids, targets):
            loss, *state[:] = step(*state, ids, targets)
            return float(loss)

        return run, batches(jax.numpy.asarray, length)


class Torch(Adapter):
    """PyTorch, `torch.compile`."""

    def __init__(self, threads):
        import torch

        torch.set_num_threads(threads)
        torch._dynamo.config.recompile_limit = 64
        self.torch, self.compile = torch, torch.compile

    def ones(self, n):
        return self.torch.ones(n)

    def op(self, name):
        return getattr(self.torch, name)

    def gradient(self, f):
        def g(x):
            x = x.detach().requires_grad_()
            return self.torch.autograd.grad(f(x), x)[0]

        return g

    def gpt(self, width=256, length=256, compiled=True):
        torch, nn = self.torch, self.torch.nn
        attention = partial(nn.functional.scaled_dot_product_attention, is_causal=True)
        model = build(nn, lambda x: x.permute(2, 0, 3, 1, 4), attention, width, length)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def loss_of(ids, targets):
            logits = model(ids, torch.arange(length)).reshape(-1, TOKENS)
            return nn.functional.cross_entropy(logits, targets.reshape(-1))

        forward = torch.compile(loss_of) if compiled else loss_of
        update = torch.compile(optimizer.step) if compiled else optimizer.step

        def step(ids, targets):
            optimizer.zero_grad()
            loss = forward(ids, targets)
            loss.backward()
            update()
            return loss.item()

        return step, batches(torch.from_numpy, length)


ADAPTERS = {"wengert": Wengert, "jax": Jax, "torch": Torch}
