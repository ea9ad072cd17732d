"""How functions of `torch.nn.functional` are called here, as `calls` has it for the rest."""

import numpy as np

import wengert as wg
from wengert import nn

from calls import ByDesign, padded


def random_unless(function, certain=lambda p, training: not training or p in (0, 1)):
    def called(x, p=0.5, training=True, inplace=False):
        if not certain(p, training):
            raise ByDesign("random: another generator")
        return function(x, float(p), training=training)

    return called


def batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    if training:
        axes = tuple(i for i in range(x.ndim) if i != 1)
        mean, var = wg.mean(x, axis=axes), wg.var(x, axis=axes)
    return nn.batch_norm(x, mean, var, weight, bias, eps=eps)


def instance_norm(x, running_mean=None, running_var=None, weight=None, bias=None,
                  use_input_stats=True, momentum=0.1, eps=1e-5):  # fmt: skip
    if not use_input_stats:
        return nn.batch_norm(x, running_mean, running_var, weight, bias, eps=eps)
    return nn.instance_norm(x, weight=weight, bias=bias, eps=eps)


def last(shape):
    return tuple(range(-len(shape), 0))


def layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    return nn.layer_norm(x, last(shape), weight, bias, eps=eps)


def rms_norm(x, shape, weight=None, eps=None):
    eps = float(np.finfo(np.float64).eps) if eps is None else eps
    return nn.rms_norm(x, last(shape), weight, eps=eps)


def group_norm(x, groups, weight=None, bias=None, eps=1e-5):
    return nn.group_norm(x, groups, weight, bias, eps=eps)


def sizes_of(x, output, rank):
    if isinstance(output, list | tuple):
        return tuple(x.shape[i - rank] if n is None else n for i, n in enumerate(output))
    return output


def adaptive(function, rank):
    return lambda x, output: function(x, sizes_of(x, output, rank))


def adaptive_max(function, rank):
    return lambda x, output, return_indices=False: function(
        x, sizes_of(x, output, rank), return_indices=return_indices)  # fmt: skip


def avg_pool(function):
    def called(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True,
               divisor_override=None):  # fmt: skip
        return function(x, axes(kernel_size), axes(stride) or None, axes(padding),
                        count_include_pad=count_include_pad, ceil_mode=ceil_mode,
                        divisor_override=divisor_override)  # fmt: skip

    return called


def axes(value):
    return tuple(value) if isinstance(value, list | tuple) and len(value) > 1 else (
        value[0] if isinstance(value, list | tuple) and value else value)  # fmt: skip


def max_pool(function):
    def called(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False,
               return_indices=False):  # fmt: skip
        return function(x, kernel_size, stride or None, padding, dilation, ceil_mode,
                        return_indices=return_indices)  # fmt: skip

    return called


def max_unpool(function, rank):
    def called(x, indices, kernel_size, stride=None, padding=0, output_size=None):
        rows = indices.numpy().reshape((-1, int(np.prod(indices.shape[-rank:]))))
        if any(len(set(row.tolist())) < len(row) for row in rows):
            raise ByDesign("max_unpool: PyTorch's gradient passes values that others overwrote")
        return function(x, indices, kernel_size, stride, padding, output_size)

    return called


def linear(x, weight, bias=None):
    if weight.ndim == 1:
        raise ByDesign("linear: the weight has rank 2")
    return nn.linear(x, weight, bias)


def rrelu(x, lower=1 / 8, upper=1 / 3, training=False, inplace=False):
    if training:
        raise ByDesign("random: another generator")
    return nn.rrelu(x, lower, upper)


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
              enable_gqa=False):  # fmt: skip
    if dropout_p:
        raise ByDesign("random: another generator")
    return nn.scaled_dot_product_attention(q, k, v, mask=attn_mask, is_causal=is_causal,
                                           scale=scale)  # fmt: skip


def embedding(weight, indices, padding_idx=None, max_norm=None, norm_type=2.0,
              scale_grad_by_freq=False, sparse=False):  # fmt: skip
    if max_norm is not None:
        raise ByDesign("embedding: max_norm writes the table, which the module does")
    if scale_grad_by_freq:
        raise ByDesign("embedding: gradients are not scaled by how often an index comes")
    rows = nn.embedding(indices, weight)
    if padding_idx is None:
        return rows
    at = indices == padding_idx % weight.shape[0]
    return wg.where(wg.expand_dims(at, -1), rows.detach(), rows)


def embedding_bag(weight, indices, offsets=None, max_norm=None, norm_type=2.0,
                  scale_grad_by_freq=False, mode="mean", sparse=False, per_sample_weights=None,
                  include_last_offset=False, padding_idx=None):  # fmt: skip
    if max_norm is not None:
        raise ByDesign("embedding: max_norm writes the table, which the module does")
    if scale_grad_by_freq:
        raise ByDesign("embedding: gradients are not scaled by how often an index comes")
    return nn.embedding_bag(indices, weight, offsets, mode=mode,
                            per_sample_weights=per_sample_weights, padding_idx=padding_idx,
                            include_last_offset=include_last_offset)  # fmt: skip


def softplus(x, beta=1.0, threshold=20.0):
    if threshold < 10:
        raise ByDesign("softplus: exact everywhere, so it has no threshold")
    return nn.softplus(x, beta=float(beta))


def grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False):
    if x.ndim == 5 and mode == "bicubic":
        raise ByDesign("grid_sample: bicubic takes images of rank 4")
    return nn.grid_sample(x, grid, mode, padding_mode, bool(align_corners))


def grid_sampler(x, grid, mode=0, padding_mode=0, align_corners=False):
    return grid_sample(x, grid, ("bilinear", "nearest", "bicubic")[mode],
                       ("zeros", "border", "reflection")[padding_mode], align_corners)  # fmt: skip


def interpolate(x, size=None, scale_factor=None, mode="nearest", align_corners=None,
                recompute_scale_factor=None, antialias=False):  # fmt: skip
    if recompute_scale_factor:  # the size counts, and places follow from it
        size, scale_factor = [int(n * scale_factor) for n in x.shape[2:]], None
    return nn.interpolate(x, size, scale_factor, mode, align_corners)


def gaussian(x, target, var, full=False, eps=1e-6, reduction="mean"):
    if target.shape != x.shape:
        raise ByDesign("losses: a target does not broadcast")
    return nn.gaussian_nll_loss(x, target, var, full=full, eps=eps, reduction=reduction)


def ctc(log_probs, *args, **kwargs):
    """PyTorch's gradient is that by the logits; it is compared through log_softmax."""
    return nn.ctc_loss(log_probs, *args, **kwargs)


def upsample(mode, align_corners=None):
    return lambda x, size=None, scale_factor=None, align_corners=align_corners: nn.interpolate(
        x, size, scale_factor, mode, align_corners)  # fmt: skip


def glu(x, dim=-1):
    return nn.glu(x, dim)


def normalize(x, p=2.0, dim=1, eps=1e-12, out=None):
    if x.ndim == 0:
        x = x.reshape(1)
        return nn.normalize(x, float(p), 0, eps=eps).reshape(())
    return nn.normalize(x, float(p), dim, eps=eps)


def cosine_similarity(a, b, dim=1, eps=1e-8):
    if a.ndim == 0:
        return nn.cosine_similarity(a.reshape(1), b.reshape(1), 0, eps=eps)
    return nn.cosine_similarity(a, b, dim, eps=eps)


def multi_margin(x, target, **kwargs):
    if x.ndim == 0:
        raise ByDesign("losses: an input has an axis of classes")
    if x.ndim == 1 and target.ndim == 1:
        target = target.reshape(())
    return nn.multi_margin_loss(x, target, **kwargs)


def multilabel(x, target, **kwargs):
    if x.ndim == 0:
        raise ByDesign("losses: an input has an axis of classes")
    return nn.multilabel_margin_loss(x, target, **kwargs)


def triplet_with_distance(anchor, positive, negative, distance_function=None, **kwargs):
    if distance_function is not None:
        import torch.nn.functional as F

        names = {F.pairwise_distance: nn.pairwise_distance}
        kind = type(distance_function).__name__
        if distance_function in names:
            distance_function = names[distance_function]
        elif kind == "CosineSimilarity":
            distance_function = nn.cosine_similarity
        else:
            raise ByDesign("random: a function that PyTorch's test wrote for its tensors")
    return nn.triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=distance_function, **kwargs)  # fmt: skip


F = "nn.functional."
CALLS = {
    F + "dropout": random_unless(nn.dropout),
    F + "dropout2d": random_unless(nn.dropout2d),
    F + "dropout3d": random_unless(nn.dropout3d),
    F + "alpha_dropout": random_unless(nn.alpha_dropout),
    F + "feature_alpha_dropout": random_unless(nn.feature_alpha_dropout),
    F + "batch_norm": batch_norm,
    F + "instance_norm": instance_norm,
    F + "layer_norm": layer_norm,
    F + "rms_norm": rms_norm,
    F + "group_norm": group_norm,
    F + "adaptive_avg_pool1d": adaptive(nn.adaptive_avg_pool1d, 1),
    F + "adaptive_avg_pool2d": adaptive(nn.adaptive_avg_pool2d, 2),
    F + "adaptive_avg_pool3d": adaptive(nn.adaptive_avg_pool3d, 3),
    F + "adaptive_max_pool1d": adaptive_max(nn.adaptive_max_pool1d, 1),
    F + "adaptive_max_pool2d": adaptive_max(nn.adaptive_max_pool2d, 2),
    F + "adaptive_max_pool3d": adaptive_max(nn.adaptive_max_pool3d, 3),
    F + "avg_pool1d": avg_pool(nn.avg_pool1d),
    F + "avg_pool2d": avg_pool(nn.avg_pool2d),
    F + "avg_pool3d": avg_pool(nn.avg_pool3d),
    F + "max_pool1d": max_pool(nn.max_pool1d),
    F + "max_pool2d": max_pool(nn.max_pool2d),
    F + "max_pool3d": max_pool(nn.max_pool3d),
    F + "max_unpool1d": max_unpool(nn.max_unpool1d, 1),
    F + "max_unpool2d": max_unpool(nn.max_unpool2d, 2),
    F + "max_unpool3d": max_unpool(nn.max_unpool3d, 3),
    F + "linear": linear,
    F + "rrelu": rrelu,
    F + "scaled_dot_product_attention": attention,
    F + "embedding": embedding,
    F + "embedding_bag": embedding_bag,
    F + "softplus": softplus,
    F + "grid_sample": grid_sample,
    "grid_sampler_2d": grid_sampler,
    "grid_sampler_3d": grid_sampler,
    F + "interpolate": interpolate,
    F + "upsample_bilinear": upsample("bilinear", True),
    F + "upsample_nearest": upsample("nearest"),
    F + "gaussian_nll_loss": gaussian,
    F + "ctc_loss": ctc,
    F + "glu": glu,
    F + "normalize": normalize,
    F + "cosine_similarity": cosine_similarity,
    F + "multi_margin_loss": multi_margin,
    F + "multilabel_margin_loss": multilabel,
    F + "triplet_margin_with_distance_loss": triplet_with_distance,
    F + "pad": padded,
}
