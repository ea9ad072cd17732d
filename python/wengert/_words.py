"""What other libraries call things that have another name here: one table, from which the errors
for unknown names are made.

A row is a word, or several that are the same, and what to write instead. `tests/test_words.py` sees
that every name in a remedy exists and that no word is a name of ours.
"""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Of the package and of tensors. A remedy that starts with a dot is a method and a function.
BOTH = {
    "cat concatenate append": "wg.concat",
    "cumsum": ".cumulative_sum",
    "cumprod": ".cumulative_prod",
    "cummax": ".cumulative_max",
    "cummin": ".cumulative_min",
    "permute": ".permute_dims",
    "unsqueeze": ".expand_dims",
    "view view_as resize": ".reshape (values, not views)",
    "ravel": ".flatten",
    "t": ".T or wg.matrix_transpose",
    "clone": "copy.copy(x) (values never change: no copy is needed)",
    "clamp clamp_min clamp_max clip_by_value": ".clip",
    "expand expand_as": ".broadcast_to",
    "repeat_interleave": ".repeat",
    "gather": ".take_along_axis, or x[index] along the first axis",
    "gather_nd": "x[i, j]",
    "scatter scatter_nd": "wg.put_along_axis, or x[index] = values",
    "scatter_add": "wg.index_add",
    "index_select": ".take",
    "masked_fill": "wg.where(mask, value, x), or x[mask] = value",
    "masked_select boolean_mask": "x[mask]",
    "narrow": "x[start:stop]",
    "movedim": ".moveaxis",
    "fliplr flipud": ".flip",
    "vsplit hsplit array_split": ".split",
    "tensor_split": ".chunk",
    "unbind": ".unstack",
    "absolute": ".abs",
    "sub": ".subtract",
    "mul": ".multiply",
    "div true_divide": ".divide",
    "floordiv": ".floor_divide",
    "mod fmod": ".remainder",
    "neg": ".negative",
    "power": ".pow",
    "eq": ".equal",
    "ne": ".not_equal",
    "lt": ".less",
    "le": ".less_equal",
    "gt": ".greater",
    "ge": ".greater_equal",
    "arccos": ".acos",
    "arccosh": ".acosh",
    "arcsin": ".asin",
    "arcsinh": ".asinh",
    "arctan": ".atan",
    "arctanh": ".atanh",
    "arctan2": "wg.atan2",
    "invert bitwise_not": ".bitwise_invert",
    "amax reduce_max": ".max",
    "amin reduce_min": ".min",
    "reduce_sum": ".sum",
    "reduce_mean": ".mean",
    "reduce_prod": ".prod",
    "reduce_all": ".all",
    "reduce_any": ".any",
    "norm": "wg.vector_norm",
    "mm bmm dot": "wg.matmul (or @)",
    "numel": ".size",
    "dim rank": ".ndim",
}

TENSOR = {
    "float": ".astype(wg.float32)",
    "double": ".astype(wg.float64)",
    "half": ".astype(wg.float16)",
    "bfloat16": ".astype(wg.bfloat16)",
    "long": ".astype(wg.int64)",
    "int": ".astype(wg.int32)",
    "short": ".astype(wg.int16)",
    "char": ".astype(wg.int8)",
    "byte": ".astype(wg.uint8)",
    "bool": ".astype(wg.bool)",
    "type type_as cast": ".astype",
    "cuda": ".to(device)",
    "data": ".detach()",
    "get_shape": ".shape",
    "contiguous": "nothing: it is not needed, strides are not visible",
    "is_contiguous stride strides": "nothing: strides are not visible",
    "at": "x[index] = value, or x[index] += value",
    "copy": "copy.copy(x) (values never change: no copy is needed)",
    "copy_": "x[...] = value",
    "fill_": "x[...] = value",
    "zero_": "x[...] = 0",
    "add_": "x += value",
    "sub_": "x -= value",
    "mul_": "x *= value",
    "div_": "x /= value",
    "requires_grad_": "x.requires_grad = True",
    "detach_": ".detach()",
    "retain_grad": "x.register_hook, or wg.gradients(y, x)",
    "new_zeros": "wg.zeros(shape, dtype=x.dtype)",
    "new_ones": "wg.ones(shape, dtype=x.dtype)",
    "new_tensor": "wg.tensor(data, dtype=x.dtype)",
    "block_until_ready": ".realize",
    "eval": "nothing: eager values are computed at once",
}  # fmt: skip

PACKAGE = {
    "array from_numpy as_tensor convert_to_tensor constant": "wg.asarray, or wg.tensor for a copy",
    "rand random_uniform": "wg.random.uniform",
    "randn random_normal": "wg.random.normal",
    "randint": "wg.random.integers",
    "randperm": "wg.random.permutation",
    "multinomial": "wg.random.categorical",
    "manual_seed set_random_seed": "wg.random.seed",
    "jit function": "wg.compile",
    "lax": "wg.scan, wg.while_loop and wg.cond",
    "jacfwd jacrev": "wg.jacobian",
    "tree_map tree_util": "wg.pytree.map",
    "stop_gradient": "x.detach()",
    "autograd GradientTape": "wg.gradients, wg.grad and x.backward()",
    "inference_mode": "wg.no_grad",
    "set_grad_enabled": "wg.no_grad and wg.enable_grad",
    "cuda": 'wg.device; this build has wg.device("cpu")',
    "keras": "wg.nn",
    "Module": "wg.nn.Module",
    "global_variables_initializer get_variable ConfigProto": "wengert.compat.v1",
    "ndarray Array": "wg.Tensor",
    "fill": "wg.full",
    "identity": "wg.eye",
    "range": "wg.arange",
    "expit": "wg.nn.sigmoid",
    "float_": "wg.float64",
    "half": "wg.float16",
    "double float": "wg.float32 or wg.float64",
    "int_ long int": "wg.int64 or wg.int32",
    "bool_": "wg.bool",
    "set_default_dtype": "dtype= where a tensor is made",
}

# Of submodules, whose own names are written in full.
INSIDE = {
    "nn": {
        "Conv2D": "nn.Conv2d",
        "Conv1D": "nn.Conv1d",
        "Dense": "nn.Linear",
        "BatchNormalization": "nn.BatchNorm2d",
        "LayerNormalization": "nn.LayerNorm",
        "MultiheadAttention": "nn.MultiHeadAttention",
        "functional F": "the functions of wg.nn itself",
        "utils": "wg.optim.clip_grad_norm",
        "BCELoss": "nn.BCEWithLogitsLoss",
        "swish": "nn.silu",
        "one_hot": "wg.one_hot",
    },
    "optim": {
        "lr_scheduler": "optim.CosineSchedule, optim.StepSchedule, optim.LambdaSchedule",
        "Momentum": "optim.SGD(momentum=)",
    },
    "random": {
        "rand random random_sample": "random.uniform",
        "randn standard_normal": "random.normal",
        "randint": "random.integers",
        "PRNGKey default_rng": "random.key",
        "manual_seed set_seed": "random.seed",
        "randperm": "random.permutation",
    },
}  # fmt: skip


def _spread(rows: dict[str, str]) -> dict[str, str]:
    return {word: remedy for words, remedy in rows.items() for word in words.split()}


@functools.cache
def words_of(home: str) -> dict[str, str]:
    """The foreign words of "Tensor", "" (the package) or a submodule, with our words for them."""
    if home == "Tensor":
        rows = {word: _shown(remedy, "x") for word, remedy in _spread(BOTH).items()}
        return rows | {word: _shown(remedy, "x") for word, remedy in _spread(TENSOR).items()}
    if home == "":
        return {word: _shown(remedy, "wg") for word, remedy in _spread(BOTH | PACKAGE).items()}
    return {
        word: remedy.replace(f"{home}.", f"wg.{home}.") if remedy.startswith(home) else remedy
        for word, remedy in _spread(INSIDE.get(home, {})).items()
    }


# Attributes of tensors that are no functions of the package.
_ATTRIBUTES = (".size", ".ndim", ".T", ".shape", ".detach", ".to", ".backward", ".realize")


def _shown(remedy: str, home: str) -> str:
    method = remedy.startswith(".")
    if method and remedy.startswith(_ATTRIBUTES):
        home = "x"
    return home + remedy if method else remedy


def unknown(home: str, word: str) -> str:
    """The message for a name that is not there."""
    what = "'wengert.Tensor' object" if home == "Tensor" else f"module {_module(home)!r}"
    text = f"{what} has no attribute {word!r}"
    if word.startswith("__"):  # the import system asks for such
        return text
    remedy = words_of(home).get(word)
    return text if remedy is None else f"{text}: use {remedy}"


def _module(home: str) -> str:
    return f"wengert.{home}" if home else "wengert"


class Foreign:
    """A word on the type of tensors that has no meaning there: looking it up says what has.

    Descriptors cost nothing where they are not looked up, which a `__getattr__` on the type would.
    """

    __slots__ = ("word",)

    def __init__(self, word: str) -> None:
        self.word = word

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        raise AttributeError(unknown("Tensor", self.word))
