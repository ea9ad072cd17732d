"""Losses as modules, over the functions of the same work."""

from __future__ import annotations

from wengert import _core
from wengert._core import Tensor
from wengert.nn.module import Module

__all__ = ["BCEWithLogitsLoss", "CrossEntropyLoss", "MSELoss"]


class CrossEntropyLoss(Module):
    """`nn.cross_entropy`: logits (N, C, ...) against class indices (N, ...) or probabilities."""

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
    ) -> None:
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss, a scalar unless `reduction="none"`."""
        return _core.nn.cross_entropy(
            x,
            target,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class MSELoss(Module):
    """`nn.mse_loss`: the squared difference."""

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss, a scalar unless `reduction="none"`."""
        return _core.nn.mse_loss(x, target, reduction=self.reduction)


class BCEWithLogitsLoss(Module):
    """`nn.binary_cross_entropy_with_logits`: logits against probabilities of the same shape."""

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss, a scalar unless `reduction="none"`."""
        return _core.nn.binary_cross_entropy_with_logits(x, target, reduction=self.reduction)
