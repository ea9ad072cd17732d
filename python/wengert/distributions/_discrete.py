"""Laws of trials and classes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wengert import random, special
from wengert._core import (
    ShapeError,
    Tensor,
    asarray,
    broadcast_shapes,
    broadcast_to,
    one_hot,
    take_along_axis,
    where,
)
from wengert.distributions._base import Distribution, broadcast, either, hold

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["Bernoulli", "Categorical", "Geometric", "OneHotCategorical", "Trial"]


class Trial(Distribution):
    """A law of trials that succeed with a probability, given as such or as its logit."""

    _names = ("probs",)

    def __init__(
        self, probs: Tensor | ArrayLike | None = None, *, logits: Tensor | ArrayLike | None = None
    ) -> None:
        name = type(self).__name__
        given = either(name, probs, logits)
        (given,) = broadcast(given)
        if logits is None:
            hold(name, "probs must be in [0, 1]", (given >= 0) & (given <= 1), probs)
        self._given, self._has_logits = given, logits is not None
        self.batch_shape = given.shape

    @property
    def probs(self) -> Tensor:
        """How probable success is."""
        return self._given.sigmoid() if self._has_logits else self._given

    @property
    def logits(self) -> Tensor:
        """`log(p / (1 - p))` of that."""
        return self._given if self._has_logits else special.logit(self._given)

    def _log_success(self) -> Tensor:
        return self._given.log_sigmoid() if self._has_logits else self._given.log()

    def _log_failure(self) -> Tensor:
        return (-self._given).log_sigmoid() if self._has_logits else (-self._given).log1p()

    def _uncertainty(self) -> Tensor:
        """The entropy of one trial."""
        probs = self.probs
        return special.entr(probs) + special.entr(1 - probs)


class Bernoulli(Trial):
    """1 with probability `probs` (or `sigmoid(logits)`), 0 elsewhere. Draws are floating."""

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        drawn = random.bernoulli(self.probs, shape + self.batch_shape, key=key)
        return drawn.astype(self.probs.dtype)

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        x = asarray(value).astype(self.probs.dtype)
        return where(x == 1, self._log_success(), where(x == 0, self._log_failure(), -math.inf))

    def entropy(self) -> Tensor:
        return self._uncertainty()

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)


class Geometric(Trial):
    """How many trials fail before one succeeds: 0, 1, … Draws are floating."""

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        drawn = random.geometric(shape + self.batch_shape, p=self.probs, key=key) - 1
        return drawn.astype(self.probs.dtype)

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        x = asarray(value).astype(self.probs.dtype)
        failures = where(x == 0, 0.0, x * self._log_failure())
        return where((x >= 0) & (x == x.floor()), failures + self._log_success(), -math.inf)

    def entropy(self) -> Tensor:
        return self._uncertainty() / self.probs

    @property
    def mean(self) -> Tensor:
        return 1 / self.probs - 1

    @property
    def variance(self) -> Tensor:
        return (1 / self.probs - 1) / self.probs


class Categorical(Distribution):
    """One of the classes 0 … K - 1, with probabilities `probs` (…, K), which are divided by their
    sum, or `softmax(logits)`. Draws are int64.

    `logits` are those of the law: their exponentials add up to 1.
    """

    _names = ("probs",)

    def __init__(
        self, probs: Tensor | ArrayLike | None = None, *, logits: Tensor | ArrayLike | None = None
    ) -> None:
        name = type(self).__name__
        (given,) = broadcast(either(name, probs, logits))
        if not given.ndim:
            raise ShapeError(f"{name}: an axis of classes is wanted: got shape ()")
        if logits is None:
            hold(name, "probs must not be negative", given >= 0)
        self._given, self._has_logits = given, logits is not None
        self.batch_shape = given.shape[:-1]

    @property
    def probs(self) -> Tensor:
        """How probable each class is: (…, K)."""
        if self._has_logits:
            return special.softmax(self._given, axis=-1)
        return self._given / self._given.sum(axis=-1, keepdims=True)

    @property
    def logits(self) -> Tensor:
        """The logarithms of these."""
        return special.log_softmax(self._given, axis=-1) if self._has_logits else self.probs.log()

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        # What is common to all classes decides nothing.
        logits = self._given if self._has_logits else self._given.log()
        return random.categorical(logits, -1, shape + self.batch_shape, key=key)

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        place = asarray(value)
        shape = broadcast_shapes(place.shape, self.batch_shape)
        logits = self.logits
        logits = broadcast_to(logits, (*shape, logits.shape[-1]))
        found = take_along_axis(logits, broadcast_to(place, shape)[..., None], axis=-1)
        return found.reshape(shape)

    def entropy(self) -> Tensor:
        return special.entr(self.probs).sum(axis=-1)


class OneHotCategorical(Categorical):
    """As `Categorical`, with draws that are 1 at the class and 0 elsewhere: (…, K), floating."""

    def __init__(
        self, probs: Tensor | ArrayLike | None = None, *, logits: Tensor | ArrayLike | None = None
    ) -> None:
        super().__init__(probs, logits=logits)
        self.event_shape = self._given.shape[-1:]

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        place = super()._draw(shape, key)
        return one_hot(place, self.event_shape[0], dtype=self.probs.dtype)

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        return super().log_prob(asarray(value).argmax(axis=-1))

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)
