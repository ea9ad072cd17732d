"""Why an op of PyTorch is not here, and which differences are documented."""

import re

# Reason for what is absent: names, or the starts of names.
ABSENT = {
    "random: another generator": (
        "bernoulli cauchy exponential geometric log_normal multinomial normal uniform randn "
        "randn_like rand_like randint randint_like normal/ svd_lowrank pca_lowrank"),
    "memory without values": "empty new_empty",
    "values, not views (DESIGN: values, not aliases)": "as_strided view_as_real view_as_complex "
        "resize_ resize_as_",
    "decompositions and solvers": (
        "linalg.cholesky linalg.cond linalg.det linalg.eig linalg.householder linalg.inv "
        "linalg.ldl linalg.lstsq linalg.lu linalg.matrix_norm linalg.matrix_power "
        "linalg.matrix_rank linalg.matrix_sqrth linalg.norm linalg.pinv linalg.polar linalg.qr "
        "linalg.slogdet linalg.solve linalg.svd linalg.tensorinv linalg.tensorsolve "
        "linalg.vander cholesky geqrf lu logdet matrix_exp ormqr pinverse svd triangular_solve "
        "inverse norm/nuc"),
    "Fourier transforms and windows": "fft. stft istft signal.",
    "special functions": (
        "special. digamma igamma lgamma mvlgamma polygamma i0"),
    "complex numbers apart from gradients of what is complex": (
        "angle cfloat cdouble chalf complex imag polar isreal nn.functional.silu/complex"),
    "sparse tensors": "sparse. to_sparse",
    "masked tensors": "masked.",
    "private to PyTorch": (
        "_ jiterator torch. unsafe native_batch_norm native_layer_norm native_group_norm "
        "native_dropout max_pool2d_with_indices_backward hash_tensor nonzero_static "
        "diagonal_copy diagonal_scatter bmm/triton nn.functional.linear_cross_entropy "
        "empty_permuted"),
}  # fmt: skip

# Names that start as an absence does and are here.
PRESENT = re.compile(
    r"__r\w+__|__getitem__|linalg\.(cross|diagonal|vecdot|vector_norm|multi_dot)|nextafter"
    r"|special\.(entr|ndtr|xlog1py|logit)$"
)


def absent(name, full):
    """The reason why an op is not looked for, or None."""
    if PRESENT.fullmatch(name):
        return None
    for reason, words in ABSENT.items():
        if any(full == word or _starts(word, full) for word in words.split()):
            return reason
    return None


def _starts(word, full):
    """Whether a word is the start of a name: a namespace, a variant or a longer form."""
    if not full.startswith(word):
        return False
    return word[-1] in "._/" or "." in word or full[len(word)] in "/_."


# Documented differences that only their message tells, by op ("*" for all).
KNOWN = {
    "*": (
        (r"out of range for rank 0", "an axis of a tensor of rank 0 is refused (Array API)"),
        (r"nonzero: x must have rank 1", "nonzero: rank 0 is refused (Array API)"),
        (r"squeeze: only axes", "squeeze: an axis of another size is refused (Array API)"),
    ),
    "tensordot": (
        (r"sizes differ: axis", "tensordot: an axis of size 1 does not broadcast (Array API)"),
    ),
    "einsum": ((r"lacks the ellipsis", "einsum: an ellipsis is not summed (NumPy)"),),
    "cat": ((r"axis 1 is out of range", "concat: an empty vector does not join matrices"),),
    "nn.functional.feature_alpha_dropout": (
        (r"must have rank 2", "feature_alpha_dropout: there is an axis of channels"),
    ),
    "nn.functional.batch_norm": (
        (r"must have rank 2", "batch_norm: there is an axis of channels"),
    ),
    "nn.functional.pad": (
        (r"there is nothing to repeat", "pad: negative widths cut first"),
    ),
    "histc": (
        (r"differs by [12]$", "histogram: intervals by their edges, in PyTorch by a division"),
    ),
    "bincount": ((r"dtype int64, torch float64", "bincount: sums keep the dtype of weights"),),
}  # fmt: skip
