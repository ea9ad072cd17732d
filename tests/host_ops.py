"""What tests of ops of one's own and of functions share: ops whose code is the host's, each with
its formula over tensors, the modes that run them, and the derivatives that are taken of them.
"""

import numpy as np

import wengert as wg

rng = np.random.default_rng(0)

# For tests that count pure calls and traces of rules, which a checked run makes again.
uncounted = wg.config(check=False)

# Ops, each with its formula over tensors, to which every mode is held.


@wg.custom_op(infer=lambda x: x)
def cube(x):
    return x**3


@cube.vjp
def _(g, x, y):
    return (3.0 * x * x * g,)


@wg.custom_op(infer=lambda x: x)
def through_result(x):
    return np.exp(x)


@through_result.vjp
def _(g, x, y):
    return (g * y,)


@wg.custom_op(infer=lambda x, y: wg.Spec(x.shape, x.dtype))
def mixed(x, y):
    return x * y + y


@mixed.vjp
def _(g, x, y, z):
    return g * y, g * (x + 1.0)


@mixed.jvp
def _(t, x, y, z):
    return t[0] * y + t[1] * (x + 1.0)


@mixed.batch
def _(which, x, y):
    shape = x.shape if which[0] else y.shape
    return mixed(wg.broadcast_to(x, shape), wg.broadcast_to(y, shape))


@wg.custom_op(infer=lambda x: (x, wg.Spec(x.shape[1:], x.dtype), wg.Spec((), wg.int64)))
def several(x):
    return np.tanh(x), x.sum(axis=0), x.size


@several.vjp
def _(g, x, y):
    assert g[2] is None
    return (g[0] * (1.0 - y[0] * y[0]) + g[1],)


@wg.custom_op(infer=lambda x, power: x)
def powers(x, *, power):
    return x**power


@powers.vjp
def _(g, x, y, *, power):
    return (g * power * powers(x, power=power - 1),) if power else (None,)


@wg.custom_op(infer=lambda x: x, effect="ordered")
def ordered(x):
    return np.sin(x)


@ordered.vjp
def _(g, x, y):
    return (g * wg.cos(x),)


CASES = {
    "cube": (cube, lambda x: x * x * x),
    "through its result": (through_result, wg.exp),
    "two operands": (lambda x: mixed(x, x * 2.0), lambda x: x * (x * 2.0) + x * 2.0),
    "some of several results": (lambda x: several(x)[1] * 2.0, lambda x: x.sum(axis=0) * 2.0),
    "several results": (
        lambda x: several(x)[0] * several(x)[1] * several(x)[2],
        lambda x: wg.tanh(x) * x.sum(axis=0) * 6.0,
    ),
    "an attribute": (lambda x: powers(x, power=4), lambda x: x * x * x * x),
    "ordered": (ordered, wg.sin),
    "one op in another's operand": (lambda x: cube(through_result(x)), lambda x: wg.exp(x * 3.0)),
}


def total(f):
    return lambda x: (f(x) * 0.5).sum()


def in_session(f):
    def run(x):
        with wg.Graph() as graph:
            p = wg.placeholder("p", (None, 3), wg.float64)
            y = f(p)
        with wg.Session(graph) as session:
            return session.run(y, {p: x})

    return run


def in_scan(f):
    return lambda x: wg.scan(lambda c, row: (c, f(row)), wg.zeros(()), x[None])[1][0]


def in_while(f):
    def run(x):
        start = (wg.tensor(0), x, wg.zeros_like(f(x)))
        return wg.while_loop(lambda i, x, y: i < 1, lambda i, x, y: (i + 1, x, f(x)), start)[2]

    return run


def in_cond(f):
    return lambda x: wg.cond(x.sum() < 1e9, f, lambda x: f(x) * 0.0, x)


def mapped(f):
    return lambda x: wg.vmap(f)(wg.stack([x, x + 1.0]))[0]


MODES = {
    "eager": lambda f: f,
    "compiled": wg.compile,
    "scan": in_scan,
    "compiled scan": lambda f: wg.compile(in_scan(f)),
    "compiled while_loop": lambda f: wg.compile(in_while(f)),
    "compiled cond": lambda f: wg.compile(in_cond(f)),
    "vmap": mapped,
    "compiled vmap": lambda f: wg.compile(mapped(f)),
}
# What is taken of the case: its value, and derivatives in each direction, of each order.
TAKEN = {
    "value": lambda f: f,
    "grad": lambda f: wg.grad(total(f)),
    "grad of grad": lambda f: wg.grad(lambda x: (wg.grad(total(f))(x) ** 2).sum()),
    "jvp": lambda f: lambda x: wg.jvp(f, (x,), (x * 0.5 + 1.0,))[1],
    "grad of jvp": lambda f: wg.grad(lambda x: wg.jvp(total(f), (x,), (x,))[1]),
    "jvp of grad": lambda f: lambda x: wg.jvp(wg.grad(total(f)), (x,), (wg.ones_like(x),))[1],
    "jacobian": wg.jacobian,
}
X = rng.standard_normal((2, 3))


def tensor(**options):
    return wg.tensor(X, **options)
