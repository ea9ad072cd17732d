"""TensorFlow 1's formulas and defaults against NumPy: optimizers, rates, norms, losses, cells."""

import math

import numpy as np
import pytest

import wengert.compat.v1 as tf

rng = np.random.RandomState(0)


@pytest.fixture(autouse=True)
def fresh():
    tf.reset_default_graph()
    tf.set_random_seed(0)


def run(x, feeds=None, count=1):
    with tf.Session() as s:
        s.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for _ in range(count):
            found = s.run(x, feeds)
        return found


def sgd(x, g, s, t):
    return x - 0.1 * g


def momentum(x, g, s, t, nesterov=False):
    b = s["b"] = 0.9 * s.get("b", 0.0) + g
    return x - 0.05 * (g + 0.9 * b if nesterov else b)


def adam(x, g, s, t):
    m = s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    v = s["v"] = 0.999 * s.get("v", 0.0) + 0.001 * g * g
    rate = 0.1 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    return x - rate * m / (np.sqrt(v) + 1e-2)


def adagrad(x, g, s, t):
    a = s["a"] = s.get("a", 0.1) + g * g
    return x - 0.5 * g / np.sqrt(a)


def adadelta(x, g, s, t):
    a = s["a"] = 0.95 * s.get("a", 0.0) + 0.05 * g * g
    d = np.sqrt(s.get("u", 0.0) + 1e-8) / np.sqrt(a + 1e-8) * g
    s["u"] = 0.95 * s.get("u", 0.0) + 0.05 * d * d
    return x - 0.001 * d


def rmsprop(x, g, s, t, momentum=0.0, centered=False):
    a = s["a"] = 0.9 * s.get("a", 1.0) + 0.1 * g * g
    m = s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    spread = a - m * m if centered else a
    b = s["b"] = momentum * s.get("b", 0.0) + 0.05 * g / np.sqrt(spread + 1e-10)
    return x - b


OPTIMIZERS = {
    "GradientDescent": (lambda: tf.train.GradientDescentOptimizer(0.1), sgd),
    "Momentum": (lambda: tf.train.MomentumOptimizer(0.05, 0.9), momentum),
    "Nesterov": (
        lambda: tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
        lambda *args: momentum(*args, nesterov=True),
    ),
    "Adam": (lambda: tf.train.AdamOptimizer(0.1, epsilon=1e-2), adam),
    "Adagrad": (lambda: tf.train.AdagradOptimizer(0.5), adagrad),
    "Adadelta": (lambda: tf.train.AdadeltaOptimizer(), adadelta),
    "RMSProp": (lambda: tf.train.RMSPropOptimizer(0.05), rmsprop),
    "RMSProp, all": (
        lambda: tf.train.RMSPropOptimizer(0.05, momentum=0.5, centered=True),
        lambda *args: rmsprop(*args, momentum=0.5, centered=True),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_take_tensorflows_steps(name):
    make, formula = OPTIMIZERS[name]
    x = tf.get_variable("x", initializer=tf.constant([1.0, -2.0, 0.5]))
    train = make().minimize(tf.reduce_sum(x * x * x))
    want, slots = np.array([1.0, -2.0, 0.5]), {}
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        for t in range(1, 6):
            s.run(train)
            want = formula(want, 3 * want * want, slots, t)
        np.testing.assert_allclose(s.run(x), want, rtol=2e-5)


def test_defaults_of_optimizers():
    adam, rms, ada = (
        tf.train.AdamOptimizer(),
        tf.train.RMSPropOptimizer(0.1),
        tf.train.AdadeltaOptimizer(),
    )
    found = adam.learning_rate, adam.beta1, adam.beta2, adam.epsilon
    assert found == (0.001, 0.9, 0.999, 1e-8)
    assert (rms.decay, rms.momentum, rms.epsilon) == (0.9, 0.0, 1e-10)
    assert (ada.learning_rate, ada.rho, ada.epsilon) == (0.001, 0.95, 1e-8)
    v = tf.Variable([1.0])
    opt = tf.train.AdagradOptimizer(0.1)
    opt.minimize(tf.reduce_sum(v))
    assert opt.get_slot_names() == ["Adagrad"]
    assert run(opt.get_slot(v, "Adagrad")) == np.float32(0.1)
    with pytest.raises(ValueError, match="none of"):
        opt.minimize(tf.constant(1.0))
    with pytest.raises(ValueError, match="no gradients"):
        opt.apply_gradients([(None, v)])


def test_rates_fall_as_their_formulas():
    step = tf.placeholder(tf.int64, [])
    t = tf.train
    rates = {
        t.natural_exp_decay(0.1, step, 10, 0.5): lambda n: 0.1 * math.exp(-0.5 * n / 10),
        t.inverse_time_decay(0.1, step, 10, 0.5, True): lambda n: 0.1 / (1 + 0.5 * (n // 10)),
        t.polynomial_decay(0.1, step, 10, 0.01, 2.0): lambda n: (
            0.09 * (1 - min(n, 10) / 10) ** 2 + 0.01
        ),
        t.polynomial_decay(0.1, step, 10, cycle=True): lambda n: (
            (0.1 - 0.0001) * (1 - n / (10 * max(1, math.ceil(n / 10)))) + 0.0001
        ),
        t.cosine_decay(0.1, step, 10, 0.2): lambda n: (
            0.1 * (0.8 * 0.5 * (1 + math.cos(math.pi * min(n, 10) / 10)) + 0.2)
        ),
        t.piecewise_constant(step, [5, 10], [1.0, 0.5, 0.1]): lambda n: (
            1.0 if n <= 5 else 0.5 if n <= 10 else 0.1
        ),
    }
    for n in (0, 5, 6, 10, 11, 25):
        for got, formula in zip(run(list(rates), {step: n}), rates.values(), strict=True):
            assert got == pytest.approx(formula(n), rel=1e-5)


def test_initializers_have_tensorflows_spread():
    wide = [400, 100]
    want = {
        "glorot_uniform": math.sqrt(2 / 500),
        "glorot_normal": math.sqrt(2 / 500),
        "he_normal": math.sqrt(2 / 400),
        "he_uniform": math.sqrt(2 / 400),
        "lecun_normal": math.sqrt(1 / 400),
    }
    for name, std in want.items():
        x = run(getattr(tf.initializers, name)()(wide))
        assert x.std() == pytest.approx(std, rel=0.02) and abs(x.mean()) < 4 * std / 200
        edge = math.sqrt(3) * std if "uniform" in name else 2 * std / 0.87962566103423978
        assert abs(x).max() <= edge * 1.00001
    assert run(tf.initializers.variance_scaling(3.0, "fan_out")([3, 3, 8, 50])).std() == (
        pytest.approx(math.sqrt(3 / 450), rel=0.03)
    )
    assert run(tf.get_variable("n", [2], tf.int32)).tolist() == [0, 0]
    assert run(tf.constant_initializer([1, 2])([2])).tolist() == [1.0, 2.0]
    x = run(tf.random_uniform_initializer()([1000]))
    assert x.min() >= 0 and x.max() < 1


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("shape", [(8, 3), (4, 2, 5, 3)])
def test_batch_normalization_learns_and_uses_averages(shape, fused):
    x, training = tf.placeholder(tf.float32, [None, *shape[1:]]), tf.placeholder(tf.bool)
    y = tf.layers.batch_normalization(x, training=training, fused=fused)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    mean, variance = [v for v in tf.global_variables() if "moving" in v.name]
    assert len(tf.trainable_variables()) == 2 and len(updates) == 2
    data = 2.0 * rng.randn(*shape) + 1.0
    axes = tuple(range(len(shape) - 1))
    m, v = data.mean(axes), data.var(axes)
    n = data.size / 3
    seen = v * n / (n - 1) if len(shape) == 4 and fused is None else v
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        got = s.run(y, {x: data, training: True})
        np.testing.assert_allclose(got, (data - m) / np.sqrt(v + 1e-3), rtol=1e-4, atol=1e-5)
        assert s.run(mean).tolist() == [0.0] * 3  # nothing asked for updates
        s.run(updates, {x: data, training: False})
        assert s.run(mean).tolist() == [0.0] * 3  # nor did training
        s.run([y, updates], {x: data, training: True})
        np.testing.assert_allclose(s.run(mean), 0.01 * m, rtol=1e-5)
        np.testing.assert_allclose(s.run(variance), 0.99 + 0.01 * seen, rtol=1e-5)
        got = s.run(y, {x: data, training: False})
        want = (data - 0.01 * m) / np.sqrt(0.99 + 0.01 * seen + 1e-3)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_norms_of_nn():
    x = rng.randn(5, 4, 4, 6).astype("f")
    squares = np.pad(x * x, [(0, 0)] * 3 + [(2, 2)])
    total = sum(squares[..., k : k + 6] for k in range(5))
    got = tf.nn.lrn(tf.constant(x), 2, bias=1.0, alpha=0.1, beta=0.75)
    np.testing.assert_allclose(run(got), x / (1.0 + 0.1 * total) ** 0.75, rtol=1e-5)
    mean, variance = run(tf.nn.moments(tf.constant(x), [0, 1, 2]))
    np.testing.assert_allclose(mean, x.mean((0, 1, 2)), atol=1e-6)
    np.testing.assert_allclose(variance, x.var((0, 1, 2)), rtol=1e-5)
    got = run(tf.nn.batch_normalization(tf.constant(x), mean, variance, 1.0, 2.0, 1e-3))
    np.testing.assert_allclose(got, 2 * (x - mean) / np.sqrt(variance + 1e-3) + 1, atol=1e-5)
    got = run(tf.nn.l2_normalize(tf.constant(x[0, 0]), 1))
    np.testing.assert_allclose(got, x[0, 0] / np.sqrt((x[0, 0] ** 2).sum(1))[:, None], rtol=1e-5)
    z = np.array([-2.0, 0.0, 3.0, 9.0], "f")
    found = run([getattr(tf.nn, f)(tf.constant(z)) for f in ("relu6", "elu", "selu", "softsign")])
    elu = np.where(z > 0, z, np.expm1(np.minimum(z, 0)))
    scale, slope = 1.0507009873554805, 1.6732632423543772
    selu = scale * np.where(z > 0, z, slope * np.expm1(np.minimum(z, 0)))
    for a, b in zip(found, (np.clip(z, 0, 6), elu, selu, z / (1 + abs(z))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert run(tf.nn.leaky_relu(tf.constant(z))).tolist() == np.where(z > 0, z, z * 0.2).tolist()


def test_dropout_keeps_the_mean():
    x = tf.ones([100, 100])
    for y in (tf.nn.dropout(x, 0.8), tf.nn.dropout(x, rate=tf.constant(0.2))):
        found = run(y)
        assert set(np.unique(found)) <= {np.float32(0), np.float32(1.25)}
        assert abs(found.mean() - 1.0) < 0.05
    assert run(tf.layers.dropout(x)).min() == 1.0  # not in training
    rows = run(tf.nn.dropout(x, 0.5, noise_shape=[100, 1]))
    assert (rows == rows[:, :1]).all()
    with pytest.raises(ValueError, match="either"):
        tf.nn.dropout(x)


def test_losses_have_weights_and_reductions():
    t, p = rng.rand(4, 3).astype("f"), rng.rand(4, 3).astype("f")
    w = np.array([[1.0], [0.0], [2.0], [0.0]], "f")
    L, R = tf.losses, tf.losses.Reduction
    assert run(L.mean_squared_error(t, p)) == pytest.approx(((p - t) ** 2).mean())
    want = (w * abs(p - t)).sum() / 6
    assert run(L.absolute_difference(t, p, w)) == pytest.approx(want)
    want = (w * abs(p - t)).sum()
    assert run(L.absolute_difference(t, p, weights=w, reduction=R.SUM)) == pytest.approx(want)
    got = L.absolute_difference(t, p, weights=w, reduction=R.MEAN)
    assert run(got) == pytest.approx(want / (3 * w.sum()))
    assert run(L.mean_squared_error(t, p, 0.0)) == 0.0
    want = -(t * np.log(p + 1e-7) + (1 - t) * np.log(1 - p + 1e-7)).mean()
    assert run(L.log_loss(t, p)) == pytest.approx(want, rel=1e-5)
    e = 3 * abs(p - t)
    want = np.where(e <= 1, 0.5 * e * e, e - 0.5).mean()
    assert run(L.huber_loss(3 * t, 3 * p)) == pytest.approx(want, rel=1e-5)
    hinge = np.maximum(0, 1 - (2 * np.round(t) - 1) * p).mean()
    assert run(L.hinge_loss(np.round(t), p)) == pytest.approx(hinge, rel=1e-5)
    soft = p - np.log(np.exp(p).sum(1, keepdims=True))
    hot = np.eye(3)[[0, 2, 1, 1]]
    smooth = hot * 0.9 + 0.1 / 3
    got = L.softmax_cross_entropy(hot, p, label_smoothing=0.1)
    assert run(got) == pytest.approx(-(smooth * soft).sum(1).mean(), rel=1e-5)
    got = L.sparse_softmax_cross_entropy([[0], [2], [1], [1]], p, weights=[1.0, 0.0, 1.0, 1.0])
    each = -(hot * soft).sum(1)
    assert run(got) == pytest.approx(each[[0, 2, 3]].sum() / 3, rel=1e-5)
    got = L.sigmoid_cross_entropy(t, p)
    want = (np.maximum(p, 0) - p * t + np.log1p(np.exp(-abs(p)))).mean()
    assert run(got) == pytest.approx(want, rel=1e-5)
    assert len(L.get_losses()) == 11
    tf.get_variable("w", [2], initializer=tf.ones_initializer(),
                    regularizer=tf.contrib.layers.l2_regularizer(0.5))  # fmt: skip
    assert run(L.get_regularization_loss()) == pytest.approx(0.5)
    assert run(L.get_total_loss()) == pytest.approx(sum(run(L.get_losses())) + 0.5, rel=1e-5)
    with pytest.raises(ValueError, match=r"labels of shape .*predictions of shape"):
        L.mean_squared_error(t, p[0])


def test_metrics_take_in_more():
    x, y = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [None])
    value, update = tf.metrics.accuracy(x, y)
    precise, update2 = tf.metrics.precision(x, y)
    with tf.Session() as s:
        s.run(tf.local_variables_initializer())
        assert s.run(value) == 0.0
        assert s.run([update, update2], {x: [1, 0, 1], y: [1, 1, 0]}) == [np.float32(1 / 3), 0.5]
        s.run([update, update2], {x: [1], y: [1]})
        assert s.run([value, precise]) == [0.5, np.float32(2 / 3)]


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("size", "stride"), [(3, 2), (2, 3), (5, 1)])
def test_transposed_convolutions_are_adjoint(padding, size, stride):
    """`⟨conv(x), y⟩ = ⟨x, transposed(y)⟩` for all x and y."""
    x, w = rng.randn(2, 7, 8, 3).astype("f"), rng.randn(size, size, 3, 4).astype("f")
    there = tf.nn.conv2d(tf.constant(x), tf.constant(w), [1, stride, stride, 1], padding)
    y = rng.randn(*there.shape).astype("f")
    back = tf.nn.conv2d_transpose(
        tf.constant(y), tf.constant(w), [2, 7, 8, 3], [1, stride, stride, 1], padding
    )
    a, b = run([there, back])
    assert (a * y).sum() == pytest.approx((x * b).sum(), rel=1e-4)
    with pytest.raises(ValueError, match="windows"):
        tf.nn.conv2d_transpose(tf.constant(y), w, [2, 40, 8, 3], [1, stride, stride, 1], padding)


def test_other_convolutions():
    x, w = rng.randn(1, 6, 6, 2).astype("f"), rng.randn(3, 3, 2, 2).astype("f")
    got = run(tf.nn.depthwise_conv2d(tf.constant(x), tf.constant(w), [1, 1, 1, 1], "VALID"))
    want = np.zeros((1, 4, 4, 2, 2))
    for i, j in np.ndindex(4, 4):
        want[:, i, j] = np.einsum("nhwc,hwcm->ncm", x[:, i : i + 3, j : j + 3], w)
    np.testing.assert_allclose(got, want.reshape(1, 4, 4, 4), rtol=1e-4, atol=1e-5)
    got = run(tf.nn.atrous_conv2d(tf.constant(x), tf.constant(w), 2, "VALID"))
    want = np.zeros((1, 2, 2, 2))
    for i, j in np.ndindex(2, 2):
        want[:, i, j] = np.einsum("nhwc,hwcd->nd", x[:, i : i + 5 : 2, j : j + 5 : 2], w)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    first = tf.nn.conv2d(
        tf.constant(x.transpose(0, 3, 1, 2)), tf.constant(w), [1, 1, 2, 1], "SAME",
        data_format="NCHW",
    )  # fmt: skip
    last = tf.nn.conv2d(tf.constant(x), tf.constant(w), [1, 2, 1, 1], "SAME")
    a, b = run([first, last])
    np.testing.assert_allclose(a.transpose(0, 2, 3, 1), b, rtol=1e-5)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_step(x, c, h, w, b, forget=1.0):
    i, j, f, o = np.split(np.concatenate([x, h], 1) @ w + b, 4, axis=1)
    c = c * sigmoid(f + forget) + sigmoid(i) * np.tanh(j)
    return c, np.tanh(c) * sigmoid(o)


def test_cells_are_their_formulas():
    x, h, c = (rng.randn(3, n).astype("f") for n in (2, 4, 4))
    gru = tf.nn.rnn_cell.GRUCell(4)
    with tf.variable_scope("a"):
        _, new = gru(tf.constant(x), tf.constant(h))
    names = [v.name for v in tf.trainable_variables()]
    assert names == [f"a/gru_cell/{p}/{q}:0" for p in ("gates", "candidate")
                     for q in ("kernel", "bias")]  # fmt: skip
    got, (wg_, bg, wc, bc) = run([new, tf.trainable_variables()])
    assert bg.tolist() == [1.0] * 8 and bc.tolist() == [0.0] * 4
    r, u = np.split(sigmoid(np.concatenate([x, h], 1) @ wg_ + bg), 2, axis=1)
    candidate = np.tanh(np.concatenate([x, r * h], 1) @ wc + bc)
    np.testing.assert_allclose(got, u * h + (1 - u) * candidate, rtol=1e-4, atol=1e-6)
    lstm = tf.nn.rnn_cell.BasicLSTMCell(4)
    state = tf.nn.rnn_cell.LSTMStateTuple(tf.constant(c), tf.constant(h))
    out, new = lstm(tf.constant(x), state)
    assert out is new.h
    kernel, bias = tf.trainable_variables()[-2:]
    assert kernel.name == "basic_lstm_cell/kernel:0"
    (gc, gh), w, b = run([new, kernel, bias])
    assert type(new).__name__ == "LSTMStateTuple"
    for a, want in zip((gc, gh), lstm_step(x, c, h, w, b), strict=True):
        np.testing.assert_allclose(a, want, rtol=1e-4, atol=1e-6)
    peep = tf.nn.rnn_cell.LSTMCell(4, use_peepholes=True, num_proj=2, cell_clip=0.1)
    out, new = peep(tf.constant(x), tf.nn.rnn_cell.LSTMStateTuple(tf.constant(c), tf.zeros([3, 2])))
    w, b, f, i, o, p = tf.trainable_variables()[-6:]
    assert [v.name.split("/")[-1] for v in (f, i, o)] == ["w_f_diag:0", "w_i_diag:0", "w_o_diag:0"]
    got, *values = run([out, w, b, f, i, o, p])
    w, b, f, i, o, p = values
    gates = np.split(np.concatenate([x, np.zeros((3, 2))], 1) @ w + b, 4, axis=1)
    k = sigmoid(gates[2] + 1 + f * c) * c + sigmoid(gates[0] + i * c) * np.tanh(gates[1])
    k = np.clip(k, -0.1, 0.1)
    want = sigmoid(gates[3] + o * k) * np.tanh(k) @ p
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_recurrent_networks_agree_with_loops():
    x, n = rng.randn(3, 5, 2).astype("f"), np.array([5, 2, 0])
    cell = tf.nn.rnn_cell.BasicLSTMCell(4)
    outputs, state = tf.nn.dynamic_rnn(cell, tf.constant(x), sequence_length=n, dtype=tf.float32)
    steps, last = tf.nn.static_rnn(
        cell, tf.unstack(tf.constant(x), axis=1), dtype=tf.float32, sequence_length=n
    )
    w, b = tf.trainable_variables()  # one cell, one set of variables
    got, (gc, gh), steps, (sc, sh), w, b = run([outputs, state, steps, last, w, b])
    c = h = np.zeros((3, 4))
    for t in range(5):
        on = (t < n)[:, None]
        c2, h2 = lstm_step(x[:, t], c, h, w, b)
        np.testing.assert_allclose(got[:, t], np.where(on, h2, 0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(steps[t], np.where(on, h2, 0), rtol=1e-4, atol=1e-6)
        c, h = np.where(on, c2, c), np.where(on, h2, h)
    for a, want in ((gc, c), (gh, h), (sc, c), (sh, h)):
        np.testing.assert_allclose(a, want, rtol=1e-4, atol=1e-6)


def test_states_are_fed_whole():
    x = rng.randn(4, 5, 2).astype("f")
    lstm = [tf.nn.rnn_cell.BasicLSTMCell(3) for _ in range(2)]
    cell = tf.nn.rnn_cell.MultiRNNCell(lstm)
    start = cell.zero_state(4, tf.float32)
    outputs, state = tf.nn.dynamic_rnn(cell, tf.constant(x), initial_state=start)
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        whole, last = s.run([outputs, state])
        assert type(last[1]).__name__ == "LSTMStateTuple"
        again = s.run(outputs, {start: last})
        (one, (c, _h)), two = s.run(start), last[1]
        mixed = s.run(outputs, {start: (one, two)})
        assert not np.allclose(again, whole) and not np.allclose(again, mixed)
        with pytest.raises(TypeError, match="2 nodes together"):
            s.run(outputs, {start: c})


def test_both_directions_and_wrappers():
    x, n = rng.randn(3, 5, 2).astype("f"), np.array([5, 2, 1])
    fw, bw = (tf.nn.rnn_cell.BasicRNNCell(4) for _ in range(2))
    (a, b), (last, first) = tf.nn.bidirectional_dynamic_rnn(
        fw, bw, tf.constant(x), sequence_length=n, dtype=tf.float32
    )
    names = [v.name for v in tf.trainable_variables()]
    assert names[2] == "bidirectional_rnn/bw/basic_rnn_cell/kernel:0"
    a, b, last, first, _, _, w, bias = run([a, b, last, first, *tf.trainable_variables()])
    for k in range(3):
        h = np.zeros((1, 4))
        for t in reversed(range(n[k])):
            h = np.tanh(np.concatenate([x[k : k + 1, t], h], 1) @ w + bias)
            np.testing.assert_allclose(b[k, t], h[0], rtol=1e-4, atol=1e-6)
        assert (b[k, n[k] :] == 0).all()
        np.testing.assert_allclose(first[k], h[0], rtol=1e-4, atol=1e-6)
    cell = tf.nn.rnn_cell.BasicRNNCell(200)
    wrapped = tf.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=0.7)
    out, _ = tf.nn.dynamic_rnn(wrapped, tf.constant(x), dtype=tf.float32, scope="dropped")
    found = run(out)
    assert abs((found == 0).mean() - 0.3) < 0.05
    assert (found[:, 0] == 0).tolist() != (found[:, 1] == 0).tolist()
    with pytest.raises(ValueError, match="several places"):
        tf.nn.rnn_cell.MultiRNNCell([cell] * 2)
    with pytest.raises(ValueError, match="dtype is needed"):
        tf.nn.dynamic_rnn(cell, tf.constant(x))


def test_sampled_losses_with_given_classes():
    w, b = rng.randn(6, 3).astype("f"), rng.randn(6).astype("f")
    x, labels = rng.randn(2, 3).astype("f"), np.array([[1], [4]])
    drawn, own, share = (
        np.array([4, 0, 2]),
        np.array([[0.5], [0.3]], "f"),
        np.array([0.3, 0.9, 0.4]),
    )
    values = (tf.constant(drawn), tf.constant(own), tf.constant(share.astype("f")))
    right = (x * w[labels[:, 0]]).sum(1) + b[labels[:, 0]] - np.log(own[:, 0])
    wrong = x @ w[drawn].T + b[drawn] - np.log(share)
    args = [tf.constant(v) for v in (w, b, labels, x)]
    got = run(tf.nn.nce_loss(*args, 3, 6, sampled_values=values))
    want = np.log1p(np.exp(-right)) + np.log1p(np.exp(wrong)).sum(1)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    got = run(tf.nn.sampled_softmax_loss(*args, 3, 6, sampled_values=values))
    hit = drawn == labels
    z = np.concatenate([right[:, None], np.where(hit, -np.inf, wrong)], 1)
    np.testing.assert_allclose(got, np.log(np.exp(z).sum(1)) - right, rtol=1e-5)


def test_classes_are_drawn_without_repetition():
    every = tf.constant(np.arange(20).reshape(1, 20))
    drawn, expected, own = tf.nn.log_uniform_candidate_sampler(every, 20, 8, True, 20)
    counts, stated = np.zeros(20), np.zeros(20)
    with tf.Session() as s:
        for _ in range(400):
            d, e, o = s.run([drawn, expected, own])
            assert len(set(d)) == 8
            np.testing.assert_allclose(o, e[0][d], rtol=1e-6)
            counts[d] += 1
            stated += e[0]
    np.testing.assert_allclose(counts / 400, stated / 400, atol=0.09)
    p = np.log1p(1 / np.arange(1, 21)) / np.log(21)
    assert np.corrcoef(counts, 1 - (1 - p) ** 11)[0, 1] > 0.97
    with pytest.raises(ValueError, match="30 of 20"):
        tf.nn.log_uniform_candidate_sampler(every, 20, 30, True, 20)
