"""Holds modules against PyTorch's on the inputs of its `module_db`: a module of ours is made with
the same arguments and takes PyTorch's parameters; results and the gradients of inputs and
parameters are compared in float64, in training and in evaluation."""

import collections
import re
import warnings

import torch
from torch.testing._internal.common_modules import module_db

import wengert as wg

from calls import ByDesign
from ops import convert, near, total

# Inputs of a module that are looked at.
MOST = 200

# Arguments that say where PyTorch computes, or that are only its default.
DROPPED = ("device", "dtype", "inplace")
DEFAULTS = {"track_running_stats": True, "sparse": False, "enable_nested_tensor": None}
RENAMED = {"dim": "axis", "keepdim": "keepdims"}

ABSENT = {
    "FractionalMaxPool2d": "random windows: another generator",
    "FractionalMaxPool3d": "random windows: another generator",
    "LinearCrossEntropyLoss": "private to PyTorch: new there",
}

# Documented differences that only their message tells, by module ("*" for all).
KNOWN = {
    "*": (
        (r"must have rank 2|wanted \('N'|wanted \(N,|wanted \('?N", "a batch has an axis"),
        (r"unexpected keyword argument '(\w+)'", r"argument {} is not here"),
        (r"training needs more than one", "an empty batch is refused in training"),
        (r"buffer num_batches_tracked", "InstanceNorm counts its batches, as BatchNorm"),
        (r"kl_div: input must have rank 1", "losses: an input has an axis of the batch"),
        (r"Softplus.__init__\(\) takes", "softplus: exact everywhere, so it has no threshold"),
    ),
}


def parts_of(result):
    """The tensors of a result, however deep."""
    if isinstance(result, torch.Tensor | wg.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [p for r in result for p in parts_of(r)]
    data = getattr(result, "data", None)
    return [] if data is None else parts_of(data)


def argument(name, value):
    if isinstance(value, torch.Tensor):
        return wg.asarray(value.detach().numpy())
    if isinstance(value, torch.nn.TransformerEncoderLayer):
        return layer(value)
    if isinstance(value, torch.nn.Module) or (callable(value) and not isinstance(value, type)):
        name = getattr(value, "__name__", type(value).__name__)
        found = getattr(wg.nn, name, None)
        if found is None:
            raise ByDesign(f"a function of PyTorch's test: {name}")
        return found() if isinstance(value, torch.nn.Module) else found
    return value


def made(info, given):
    """Ours with the arguments of PyTorch's."""
    own = getattr(wg.nn, info.module_cls.__name__)
    kwargs = {}
    for k, v in given.kwargs.items():
        if k in DROPPED:
            continue
        if k in DEFAULTS and (v == DEFAULTS[k] or DEFAULTS[k] is None):
            continue
        if k in ("add_bias_kv", "add_zero_attn"):
            if v:
                raise ByDesign(f"argument {k} is not here")
            continue
        if k == "batch_first" and info.module_cls.__name__ == "MultiheadAttention":
            continue
        if k in ("size_average", "reduce"):
            raise ByDesign("size_average and reduce, which PyTorch withdraws, are not here")
        kwargs[RENAMED.get(k, k)] = argument(k, v)
    return own(*(argument(None, v) for v in given.args), **kwargs)


# Modules whose inputs are (N, T, E) here, without `batch_first`; PyTorch's is made so.
ATTENTION = ("MultiheadAttention", "Transformer", "TransformerEncoder", "TransformerEncoderLayer",
             "TransformerDecoderLayer")  # fmt: skip


def layer(theirs):
    """A layer of ours of the sizes of PyTorch's, which is an argument."""
    return wg.nn.TransformerEncoderLayer(
        theirs.self_attn.embed_dim, theirs.self_attn.num_heads, theirs.linear1.out_features,
        theirs.dropout.p, theirs.activation.__name__, norm_first=theirs.norm_first,
        bias=theirs.linear1.bias is not None)  # fmt: skip


def batch_first(given):
    """Arguments of PyTorch's modules of attention, so that its inputs are as ours."""
    for one in given.args:
        if isinstance(one, torch.nn.TransformerEncoderLayer):
            one.self_attn.batch_first = True
            return given.kwargs
    return {**given.kwargs, "batch_first": True}


def attended(name, kwargs, heads):
    """PyTorch's masks in ours: true is allowed here; padding is true in both."""
    kwargs = {k: v for k, v in kwargs.items() if v is not None}
    for key in [k for k in kwargs if k.endswith("mask") and "padding" not in k]:
        mask = kwargs[key]
        mask = ~mask if mask.dtype == wg.bool else mask
        if mask.ndim == 3:
            mask = mask.reshape((-1, heads, *mask.shape[1:]))
        kwargs[key] = mask
    if name == "MultiheadAttention":
        mask = kwargs.pop("attn_mask", None)
        padding = kwargs.pop("key_padding_mask", None)
        if padding is not None:
            held = ~padding[..., None, None, :]
            mask = held if mask is None else mask & held
        if mask is not None:
            kwargs["mask"] = mask
        kwargs.pop("need_weights", None)
        kwargs.pop("average_attn_weights", None)
    return kwargs


def check(info, given, training):
    torch.manual_seed(0)
    name, constructor, forward = (
        info.module_cls.__name__, given.constructor_input, given.forward_input)  # fmt: skip
    kwargs = batch_first(constructor) if name in ATTENTION else constructor.kwargs
    theirs = info.module_cls(*constructor.args, **kwargs)
    theirs = theirs.to(torch.float64).train(training)
    random = training and any(
        (isinstance(m, torch.nn.modules.dropout._DropoutNd) and 0 < m.p < 1)
        or (isinstance(m, torch.nn.MultiheadAttention) and m.dropout > 0)
        or isinstance(m, torch.nn.RReLU) for m in theirs.modules())  # fmt: skip
    if random:
        raise ByDesign("random in training: another generator")
    if name in ATTENTION and constructor.kwargs.get("batch_first") is False:
        forward.args = tuple(
            t.detach().transpose(0, 1).requires_grad_() if t.ndim == 3 else t for t in forward.args
        )
    constructor.kwargs = kwargs
    ours = made(info, constructor)
    leaves = []
    if name == "CTCLoss":  # PyTorch's gradient is that by the logits
        forward.args = (forward.args[0].detach().requires_grad_(), *forward.args[1:])
    args = [convert(v, leaves) for v in forward.args]
    kwargs = {RENAMED.get(k, k): convert(v, leaves) for k, v in forward.kwargs.items()}
    given_to, given_by = list(args), list(forward.args)
    if name in ATTENTION:
        kwargs = attended(
            name, kwargs, constructor.kwargs.get("num_heads") or constructor.kwargs.get("nhead")
        )
    if name == "CTCLoss":
        given_to[0] = wg.nn.log_softmax(args[0], -1)
        given_by[0] = torch.log_softmax(forward.args[0], -1)
    if info.is_lazy:
        with torch.no_grad():
            theirs(*forward.args, **forward.kwargs)
            ours(*args, **kwargs)
    ours = ours.to(wg.float64).train(training)
    state = {k: v.detach().numpy() for k, v in theirs.state_dict().items()}
    ours.load_state_dict(state)
    a = parts_of(ours(*given_to, **kwargs))
    b = parts_of(theirs(*given_by, **forward.kwargs))
    b = b[:1] if name == "MultiheadAttention" else b
    if len(a) != len(b):
        raise AssertionError(f"{len(a)} results, torch {len(b)}")
    for x, t in zip(a, b, strict=True):
        near(x, t, "result")
    for name, buffer in theirs.named_buffers():
        near(dict(ours.named_buffers())[name], buffer, f"buffer {name}")
    a, b = total(a, wg), total(b, torch)
    if not isinstance(b, torch.Tensor) or not b.requires_grad:
        return
    own = dict(ours.named_parameters())
    pairs = [(n, own[n], p) for n, p in theirs.named_parameters()]
    pairs += [(f"input {n}", x, t) for n, (t, x) in enumerate(leaves)]
    first = wg.gradients(a, [x for _, x, _ in pairs], allow_unused=True)
    twin = torch.autograd.grad(b, [t for _, _, t in pairs], allow_unused=True)
    for (name, x, _), g, h in zip(pairs, first, twin, strict=True):
        g = wg.zeros_like(x) if g is None else g
        h = torch.zeros(x.shape, dtype=torch.float64) if h is None else h
        near(g, h, f"gradient of {name}")


def reason_of(text):
    for pattern, why in KNOWN["*"]:
        found = re.search(pattern, text)
        if found:
            return why.format(*found.groups())
    return None


def main(wanted):
    warnings.filterwarnings("ignore")
    torch.set_default_dtype(torch.float64)
    whole, design, differing = [], [], []
    reasons = collections.defaultdict(set)
    counts = collections.Counter()
    for info in module_db:
        name = info.module_cls.__name__
        if (wanted and name not in wanted) or name in ABSENT or name in whole + design + differing:
            continue
        found, expected, held, count = collections.Counter(), collections.Counter(), 0, 0
        for training in (True, False):
            inputs = info.module_inputs_func(info, "cpu", torch.float64, True, training)
            for given in inputs[:MOST]:
                count += 1
                try:
                    check(info, given, training)
                    held += 1
                except ByDesign as error:
                    expected[str(error)] += 1
                except Exception as error:  # whatever goes wrong is what is reported
                    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
                    text = kind + " ".join(str(error).split())[:200]
                    reason = reason_of(text)
                    (expected if reason else found)[reason or text] += 1
        counts.update(all=count, agree=held, design=sum(expected.values()))
        for reason in expected:
            reasons[reason].add(name)
        (differing if found else design if expected else whole).append(name)
        if found:
            print(f"{name}: {held} of {count}")
            for text, n in found.most_common(None if wanted else 3):
                print(f"    {n} x {text}")
    print(f"\nall inputs agree: {len(whole)} modules of {len(module_db)}\n    {', '.join(whole)}")
    print(f"agree but for documented differences: {len(design)}\n    {', '.join(design)}")
    for reason, names in sorted(reasons.items()):
        print(f"    {reason}: {', '.join(sorted(names))}")
    print(f"differ: {len(differing)}: {', '.join(differing)}")
    print(
        f"inputs: {counts['agree']} of {counts['all']} agree, {counts['design']} by design differ"
    )
    print(f"not here: {', '.join(f'{name} ({why})' for name, why in ABSENT.items())}")
