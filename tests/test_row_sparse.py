"""Row-sparse gradients of tables: against dense ones, in optimizers, and where they are refused."""

import numpy as np
import pytest

import wengert as wg
from wengert import nn, optim

ROWS, WIDTH = 7, 3
RNG = np.random.default_rng(14)
TABLE = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
WEIGHTS = RNG.standard_normal((6, WIDTH)).astype(np.float32)
INDEX = [5, 2, 5, -1, 2, 5]


def table(values=TABLE):
    return wg.tensor(values, requires_grad=True)


def look_up(weight, index=INDEX, sparse=True, by=WEIGHTS):
    index = wg.asarray(index)
    rows = nn.embedding(index, weight, sparse=sparse)
    (rows * wg.asarray(by).reshape(rows.shape)).sum().backward()


def dense_of(index=INDEX, by=WEIGHTS, times=1):
    weight = table()
    for _ in range(times):
        look_up(weight, index, sparse=False, by=by)
    return weight.grad.numpy()


def same(x, y):
    np.testing.assert_array_equal(x.numpy() if isinstance(x, wg.Tensor) else x, y)


def test_a_lookup_gives_rows():
    weight = table()
    look_up(weight)
    g = weight.grad
    assert type(g) is wg.RowSparse
    assert g.indices.tolist() == [5, 2, 5, 6, 2, 5] and g.indices.dtype == wg.int64
    same(g.values, WEIGHTS)
    assert (g.shape, g.dtype, g.ndim, g.device) == ((ROWS, WIDTH), wg.float32, 2, weight.device)
    same(g.to_dense(), dense_of())
    sums = g.coalesce()
    assert sums.indices.tolist() == [2, 5, 6] and sums.coalesce() is sums
    same(sums.values, dense_of()[[2, 5, 6]])
    same(sums.to_dense(), dense_of())


@pytest.mark.parametrize("dtype", [wg.float64, wg.float16, wg.bfloat16])
@pytest.mark.parametrize("index", [[[1, 1], [0, 6], [1, -6]], [4], []], ids=str)
def test_sums_have_the_bits_of_a_dense_gradient(dtype, index):
    index = np.array(index, np.int64)
    by = RNG.standard_normal((*index.shape, WIDTH))
    grads = []
    for sparse in (True, False):
        weight = wg.asarray(TABLE).astype(dtype).requires_grad_()
        rows = nn.embedding(wg.asarray(index), weight, sparse=sparse)
        (rows * wg.asarray(by).astype(dtype)).sum().backward()
        grads.append(weight.grad)
    same(grads[0].to_dense().astype(wg.float64), grads[1].astype(wg.float64).numpy())
    same(grads[0].coalesce().to_dense().astype(wg.float64), grads[1].astype(wg.float64).numpy())


def test_several_lookups_and_backwards_add_rows():
    weight = table()
    i, j = wg.tensor([1, 2]), wg.tensor([2, 0, 2])
    a = nn.embedding(i, weight, sparse=True)
    b = nn.embedding(j, weight, sparse=True)
    (a.sum() + (b * b).sum()).backward()
    want = table()
    (want[i].sum() + (want[j] ** 2).sum()).backward()
    assert sorted(weight.grad.indices.tolist()) == [0, 1, 2, 2, 2]
    same(weight.grad.to_dense(), want.grad.numpy())
    look_up(weight)
    look_up(want, sparse=False)
    assert len(weight.grad.indices) == 11
    np.testing.assert_allclose(weight.grad.to_dense().numpy(), want.grad.numpy(), rtol=1e-6)
    weight.grad = None
    assert weight.grad is None


def test_what_else_reads_a_table_makes_its_gradient_dense():
    for before in (False, True):
        weight, want = table(), table()
        for w, sparse in ((weight, True), (want, False)):
            other = (w**2).sum() if before else 0.0
            rows = nn.embedding(wg.asarray(INDEX), w, sparse=sparse)
            (other + (rows * WEIGHTS).sum() + (0.0 if before else (w**2).sum())).backward()
        assert type(weight.grad) is wg.Tensor
        same(weight.grad, want.grad.numpy())
    # What is dense stays dense, and rows that are there become dense.
    look_up(weight)
    look_up(want, sparse=False)
    same(weight.grad, want.grad.numpy())
    weight, want = table(), table()
    look_up(weight)
    look_up(want, sparse=False)
    for w in (weight, want):
        (w**2).sum().backward()
    same(weight.grad, want.grad.numpy())


def test_elsewhere_gradients_are_dense():
    i = wg.asarray(INDEX)

    def loss(w):
        return (nn.embedding(i, w, sparse=True) * WEIGHTS).sum()

    want = dense_of()
    same(wg.grad(loss)(wg.asarray(TABLE)), want)
    same(wg.vmap(wg.grad(loss))(wg.asarray(TABLE)[None])[0], want)
    _, dy = wg.jvp(loss, (wg.asarray(TABLE),), (wg.ones((ROWS, WIDTH)),))
    np.testing.assert_allclose(dy.item(), WEIGHTS.sum(), rtol=1e-5)
    weight = table()
    same(wg.gradients(loss(weight), [weight])[0], want)
    loss(weight).backward(create_graph=True)
    same(weight.grad, want)

    @wg.compile
    def step():
        loss(weight).backward()

    weight = table()
    step()
    same(weight.grad, want)
    # A captured function adds to rows from outside, which become dense.
    weight.grad = None
    look_up(weight)
    assert type(weight.grad) is wg.RowSparse
    step()
    same(weight.grad, want + want)


def test_hooks_are_given_a_dense_gradient():
    weight, seen = table(), []
    weight.register_hook(lambda g: seen.append(g.shape))
    look_up(weight)
    assert seen == [(ROWS, WIDTH)]
    same(weight.grad, dense_of())


def test_a_table_that_is_computed_has_dense_cotangents():
    weight = table()
    look_up(weight * 2.0)
    same(weight.grad, 2.0 * dense_of())


def test_gradients_can_be_assigned():
    weight = table()
    g = wg.RowSparse(wg.tensor([-1, 0]), wg.ones((2, WIDTH)), (ROWS, WIDTH))
    weight.grad = g
    assert weight.grad.indices.tolist() == [6, 0]
    weight.grad = 2 * weight.grad + weight.grad / wg.tensor(2.0)
    same(weight.grad.coalesce().values, np.full((2, WIDTH), 2.5))
    weight.grad = weight.grad.to_dense()
    assert type(weight.grad) is wg.Tensor
    weight.grad = -g
    same(weight.grad.to_dense().sum(), np.float32(-2 * WIDTH))
    with pytest.raises(wg.ShapeError, match="tensor's type"):
        weight.grad = wg.RowSparse([0], wg.ones((1, WIDTH)), (ROWS + 1, WIDTH))
    with pytest.raises(wg.ShapeError, match="tensor's type"):
        weight.grad = g.astype(wg.float64)
    with pytest.raises(TypeError, match="grad"):
        weight.grad = "rows"


def test_arguments_are_checked():
    ones = wg.ones((2, WIDTH))
    for indices, values, shape, kind in (
        ([[0, 1]], ones, (ROWS, WIDTH), wg.ShapeError),
        ([0.0, 1.0], ones, (ROWS, WIDTH), wg.ShapeError),
        ([0], ones, (ROWS, WIDTH), wg.ShapeError),
        ([0, 1], ones, (ROWS, WIDTH + 1), wg.ShapeError),
        ([0, 1], ones, (), wg.ShapeError),
        ([0, ROWS], ones, (ROWS, WIDTH), IndexError),
        ([0, -ROWS - 1], ones, (ROWS, WIDTH), IndexError),
    ):
        with pytest.raises(kind, match="RowSparse"):
            wg.RowSparse(wg.asarray(indices), values, shape)
    g = wg.RowSparse([0, 1], ones, (ROWS, WIDTH))
    with pytest.raises(AttributeError, match=r"'sum'; to_dense\(\)"):
        g.sum()
    with pytest.raises(AttributeError, match=r"'nothing'$"):
        _ = g.nothing
    with pytest.raises(TypeError, match=r"to_dense\(\)"):
        np.asarray(g)
    with pytest.raises(wg.ShapeError, match="factor"):
        g * wg.ones(3)
    with pytest.raises(wg.ShapeError, match="differ"):
        g + wg.RowSparse([0, 1], ones, (ROWS + 1, WIDTH))
    assert repr(g).startswith("RowSparse(indices=[0, 1], values=[[1.0, 1.0, 1.0], [1.0")
    many = wg.RowSparse(wg.zeros(40, dtype=wg.int64), wg.ones((40, WIDTH)), (ROWS, WIDTH))
    assert repr(many) == "RowSparse(40 rows, shape=(7, 3))"
    assert many.nbytes == 40 * (8 + 4 * WIDTH)


def train(make, sparse, steps=5, values=TABLE):
    """A table after some steps, each of other rows."""
    weight = nn.Parameter(wg.tensor(values))
    optimizer = make([weight])
    rng = np.random.default_rng(1)
    for _ in range(steps):
        index = wg.asarray(rng.integers(0, ROWS, 4))
        optimizer.zero_grad()
        rows = nn.embedding(index, weight, sparse=sparse)
        ((rows - 0.5) ** 2).sum().backward()
        assert type(weight.grad) is (wg.RowSparse if sparse else wg.Tensor)
        optimizer.step()
    return weight.detach().numpy(), optimizer


OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD, up": lambda p: optim.SGD(p, lr=0.1, maximize=True),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.01),
    "Adagrad, more": lambda p: optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5, eps=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_steps_are_those_of_dense_gradients(name, dtype):
    values = TABLE.astype(dtype)
    (got, ours), (want, dense) = (
        train(OPTIMIZERS[name], sparse, values=values) for sparse in (True, False)
    )
    same(got, want)
    for x, y in zip(ours.state.values(), dense.state.values(), strict=True):
        for key in y:
            same(x[key], y[key].numpy())


def sparse_adam(values, lr=0.05, beta1=0.8, beta2=0.95, eps=1e-6, sign=1.0, steps=5):
    """The steps of `train`, in float64, row by row."""
    p = values.astype(np.float64)
    m, v = np.zeros_like(p), np.zeros_like(p)
    rng = np.random.default_rng(1)
    for t in range(1, steps + 1):
        index = rng.integers(0, ROWS, 4)
        g = np.zeros_like(p)
        for i in index:
            g[i] += 2.0 * (p[i] - 0.5)
        for i in sorted(set(index)):
            m[i] = beta1 * m[i] + (1 - beta1) * sign * g[i]
            v[i] = beta2 * v[i] + (1 - beta2) * g[i] ** 2
            size = lr * np.sqrt(1 - beta2**t) / (1 - beta1**t)
            p[i] -= size * m[i] / (np.sqrt(v[i]) + eps)
    return p


@pytest.mark.parametrize("maximize", [False, True])
def test_sparse_adam_follows_its_formula(maximize):
    options = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "maximize": maximize}
    got, _ = train(lambda p: optim.SparseAdam(p, **options), True, values=TABLE.astype(np.float64))
    want = sparse_adam(TABLE, sign=-1.0 if maximize else 1.0)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_sparse_adam_leaves_other_rows_alone_and_adam_does_not():
    def after(optimizer, weight, sparse):
        for index in ([0, 1], [0]):
            optimizer.zero_grad()
            look_up(weight, index, sparse, by=np.ones((len(index), WIDTH), np.float32))
            optimizer.step()
            yield weight.detach().numpy()

    weight = table()
    first, second = after(optim.SparseAdam([weight], lr=0.1), weight, True)
    same(first[2:], TABLE[2:])
    same(second[1:], first[1:])
    assert (second[0] != first[0]).all()
    weight = table()
    first, second = after(optim.Adam([weight], lr=0.1), weight, False)
    assert (second[1] != first[1]).all()


def test_state_of_sparse_adam_is_saved(tmp_path):
    def step(weight, optimizer, index):
        optimizer.zero_grad()
        look_up(weight, index)
        optimizer.step()

    weight = table()
    optimizer = optim.SparseAdam([weight], lr=0.1)
    step(weight, optimizer, INDEX)
    state = optimizer.state_dict()
    assert sorted(state["state"][0]) == ["exp_avg", "exp_avg_sq", "step"]
    wg.save({"optimizer": state}, tmp_path / "state.safetensors")
    again = wg.tensor(weight.numpy(), requires_grad=True)
    loaded = optim.SparseAdam([again], lr=0.1)
    loaded.load_state_dict(wg.load(tmp_path / "state.safetensors")["optimizer"])
    for w, o in ((weight, optimizer), (again, loaded)):
        step(w, o, [0, 5, 1, 1, 6, 6])
    same(again.detach(), weight.detach().numpy())


def others():
    """Every optimizer that takes no row-sparse gradients."""
    for name in optim.__all__:
        kind = getattr(optim, name)
        taking = (optim.Optimizer, optim.SGD, optim.Adagrad, optim.SparseAdam)
        is_one = isinstance(kind, type) and issubclass(kind, optim.Optimizer)
        if is_one and kind not in taking:
            yield name


@pytest.mark.parametrize("name", list(others()))
def test_other_optimizers_refuse_rows_by_name(name):
    weight = table()
    optimizer = getattr(optim, name)([weight])
    with pytest.raises(wg.GradientError, match=rf"^{name}: .*SGD, Adagrad or SparseAdam.*to_dense"):
        optimizer.step(lambda: (nn.embedding(wg.tensor([1]), weight, sparse=True).sum(),
                                look_up(weight))[0])
    same(weight.detach(), TABLE)
    assert not optimizer.state


def test_options_that_move_all_rows_are_refused():
    for make, what in (
        (lambda p: optim.SGD(p, momentum=0.9), "SGD: .*momentum=0"),
        (lambda p: optim.SGD(p, weight_decay=0.1), "SGD: .*weight_decay=0"),
        (lambda p: optim.Adagrad(p, weight_decay=0.1), "Adagrad: .*weight_decay=0"),
    ):
        weight = table()
        look_up(weight)
        with pytest.raises(wg.GradientError, match=what):
            make([weight]).step()

    class Own(optim.Optimizer):
        def initial_state(self, p, group):
            return {}

        def update(self, p, g, state, group):
            raise AssertionError

    with pytest.raises(wg.GradientError, match=r"^Own: "):
        Own([weight]).step()


def test_sparse_adam_refuses_dense_gradients():
    weight = table()
    look_up(weight, sparse=False)
    optimizer = optim.SparseAdam([weight])
    with pytest.raises(wg.GradientError, match=r"SparseAdam: .*\(7, 3\) is dense.*Adam$"):
        optimizer.step()

    @wg.compile
    def step():
        look_up(weight)
        optimizer.step()

    optimizer.zero_grad()
    with pytest.raises(wg.GradientError, match=r"SparseAdam: .*dense"):
        step()
    same(weight.detach(), TABLE)


def test_a_step_that_fails_changes_nothing():
    class Failing(optim.SGD):
        def update(self, p, g, state, group):
            super().update(p, g, state, group)
            if p.shape == (2,):
                raise RuntimeError("refused")

    weight, other = table(), wg.ones(2, requires_grad=True)
    look_up(weight)
    (other * 2.0).sum().backward()
    with pytest.raises(RuntimeError, match="refused"):
        Failing([weight, other], lr=0.1).step()
    same(weight.detach(), TABLE)
    same(other.detach(), np.ones(2))
    optim.SGD([weight, other], lr=0.1).step()
    same(other.detach(), np.full(2, np.float32(1.0) - np.float32(0.1) * np.float32(2.0)))
    assert (weight.detach().numpy()[5] != TABLE[5]).all()


def test_clipping():
    def grads(clip):
        out = []
        for sparse in (True, False):
            weight, other = table(), wg.ones(2, requires_grad=True)
            look_up(weight, sparse=sparse)
            (other * 3.0).sum().backward()
            found = clip([weight, other])
            g = weight.grad.to_dense() if sparse else weight.grad
            out.append((found, g.numpy(), other.grad.numpy()))
        return out

    (norm, a, b), (want, c, d) = grads(lambda p: optim.clip_grad_norm(p, 0.5))
    np.testing.assert_allclose(norm.item(), want.item(), rtol=1e-6)
    np.testing.assert_allclose(a, c, rtol=1e-6)
    np.testing.assert_allclose(b, d, rtol=1e-6)
    (_, a, b), (_, c, d) = grads(lambda p: optim.clip_grad_value(p, 0.3))
    same(a, c)
    same(b, d)


def test_scaled_gradients():
    results = []
    for sparse in (True, False):
        weight, other = table(), wg.ones(2, requires_grad=True)
        optimizer = optim.SGD([weight, other], lr=0.1)
        scaler = optim.GradScaler(init_scale=1024.0)
        for by in (WEIGHTS, WEIGHTS * 1e36, WEIGHTS):
            optimizer.zero_grad()
            rows = nn.embedding(wg.asarray(INDEX), weight, sparse=sparse)
            scaler.scale((rows * wg.asarray(by)).sum() + other.sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append((weight.detach().numpy(), other.detach().numpy(), scaler.get_scale()))
    assert results[0][2] == results[1][2] == 512.0
    same(results[0][0], results[1][0])
    same(results[0][1], results[1][1])


def test_modules():
    plain, sparse = (nn.Embedding(ROWS, WIDTH, padding_idx=2, sparse=s) for s in (False, True))
    sparse.load_state_dict(plain.state_dict())
    for module in (plain, sparse):
        (module(wg.asarray(INDEX)) * wg.asarray(WEIGHTS)).sum().backward()
    assert type(sparse.weight.grad) is wg.RowSparse
    same(sparse.weight.grad.to_dense(), plain.weight.grad.numpy())
    same(sparse.weight.grad.to_dense()[2], np.zeros(WIDTH))
    before = sparse.weight.detach().numpy()
    optim.SparseAdam(sparse.parameters(), lr=0.1).step()
    same(sparse.weight.detach()[2], before[2])
    sparse.zero_grad()
    assert sparse.weight.grad is None
    loaded = nn.Embedding.from_pretrained(TABLE, freeze=False, sparse=True)
    loaded(wg.tensor([1])).sum().backward()
    assert loaded.weight.grad.indices.tolist() == [1]
    with pytest.raises(TypeError, match="positional"):
        nn.Embedding(3, 2, None, None, 2.0, True)  # in PyTorch another argument


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode):
    bags = [nn.EmbeddingBag(ROWS, WIDTH, mode=mode, sparse=s) for s in (False, True)]
    bags[1].load_state_dict(bags[0].state_dict())
    for bag in bags:
        bag(wg.tensor([0, 3, 3, 5]), offsets=wg.tensor([0, 2])).sum().backward()
    assert type(bags[1].weight.grad) is wg.RowSparse
    same(bags[1].weight.grad.to_dense(), bags[0].weight.grad.numpy())


def test_tied_weights_have_a_dense_gradient():
    embedding = nn.Embedding(ROWS, WIDTH, sparse=True)
    h = embedding(wg.tensor([1, 2]))
    (h @ embedding.weight.T).sum().backward()
    assert type(embedding.weight.grad) is wg.Tensor


@pytest.mark.parametrize("kind", ["SGD", "Adagrad", "SparseAdam"])
def test_the_whole_table_is_not_made(kind):
    n, width = 50_000, 64
    embedding = nn.Embedding(n, width, sparse=True)
    optimizer = getattr(optim, kind)(embedding.parameters(), lr=0.1)
    index = wg.tensor([3, 49_999, 3])

    def step():
        optimizer.zero_grad()
        (embedding(index) ** 2).sum().backward()
        optim.clip_grad_norm(embedding.parameters(), 1.0)
        optimizer.step()

    step()
    base = wg.memory_stats()["live_bytes"]
    wg.reset_peak_memory()
    step()
    assert wg.memory_stats()["peak_bytes"] - base < n * width * 4 / 10


def on_device(device):
    weight = wg.asarray(TABLE).to(device).requires_grad_()
    optimizer = optim.SparseAdam([weight], lr=0.1)
    for _ in range(2):
        rows = nn.embedding(wg.asarray(INDEX).to(device), weight, sparse=True)
        (rows * wg.asarray(WEIGHTS).to(device)).sum().backward()
    assert weight.grad.device == weight.device
    whole = weight.grad.to_dense().to("cpu").numpy()
    np.testing.assert_allclose(whole, dense_of(times=2), rtol=1e-6)
    sums = weight.grad.coalesce().to("cpu")
    assert sums.device == wg.asarray(TABLE).device and sums.indices.tolist() == [2, 5, 6]
    optimizer.step()
    same(weight.detach().to("cpu")[0], TABLE[0])
    (weight**2).sum().backward()
    assert type(weight.grad) is wg.Tensor


def test_on_the_reference_device():
    on_device(wg.device("reference"))


def test_on_a_gpu(gpu):
    on_device(gpu)


def test_threads_add_rows():
    from concurrent.futures import ThreadPoolExecutor

    weight = table()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: look_up(weight), range(20)))
    assert len(weight.grad.indices) == 120
    np.testing.assert_allclose(weight.grad.to_dense().numpy(), 20 * dense_of(), rtol=1e-4)


def test_a_copy_of_a_table_has_its_gradient():
    import copy

    weight = table()
    look_up(weight)
    twin = copy.deepcopy(weight)
    same(twin.grad.to_dense(), dense_of())
