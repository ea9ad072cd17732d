"""wengert, eager and compiled. What a call returns has been computed."""

import numpy as np

import wengert as wg
from wengert import _core, nn, optim

from .base import Engine

#: The bytes of an operand from which eager elementwise ops wait until somebody looks.
WAITS_FROM = _core._pend_from(None)


def looked_at(f, arrays):
    """A call of `f`, after which what it returns has been computed. Calls on small arrays, whose
    overhead is measured, are left alone: they return what has been computed."""
    if all(x.nbytes < WAITS_FROM for x in arrays):
        return f

    def run():
        y = f()
        wg.synchronize()
        return y
    return run


class Wengert(Engine):
    """Ours as Python code runs it."""

    def __init__(self, threads):
        wg.set_num_threads(threads)
        self.exp, self.tanh, self.sqrt, self.abs = wg.exp, wg.tanh, wg.sqrt, wg.abs
        self.sigmoid, self.relu, self.sort, self.stack = wg.sigmoid, nn.relu, wg.sort, wg.stack
        self.reshape, self.transpose = wg.reshape, wg.permute_dims

    def array(self, x, dtype="float32"):
        x = wg.tensor(x)
        return x.astype(getattr(wg, dtype)) if x.dtype.is_floating else x

    def numpy(self, y):
        y = wg.asarray(y).detach()
        return (y.astype(wg.float32) if y.dtype.is_floating else y).numpy()

    def written(self, f):
        """A function as it is measured."""
        return f

    def forward(self, f, arrays):
        f = self.written(f)
        return looked_at(lambda: f(*arrays), arrays)

    def leaves(self, arrays, wrt):
        """The arrays, some of them with a gradient."""
        return [wg.tensor(x, requires_grad=True) if i in wrt else x for i, x in enumerate(arrays)]

    def recorded(self, f, arrays, wrt):
        return self.forward(f, self.leaves(arrays, wrt))

    def gradient(self, f, arrays, wrt):
        arrays = self.leaves(arrays, wrt)
        by = [arrays[i] for i in wrt]
        return looked_at(lambda: wg.gradients(f(*arrays), by), arrays)

    def training(self, loss, parameters, batch, optimizer):
        leaves = {name: wg.tensor(x, requires_grad=True) for name, x in parameters.items()}
        name, lr = optimizer
        kind, options = {"sgd": (optim.SGD, {}), "adam": (optim.Adam, {}),
                         "adamw": (optim.AdamW, {"weight_decay": 0.01})}[name]
        stepper = kind(list(leaves.values()), lr=lr, **options)

        def step(*batch):
            stepper.zero_grad()
            value = loss(leaves, *batch)
            value.backward()
            stepper.step()
            return value.detach()

        step = self.written(step)
        return lambda: np.float32(step(*batch).item())

    def relu6(self, x):
        return wg.clip(x, 0.0, 6.0)

    def gelu(self, x):
        return nn.gelu(x, approximate="tanh")

    def sum(self, x, axis=None):
        return x.sum(axis=axis)

    def mean(self, x, axis=None):
        return x.mean(axis=axis)

    def max(self, x, axis=None):
        return x.max(axis=axis)

    def argmax(self, x, axis):
        return x.argmax(axis=axis)

    def cumsum(self, x, axis):
        return wg.cumulative_sum(x, axis=axis)

    def softmax(self, x):
        return nn.softmax(x, -1)

    def layer_norm(self, x, w, b):
        return nn.layer_norm(x, -1, w, b)

    def take(self, table, i):
        return nn.embedding(i, table)

    def conv(self, x, w, bias, stride, padding, groups):
        return nn.conv2d(x, w, bias, stride, padding, 1, groups)

    def max_pool(self, x, size, stride, padding):
        return nn.max_pool2d(x, size, stride, padding)

    def batch_norm(self, x, w, b, mean=None, var=None):
        if mean is None:
            mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
        return nn.batch_norm(x, mean, var, w, b)

    def attention(self, q, k, v, causal):
        return nn.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def cross_entropy(self, logits, labels):
        return nn.cross_entropy(logits, labels)

    def lstm(self, x, into, over, bias):
        zero = wg.zeros((x.shape[1], over.shape[0]))
        return nn.lstm(x, zero, zero, into.T, over.T, bias)[0]


class Compiled(Wengert):
    """Ours, captured by `wg.compile`; models for inference are frozen, as the graphs of the engines
    that run nothing else are."""

    def prepare(self, case, s):
        self.freeze = case.kind == "forward" and case.parameters is not None
        return super().prepare(case, s)

    def written(self, f):
        return wg.compile(f, freeze=self.freeze)

    def gradient(self, f, arrays, wrt):
        f = wg.compile(wg.grad(f, argnums=tuple(wrt)))
        return lambda: f(*arrays)
