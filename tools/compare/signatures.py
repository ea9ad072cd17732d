"""Holds the order and the defaults of arguments against those of PyTorch: an argument that stands
elsewhere is taken for another without a word."""

import inspect

import torch

import wengert as wg

SPACES = {
    "nn.functional": (torch.nn.functional, wg.nn),
    "nn": (torch.nn, wg.nn),
    "optim": (torch.optim, wg.optim),
    "": (torch, wg),
}

RENAMED = {
    "dim": "axis", "keepdim": "keepdims", "normalized_shape": "axis", "num_groups": "groups",
    "input1": "x1", "input2": "x2", "start_dim": "start_axis", "end_dim": "end_axis",
    "attn_mask": "mask",
}  # fmt: skip

# Of PyTorch's, what it withdraws, and where or how it computes.
DROPPED = ("size_average", "reduce", "_stacklevel", "device", "dtype", "args", "kwargs")

DEFAULTS = {
    "batch_first": "inputs of attention are (N, T, E)",
    "dim": "an axis that is not named is the last, where PyTorch warns",
    "training": "a dropout that is called drops",
    "align_corners": "None and False are one",
    "activation": "the function has a name",
    "modules": "None and nothing are one",
    "dtype": "autocast: bfloat16, as on PyTorch's CPU",
    "indexing": "meshgrid: Cartesian (Array API)",
}


def parameters(function):
    """Positional names in order and defaults by name, or None."""
    try:
        found = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [RENAMED.get(p.name, p.name) for p in found if p.kind in kinds]
    defaults = {p.name: p.default for p in found if p.default is not p.empty}
    return [n for n in names if n not in DROPPED], defaults


def main(wanted):
    orders, expected, differing, count = [], {}, [], 0
    for space, (theirs, ours) in SPACES.items():
        for name in sorted(dir(theirs)):
            full = f"{space}.{name}".lstrip(".")
            if name.startswith("_") or not hasattr(ours, name) or (wanted and full not in wanted):
                continue
            a, b = parameters(getattr(ours, name)), parameters(getattr(theirs, name))
            if a is None or b is None:
                continue
            count += 1
            # The first is the tensor, whatever its name.
            for i, own in enumerate(a[0][1:], 1):
                if own in b[0] and b[0].index(own) != i:
                    orders.append(f"{full}: {own} is argument {i}, in PyTorch {b[0].index(own)}")
            for key, value in b[1].items():
                own = a[1].get(RENAMED.get(key, key), a[1].get(key, value))
                if own is value or own == value:
                    continue
                if key in DEFAULTS:
                    expected.setdefault(DEFAULTS[key], []).append(full)
                else:
                    differing.append(f"{full}: {key} is {own!r}, in PyTorch {value!r}")
    print(f"signatures: {count}")
    print(f"arguments that stand elsewhere: {len(orders)}", *orders, sep="\n    ")
    print(f"other defaults: {len(differing)}", *differing, sep="\n    ")
    print("other defaults by design:")
    for why, names in expected.items():
        print(f"    {why}: {', '.join(names)}")
