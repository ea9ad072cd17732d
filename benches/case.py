"""What is measured: every row is declared once, for all engines.

A row is a function of an engine, of its sizes and of its inputs. Sizes have names, so that the
same declaration serves the measurement, a small run in the tests, and the counts of bytes and of
floating point operations from which the limit of a row follows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

GROUPS = {
    "A": "overhead of small calls",
    "B": "elementwise, reductions, rows",
    "C": "products",
    "D": "convolution, pooling, batch norm",
    "E": "models",
    "F": "fused chains by size",
}


class Missing(Exception):
    """The engine has nothing comparable."""


def nothing(s):
    return 0


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    id: str
    title: str
    #: (engine, sizes, *inputs) -> result; with parameters (engine, sizes, parameters, *inputs)
    function: Callable
    #: (sizes) -> arrays
    inputs: Callable
    #: What is measured, and a small version of it
    sizes: Mapping
    small: Mapping
    #: `forward`, `recorded` (forward with a tape), `gradient` (by the inputs `wrt`), `training`
    kind: str = "forward"
    wrt: tuple = ()
    #: (sizes) -> {name: array}
    parameters: Callable | None = None
    #: The optimizer of a training row and its learning rate
    optimizer: tuple = ()
    #: (sizes) -> bytes that must be read and written; operations of products
    bytes: Callable = nothing
    flops: Callable = nothing
    #: How many results a call stands for: times are divided by it
    per: Callable = field(default=lambda s: 1)
    #: How far results may differ, as a share of the largest element
    tolerance: float = 2e-3
    #: The same as text, for engines that read expressions
    text: str = ""
    #: What floating inputs are: float32 or bfloat16
    dtype: str = "float32"

    @property
    def group(self):
        return self.id[0]

    def at(self, small=False):
        """The sizes of the row, by name."""
        return SimpleNamespace(**(self.small if small else self.sizes))


CASES: dict[str, Case] = {}


def row(id, title, function, inputs, sizes=None, small=None, **rest):
    """Declares a row."""
    assert id not in CASES and id[0] in GROUPS, id
    sizes = sizes or {}
    case = Case(id, title, function, inputs, sizes, {**sizes, **(small or {})}, **rest)
    CASES[id] = case
    return case


def normal(*shape, seed=0, scale=1.0):
    x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return x * np.float32(scale)


def integers(high, *shape, seed=3):
    return np.random.default_rng(seed).integers(0, high, shape)


def all_cases():
    """Every row, in order."""
    import rows_arrays  # noqa: F401
    import rows_images  # noqa: F401
    import rows_models  # noqa: F401
    import rows_products  # noqa: F401
    import rows_small  # noqa: F401

    order = {id: i for i, id in enumerate(CASES)}
    return {id: CASES[id] for id in sorted(CASES, key=lambda id: (id[0], order[id]))}
