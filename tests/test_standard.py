"""Names and signatures of the Array API standard, 2024.12, without complex numbers, extensions."""

import inspect

import numpy as np
import pytest

import wengert as wg

# As the standard writes them. Array arguments by position only have other names here.
SIGNATURES = """
abs(x, /) acos(x, /) acosh(x, /) add(x1, x2, /) asin(x, /) asinh(x, /) atan(x, /) atan2(x1, x2, /)
atanh(x, /) bitwise_and(x1, x2, /) bitwise_left_shift(x1, x2, /) bitwise_invert(x, /)
bitwise_or(x1, x2, /) bitwise_right_shift(x1, x2, /) bitwise_xor(x1, x2, /) ceil(x, /)
clip(x, /, min=None, max=None) copysign(x1, x2, /) cos(x, /) cosh(x, /) divide(x1, x2, /)
equal(x1, x2, /) exp(x, /) expm1(x, /) floor(x, /) floor_divide(x1, x2, /) greater(x1, x2, /)
greater_equal(x1, x2, /) hypot(x1, x2, /) isfinite(x, /) isinf(x, /) isnan(x, /) less(x1, x2, /)
less_equal(x1, x2, /) log(x, /) log1p(x, /) log2(x, /) log10(x, /) logaddexp(x1, x2, /)
logical_and(x1, x2, /) logical_not(x, /) logical_or(x1, x2, /) logical_xor(x1, x2, /)
maximum(x1, x2, /) minimum(x1, x2, /) multiply(x1, x2, /) negative(x, /) nextafter(x1, x2, /)
not_equal(x1, x2, /) positive(x, /) pow(x1, x2, /) reciprocal(x, /) remainder(x1, x2, /)
round(x, /) sign(x, /) signbit(x, /) sin(x, /) sinh(x, /) square(x, /) sqrt(x, /)
subtract(x1, x2, /) tan(x, /) tanh(x, /) trunc(x, /)
arange(start, /, stop=None, step=1, *, dtype=None, device=None)
asarray(obj, /, *, dtype=None, device=None, copy=None) empty(shape, *, dtype=None, device=None)
empty_like(x, /, *, dtype=None, device=None)
eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)
from_dlpack(x, /, *, device=None, copy=None) full(shape, fill_value, *, dtype=None, device=None)
full_like(x, /, fill_value, *, dtype=None, device=None)
linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True)
meshgrid(*arrays, indexing='xy') ones(shape, *, dtype=None, device=None)
ones_like(x, /, *, dtype=None, device=None) tril(x, /, *, k=0) triu(x, /, *, k=0)
zeros(shape, *, dtype=None, device=None) zeros_like(x, /, *, dtype=None, device=None)
astype(x, dtype, /, *, copy=True, device=None) can_cast(from_, to, /) finfo(type, /) iinfo(type, /)
isdtype(dtype, kind) result_type(*arrays_and_dtypes)
take(x, indices, /, *, axis=None) take_along_axis(x, indices, /, *, axis=-1)
matmul(x1, x2, /) matrix_transpose(x, /) tensordot(x1, x2, /, *, axes=2)
vecdot(x1, x2, /, *, axis=-1)
broadcast_arrays(*arrays) broadcast_to(x, /, shape) concat(arrays, /, *, axis=0)
expand_dims(x, /, *, axis=0) flip(x, /, *, axis=None) moveaxis(x, source, destination, /)
permute_dims(x, /, axes) repeat(x, repeats, /, *, axis=None) reshape(x, /, shape, *, copy=None)
roll(x, /, shift, *, axis=None) squeeze(x, /, axis) stack(arrays, /, *, axis=0)
tile(x, repetitions, /) unstack(x, /, *, axis=0)
argmax(x, /, *, axis=None, keepdims=False) argmin(x, /, *, axis=None, keepdims=False)
count_nonzero(x, /, *, axis=None, keepdims=False) nonzero(x, /)
searchsorted(x1, x2, /, *, side='left', sorter=None) where(condition, x1, x2, /)
argsort(x, /, *, axis=-1, descending=False, stable=True)
sort(x, /, *, axis=-1, descending=False, stable=True)
cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False)
cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False)
max(x, /, *, axis=None, keepdims=False) mean(x, /, *, axis=None, keepdims=False)
min(x, /, *, axis=None, keepdims=False) prod(x, /, *, axis=None, dtype=None, keepdims=False)
std(x, /, *, axis=None, correction=0.0, keepdims=False)
sum(x, /, *, axis=None, dtype=None, keepdims=False)
var(x, /, *, axis=None, correction=0.0, keepdims=False)
all(x, /, *, axis=None, keepdims=False) any(x, /, *, axis=None, keepdims=False)
diff(x, /, *, axis=-1, n=1, prepend=None, append=None)
unique_all(x, /) unique_counts(x, /) unique_inverse(x, /) unique_values(x, /)
__array_namespace_info__()
"""
# Not here: their results have sizes that only the data tell.
LATER = {"unique_all", "unique_counts", "unique_inverse", "unique_values"}


def read():
    for text in SIGNATURES.replace("\n", " ").split(") "):
        name, _, parameters = text.strip().partition("(")
        if name:
            scope = {}
            exec(f"def f({parameters.rstrip(')')}): pass", scope)
            yield name, inspect.signature(scope["f"])


STANDARD = dict(read())


@pytest.mark.parametrize("name", sorted(STANDARD.keys() - LATER))
def test_a_call_in_the_standards_form_is_taken(name):
    want, ours = STANDARD[name], inspect.signature(getattr(wg, name))
    own = list(ours.parameters.values())
    for i, p in enumerate(want.parameters.values()):
        if p.kind is p.VAR_POSITIONAL:
            assert own[i].kind is p.VAR_POSITIONAL
            continue
        if p.kind is not p.KEYWORD_ONLY:
            assert own[i].kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD), p
        if p.kind is not p.POSITIONAL_ONLY:
            mine = ours.parameters[p.name]
            assert mine.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD), p
        else:
            mine = own[i]
        if p.default is not p.empty:
            assert mine.default == p.default, p


def test_the_list_of_what_is_missing_is_true():
    assert not any(hasattr(wg, name) for name in LATER)


def test_what_the_namespace_says_of_itself_is_true():
    assert wg.__array_api_version__ == "2024.12"
    x = wg.ones((2, 3))
    assert x.__array_namespace__(api_version=wg.__array_api_version__) is wg
    info = wg.__array_namespace_info__()
    assert info.devices() == wg.devices() and x.device == info.default_device() in wg.devices()
    can = info.capabilities()
    assert can["boolean indexing"] and x[x > 0].shape == (6,)
    assert can["data-dependent shapes"] and len(wg.nonzero(x)) == 2
    assert wg.zeros((1,) * can["max dimensions"]).ndim == can["max dimensions"]
    with pytest.raises(wg.ShapeError):
        wg.zeros((1,) * (can["max dimensions"] + 1))
    defaults = info.default_dtypes()
    assert wg.asarray(1.0).dtype == defaults["real floating"] == wg.zeros(2).dtype
    assert wg.asarray(1).dtype == defaults["integral"]
    assert wg.argmax(x).dtype == defaults["indexing"]
    assert info.dtypes().keys() == {n for n in wg.__all__ if isinstance(getattr(wg, n), wg.DType)}
    for kind in ("bool", "signed integer", "unsigned integer", "integral", "real floating"):
        assert all(wg.isdtype(dtype, kind) for dtype in info.dtypes(kind=kind).values())
    for name, value in [("e", np.e), ("pi", np.pi), ("inf", np.inf)]:
        assert getattr(wg, name) == value
    assert wg.nan != wg.nan and wg.newaxis is None


SHAPES = [((2, 1), (3,)), (), ((),), ((0, 1), (1, 5)), (4, (3, 1)), ((8, 1, 6), (7, 1), (6,))]


@pytest.mark.parametrize("shapes", SHAPES)
def test_broadcast_shapes(shapes):
    got = wg.broadcast_shapes(*shapes)
    assert type(got) is tuple and got == np.broadcast_shapes(*shapes)


def test_broadcast_shapes_refuses():
    with pytest.raises(wg.ShapeError, match=r"^broadcast_shapes: .*\(2,\).*\(3,\)"):
        wg.broadcast_shapes((2,), (3,))
    for bad in ((-1,), "ab", 1.5, (1.5,), None, [[1]]):
        with pytest.raises(wg.ArgumentTypeError, match=r"^broadcast_shapes: a shape is a tuple"):
            wg.broadcast_shapes(bad)


def after(a, b):
    with np.errstate(all="ignore"):
        # Of equal zeros the standard gives the second; NumPy's float16 gives the first.
        return np.where(a == b, b, np.nextafter(a, b))


def bits_of(x):
    return x.view(f"i{x.itemsize}")


SPECIAL = [0.0, -0.0, 1.0, -1.0, 1.5, 2.0, -0.5, np.inf, -np.inf, np.nan, 3.14159]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nextafter_is_numpys_at_every_kind_of_number(dtype):
    info = np.finfo(dtype)
    limits = [info.max, info.tiny, info.smallest_subnormal, info.tiny - info.smallest_subnormal]
    powers = [2.0**k for k in range(-20, 16)]
    rng = np.random.default_rng(0)
    values = np.asarray([*SPECIAL, *limits, *(-np.asarray(limits)), *powers], dtype)
    a = np.concatenate([values, rng.standard_normal(100).astype(dtype)])
    a, b = (part.ravel() for part in np.meshgrid(a, a))
    got, want = wg.nextafter(wg.asarray(a), wg.asarray(b)).numpy(), after(a, b)
    nan = np.isnan(want)
    assert got.dtype == dtype and np.isnan(got[nan]).all()
    np.testing.assert_array_equal(bits_of(got)[~nan], bits_of(want)[~nan])


def test_nextafter_in_bfloat16_is_the_next_of_all_its_numbers():
    every = np.arange(0, 0x7F81, dtype=np.uint32) << 16  # 0 up to infinity
    up = np.concatenate([-every[::-1].view("f4"), every[1:].view("f4")])
    x = wg.asarray(up).astype(wg.bfloat16)
    assert (wg.nextafter(x, wg.inf)[:-1] == x[1:]).all()
    assert (wg.nextafter(x, -wg.inf)[1:] == x[:-1]).all()
    assert (wg.nextafter(x, x) == x).all()
    to = wg.tensor([1.0, -1.0], dtype=wg.bfloat16)
    signs = wg.signbit(wg.nextafter(wg.zeros(2, dtype=wg.bfloat16), to))
    assert signs.tolist() == [False, True]


def test_nextafter_promotes_and_refuses():
    x = wg.ones(2)
    assert wg.nextafter(x, 2).dtype == wg.nextafter(2, x).dtype == wg.float32
    assert wg.nextafter(x, wg.zeros(2, dtype=wg.float64)).dtype == wg.float64
    with pytest.raises(wg.DTypeError, match=r"^nextafter: dtype int64 .* not floating"):
        wg.nextafter(wg.arange(2), wg.arange(2))
    y = wg.tensor([1.0, -2.0], requires_grad=True)
    wg.nextafter(y, wg.zeros(2)).sum().backward()
    assert y.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_diff_with_what_comes_before_and_after(axis, n):
    a = np.random.default_rng(0).integers(-9, 9, (3, 4))
    edge = a[:1] * 2 if axis == 0 else a[:, :1] * 2
    for before, after in [(edge, None), (None, edge), (edge, edge), (7, None), (None, 7)]:
        options = {"prepend": before, "append": after}
        given = {k: v for k, v in options.items() if v is not None}
        want = np.diff(a, axis=axis, n=n, **given)
        ours = {k: v if isinstance(v, int) else wg.asarray(v) for k, v in given.items()}
        got = wg.diff(wg.asarray(a), axis=axis, n=n, **ours)
        if n:
            np.testing.assert_array_equal(got.numpy(), want)


def test_diff_refuses_what_does_not_fit():
    x = wg.ones((3, 4))
    for part in (wg.ones((2, 1)), wg.ones(4), wg.ones((3, 1, 1))):
        with pytest.raises(wg.ShapeError, match=r"^diff: prepend and append"):
            wg.diff(x, prepend=part)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_with_a_sorter(side):
    rng = np.random.default_rng(0)
    a, v = rng.integers(0, 9, 12), rng.integers(-1, 10, (3, 5))
    order = np.argsort(a, kind="stable")
    want = np.searchsorted(a, v, side=side, sorter=order)
    x = wg.asarray(a)
    got = wg.searchsorted(x, wg.asarray(v), side=side, sorter=wg.argsort(x))
    np.testing.assert_array_equal(got.numpy(), want)
    with pytest.raises(wg.ShapeError, match=r"^searchsorted: sorter"):
        wg.searchsorted(x, wg.asarray(v), sorter=wg.arange(3))


def test_arguments_that_change_nothing_are_checked():
    x = wg.arange(6)
    for copy in (None, True, False):
        assert wg.reshape(x, (2, 3), copy=copy).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x.reshape(2, 3, copy=True).shape == wg.reshape(x, shape=(2, -1)).shape == (2, 3)
    with pytest.raises(wg.ArgumentTypeError, match="'copy' must be a bool"):
        x.reshape((2, 3), copy="no")
    assert wg.astype(x, wg.float32, device="cpu").dtype == wg.float32
    with pytest.raises(wg.DeviceError):
        x.astype(wg.float32, device="tpu")


def test_several_arrays_are_several_arguments():
    x, y = wg.arange(2), wg.arange(3)
    grids = wg.meshgrid(x, y, indexing="ij")
    assert [g.shape for g in grids] == [(2, 3), (2, 3)]
    assert [g.shape for g in wg.meshgrid([x, y])] == [(3, 2), (3, 2)]
    assert wg.meshgrid() == wg.broadcast_arrays() == ()
    assert [a.shape for a in wg.broadcast_arrays(x[:, None], y)] == [(2, 3), (2, 3)]


@pytest.mark.parametrize(("name", "want"), [
    ("einsum", "(subscripts, *operands)"),
    ("meshgrid", "(*arrays, indexing='xy')"),
    ("broadcast_arrays", "(*arrays)"),
    ("reshape", "(x, shape, *sizes, copy=None)"),
    ("ones", "(shape, *, dtype=None, device=None, requires_grad=False)"),
    ("Tensor.reshape", "(self, /, shape, *sizes, copy=None)"),
])  # fmt: skip
def test_signatures_have_their_stars(name, want):
    head, _, last = name.rpartition(".")
    assert str(inspect.signature(getattr(wg.Tensor if head else wg, last))) == want


@pytest.mark.parametrize("call", [
    lambda: wg.random.uniform(0, 1),
    lambda: wg.random.normal(0, 1),
    lambda: wg.random.normal(0.0, 1.0, (3,)),
    lambda: wg.random.uniform(-1, 1, (2,)),
])  # fmt: skip
def test_parameters_of_distributions_are_keywords(call):
    with pytest.raises(TypeError, match=r"\(shape\), got \d; by keyword only: (low|mean)="):
        call()


def test_shapes_of_new_tensors_are_one_argument():
    for make in (wg.ones, wg.zeros, wg.empty, wg.random.uniform, wg.random.normal, wg.random.bits):
        with pytest.raises(TypeError, match=r"takes 1 positional arguments .shape., got 2"):
            make(2, 3)
    for name in ("uniform", "normal", "bits"):
        first, *rest = inspect.signature(getattr(wg.random, name)).parameters.values()
        assert first.name == "shape" and all(p.kind is p.KEYWORD_ONLY for p in rest)
