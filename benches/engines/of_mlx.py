"""MLX on the CPU, by `mx.compile`. It keeps images with channels last: rows of images are left out,
because what turns them would be measured too."""

import math

import numpy as np

from .base import Engine


class Mlx(Engine):
    """MLX."""

    def __init__(self, threads):
        import mlx.core as mx
        import mlx.nn as nn

        mx.set_default_device(mx.cpu)
        self.mx, self.nn = mx, nn
        self.exp, self.tanh, self.sqrt, self.abs = mx.exp, mx.tanh, mx.sqrt, mx.abs
        self.sum, self.mean, self.max, self.argmax = mx.sum, mx.mean, mx.max, mx.argmax
        self.cumsum, self.sort, self.reshape = mx.cumsum, mx.sort, mx.reshape
        self.transpose, self.stack, self.sigmoid = mx.transpose, mx.stack, mx.sigmoid
        self.relu = nn.relu

    def array(self, x, dtype="float32"):
        x = self.mx.array(x)
        return x.astype(getattr(self.mx, dtype)) if x.dtype == self.mx.float32 else x

    def numpy(self, y):
        return np.array(y.astype(self.mx.float32) if y.dtype == self.mx.bfloat16 else y)

    def computed(self, y):
        self.mx.eval(y)
        return y

    def forward(self, f, arrays):
        f = self.mx.compile(f)
        return lambda: self.computed(f(*arrays))

    def gradient(self, f, arrays, wrt):
        g = self.mx.grad(f, argnums=list(wrt))
        return self.forward(g, arrays)

    def gelu(self, x):
        return 0.5 * x * (1 + self.mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

    def softmax(self, x):
        return self.mx.softmax(x, -1)

    def layer_norm(self, x, w, b):
        return self.mx.fast.layer_norm(x, w, b, 1e-5)

    def take(self, table, i):
        return table[i]

    def attention(self, q, k, v, causal):
        return self.mx.fast.scaled_dot_product_attention(
            q, k, v, scale=1 / math.sqrt(q.shape[-1]), mask="causal" if causal else None)
