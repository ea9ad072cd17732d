"""The cases: what each engine computes, through one small adapter per engine.

A case is a function of an adapter that prepares its inputs and returns the call to measure. An
engine that lacks something raises `Missing` and gets no figure for that case.
"""

import os

import numpy as np


class Missing(Exception):
    """The engine has nothing comparable."""


class Engine:
    """What an engine lacks unless its adapter says otherwise."""

    def recorded(self, a):
        raise Missing

    @property
    def nn(self):
        raise Missing

    def done(self, y):
        return y


class Numpy(Engine):
    """NumPy; no gradients."""

    def __init__(self, threads):
        pass

    def array(self, a):
        return a

    def op(self, name):
        return getattr(np, name)


class Wengert(Engine):
    """Ours."""

    def __init__(self, threads):
        import wengert as wg

        wg.set_num_threads(threads)
        self.wg, self.optim, self.functional = wg, wg.optim, wg.nn

    def array(self, a):
        return self.wg.asarray(a)

    def recorded(self, a):
        return self.wg.tensor(a, requires_grad=True)

    @property
    def nn(self):
        return self.wg.nn

    def done(self, y):
        return y.realize()

    def op(self, name):
        return getattr(self.wg, name)


class Torch(Engine):
    """PyTorch, eager."""

    def __init__(self, threads):
        import torch

        torch.set_num_threads(threads)
        self.torch, self.optim = torch, torch.optim
        self.functional = torch.nn.functional

    def array(self, a):
        return self.torch.from_numpy(a.copy())

    def recorded(self, a):
        return self.torch.tensor(a, requires_grad=True)

    @property
    def nn(self):
        return self.torch.nn

    def op(self, name):
        return getattr(self.torch, name)


class Jax(Engine):
    """JAX: each op on its own, as eager code calls it."""

    def __init__(self, threads):
        flags = "--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads="
        os.environ.setdefault("XLA_FLAGS", f"{flags}{threads}")
        import jax

        self.jax, self.jnp = jax, jax.numpy

    def array(self, a):
        return self.jnp.asarray(a)

    def done(self, y):
        return y.block_until_ready()

    def op(self, name):
        return getattr(self.jnp, name)


class Mlx(Engine):
    """MLX, evaluated at once."""

    def __init__(self, threads):
        import mlx.core as mx

        self.mx = mx

    def array(self, a):
        return self.mx.array(a)

    def done(self, y):
        self.mx.eval(y)
        return y

    def op(self, name):
        return getattr(self.mx, name)


ENGINES = {"wengert": Wengert, "numpy": Numpy, "torch": Torch, "jax": Jax, "mlx": Mlx}
CASES = {}


def case(name):
    """Adds a case under a name."""
    def add(make):
        CASES[name] = make
        return make
    return add


def random(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def simple(name, make_inputs, call):
    """A case that is one expression over arrays."""
    def make(e):
        inputs = [e.array(a) for a in make_inputs()]
        return lambda: e.done(call(e, *inputs))
    CASES[name] = make


# --- overhead: sixteen elements or none; the time is the call

simple("a + b, 16", lambda: [random(16), random(16)], lambda e, a, b: a + b)
simple("a * 2.0, 16", lambda: [random(16)], lambda e, a: a * 2.0)
simple("exp, 16", lambda: [random(16)], lambda e, a: e.op("exp")(a))
simple("m[3:5], 64²", lambda: [random(64, 64)], lambda e, m: m[3:5])
simple("m.sum(axis=1), 64²", lambda: [random(64, 64)], lambda e, m: m.sum(1))
simple("m.reshape(32, 128), 64²", lambda: [random(64, 64)], lambda e, m: m.reshape(32, 128))


@case("p * 2.0 recorded, 16")
def recorded_product(e):
    p = e.recorded(random(16))
    return lambda: p * 2.0


@case("scalar chain of 1000, forward + backward")
def scalar_chain(e):
    x = e.recorded(np.float32(1.0))

    def run():
        y = x
        for _ in range(500):
            y = (y * 0.999) + 0.001
        y.backward()
    return run


# --- memory-bound

simple("add, 1e7", lambda: [random(10**7), random(10**7)], lambda e, a, b: a + b)
simple("exp, 1e7", lambda: [random(10**7)], lambda e, a: e.op("exp")(a))
simple("tanh, 1e7", lambda: [random(10**7)], lambda e, a: e.op("tanh")(a))
simple("x + x.T, 2048²", lambda: [random(2048, 2048)], lambda e, m: m + m.T)
simple("sum, 1e7", lambda: [random(10**7)], lambda e, a: a.sum())
simple("sum axis 0, 4096²", lambda: [random(4096, 4096)], lambda e, m: m.sum(0))
simple("sum axis 1, 4096²", lambda: [random(4096, 4096)], lambda e, m: m.sum(1))
simple("argmax axis 1, 2048²", lambda: [random(2048, 2048)], lambda e, m: m.argmax(1))
simple("sort, 1e6", lambda: [random(10**6)], lambda e, a: first(e.op("sort")(a)))


def first(y):
    """torch.sort gives values and places."""
    return y[0] if isinstance(y, tuple) else y


# --- products

for size in (64, 256, 512, 1024, 2048):
    simple(f"matmul, {size}³", lambda n=size: [random(n, n), random(n, n)], lambda e, a, b: a @ b)
simple("8×1024 @ (1024×1024).T", lambda: [random(8, 1024), random(1024, 1024)],
       lambda e, x, w: x @ w.T)
simple("1×4096 @ 4096×4096", lambda: [random(1, 4096), random(4096, 4096)], lambda e, x, w: x @ w)
simple("batched 32×(128×64×128)", lambda: [random(32, 128, 64), random(32, 64, 128)],
       lambda e, a, b: a @ b)


# --- nn functions

def functional(name, make_inputs, call):
    """A case of ours and torch's `nn` functions."""
    def make(e):
        if not hasattr(e, "functional"):
            raise Missing
        inputs = [e.array(a) for a in make_inputs()]
        return lambda: e.done(call(e.functional, *inputs))
    CASES[name] = make


functional("softmax, 4096×1024", lambda: [random(4096, 1024)], lambda f, x: f.softmax(x, -1))
functional("conv 3×3 64→64, 56², b8", lambda: [random(8, 64, 56, 56), random(64, 64, 3, 3)],
           lambda f, x, w: f.conv2d(x, w, padding=1))
functional("max pool 2×2, 64×56², b8", lambda: [random(8, 64, 56, 56)],
           lambda f, x: f.max_pool2d(x, 2))
functional("gelu, 1e7", lambda: [random(10**7)], lambda f, x: f.gelu(x))


# --- training steps: forward, backward, optimizer

def training(name, build, make_inputs):
    """A case of ours and torch's modules: one whole step."""
    def make(e):
        model = build(e.nn)
        optimizer = e.optim.Adam(model.parameters(), lr=1e-3)
        inputs, labels = make_inputs()
        inputs, labels = e.array(inputs), e.array(labels)

        def step():
            optimizer.zero_grad()
            loss = e.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            return loss.item()
        return step
    CASES[name] = make


def labels(n):
    return np.random.default_rng(1).integers(0, 10, n)


def mlp(nn):
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, 10))


def lenet(nn):
    return nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
                         nn.Linear(84, 10))


def lstm(nn):
    class Last(nn.Module):
        """The class of a sequence from its last output."""

        def __init__(self):
            super().__init__()
            self.cells, self.head = nn.LSTM(64, 256, batch_first=True), nn.Linear(256, 10)

        def forward(self, x):
            return self.head(self.cells(x)[0][:, -1])
    return Last()


training("MLP 784-512-512-10 step, b128", mlp, lambda: (random(128, 784), labels(128)))
training("LeNet 28² step, b64", lenet, lambda: (random(64, 1, 28, 28), labels(64)))
training("LSTM h256 seq64 step, b32", lstm, lambda: (random(32, 64, 64), labels(32)))
