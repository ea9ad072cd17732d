"""Sequences of different lengths as one tensor, and back.

There is no packed form of memory here: a packed sequence is a padded one with its lengths, and
recurrent layers do not look behind the end of an example.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wengert import _core
from wengert._core import Tensor, arange, asarray, pad, stack
from wengert.nn._wanted import a_tensor

__all__ = [
    "PackedSequence",
    "length_mask",
    "pack_padded_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpad_sequence",
]


def pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0
) -> Tensor:
    """Tensors (Tᵢ, …) as one (T, N, …), or (N, T, …) with `batch_first`, T being the largest.

    Shorter ones are followed by `padding_value`. All have one dtype and the same sizes behind the
    first. Raises ShapeError where they differ, ValueError for no sequence.

    >>> nn.pad_sequence([wg.ones(2), wg.ones(1)], batch_first=True).tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """
    if not sequences:
        raise ValueError("pad_sequence: expected at least one sequence, got none")
    for x in sequences:
        a_tensor("pad_sequence", "a sequence", x)
        if x.ndim == 0 or tuple(x.shape[1:]) != tuple(sequences[0].shape[1:]):
            first, other = tuple(sequences[0].shape), tuple(x.shape)
            raise _core.ShapeError(
                f"pad_sequence: sizes behind the first differ: shapes {first} and {other}"
            )
    size = max(x.shape[0] for x in sequences)
    rest = ((0, 0),) * (sequences[0].ndim - 1)
    padded = [pad(x, ((0, size - x.shape[0]), *rest), value=padding_value) for x in sequences]
    return stack(padded, axis=0 if batch_first else 1)


def unpad_sequence(padded: Tensor, lengths: Tensor, batch_first: bool = False) -> list[Tensor]:
    """The reverse of `pad_sequence`: the first `lengths[i]` steps of each example.

    The lengths are looked at, so captured functions refuse this.
    """
    sizes = asarray(lengths).tolist()
    return [(padded[i] if batch_first else padded[:, i])[:n] for i, n in enumerate(sizes)]


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """True for the first `lengths[i]` of `size` positions: (N,) to (N, size).

    With two new axes, `nn.length_mask(lengths, s)[:, None, None]` is a mask of attention.

    >>> nn.length_mask(wg.tensor([1, 2]), 2).tolist()
    [[True, False], [True, True]]
    """
    lengths = a_tensor("length_mask", "lengths", lengths)
    return arange(size, device=lengths.device) < lengths[..., None]


class PackedSequence(NamedTuple):
    """A padded batch with the lengths of its examples."""

    data: Tensor
    """(T, N, …), or (N, T, …) with `batch_first`"""
    lengths: Tensor
    """(N,), integers"""
    batch_first: bool = False


def pack_padded_sequence(
    input: Tensor,
    lengths: Tensor | Sequence[int],
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:
    """A padded batch and its lengths, for a recurrent layer.

    `enforce_sorted` is accepted as PyTorch's programs pass it: the order of the lengths makes no
    difference here.
    """
    given = asarray(lengths, device=a_tensor("pack_padded_sequence", "input", input).device)
    batch = input.shape[0 if batch_first else 1]
    if given.ndim != 1 or given.shape[0] != batch:
        shape = tuple(given.shape)
        raise _core.ShapeError(f"pack_padded_sequence: lengths {shape}, wanted ({batch},)")
    return PackedSequence(input, given, batch_first)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The padded batch (T, N, …), or (N, T, …) with `batch_first`, and the lengths (N,).

    What lies behind an example's end is `padding_value`. T is that of the batch that was packed.
    """
    if not isinstance(sequence, PackedSequence):
        kind = type(sequence).__name__
        raise TypeError(f"pad_packed_sequence: got {kind}, wanted nn.PackedSequence")
    x = sequence.data
    if sequence.batch_first != batch_first:
        x = _core.swapaxes(x, 0, 1)
    mask = length_mask(sequence.lengths, x.shape[1 if batch_first else 0])
    mask = mask if batch_first else _core.swapaxes(mask, 0, 1)
    mask = mask.reshape((*mask.shape, *(1,) * (x.ndim - 2)))
    return _core.where(mask, x, padding_value), sequence.lengths
