"""The parts of TensorFlow 1's `tf.contrib` that are other names of what is elsewhere."""

from wengert.compat.v1 import _scopes
from wengert.compat.v1._layers import layers as _layers
from wengert.compat.v1._missing import remedy
from wengert.compat.v1._rnn import nn as _nn
from wengert.compat.v1._rnn import rnn_cell as _cells
from wengert.compat.v1._spaces import Space as _Space

__all__ = ["layers", "rnn"]

rnn = _Space("contrib.rnn")
for _name, _cell in vars(_cells).items():
    if not _name.startswith("_"):
        setattr(rnn, _name, _cell)
rnn.static_rnn, rnn.static_bidirectional_rnn = _nn.static_rnn, _nn.static_bidirectional_rnn

layers = _Space("contrib.layers")
layers.flatten, layers.dropout = _layers.flatten, _layers.dropout
layers.l1_regularizer, layers.l2_regularizer = _scopes.l1_regularizer, _scopes.l2_regularizer


def _xavier(uniform: bool = True, seed: int | None = None, dtype: object = None) -> object:
    """Glorot's initializer, of uniform or normal numbers."""
    kind = _scopes.glorot_uniform_initializer if uniform else _scopes.glorot_normal_initializer
    return kind(seed)  # type: ignore[call-arg]


def _variance_scaling(
    factor: float = 2.0, mode: str = "FAN_IN", uniform: bool = False, seed: int | None = None
) -> object:
    """He's initializer by default: numbers with variance `factor / n`."""
    kind = "uniform" if uniform else "truncated_normal"
    return _scopes.variance_scaling_initializer(factor, mode.lower(), kind, seed)


layers.xavier_initializer = layers.xavier_initializer_conv2d = _xavier
layers.variance_scaling_initializer = _variance_scaling


def __getattr__(name: str) -> object:
    raise AttributeError(remedy(f"contrib.{name}"))
