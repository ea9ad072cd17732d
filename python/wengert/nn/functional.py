"""The functions of `wengert.nn`, under the name by which PyTorch's users import them.

Each is the function of `wengert.nn` itself.
"""

from __future__ import annotations

from wengert._core import nn as _nn
from wengert._core.nn import *  # noqa: F403
from wengert.nn.attention import scaled_dot_product_attention  # type: ignore[assignment]  # noqa: F401
from wengert.nn.pooling import (  # type: ignore[assignment]  # noqa: F401
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)

__all__ = list(_nn.__all__)

TYPE_CHECKING = False
if not TYPE_CHECKING:  # to which it would say that there is every name

    def __getattr__(name: str) -> object:
        """Functions that are written in Python stand in `wengert.nn` alone."""
        from wengert import nn

        return getattr(nn, name)
