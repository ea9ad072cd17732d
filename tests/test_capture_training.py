"""Training steps captured as they stand: losses, parameters, buffers, moments to the bit."""

import math

import pytest

import wengert as wg
from wengert import nn, optim

from support import generator, training_step

SIZES = (8, 3, 8, 5, 1, 8)
"""Batch sizes of the calls of a run; the second one makes the size a symbol."""


class Lstm(nn.Module):
    """A recurrent net that classifies sequences of 6 steps."""

    def __init__(self):
        self.body = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        y, _ = self.body(x.reshape((x.shape[0], 6, 4)))
        return self.head(y[:, -1])


class Attention(nn.Module):
    """A transformer block over 6 steps, causal, with dropout."""

    def __init__(self):
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiHeadAttention(4, 2)
        self.wide = nn.Sequential(nn.RMSNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = x.reshape((x.shape[0], 6, 4))
        x = x + self.drop(self.attention(self.norm(x), is_causal=True))
        x = x + self.wide(x)
        return self.head(x.mean(axis=1))


class Tied(nn.Module):
    """The same weight, used twice."""

    def __init__(self):
        self.inner, self.outer = nn.Linear(24, 24), nn.Linear(24, 24)
        self.outer.weight = self.inner.weight
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        return self.head(self.outer(self.inner(x).tanh()).tanh())


def mlp():
    return nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3))


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(18, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


def same(x):
    return x


def nothing(bench):
    pass


def images(x):
    return x.reshape((x.shape[0], 1, 4, 6))


def frozen():
    model = mlp()
    for p in model[0].parameters():
        p.requires_grad = False
    return model


# name: (model, what the input becomes, optimizer of the parameters)
RUNS = {
    "mlp adam": (mlp, same, lambda ps: optim.Adam(ps, lr=0.02)),
    "mlp adamw": (mlp, same, lambda ps: optim.AdamW(ps, lr=0.02, weight_decay=0.1)),
    "mlp sgd": (mlp, same, lambda ps: optim.SGD(ps, lr=0.1)),
    "mlp momentum": (mlp, same, lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9)),
    "mlp nesterov": (
        mlp, same, lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "lenet": (lenet, images, lambda ps: optim.Adam(ps, lr=0.01)),
    "lstm": (Lstm, same, lambda ps: optim.Adam(ps, lr=0.02)),
    "attention": (Attention, same, lambda ps: optim.AdamW(ps, lr=0.01)),
    "tied": (Tied, same, lambda ps: optim.SGD(ps, lr=0.1, momentum=0.5)),
    "frozen": (frozen, same, lambda ps: optim.Adam(ps, lr=0.02)),
}  # fmt: skip


def batches(sizes=SIZES):
    rng = generator("training")
    for n in sizes:
        x = wg.asarray(rng.standard_normal((n, 24)).astype("float32"))
        yield x, wg.asarray(rng.integers(0, 3, n))


def bits(tree):
    """What a structure of tensors and numbers holds, to the bit."""
    leaves, structure = wg.pytree.flatten(tree)
    return repr(structure), [
        (str(x.dtype), x.shape, x.detach().numpy().tobytes()) if isinstance(x, wg.Tensor) else x
        for x in leaves
    ]


class Bench:
    """A model with its optimizer and a training step, which a test may change between calls."""

    def __init__(self, name, compiled, extra=nothing):
        make, shape, optimizer = RUNS[name]
        wg.random.seed(7)
        self.model = make()
        self.optimizer = optimizer(list(self.model.parameters()))
        model, opt = self.model, self.optimizer

        def step(x, y):
            opt.zero_grad()
            loss = nn.cross_entropy(model(shape(x)), y)
            loss.backward()
            extra(self)
            opt.step()
            return loss

        self.step = wg.compile(step) if compiled else step

    def state(self):
        return {
            "model": bits(self.model.state_dict()),
            "optimizer": bits(self.optimizer.state_dict()),
            "random": bits(wg.random.get_state()),
            "gradients": bits([p.grad for p in self.model.parameters()]),
        }


def both(name, between=None, extra=nothing, sizes=SIZES):
    """Losses and state after every call, eager and compiled; and the compiled function.

    `between(bench, i)` runs before call `i`.
    """
    seen = []
    for compiled in (False, True):
        bench = Bench(name, compiled, extra)
        run = []
        for i, (x, y) in enumerate(batches(sizes)):
            if between:
                between(bench, i)
            run.append({"loss": bits(bench.step(x, y)), **bench.state()})
        seen.append(run)
    for i, (eager, captured) in enumerate(zip(*seen, strict=True)):
        assert [k for k in eager if captured[k] != eager[k]] == [], f"differs in call {i}"
    return bench.step


@pytest.mark.parametrize("name", RUNS)
def test_a_training_step_has_the_bits_of_eager_code_for_every_size(name):
    assert both(name).traces <= 2


def test_wide_layers_go_by_rows_at_every_size():
    """Steps that are done row by row at some sizes keep their places when the plan is ordered."""

    def make():
        wg.random.seed(1)
        model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Dropout(0.5))
        optimizer = optim.Adam(model.parameters(), lr=1e-3)

        return training_step(optimizer, lambda x: model(x).exp().sum()), model

    (eager, left), (step, right) = make(), make()
    step = wg.compile(step)
    rng = generator("wide layers")
    for n in (16, 17, 18, 300):
        x = wg.asarray(rng.uniform(-1, 1, (n, 32)).astype("float32"))
        wg.random.seed(n)
        want = eager(x).item()
        wg.random.seed(n)
        assert step(x).item() == want
    for a, b in zip(left.state_dict().values(), right.state_dict().values(), strict=True):
        assert a.detach().numpy().tobytes() == b.detach().numpy().tobytes()


@pytest.mark.parametrize(
    "schedule",
    [
        lambda opt: optim.CosineSchedule(opt, 20),
        lambda opt: optim.StepSchedule(opt, 2),
        lambda opt: optim.LambdaSchedule(opt, lambda n: 1.0 / (1 + n)),
    ],
    ids=["cosine", "step", "lambda"],
)
def test_schedules_outside_the_step(schedule):
    made = {}

    def between(bench, i):
        if i == 0:
            made[bench] = schedule(bench.optimizer)
        else:
            made[bench].step()

    assert both("mlp adam", between, sizes=(8,) * 6).traces == 1


def test_a_learning_rate_set_outside_is_a_number_given_at_each_call():
    def between(bench, i):
        bench.optimizer.lr = 0.1 / (i + 1)

    assert both("mlp momentum", between).traces <= 2


def test_other_hyperparameters_are_seen_when_they_change():
    def between(bench, i):
        if i in (2, 4):
            bench.optimizer.param_groups[0]["momentum"] = 0.5 if i == 2 else 0.9

    assert 2 <= both("mlp momentum", between).traces <= 4


def test_clipping_inside():
    def extra(bench):
        norm = optim.clip_grad_norm(bench.model.parameters(), 0.05)
        assert norm.shape == ()

    assert both("lenet", extra=extra).traces <= 2


def test_clipping_of_single_values_inside():
    def values(bench):
        optim.clip_grad_value(bench.model.parameters(), 0.01)

    assert both("mlp adam", extra=values).traces <= 2


def test_train_and_eval_are_seen():
    def between(bench, i):
        bench.model.train(i % 3 != 2)

    assert both("lenet", between).traces <= 4


def test_state_loaded_between_calls_counts():
    kept = {}

    def between(bench, i):
        if i == 1:
            kept[bench] = bench.model.state_dict(), bench.optimizer.state_dict()
            kept[bench] = wg.pytree.map(
                lambda x: wg.asarray(x, copy=True) if isinstance(x, wg.Tensor) else x, kept[bench]
            )
        if i in (3, 5):
            model, optimizer = kept[bench]
            bench.model.load_state_dict(model)
            bench.optimizer.load_state_dict(optimizer)

    both("lenet", between)


def test_freezing_between_calls_is_seen():
    def between(bench, i):
        if i in (2, 4):
            for p in bench.model[0].parameters():
                p.requires_grad = i == 4

    both("mlp adam", between)


def test_gradients_accumulate_over_calls():
    def run(compiled):
        wg.random.seed(1)
        model = mlp()
        opt = optim.Adam(model.parameters(), lr=0.02)

        def accumulate(x, y):
            loss = nn.cross_entropy(model(x), y) / 2
            loss.backward()
            return loss

        def apply():
            opt.step()
            opt.zero_grad()

        if compiled:
            accumulate, apply = wg.compile(accumulate), wg.compile(apply)
        seen = []
        for i, (x, y) in enumerate(batches()):
            seen.append(bits(accumulate(x, y)))
            seen.append(bits([p.grad for p in model.parameters()]))
            if i % 2:
                apply()
                seen.append(bits(model.state_dict()))
        return seen

    assert run(True) == run(False)


def test_an_evaluation_step_under_no_grad():
    wg.random.seed(2)
    model = lenet()
    model.eval()

    def predict(x):
        with wg.no_grad():
            return nn.softmax(model(images(x)))

    f = wg.compile(predict)
    for x, _ in batches():
        assert bits(f(x)) == bits(predict(x))
        assert not f(x).requires_grad
    assert f.traces <= 2


def test_two_optimizers_and_two_steps_in_one_call():
    def run(compiled):
        wg.random.seed(4)
        a, b = nn.Linear(24, 24), nn.Linear(24, 3)
        first, second = optim.SGD(a.parameters(), lr=0.1), optim.Adam(b.parameters(), lr=0.01)

        def step(x, y):
            losses = []
            for _ in range(2):
                first.zero_grad()
                second.zero_grad()
                loss = nn.cross_entropy(b(nn.relu(a(x))), y)
                loss.backward()
                first.step()
                second.step()
                losses.append(loss)
            return losses

        f = wg.compile(step) if compiled else step
        seen = [bits(f(x, y)) for x, y in batches()]
        return seen, bits([a.state_dict(), b.state_dict()])

    assert run(True) == run(False)


def test_a_failed_call_leaves_model_and_optimizer_as_they_were():
    bench = Bench("lenet", True)
    ((x, y),) = batches((4,))
    bench.step(x, y)
    before = bench.state()
    with pytest.raises(wg.Error):
        bench.step(x, wg.asarray([0, 1, 2, 99]))  # a label that does not exist
    with pytest.raises(wg.Error):
        bench.step(x[:, :5], y)
    after = bench.state()
    assert {k for k in before if after[k] != before[k]} <= {"random"}
    loss = bench.step(x, y)
    assert math.isfinite(loss.item())
