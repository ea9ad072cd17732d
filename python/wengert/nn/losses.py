"""Losses as modules, over the functions of the same work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from wengert import _core
from wengert._core import Tensor, minimum
from wengert.nn.module import Buffer, Module

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "PairwiseDistance",
    "PoissonNLLLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
    "triplet_margin_with_distance_loss",
]


class _Loss(Module):
    """A loss of an input and a target. A subclass names the function; what its `__init__` keeps as
    attributes, the function gets by name."""

    function: ClassVar[Callable[..., Any]]
    options: ClassVar[tuple[str, ...]] = ("reduction",)

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction

    def loss(self, *args: Any) -> Tensor:
        """The function of these tensors, with the module's options."""
        y: Tensor = self.function(*args, **{name: getattr(self, name) for name in self.options})
        return y

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss, a scalar unless `reduction="none"`."""
        return self.loss(input, target)


def _weight(weight: Tensor | None) -> Tensor | None:
    return weight if weight is None else Buffer(weight)


class CrossEntropyLoss(_Loss):
    """`nn.cross_entropy`: logits (N, C, ...) against class indices (N, ...) or probabilities;
    `weight` has a factor for each class."""

    function = staticmethod(_core.nn.cross_entropy)
    options = ("weight", "ignore_index", "reduction", "label_smoothing")

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        self.weight = _weight(weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing


class NLLLoss(_Loss):
    """`nn.nll_loss`: log-probabilities (N, C, ...) against class indices (N, ...); `weight` has a
    factor for each class."""

    function = staticmethod(_core.nn.nll_loss)
    options = ("weight", "ignore_index", "reduction")

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        self.weight = _weight(weight)
        self.ignore_index = ignore_index
        self.reduction = reduction


class MSELoss(_Loss):
    """`nn.mse_loss`: the squared difference."""

    function = staticmethod(_core.nn.mse_loss)


class L1Loss(_Loss):
    """`nn.l1_loss`: the absolute difference."""

    function = staticmethod(_core.nn.l1_loss)


class HuberLoss(_Loss):
    """`nn.huber_loss`: half the squared difference below `delta`, a line beyond."""

    function = staticmethod(_core.nn.huber_loss)
    options = ("reduction", "delta")

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        self.reduction = reduction
        self.delta = delta


class SmoothL1Loss(_Loss):
    """`nn.smooth_l1_loss`: the absolute difference, rounded off below `beta`."""

    function = staticmethod(_core.nn.smooth_l1_loss)
    options = ("reduction", "beta")

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        self.reduction = reduction
        self.beta = beta


class BCELoss(_Loss):
    """`nn.binary_cross_entropy`: probabilities against probabilities of the same shape."""

    function = staticmethod(_core.nn.binary_cross_entropy)
    options = ("weight", "reduction")

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        self.weight = _weight(weight)
        self.reduction = reduction


class BCEWithLogitsLoss(_Loss):
    """`nn.binary_cross_entropy_with_logits`: logits against probabilities of the same shape."""

    function = staticmethod(_core.nn.binary_cross_entropy_with_logits)
    options = ("weight", "pos_weight", "reduction")

    def __init__(
        self,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        self.weight = _weight(weight)
        self.reduction = reduction
        self.pos_weight = _weight(pos_weight)


class KLDivLoss(_Loss):
    """`nn.kl_div`: log-probabilities against probabilities, or their logarithms."""

    function = staticmethod(_core.nn.kl_div)
    options = ("reduction", "log_target")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        self.reduction = reduction
        self.log_target = log_target


class PoissonNLLLoss(_Loss):
    """`nn.poisson_nll_loss`: logarithms of rates (or rates) against counts."""

    function = staticmethod(_core.nn.poisson_nll_loss)
    options = ("log_input", "full", "eps", "reduction")

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-8,
        reduction: str = "mean",
    ) -> None:
        self.log_input = log_input
        self.full = full
        self.eps = eps
        self.reduction = reduction


class GaussianNLLLoss(_Loss):
    """`nn.gaussian_nll_loss`: means and variances against numbers."""

    function = staticmethod(_core.nn.gaussian_nll_loss)
    options = ("full", "eps", "reduction")

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        self.full = full
        self.eps = eps
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:  # type: ignore[override]
        """The loss, a scalar unless `reduction="none"`."""
        return self.loss(input, target, var)


class SoftMarginLoss(_Loss):
    """`nn.soft_margin_loss`: numbers against 1 and -1."""

    function = staticmethod(_core.nn.soft_margin_loss)


class HingeEmbeddingLoss(_Loss):
    """`nn.hinge_embedding_loss`: distances against 1 (near) and -1 (far)."""

    function = staticmethod(_core.nn.hinge_embedding_loss)
    options = ("margin", "reduction")

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        self.margin = margin
        self.reduction = reduction


class MultiMarginLoss(_Loss):
    """`nn.multi_margin_loss`: scores (N, C) against class indices (N,)."""

    function = staticmethod(_core.nn.multi_margin_loss)
    options = ("p", "margin", "weight", "reduction")

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Tensor | None = None,
        reduction: str = "mean",
    ) -> None:
        self.p = p
        self.margin = margin
        self.weight = _weight(weight)
        self.reduction = reduction


class MultiLabelMarginLoss(_Loss):
    """`nn.multilabel_margin_loss`: scores (N, C) against lists of classes, ended by -1."""

    function = staticmethod(_core.nn.multilabel_margin_loss)


class MultiLabelSoftMarginLoss(_Loss):
    """`nn.multilabel_soft_margin_loss`: logits (..., C) against 0 and 1."""

    function = staticmethod(_core.nn.multilabel_soft_margin_loss)
    options = ("weight", "reduction")

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        self.weight = _weight(weight)
        self.reduction = reduction


class _LossOfPairs(_Loss):
    """A loss of two tensors by a margin."""

    options = ("margin", "reduction")

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        self.margin = margin
        self.reduction = reduction

    def forward(self, x1: Tensor, x2: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        """The loss, a scalar unless `reduction="none"`."""
        return self.loss(x1, x2, target)


class MarginRankingLoss(_LossOfPairs):
    """`nn.margin_ranking_loss`: which of two numbers is larger, against 1 and -1."""

    function = staticmethod(_core.nn.margin_ranking_loss)


class CosineEmbeddingLoss(_LossOfPairs):
    """`nn.cosine_embedding_loss`: pairs of vectors against 1 (alike) and -1 (not)."""

    function = staticmethod(_core.nn.cosine_embedding_loss)


class TripletMarginLoss(_Loss):
    """`nn.triplet_margin_loss`: an anchor, a vector that is like it, and one that is not."""

    function = staticmethod(_core.nn.triplet_margin_loss)
    options = ("margin", "p", "eps", "swap", "reduction")

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        self.margin = margin
        self.p = p
        self.eps = eps
        self.swap = swap
        self.reduction = reduction

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:  # type: ignore[override]
        """The loss, a scalar unless `reduction="none"`."""
        return self.loss(anchor, positive, negative)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`max(d(anchor, positive) - d(anchor, negative) + margin, 0)` for a distance of the user's.

    `distance_function` gets two tensors (N, ...) and gives (N,) numbers that are not negative; None
    is `nn.pairwise_distance`. `swap`: whether the distance of `negative` from
    `positive` counts where that is smaller. `reduction`: "mean", "sum" or "none".
    """
    if reduction not in ("mean", "sum", "none"):
        wanted = '"mean", "sum" or "none"'
        raise ValueError(
            "triplet_margin_with_distance_loss: unknown reduction: "
            f"got {reduction!r}, wanted {wanted}"
        )
    distance = _core.nn.pairwise_distance if distance_function is None else distance_function
    far = distance(anchor, negative)
    if swap:
        far = minimum(far, distance(positive, negative))
    losses = (distance(anchor, positive) - far + margin).clip(0.0)
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


class TripletMarginWithDistanceLoss(_Loss):
    """`nn.triplet_margin_with_distance_loss`: `TripletMarginLoss` for a distance of the user's."""

    function = staticmethod(triplet_margin_with_distance_loss)
    options = ("distance_function", "margin", "swap", "reduction")

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        self.distance_function = distance_function
        self.margin = margin
        self.swap = swap
        self.reduction = reduction

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:  # type: ignore[override]
        """The loss, a scalar unless `reduction="none"`."""
        return self.loss(anchor, positive, negative)


class CTCLoss(_Loss):
    """`nn.ctc_loss`: log-probabilities (T, N, C) against sequences of labels."""

    function = staticmethod(_core.nn.ctc_loss)
    options = ("blank", "reduction", "zero_infinity")

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        self.blank = blank
        self.reduction = reduction
        self.zero_infinity = zero_infinity

    def forward(  # type: ignore[override]
        self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """The loss, a scalar unless `reduction="none"`."""
        return self.loss(log_probs, targets, input_lengths, target_lengths)


class CosineSimilarity(Module):
    """`nn.cosine_similarity` of vectors along `axis`."""

    def __init__(self, axis: int = 1, eps: float = 1e-8) -> None:
        self.axis = axis
        self.eps = eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Two tensors, which broadcast, to their common shape without `axis`."""
        return _core.nn.cosine_similarity(x1, x2, axis=self.axis, eps=self.eps)


class PairwiseDistance(Module):
    """`nn.pairwise_distance` of vectors along the last axis."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False) -> None:
        self.p = p
        self.eps = eps
        self.keepdims = keepdims

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Two tensors, which broadcast, to their common shape without its last axis."""
        return _core.nn.pairwise_distance(x1, x2, self.p, eps=self.eps, keepdims=self.keepdims)
