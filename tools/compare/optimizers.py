"""Holds optimizers against PyTorch's on the settings of its `optim_db`: five steps in float64, with
a gradient that changes and a parameter that has none at times."""

import collections
import warnings

import numpy as np
import torch
from torch.testing._internal.common_optimizers import optim_db

import wengert as wg

STEPS = 5
NEAR = {"rtol": 1e-9, "atol": 1e-12}
SHAPES = ((3, 4), (5,), ())

# Arguments that say how PyTorch computes, not what.
HOW = ("foreach", "fused", "differentiable", "capturable")
ABSENT = {
    "Adafactor": "not among our optimizers",
    "Muon": "not among our optimizers",
    "SparseAdam": "takes row-sparse gradients alone",
}


def start():
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for shape in SHAPES]


def loss(params, step, library):
    """A function with curvature; its last parameter has no part in the second step."""
    used = params[:-1] if step == 1 else params
    return sum(((p - 0.3 * (n + 1)) ** 2).sum() + library.sin(p * (step + 1)).sum()
               for n, p in enumerate(used))  # fmt: skip


def steps(optimizer, params, library, sign):
    """The parameters after each step."""
    path = []
    for step in range(STEPS):

        def closure(step=step):
            optimizer.zero_grad()
            at = step if not isinstance(optimizer, LBFGS) else 0
            value = loss(params, at, library) * sign
            value.backward()
            return value

        if isinstance(optimizer, LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        path.append([p.detach().numpy().copy() for p in params])
    return path


LBFGS = (torch.optim.LBFGS, wg.optim.LBFGS)


def number(value):
    return value.item() if isinstance(value, torch.Tensor) else value


def check(info, given):
    kwargs = {k: v for k, v in given.kwargs.items() if k not in HOW}
    sign = -1.0 if kwargs.get("maximize") else 1.0  # what goes up has an end
    ts = [torch.tensor(p, requires_grad=True) for p in start()]
    theirs = steps(info.optim_cls(ts, **kwargs), ts, torch, sign)
    own = getattr(wg.optim, info.optim_cls.__name__)
    ps = [wg.nn.Parameter(wg.asarray(p)) for p in start()]
    kwargs = {k: tuple(map(number, v)) if isinstance(v, tuple) else number(v)
              for k, v in kwargs.items()}  # fmt: skip
    ours = steps(own(ps, **kwargs), ps, wg, sign)
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for n, (p, t) in enumerate(zip(a, b, strict=True)):
            if not np.allclose(p, t, **NEAR):
                worst = np.abs(p - t).max()
                raise AssertionError(f"parameter {n} differs by {worst:.3g} after step {step + 1}")


def main(wanted):
    warnings.filterwarnings("ignore")
    torch.set_default_dtype(torch.float64)  # or its scalars of ASGD and NAdam would be float32
    whole, differing, count, good = [], [], 0, 0
    for info in optim_db:
        name = info.optim_cls.__name__
        if (wanted and name not in wanted) or name in ABSENT:
            continue
        reasons, held = collections.Counter(), 0
        given = info.optim_inputs_func("cpu")
        for one in given:
            count += 1
            try:
                check(info, one)
                held += 1
            except Exception as error:  # whatever goes wrong is what is reported
                reasons[f"{one.desc}: {type(error).__name__}: {str(error)[:140]}"] += 1
        good += held
        (differing if reasons else whole).append(f"{name} ({held} of {len(given)})")
        for reason in reasons:
            print(f"{name}: {reason}")
    print(f"\nagree in every setting: {len(whole)} of {len(optim_db)}: {', '.join(whole)}")
    print(f"differ: {len(differing)}: {', '.join(differing)}")
    print(f"settings that agree: {good} of {count}")
    print(f"not here: {', '.join(f'{name} ({why})' for name, why in ABSENT.items())}")
