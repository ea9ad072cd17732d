"""What an adapter is, and how a row becomes a call of one."""

from functools import partial

import numpy as np
from case import Missing


class Engine:
    """An adapter. Its methods name what rows are made of, besides operators and slices of arrays:

    exp, tanh, sqrt, abs, sigmoid, relu, relu6, gelu (by tanh), sum, mean, max, argmax (x, axis),
    cumsum, sort, softmax (last axis), layer_norm (last axis, 1e-5), take (rows of a table),
    reshape, transpose (all axes), stack (leading axis), conv, max_pool, batch_norm (own statistics
    where none are given), attention, cross_entropy (mean), lstm (inputs by step, weights of inputs
    and of outputs, bias).

    What is not there is `Missing`, and the row has no figure for the engine.
    """

    def __getattr__(self, name):
        raise Missing(f"no {name}")

    def array(self, x, dtype="float32"):
        """An array of the engine; floats in a dtype, integers as they are."""
        raise NotImplementedError

    def numpy(self, y):
        """An array of NumPy, of float32 where it is narrower."""
        return np.asarray(y)

    def forward(self, f, arrays):
        """A call that gives `f(*arrays)`, computed."""
        raise NotImplementedError

    def recorded(self, f, arrays, wrt):
        """The same with a tape by some of the arrays."""
        raise Missing("no tape")

    def gradient(self, f, arrays, wrt):
        """A call that gives the gradients of a scalar by some of the arrays."""
        raise Missing("no gradients")

    def training(self, loss, parameters, batch, optimizer):
        """A call that takes a step of an optimizer (name, learning rate), and gives the loss as a
        number: `loss(parameters, *batch)`."""
        raise Missing("no optimizers")

    def prepare(self, case, s):
        """A call that computes a row once."""
        arrays = [self.array(x, case.dtype) for x in case.inputs(s)]
        given = ()
        if case.parameters is not None:
            given = ({name: self.array(x) for name, x in case.parameters(s).items()},)
        # What stands between an engine and the clock is as thin as can be.
        if case.kind == "training":
            return self.training(partial(case.function, self, s), *given, arrays, case.optimizer)
        f = partial(case.function, self, s, *given)
        if case.kind == "gradient":
            return self.gradient(f, arrays, case.wrt)
        if case.kind == "recorded":
            return self.recorded(f, arrays, case.wrt)
        return self.forward(f, arrays)

    def results(self, y):
        """What a call gave, as a list of NumPy arrays."""
        return [self.numpy(x) for x in (y if isinstance(y, (list, tuple)) else [y])]
