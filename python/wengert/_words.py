"""What other libraries call things that have another name here: one table, from which the errors
for unknown names are made.

A row is a word, or several that are the same, and what to write instead, where `{word}` stands for
the word. What means the same here is no row, but a synonym in the declaration of its op.
`tests/test_words.py` sees that every name in a remedy exists and that no word is a name of ours.
"""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Of the package and of tensors. A remedy that starts with a dot is a method and a function.
BOTH = {
    "append": "wg.concat",
    "hstack vstack dstack column_stack row_stack": "wg.concat or wg.stack",
    "addmm addmv baddbmm": "wg.matmul (or @) and +",
    "addcmul": "x + value * a * b",
    "std_mean var_mean moments": "wg.mean, and wg.std or wg.var",
    "take_along_dim": ".take_along_axis",
    "as_strided": ".reshape (values, not views)",
    "unravel_index": "wg.floor_divide and wg.remainder",
    "ger": "wg.outer",
    "cummax": ".cumulative_max_with_indices",
    "cummin": ".cumulative_min_with_indices",
    "view view_as resize": ".reshape (values, not views)",
    "t": ".T or wg.matrix_transpose",
    "clone": "copy.copy(x) (values never change: no copy is needed)",
    "clamp_min clamp_max clip_by_value": ".clip",
    "expand expand_as": ".broadcast_to",
    "gather": ".take_along_axis (broadcast=False for a smaller index), or x[index] along axis 0",
    "gather_nd": "x[i, j]",
    "scatter scatter_nd":
        "wg.put_along_axis (broadcast=False for a smaller index), or x[index] = values",
    "scatter_add":
        "wg.scatter_reduce (broadcast=False for a smaller index), or wg.index_add along one axis",
    "index_select": ".take",
    "masked_fill": "wg.where(mask, value, x), or x[mask] = value",
    "masked_select boolean_mask": "x[mask]",
    "narrow": "x[start:stop]",
    "fliplr flipud": ".flip",
    "vsplit hsplit array_split": ".split",
    "tensor_split": ".chunk",
    "fmod": ".remainder",
    "amax reduce_max": ".max",
    "amin reduce_min": ".min",
    "reduce_sum": ".sum",
    "reduce_mean": ".mean",
    "reduce_prod": ".prod",
    "reduce_all": ".all",
    "reduce_any": ".any",
    "norm": "wg.vector_norm",
    "dot": "wg.matmul (or @)",
    "rank": ".ndim",
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
    "copy_ fill_ fill set_ exp_ log_ sqrt_ abs_ neg_ relu_ sigmoid_ tanh_": "x[...] = value",
    "zero_": "x[...] = 0",
    "clamp_ clip_": "x[...] = x.clip(low, high)",
    "normal_": "x[...] = wg.random.normal(x.shape)",
    "uniform_": "x[...] = wg.random.uniform(x.shape)",
    "bernoulli_": "x[...] = wg.random.bernoulli(p, x.shape)",
    "index_put_ scatter_": "x[index] = value",
    "masked_fill_": "x[mask] = value",
    "index_add_ scatter_add_": "x[...] = wg.index_add(x, index, values)",
    "add_ assign_add": "x += value",
    "sub_ assign_sub": "x -= value",
    "mul_": "x *= value",
    "div_": "x /= value",
    "pow_": "x **= value",
    "detach_": ".detach()",
    "new_zeros": "wg.zeros(shape, dtype=x.dtype)",
    "new_ones": "wg.ones(shape, dtype=x.dtype)",
    "new_empty": "wg.empty(shape, dtype=x.dtype)",
    "new_full": "wg.full(shape, value, dtype=x.dtype)",
    "is_cuda get_device": ".device",
    "element_size": ".itemsize",
    "nelement": ".numel",
    "pin_memory share_memory_": "nothing: it is not needed",
    "where": "wg.where(condition, x, y)",
    "new_tensor": "wg.tensor(data, dtype=x.dtype)",
    "block_until_ready": ".realize",
    "eval": ".realize",
}  # fmt: skip

PACKAGE = {
    "array from_numpy as_tensor convert_to_tensor constant": "wg.asarray, or wg.tensor for a copy",
    "rand random_uniform": "wg.random.uniform",
    "randn random_normal": "wg.random.normal",
    "randint": "wg.random.integers",
    "randn_like": "wg.random.normal_like",
    "rand_like": "wg.random.uniform_like",
    "randperm": "wg.random.permutation",
    "multinomial": "wg.random.categorical",
    "manual_seed set_random_seed": "wg.random.seed",
    "jit function": "wg.compile",
    "amp": "wg.autocast, and wg.optim.GradScaler",
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
    "range": "wg.arange",
    "expit": "wg.nn.sigmoid",
    "float_": "wg.float64",
    "half": "wg.float16",
    "double float": "wg.float32 or wg.float64",
    "relu gelu softmax log_softmax leaky_relu silu softplus dropout embedding layer_norm batch_norm"
    " group_norm conv1d conv2d conv3d cross_entropy": "wg.nn.{word}",
    "layers losses": "wg.nn",
    "init": "wg.nn.init",
    "train": "wg.optim",
    "numel": "x.size",
    "device_put": "x.to(device)",
    "device_get": "x.numpy()",
    "tree_flatten": "wg.pytree.flatten",
    "tree_unflatten": "wg.pytree.unflatten",
    "py_function py_func numpy_function pure_callback": "wg.host_call",
    "custom_vjp custom_jvp custom_gradient": "wg.Function",
    "remat": "wg.checkpoint",
    "make_jaxpr fx": "wg.compile(f).graph(*args)",
    "linearize": "wg.jvp",
    "vectorize vectorized_map": "wg.vmap",
    "foldl foldr": "wg.scan",
    "case": "wg.switch",
    "is_tensor": "isinstance(x, wg.Tensor)",
    "FloatTensor DoubleTensor LongTensor": "wg.tensor(data, dtype=wg.float32)",
    "Generator": "wg.random.key",
    "get_rng_state": "wg.random.get_state",
    "set_rng_state": "wg.random.set_state",
    "initial_seed": "wg.random.seed",
    "utils": "wg.data, or wg.optim.clip_grad_norm",
    "backends": "wg.config",
    "trainable_variables global_variables assign Print": "wengert.compat.v1",
    "int_ long int": "wg.int64 or wg.int32",
    "bool_": "wg.bool",
    "set_default_dtype": "dtype= where a tensor is made",
}

# Of submodules, whose own names are written in full.
INSIDE = {
    "nn": {
        "Conv2D": "nn.Conv2d",
        "Conv1D": "nn.Conv1d",
        "Conv3D": "nn.Conv3d",
        "Conv2DTranspose": "nn.ConvTranspose2d",
        "MaxPool2D MaxPooling2D": "nn.MaxPool2d",
        "AveragePooling2D": "nn.AvgPool2d",
        "GlobalAveragePooling2D": "nn.AdaptiveAvgPool2d",
        "Embed": "nn.Embedding",
        "max_pool": "nn.max_pool2d",
        "softmax_cross_entropy_with_logits sparse_softmax_cross_entropy_with_logits":
            "nn.cross_entropy",
        "sigmoid_cross_entropy_with_logits": "nn.binary_cross_entropy_with_logits",
        "Dense": "nn.Linear",
        "BatchNormalization": "nn.BatchNorm2d",
        "LayerNormalization": "nn.LayerNorm",
        "F": "the functions of wg.nn itself",
        "utils": "wg.optim.clip_grad_norm",
        "one_hot": "wg.one_hot",
    },
    "optim": {
        "lr_scheduler": "optim.CosineSchedule, optim.StepSchedule, optim.LambdaSchedule",
        "ExponentialLR": "optim.ExponentialSchedule",
        "OneCycleLR": "optim.OneCycleSchedule",
        "ReduceLROnPlateau": "optim.PlateauSchedule",
        "LinearLR": "optim.LinearSchedule",
        "SequentialLR": "optim.SequentialSchedule",
        "swa_utils AveragedModel": "optim.EMA, optim.SWA",
        "Momentum MomentumOptimizer": "optim.SGD(momentum=)",
        "GradientDescentOptimizer": "optim.SGD",
        "AdamOptimizer": "optim.Adam",
        "clip_grad_norm_ clip_by_global_norm": "optim.clip_grad_norm",
    },
    "random": {
        "rand random random_sample": "random.uniform",
        "randn standard_normal": "random.normal",
        "randint": "random.integers",
        "PRNGKey default_rng": "random.key",
        "manual_seed set_seed": "random.seed",
        "randperm": "random.permutation",
        "fold_in": "random.split",
        "get_rng_state": "random.get_state",
        "set_rng_state": "random.set_state",
        "log_normal": "random.lognormal",
        "standard_t t": "random.student_t",
        "standard_gamma": "random.gamma",
        "standard_exponential": "random.exponential",
        "standard_cauchy": "random.cauchy",
        "random_gamma": "random.gamma",
    },
    # What is not there yet.
    "linalg": {
        "cholesky cond det eig eigh eigvals eigvalsh inv lstsq lu matrix_exp matrix_rank pinv qr "
        "slogdet solve solve_triangular svd svdvals tensorinv tensorsolve":
            "wg.custom_op over NumPy or SciPy ({word} is not there yet)",
        "dot": "wg.matmul (or @)",
    },
    "fft": {
        "fft ifft fft2 ifft2 fftn ifftn rfft irfft rfft2 irfft2 rfftn irfftn hfft ihfft":
            "wg.custom_op over numpy.fft.{word} (complex numbers are not there yet)",
    },
    "special": {
        "lgamma gammaln gamma digamma psi polygamma betaln beta gammainc gammaincc betainc zeta "
        "erfcx i0 i1 i0e i1e j0 j1 y0 y1 ndtri log_ndtr multigammaln":
            "wg.custom_op over scipy.special ({word} is not there yet)",
        "log_expit": "wg.log_sigmoid",
    },
    "distributions": {
        "Gamma": "wg.random.gamma for draws (its density is not there yet)",
        "Beta": "wg.random.beta for draws (its density is not there yet)",
        "Dirichlet": "wg.random.dirichlet for draws (its density is not there yet)",
        "StudentT": "wg.random.student_t for draws (its density is not there yet)",
        "Poisson": "wg.random.poisson for draws (its density is not there yet)",
        "Binomial": "wg.random.binomial for draws (its density is not there yet)",
        "Multinomial": "wg.random.multinomial for draws (its density is not there yet)",
        "kl": "wg.distributions.kl_divergence",
    },
}  # fmt: skip


def _spread(rows: dict[str, str]) -> dict[str, str]:
    return {
        word: remedy.replace("{word}", word)
        for words, remedy in rows.items()
        for word in words.split()
    }


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
