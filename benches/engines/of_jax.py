"""JAX, by `jax.jit`."""

import os

import numpy as np

from .base import Engine


class Jax(Engine):
    """JAX: each row is one compiled function."""

    def __init__(self, threads):
        # Read when the backend starts; more threads than the process may use are not made.
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=" +
                              ("true" if threads > 1 else "false"))
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax

        self.jax, self.jnp, self.nn, self.lax = jax, jax.numpy, jax.nn, jax.lax
        jnp = jax.numpy
        self.exp, self.tanh, self.sqrt, self.abs = jnp.exp, jnp.tanh, jnp.sqrt, jnp.abs
        self.sum, self.mean, self.max, self.argmax = jnp.sum, jnp.mean, jnp.max, jnp.argmax
        self.cumsum, self.sort, self.reshape = jnp.cumsum, jnp.sort, jnp.reshape
        self.transpose, self.stack = jnp.transpose, jnp.stack
        self.sigmoid, self.relu, self.softmax = jax.nn.sigmoid, jax.nn.relu, jax.nn.softmax
        self.relu6 = jax.nn.relu6

    def array(self, x, dtype="float32"):
        x = self.jnp.asarray(x)
        return x.astype(dtype) if x.dtype == "float32" else x

    def numpy(self, y):
        return np.asarray(y.astype("float32") if y.dtype == "bfloat16" else y)

    def forward(self, f, arrays):
        f = self.jax.jit(f)
        return lambda: self.jax.block_until_ready(f(*arrays))

    def gradient(self, f, arrays, wrt):
        return self.forward(self.jax.grad(f, argnums=tuple(wrt)), arrays)

    def training(self, loss, parameters, batch, optimizer):
        jax, jnp, (name, lr) = self.jax, self.jnp, optimizer
        decay = 0.01 if name == "adamw" else 0.0

        def sgd(p, g, state):
            return jax.tree.map(lambda p, g: p - lr * g, p, g), state

        def adam(p, g, state):
            m, v, t = state
            t = t + 1
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
            size = jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)

            def moved(p, m, v):
                small = 1e-8 * jnp.sqrt(1 - 0.999**t)
                return p * (1 - lr * decay) - lr * size * m / (jnp.sqrt(v) + small)
            return jax.tree.map(moved, p, m, v), (m, v, t)

        update = sgd if name == "sgd" else adam

        def step(p, state, *batch):
            y, g = jax.value_and_grad(loss)(p, *batch)
            return (y, *update(p, g, state))

        step = jax.jit(step, donate_argnums=(0, 1))
        zero = jax.tree.map(jnp.zeros_like, parameters)
        now = [parameters, (zero, jax.tree.map(jnp.zeros_like, parameters), jnp.float32(0))]

        def call():
            y, *now[:] = step(*now, *batch)
            return np.float32(y)
        return call

    def gelu(self, x):
        return self.nn.gelu(x, approximate=True)

    def layer_norm(self, x, w, b):
        x = x - x.mean(-1, keepdims=True)
        return x * self.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w + b

    def take(self, table, i):
        return table[i]

    def conv(self, x, w, bias, stride, padding, groups):
        y = self.lax.conv_general_dilated(x, w, (stride, stride), [(padding, padding)] * 2,
                                          feature_group_count=groups)
        return y if bias is None else y + bias[:, None, None]

    def max_pool(self, x, size, stride, padding):
        sides = ((0, 0), (0, 0), (padding, padding), (padding, padding))
        return self.lax.reduce_window(x, -self.jnp.inf, self.lax.max, (1, 1, size, size),
                                      (1, 1, stride, stride), sides)

    def batch_norm(self, x, w, b, mean=None, var=None):
        if mean is None:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
        scale = self.lax.rsqrt(var + 1e-5) * w
        return x * scale[:, None, None] + (b - mean * scale)[:, None, None]

    def attention(self, q, k, v, causal):
        scores = q @ k.swapaxes(-1, -2) / self.jnp.sqrt(self.jnp.float32(q.shape[-1]))
        if causal:
            past = self.jnp.tril(self.jnp.ones(scores.shape[-2:], bool))
            scores = self.jnp.where(past, scores, -self.jnp.inf)
        return self.softmax(scores) @ v

    def cross_entropy(self, logits, labels):
        found = self.jnp.take_along_axis(self.nn.log_softmax(logits), labels[:, None], 1)
        return -found.mean()

    def lstm(self, x, into, over, bias):
        from rows_models import gates

        into = x @ into + bias
        n = over.shape[0]
        zero = self.jnp.zeros((into.shape[1], n))

        def cell(carry, g):
            h, c = gates(self, n, g + carry[0] @ over, carry[1])
            return (h, c), h
        return self.lax.scan(cell, (zero, zero), into)[1]
