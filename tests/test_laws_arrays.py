"""Laws of arrays against NumPy, over random shapes: broadcasting, indexing, views, writes."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wengert as wg

MOVEMENTS = ["permute", "flip", "slice", "reshape", "broadcast", "expand"]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
FULL_SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4)


def filled(shape):
    return np.arange(np.prod(shape, dtype=int), dtype="float32").reshape(shape)


def same(t, a):
    a = np.asarray(a)
    assert t.shape == a.shape
    np.testing.assert_array_equal(t.numpy(), a)


@given(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=4))
def test_broadcasting(shapes):
    a, b, c = (filled(s) for s in shapes.input_shapes)
    x, y, z = map(wg.asarray, (a, b, c))
    same(x + y * z, a + b * c)
    same(wg.where(x > y, y, z), np.where(a > b, b, c))
    assert wg.broadcast_to(x, shapes.result_shape).shape == shapes.result_shape


@given(SHAPES, SHAPES)
def test_what_numpy_does_not_broadcast_is_refused(left, right):
    try:
        want = np.broadcast_shapes(left, right)
    except ValueError:
        with pytest.raises(wg.ShapeError) as error:
            wg.zeros(left) + wg.zeros(right)
        assert str(left) in str(error.value) and str(right) in str(error.value)
        return
    assert (wg.zeros(left) + wg.zeros(right)).shape == want


@st.composite
def arrays_and_indices(draw):
    shape = draw(FULL_SHAPES)
    basic = hnp.basic_indices(shape, allow_newaxis=True)
    advanced = hnp.integer_array_indices(shape[: draw(st.integers(1, len(shape)))])
    masks = hnp.arrays(bool, shape[: draw(st.integers(1, len(shape)))])
    return filled(shape), draw(st.one_of(basic, advanced, masks))


def to_tensors(index):
    if isinstance(index, tuple):
        return tuple(to_tensors(i) for i in index)
    return wg.asarray(index) if isinstance(index, np.ndarray) else index


@given(arrays_and_indices())
def test_reads(case):
    a, index = case
    same(wg.asarray(a)[to_tensors(index)], a[index])
    same(wg.asarray(a)[index], a[index])


@given(arrays_and_indices())
def test_writes(case):
    a, index = case
    t = wg.asarray(a)
    before = t[...]
    t[to_tensors(index)] = -1.0
    written = a.copy()
    written[index] = -1.0
    same(t, written)
    same(before, a)


@given(arrays_and_indices(), st.booleans())
def test_the_gradient_of_a_read_adds_up_each_element_s_uses(case, create_graph):
    a, index = case
    x = wg.tensor(a, requires_grad=True)
    weights = filled(a[index].shape)
    y = (x[to_tensors(index)] * wg.asarray(weights)).sum()
    uses = np.zeros_like(a)
    np.add.at(uses, index, weights)
    (found,) = wg.gradients(y, [x], create_graph=create_graph)
    same(found, uses)


@given(arrays_and_indices())
def test_the_gradient_of_a_write(case):
    a, index = case
    x = wg.tensor(a, requires_grad=True)
    value = wg.tensor(2.0, requires_grad=True)
    y = x * 1.0
    y[to_tensors(index)] = value
    weights = filled(a.shape)
    (y * wg.asarray(weights)).sum().backward()
    kept = weights.copy()
    kept[index] = 0.0
    same(x.grad, kept)
    assert value.grad.item() == weights.sum() - kept.sum()


@given(FULL_SHAPES, st.data())
def test_movements_compose(shape, data):
    """A chain of views equals NumPy's, and reading it never depends on strides."""
    a = filled(shape)
    t = wg.asarray(a)
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(MOVEMENTS))
        if kind == "permute":
            axes = data.draw(st.permutations(range(a.ndim)))
            a, t = np.transpose(a, axes), wg.permute_dims(t, axes)
        elif kind == "flip" and a.ndim:
            axis = data.draw(st.integers(-a.ndim, a.ndim - 1))
            a, t = np.flip(a, axis), wg.flip(t, axis=axis)
        elif kind == "slice":
            index = data.draw(hnp.basic_indices(a.shape, allow_newaxis=False))
            a, t = np.asarray(a[index]), t[index]
        elif kind == "reshape":
            a, t = a.reshape(-1), t.reshape(-1)
        elif kind == "broadcast":
            a, t = np.broadcast_to(a, (2, *a.shape)), wg.broadcast_to(t, (2, *a.shape))
        elif kind == "expand":
            axis = data.draw(st.integers(-a.ndim - 1, a.ndim))
            a, t = np.expand_dims(a, axis), wg.expand_dims(t, axis=axis)
        if a.ndim > 6:
            break
    same(t, a)
    same(t + 1.0, a + 1.0)
    assert t.sum().item() == wg.asarray(a.copy()).sum().item()


@given(FULL_SHAPES, st.data())
def test_joined_parts(shape, data):
    """Parts that lie in one piece are copied otherwise than others, and short ones than long."""
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    dtype = data.draw(st.sampled_from(["int8", "float32", "float64"]))
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 3, 40, 3000]), min_size=1, max_size=4))
    parts, tensors = [], []
    for i, n in enumerate(sizes):
        size = list(shape)
        size[axis] = n
        part = (filled(tuple(size)) * (i + 1)).astype(dtype)
        if data.draw(st.booleans()):
            tensors.append(wg.flip(wg.asarray(np.flip(part).copy())))
        else:
            tensors.append(wg.asarray(part))
        parts.append(part)
    same(wg.concat(tensors, axis=axis), np.concatenate(parts, axis))
    alike = [part for part in parts if part.shape == parts[0].shape]
    same(wg.stack([wg.asarray(part) for part in alike], axis), np.stack(alike, axis))


@given(SHAPES, st.data())
def test_reshape_counts(shape, data):
    count = int(np.prod(shape, dtype=int))
    target = data.draw(st.lists(st.integers(-1, 6), max_size=4).map(tuple))
    try:
        want = filled(shape).reshape(target)
    except ValueError:
        with pytest.raises(wg.ShapeError):
            wg.zeros(shape).reshape(target)
        return
    same(wg.asarray(filled(shape)).reshape(target), want)
    assert want.size == count


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-5, 5).filter(bool))
def test_arange(start, stop, step):
    same(wg.arange(start, stop, step), np.arange(start, stop, step))
    same(wg.arange(float(start), float(stop), step / 2),
         np.arange(start, stop, step / 2, dtype="float32"))


@given(hnp.arrays("float64", FULL_SHAPES, elements=st.floats(-1e6, 1e6)))
def test_lists_and_numbers_round_trip(a):
    assert wg.tensor(a.tolist(), dtype=wg.float64).tolist() == a.tolist()
    assert [t.tolist() for t in wg.asarray(a)] == a.tolist()


def test_where_takes_numbers_on_both_sides():
    x = wg.asarray(np.array([-1.0, 0.0, 2.0], np.float32))
    y = wg.where(x > 0, 1.0, 0.0)
    assert y.dtype == wg.float32 and y.tolist() == [0.0, 0.0, 1.0]
    assert wg.where(x > 0, 1, 0).dtype == wg.int64
    assert wg.where(True, x, 0.0).tolist() == x.tolist()


def test_integers_beyond_64_bits_are_refused_by_name():
    with pytest.raises(OverflowError, match="64 bits"):
        wg.tensor(2**70)
