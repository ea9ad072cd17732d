"""Neural networks: functions, and modules over them.

Layouts and defaults are PyTorch's: images are N C H W, convolution weights O I H W, and
`Linear.weight` is (out, in). The functions are ops of the op table; a module holds the state that
a function needs and calls it.
"""

from wengert import _core
from wengert._core.nn import *
from wengert.nn import init
from wengert.nn.activations import (
    GELU,
    LeakyReLU,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from wengert.nn.attention import MultiHeadAttention
from wengert.nn.containers import ModuleDict, ModuleList, Sequential
from wengert.nn.layers import (
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Dropout,
    Embedding,
    Flatten,
    GroupNorm,
    Identity,
    LayerNorm,
    Linear,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    RMSNorm,
)
from wengert.nn.losses import BCEWithLogitsLoss, CrossEntropyLoss, MSELoss
from wengert.nn.module import Buffer, HookHandle, Module, Parameter
from wengert.nn.recurrent import LSTM

__all__ = [
    "GELU",
    "LSTM",
    "AdaptiveAvgPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCEWithLogitsLoss",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Buffer",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "GroupNorm",
    "HookHandle",
    "Identity",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiHeadAttention",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "init",
]
__all__ += _core.nn.__all__

TYPE_CHECKING = False

if not TYPE_CHECKING:

    def __getattr__(name):
        from wengert._words import unknown

        raise AttributeError(unknown('nn', name))
