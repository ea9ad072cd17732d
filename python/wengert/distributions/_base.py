"""What distributions share, and the checks of their parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wengert._core import (
    ArgumentError,
    ArgumentTypeError,
    CaptureError,
    GradientError,
    Tensor,
    asarray,
    broadcast_arrays,
    device,
    float32,
    is_tracing,
    isdtype,
    no_grad,
    result_type,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["Distribution", "Independent", "broadcast", "either", "hold"]


class Distribution:
    """What distributions share. A subclass sets `_names` and defines `_draw` and `log_prob`.

    `batch_shape`: the shape of the parameters. `event_shape`: the shape of one draw.
    `has_rsample`: whether draws are differentiable functions of the parameters.
    """

    batch_shape: tuple[int, ...] = ()
    event_shape: tuple[int, ...] = ()
    has_rsample = False
    _names: tuple[str, ...] = ()

    def sample(self, shape: int | tuple[int, ...] = (), *, key: Tensor | None = None) -> Tensor:
        """Draws of shape `shape + batch_shape + event_shape`, through which no gradient flows."""
        with no_grad():
            return self._draw(_sizes(shape), key).detach()

    def rsample(self, shape: int | tuple[int, ...] = (), *, key: Tensor | None = None) -> Tensor:
        """Draws as `sample` gives them, differentiable by the parameters.

        Raises GradientError where `has_rsample` is false.
        """
        if not self.has_rsample:
            raise GradientError(
                f"rsample: draws of {type(self).__name__} have no gradient; use sample and log_prob"
            )
        return self._draw(_sizes(shape), key)

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        raise self._absent("sample")

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        """The logarithm of the density, or of the probability of a discrete value; -inf where the
        distribution has no value."""
        raise self._absent("log_prob")

    def entropy(self) -> Tensor:
        """The entropy, in nats; of a density the differential entropy."""
        raise self._absent("entropy")

    def cdf(self, value: Tensor | ArrayLike) -> Tensor:
        """How probable a draw at or below `value` is."""
        raise self._absent("cdf")

    @property
    def mean(self) -> Tensor:
        """The mean; NaN where there is none."""
        raise self._absent("mean")

    @property
    def variance(self) -> Tensor:
        """The variance."""
        raise self._absent("variance")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return self.variance.sqrt()

    def _absent(self, name: str) -> ArgumentTypeError:
        return ArgumentTypeError(f"{name}: {type(self).__name__} does not have it")

    def __repr__(self) -> str:
        def shown(x: Tensor) -> str:
            return f"shape {x.shape}" if x.ndim or is_tracing() else f"{x.item():g}"

        parts = (f"{name}={shown(getattr(self, name))}" for name in self._names)
        return f"{type(self).__name__}({', '.join(parts)})"


class Independent(Distribution):
    """`base`, of whose batch the last `n` axes are part of one draw: `log_prob` and `entropy` are
    their sums."""

    def __init__(self, base: Distribution, reinterpreted_batch_ndims: int) -> None:
        n, rank = reinterpreted_batch_ndims, len(base.batch_shape)
        if not 0 <= n <= rank:
            raise ArgumentError(f"Independent: the batch has {rank} axes: got {n}")
        self.base, self._count = base, n
        self.batch_shape = base.batch_shape[: rank - n]
        self.event_shape = base.batch_shape[rank - n :] + base.event_shape
        self.has_rsample = base.has_rsample

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        return self.base._draw(shape, key)

    def _summed(self, x: Tensor) -> Tensor:
        return x.sum(axis=tuple(range(-self._count, 0))) if self._count else x

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        return self._summed(self.base.log_prob(value))

    def entropy(self) -> Tensor:
        return self._summed(self.base.entropy())

    @property
    def mean(self) -> Tensor:
        return self.base.mean

    @property
    def variance(self) -> Tensor:
        return self.base.variance

    def __repr__(self) -> str:
        return f"Independent({self.base!r}, {self._count})"


def _sizes(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def broadcast(*given: Tensor | ArrayLike) -> list[Tensor]:
    """Parameters as floating tensors of one dtype and shape."""
    tensors = [x for x in given if isinstance(x, Tensor)]
    kinds = [x.dtype for x in tensors if isdtype(x.dtype, "real floating")]
    kind = result_type(*kinds) if kinds else float32
    home = tensors[0].device if tensors else None
    return list(broadcast_arrays(*(
        x.astype(kind) if isinstance(x, Tensor) else asarray(x, dtype=kind, device=home)
        for x in given
    )))  # fmt: skip


def hold(name: str, rule: str, fits: Tensor, got: Any = None) -> None:
    """Refuses parameters for which `rule` does not hold everywhere, where that is known: nobody
    waits for a device."""
    if fits.device != device("cpu") and not isinstance(got, (int, float)):
        return
    try:
        is_fine = fits.all().item()
    except CaptureError:  # the values come when the function runs
        return
    if not is_fine:
        shown = f": got {got}" if isinstance(got, (int, float)) else ""
        raise ArgumentError(f"{name}: {rule}{shown}")


def either(
    name: str, probs: Tensor | ArrayLike | None, logits: Tensor | ArrayLike | None
) -> Tensor | ArrayLike:
    given = [x for x in (probs, logits) if x is not None]
    if len(given) != 1:
        raise ArgumentTypeError(f"{name}: pass either probs or logits")
    return given[0]
