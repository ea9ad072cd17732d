"""Holds ops against PyTorch's on the samples that PyTorch tests its own with: values, gradients and
second gradients, in float64 (in int64 where PyTorch's op has no float64).

Every op of `op_db` is counted once: all samples agree, or agree but for documented differences
(`ByDesign`), or some differ, or the op is not here (with the reason, `absent`).
"""

import collections
import re
import sys
import warnings

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db

import wengert as wg

import calls
import formulas
import functional_calls
from absences import KNOWN, absent
from calls import ByDesign

# Samples of an op that are looked at, and how near float64 results must be.
MOST = 150
NEAR = {"rtol": 1e-7, "atol": 1e-9}

TORCH_ARGUMENTS = calls.CALLS | formulas.FORMULAS | functional_calls.CALLS

# Ops of PyTorch that are compared behind another op, because its gradient is meant so.
BEHIND = {
    "nn.functional.ctc_loss": (
        lambda x, *a, **k: torch.nn.functional.ctc_loss(x.log_softmax(-1), *a, **k),
        lambda x, *a, **k: wg.nn.ctc_loss(wg.nn.log_softmax(x, -1), *a, **k),
    ),
}


def convert(value, leaves):
    """Arguments of torch as ours; tensors that want gradients are noted."""
    if isinstance(value, torch.Tensor):
        twin = next((own for theirs, own in leaves if theirs is value), None)
        if twin is not None:
            return twin
        own = wg.asarray(np.array(value.detach().numpy(force=True), order="C"))
        if value.requires_grad:
            own.requires_grad = True
            leaves.append((value, own))
        return own
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, slice):
        return slice(*(convert(v, leaves) for v in (value.start, value.stop, value.step)))
    if isinstance(value, list | tuple):
        return type(value)(convert(v, leaves) for v in value)
    if isinstance(value, torch.dtype):
        return getattr(wg, str(value).removeprefix("torch."))
    return value


def function(op):
    """Ours of an op of torch, or None."""
    full = f"{op.name}/{op.variant_test_name}" if op.variant_test_name else op.name
    if absent(op.name, full):
        return None
    for name in (full, op.name):
        if name in BEHIND:
            return BEHIND[name][1]
        if name in TORCH_ARGUMENTS:
            return TORCH_ARGUMENTS[name]
    path = calls.NAMES.get(full, calls.NAMES.get(op.name, op.name))
    found = wg
    for part in path.replace("nn.functional.", "nn.").split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found if callable(found) else None


def renamed(kwargs):
    names = calls.RENAMED
    return {names.get(k, k): v for k, v in kwargs.items() if names.get(k, k) is not None}


def parts_of(result):
    """The tensors of a result; a number counts as one."""
    parts = list(result) if isinstance(result, list | tuple) else [result]
    if any(isinstance(p, list | tuple) for p in parts):
        parts = [q for p in parts for q in (p if isinstance(p, list | tuple) else [p])]
    return [torch.tensor(p) if isinstance(p, bool | int | float) else p for p in parts
            if isinstance(p, torch.Tensor | wg.Tensor | bool | int | float)]  # fmt: skip


def near(ours, theirs, what):
    if theirs.dtype == torch.bfloat16 and ours.dtype == wg.bfloat16:
        ours, theirs = ours.astype(wg.float32), theirs.float()
    a = ours.detach().numpy()
    b = theirs.detach().numpy(force=True)
    if a.shape != b.shape:
        raise AssertionError(f"{what}: shape {a.shape}, torch {b.shape}")
    if b.dtype.kind == "f" and a.dtype != b.dtype:
        raise AssertionError(f"{what}: dtype {a.dtype}, torch {b.dtype}")
    if not np.allclose(a, b, equal_nan=True, **NEAR):
        with np.errstate(all="ignore"):
            worst = np.nanmax(np.abs(a.astype("d") - b.astype("d"))) if a.size else 0
        raise AssertionError(f"{what}: differs by {worst:.3g}")


def weights(shape, n):
    return np.cos(np.arange(np.prod(shape, dtype=int)) + n).reshape(shape)


def total(parts, library):
    wrap = torch.tensor if library is torch else wg.asarray
    chosen = [p for p in parts if str(p.dtype).endswith("float64")]
    return sum((p * wrap(weights(tuple(p.shape), n))).sum() for n, p in enumerate(chosen))


def zeros(x):
    return torch.zeros(x.shape, dtype=torch.float64)


def check(op, sample, own):
    """One sample: raises AssertionError for what differs."""
    leaves = []
    args = [convert(a, leaves) for a in (sample.input, *sample.args)]
    kwargs = {k: convert(v, leaves) for k, v in sample.kwargs.items()}
    other = BEHIND[op.name][0] if op.name in BEHIND else op.op
    theirs = parts_of(other(sample.input, *sample.args, **sample.kwargs))
    straight = own in TORCH_ARGUMENTS.values() or op.name in BEHIND
    ours = parts_of(own(*args, **(kwargs if straight else renamed(kwargs))))
    if len(ours) != len(theirs):
        raise AssertionError(f"values: {len(ours)} results, torch {len(theirs)}")
    for a, b in zip(ours, theirs, strict=True):
        near(a, b, "values")
    a, b = total(ours, wg), total(theirs, torch)
    if not leaves or not isinstance(b, torch.Tensor) or not b.requires_grad:
        return
    if not isinstance(a, wg.Tensor) or not a.requires_grad:
        raise AssertionError("gradient: ours has none")
    xs, ts = [own for _, own in leaves], [t for t, _ in leaves]
    first = wg.gradients(a, xs, create_graph=True, allow_unused=True)
    twin = torch.autograd.grad(b, ts, create_graph=True, allow_unused=True)
    for g, h, x in zip(first, twin, xs, strict=True):
        near(wg.zeros_like(x) if g is None else g, zeros(x) if h is None else h, "gradient")
    pairs = [(g, h) for g, h in zip(first, twin, strict=True) if g is not None and h is not None]
    a, b = total([g for g, _ in pairs], wg), total([h for _, h in pairs], torch)
    if not op.supports_gradgrad or not isinstance(b, torch.Tensor) or not b.requires_grad:
        return
    try:
        twin = torch.autograd.grad(b, ts, allow_unused=True)
    except RuntimeError as error:
        if "is not implemented" in str(error):  # a kernel of PyTorch without second gradients
            return
        raise
    wanted = isinstance(a, wg.Tensor) and a.requires_grad
    second = wg.gradients(a, xs, allow_unused=True) if wanted else [None] * len(xs)
    for g, h, x in zip(second, twin, xs, strict=True):
        near(wg.zeros_like(x) if g is None else g, zeros(x) if h is None else h, "second gradient")


def dtype_of(op):
    """float64 where the op has it."""
    return next((t for t in (torch.float64, torch.int64, torch.bool) if t in op.dtypes), None)


class Outcome:
    """Agreeing samples, all samples, documented differences and others, with their counts."""

    def __init__(self):
        self.good = self.count = 0
        self.design, self.defects = collections.Counter(), collections.Counter()


def compared(op, own):
    outcome, dtype = Outcome(), dtype_of(op)
    wanted = op.supports_autograd and dtype == torch.float64
    known = KNOWN.get(op.name, ()) + KNOWN["*"]
    for sample in op.sample_inputs("cpu", dtype, requires_grad=wanted):
        if outcome.count == MOST:
            break
        outcome.count += 1
        try:
            check(op, sample, own)
            outcome.good += 1
        except ByDesign as error:
            outcome.design[str(error)] += 1
        except Exception as error:  # whatever goes wrong is what is reported
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            text = kind + str(error).split("\n")[0][:160]
            reason = next((why for pattern, why in known if re.search(pattern, text)), None)
            if reason:
                outcome.design[reason] += 1
            else:
                outcome.defects[text] += 1
    return outcome


def listed(title, names):
    print(f"{title}: {len(names)}")
    if names:
        print("    " + ", ".join(names))


def main(wanted):
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    whole, composed, design, differing = [], [], [], []
    missing, reasons = collections.defaultdict(list), collections.defaultdict(list)
    for op in op_db:
        name = f"{op.name}/{op.variant_test_name}" if op.variant_test_name else op.name
        if wanted and op.name not in wanted and name not in wanted:
            continue
        own = function(op)
        if own is None or dtype_of(op) is None:
            missing[absent(op.name, name) or "no op of this meaning"].append(name)
            continue
        outcome = compared(op, own)
        for reason in outcome.design:
            reasons[reason].append(name)
        if outcome.defects:
            differing.append(name)
            print(f"{name}: {outcome.good} of {outcome.count}")
            for reason, n in outcome.defects.most_common(None if wanted else 3):
                print(f"    {n} x {reason}")
        elif outcome.design:
            design.append(name)
        else:
            formula = name in formulas.FORMULAS or op.name in formulas.FORMULAS
            (composed if formula else whole).append(name)
        sys.stdout.flush()
    listed("\nall samples agree", whole)
    listed("all samples agree, as a formula of our ops", composed)
    listed("agree but for documented differences", design)
    for reason, names in sorted(reasons.items()):
        print(f"    {reason}: {', '.join(names)}")
    listed("differ", differing)
    print(f"not here: {sum(map(len, missing.values()))}")
    for reason, names in sorted(missing.items()):
        print(f"    {reason} ({len(names)}): {', '.join(names)}")
