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
            self.probs, self.logits = given, special.logit(given)
            self._log_success, self._log_failure = given.log(), (-given).log1p()
        else:
            self.probs, self.logits = given.sigmoid(), given
            self._log_success, self._log_failure = given.log_sigmoid(), (-given).log_sigmoid()
        self.batch_shape = given.shape

    def _uncertainty(self) -> Tensor:
        """The entropy of one trial."""
        return special.entr(self.probs) + special.entr(1 - self.probs)


class Bernoulli(Trial):
    """1 with probability `probs` (or `sigmoid(logits)`), 0 elsewhere. Draws are floating."""

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        drawn = random.bernoulli(self.probs, shape + self.batch_shape, key=key)
        return drawn.astype(self.probs.dtype)

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        x = asarray(value).astype(self.probs.dtype)
        return where(x == 1, self._log_success, where(x == 0, self._log_failure, -math.inf))

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
        failures = where(x == 0, 0.0, x * self._log_failure)
        return where((x >= 0) & (x == x.floor()), failures + self._log_success, -math.inf)

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
            self.probs = given / given.sum(axis=-1, keepdims=True)
            self.logits = self.probs.log()
        else:
            self.logits = special.log_softmax(given, axis=-1)
            self.probs = special.softmax(given, axis=-1)
        self.batch_shape = given.shape[:-1]

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        return random.categorical(self.logits, -1, shape + self.batch_shape, key=key)

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        place = asarray(value)
        shape = broadcast_shapes(place.shape, self.batch_shape)
        logits = broadcast_to(self.logits, (*shape, self.logits.shape[-1]))
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
        self.event_shape = self.logits.shape[-1:]

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
