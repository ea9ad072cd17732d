"""Neural networks: functions, and modules over them.

Layouts and defaults are PyTorch's: images are N C H W, convolution weights O I H W, and
`Linear.weight` is (out, in). The functions are ops of the op table; a module holds the state that
a function needs and calls it.
"""

from wengert import _core
from wengert._core.nn import *
from wengert.nn import activations, functional, init, losses
from wengert.nn.activations import *
from wengert.nn.attention import (  # type: ignore[assignment]
    KVCache,
    MultiHeadAttention,
    scaled_dot_product_attention,
)
from wengert.nn.containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from wengert.nn.distances import Bilinear
from wengert.nn.dropouts import (
    AlphaDropout,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    FeatureAlphaDropout,
)
from wengert.nn.embeddings import Embedding, EmbeddingBag, embedding_bag
from wengert.nn.functions import functional_call, stack
from wengert.nn.images import (
    ChannelShuffle,
    Fold,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LocalResponseNorm,
    PixelShuffle,
    PixelUnshuffle,
    Unfold,
    Upsample,
    UpsamplingBilinear2d,
    UpsamplingNearest2d,
)
from wengert.nn.layers import (
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
    Flatten,
    GroupNorm,
    Identity,
    LayerNorm,
    Linear,
    RMSNorm,
    Unflatten,
)
from wengert.nn.lazy import (
    LazyBatchNorm1d,
    LazyBatchNorm2d,
    LazyBatchNorm3d,
    LazyConv1d,
    LazyConv2d,
    LazyConv3d,
    LazyConvTranspose1d,
    LazyConvTranspose2d,
    LazyConvTranspose3d,
    LazyLinear,
)
from wengert.nn.losses import *
from wengert.nn.module import Buffer, HookHandle, Module, Parameter
from wengert.nn.padding import (
    CircularPad1d,
    CircularPad2d,
    CircularPad3d,
    ConstantPad1d,
    ConstantPad2d,
    ConstantPad3d,
    ReflectionPad1d,
    ReflectionPad2d,
    ReflectionPad3d,
    ReplicationPad1d,
    ReplicationPad2d,
    ReplicationPad3d,
    ZeroPad1d,
    ZeroPad2d,
    ZeroPad3d,
)
from wengert.nn.parametrize import remove_parametrizations, spectral_norm, weight_norm
from wengert.nn.pooling import (  # type: ignore[assignment]
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    LPPool1d,
    LPPool2d,
    LPPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MaxUnpool1d,
    MaxUnpool2d,
    MaxUnpool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from wengert.nn.positions import rotary, sinusoidal_positions
from wengert.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from wengert.nn.sequences import (
    PackedSequence,
    length_mask,
    pack_padded_sequence,
    pad_packed_sequence,
    pad_sequence,
    unpad_sequence,
)
from wengert.nn.summary import Summary, SummaryRow, summary
from wengert.nn.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

MultiheadAttention = MultiHeadAttention  # PyTorch's name of it

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AlphaDropout",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bilinear",
    "Buffer",
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "EmbeddingBag",
    "FeatureAlphaDropout",
    "Flatten",
    "Fold",
    "GRUCell",
    "GroupNorm",
    "HookHandle",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KVCache",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "LSTMCell",
    "LayerNorm",
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "LazyLinear",
    "Linear",
    "LocalResponseNorm",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiHeadAttention",
    "MultiheadAttention",
    "PackedSequence",
    "Parameter",
    "ParameterDict",
    "ParameterList",
    "PixelShuffle",
    "PixelUnshuffle",
    "RMSNorm",
    "RNNCell",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Sequential",
    "Summary",
    "SummaryRow",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Unflatten",
    "Unfold",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "embedding_bag",
    "functional",
    "functional_call",
    "init",
    "length_mask",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "pack_padded_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "remove_parametrizations",
    "rotary",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
    "spectral_norm",
    "stack",
    "summary",
    "unpad_sequence",
    "weight_norm",
]
__all__ += activations.__all__
__all__ += losses.__all__
__all__ += _core.nn.__all__

TYPE_CHECKING = False

if not TYPE_CHECKING:

    def __getattr__(name):
        from wengert._words import unknown

        raise AttributeError(unknown('nn', name))
