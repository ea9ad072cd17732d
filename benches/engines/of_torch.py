"""PyTorch, eager and by torch.compile."""

import numpy as np
import torch
import torch.nn.functional as nn

from .base import Engine


class Torch(Engine):
    """PyTorch as Python code runs it."""

    def __init__(self, threads):
        torch.set_num_threads(threads)
        self.exp, self.tanh, self.sqrt, self.abs = torch.exp, torch.tanh, torch.sqrt, torch.abs
        self.sigmoid, self.relu, self.stack = torch.sigmoid, torch.relu, torch.stack
        self.reshape, self.cross_entropy = torch.reshape, nn.cross_entropy
        self.relu6 = nn.relu6

    def array(self, x, dtype="float32"):
        x = torch.from_numpy(np.array(x))
        return x.to(getattr(torch, dtype)) if x.is_floating_point() else x

    def numpy(self, y):
        if not torch.is_tensor(y):
            return np.asarray(y)
        return (y.float() if y.is_floating_point() else y).detach().numpy()

    def written(self, f):
        """A function as it is measured."""
        return f

    def forward(self, f, arrays):
        f = self.written(f)

        def call():
            with torch.inference_mode():
                return f(*arrays)
        return call

    def leaves(self, arrays, wrt):
        return [x.detach().requires_grad_(i in wrt) for i, x in enumerate(arrays)]

    def recorded(self, f, arrays, wrt):
        arrays, f = self.leaves(arrays, wrt), self.written(f)
        return lambda: f(*arrays)

    def gradient(self, f, arrays, wrt):
        arrays, f = self.leaves(arrays, wrt), self.written(f)
        by = [arrays[i] for i in wrt]
        return lambda: torch.autograd.grad(f(*arrays), by)

    def training(self, loss, parameters, batch, optimizer):
        for x in parameters.values():
            x.requires_grad_()
        name, lr = optimizer
        make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam,
                "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.01)}[name]
        stepper, value = make(parameters.values(), lr=lr), self.written(loss)

        def step():
            stepper.zero_grad()
            y = value(parameters, *batch)
            y.backward()
            stepper.step()
            return np.float32(y.item())
        return step

    def gelu(self, x):
        return nn.gelu(x, approximate="tanh")

    def sum(self, x, axis=None):
        return x.sum() if axis is None else x.sum(axis)

    def mean(self, x, axis=None):
        return x.mean() if axis is None else x.mean(axis)

    def max(self, x, axis=None):
        return x.max() if axis is None else x.amax(axis)

    def argmax(self, x, axis):
        return x.argmax(axis)

    def cumsum(self, x, axis):
        return x.cumsum(axis)

    def sort(self, x):
        return x.sort().values

    def transpose(self, x, axes):
        return x.permute(axes)

    def softmax(self, x):
        return nn.softmax(x, -1)

    def layer_norm(self, x, w, b):
        return nn.layer_norm(x, x.shape[-1:], w, b)

    def take(self, table, i):
        return nn.embedding(i, table)

    def conv(self, x, w, bias, stride, padding, groups):
        return nn.conv2d(x, w, bias, stride, padding, 1, groups)

    def max_pool(self, x, size, stride, padding):
        return nn.max_pool2d(x, size, stride, padding)

    def batch_norm(self, x, w, b, mean=None, var=None):
        return nn.batch_norm(x, mean, var, w, b, training=mean is None)

    def attention(self, q, k, v, causal):
        return nn.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def lstm(self, x, into, over, bias):
        n = over.shape[0]
        zero, none = torch.zeros(1, x.shape[1], n), torch.zeros(4 * n)
        weights = (into.t().contiguous(), over.t().contiguous(), bias, none)
        return torch._VF.lstm(x, (zero, zero), weights, True, 1, 0.0, True, False, False)[0]


class Compiled(Torch):
    """PyTorch by torch.compile."""

    def written(self, f):
        return torch.compile(f)
