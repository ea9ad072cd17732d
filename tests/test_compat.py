"""TensorFlow 1's names: a table over the op table, and the programs of tutorials."""

import inspect

import numpy as np
import pytest

import wengert as wg
import wengert.compat.v1 as tf
from wengert.compat.v1 import OPS

from support import TABLE, label

BY_LABEL = {label(op): op for op in TABLE}


@pytest.fixture(autouse=True)
def fresh():
    tf.reset_default_graph()


@pytest.mark.parametrize("name", sorted(OPS))
def test_a_row_names_an_op_and_its_parameters(name):
    """Every argument is one of the op's, every required parameter has an argument."""
    ours, text = OPS[name]
    params = {p["name"]: p for p in BY_LABEL[ours]["params"]}
    pairs = [pair.split("@")[0].split("=") for pair in text.split() if pair != "*"]
    own = [b for _, b in pairs]
    assert set(own) <= set(params) and len(set(own)) == len(own)
    required = [n for n, p in params.items() if p["default"] is None]
    assert set(required) <= set(own), "an argument is missing"
    owner = tf.nn if name.startswith("nn.") else tf
    function = getattr(owner, name.split(".")[-1])
    assert list(inspect.signature(function).parameters) == [a.split("|")[0] for a, _ in pairs]
    assert function.__doc__ and (owner is tf.nn or name in tf.__all__)


def test_nothing_beyond_the_names():
    assert sorted(set(tf.__all__)) == sorted(tf.__all__)
    assert all(hasattr(tf, name) for name in tf.__all__)
    for name in ("keras", "data", "SparseTensor", "TensorArray", "estimator"):
        assert not hasattr(tf, name)


def run(x, feeds=None):
    with tf.Session() as s:
        return s.run(x, feeds)


def test_arguments_have_tensorflow_names():
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    assert run(tf.reduce_sum(x, reduction_indices=[1])).tolist() == [3.0, 7.0]
    assert run(tf.reduce_mean(x, 0, keepdims=True)).tolist() == [[2.0, 3.0]]
    assert run(tf.argmax(x, 1)).tolist() == [1, 1]
    assert run(tf.concat([x, x], 1)).shape == (2, 4)
    assert run(tf.matmul(x, x, transpose_b=True)).tolist() == [[5.0, 11.0], [11.0, 25.0]]
    assert run(tf.cast(tf.greater(x, 2.0), tf.int32)).tolist() == [[0, 0], [1, 1]]
    assert run(tf.clip_by_value(x, clip_value_min=2.0, clip_value_max=3.0)).max() == 3.0
    assert run(tf.one_hot([0, 2], depth=3)).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert run(tf.transpose(x, perm=[1, 0])).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert run(tf.reshape(x, shape=[-1])).shape == (4,)
    assert run(tf.fill([2], 7.0)).tolist() == [7.0, 7.0]
    assert run(tf.gather(x, [1])).tolist() == [[3.0, 4.0]]
    assert run(tf.add(x, 1.0, name="sum")).tolist() == run("sum").tolist()
    with pytest.raises(TypeError, match="reduce_sum"):
        tf.reduce_sum(x, axes=1)
    with pytest.raises(TypeError, match=r"tf\.add"):
        tf.add(x, 1.0, 2.0)


def test_results_are_numpy():
    out = run({"a": tf.constant(2.0), "b": [tf.constant([1, 2])]})
    assert isinstance(out["a"], np.float32) and str(out["a"]) == "2.0"
    assert isinstance(out["b"][0], np.ndarray)


def test_variables_need_their_initializer():
    v = tf.Variable(tf.zeros([2]), name="v")
    with tf.Session() as s:
        with pytest.raises(wg.GraphError, match=r"(?s)\"v\".*initializ.*test_compat\.py"):
            s.run(v)
        assert s.run(tf.global_variables_initializer()) is None
        assert s.run([v.assign_add([1.0, 2.0]), v])[0].tolist() == [1.0, 2.0]
        assert s.run(v).tolist() == [1.0, 2.0]


def test_names_have_scopes():
    with tf.name_scope("outer"), tf.name_scope("inner") as scope:
        x = tf.placeholder(tf.float32, [2], name="x")
        again = tf.placeholder(tf.float32, [2], name="x")
    assert scope == "outer/inner/"
    assert '"outer/inner/x"' in repr(x) and '"outer/inner/x_1"' in repr(again)
    assert '"Placeholder"' in repr(tf.placeholder(tf.float32))


def test_an_interactive_session_evaluates():
    session = tf.InteractiveSession()
    try:
        v = tf.Variable(3.0)
        tf.global_variables_initializer().run()
        x = tf.placeholder(tf.float32)
        assert (v * x).eval({x: 2.0}) == 6.0
        assert v.eval() == 3.0
    finally:
        session.close()
    with pytest.raises(wg.GraphError, match="no session"):
        v.eval()


def test_gradients_are_those_of_the_sum():
    x = tf.placeholder(tf.float32, [None])
    y = tf.placeholder(tf.float32)
    (dx,) = tf.gradients(x * x, x)
    assert run(dx, {x: [1.0, 2.0]}).tolist() == [2.0, 4.0]
    assert tf.gradients(x, [y]) == [None]
    (dw,) = tf.gradients(x * x, [x], grad_ys=[tf.constant([1.0, 10.0])])
    assert run(dw, {x: [1.0, 2.0]}).tolist() == [2.0, 40.0]


OPTIMIZERS = [
    tf.train.GradientDescentOptimizer(0.1),
    tf.train.MomentumOptimizer(0.05, 0.9),
    tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    tf.train.AdamOptimizer(0.1),
    tf.train.AdagradOptimizer(0.5),
    tf.train.RMSPropOptimizer(0.05),
    tf.train.RMSPropOptimizer(0.02, momentum=0.5),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_optimizers_minimize(optimizer):
    r = np.random.default_rng(0)
    xs = r.standard_normal((100, 3))  # float64, as tutorials feed
    ys = xs @ [[1.0], [-2.0], [0.5]] + 3.0
    x = tf.placeholder(tf.float32, [None, 3])
    y = tf.placeholder(tf.float32, [None, 1])
    step = tf.Variable(0, trainable=False, name="global_step")
    w, b = tf.Variable(tf.truncated_normal([3, 1], stddev=0.1, seed=1)), tf.Variable(tf.zeros([1]))
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
    train = optimizer.minimize(loss, global_step=step)
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        for _ in range(200):
            none, last = s.run([train, loss], feed_dict={x: xs, y: ys})
        assert none is None and last < 0.05
        assert s.run(step) == 200
        np.testing.assert_allclose(s.run(b), [3.0], atol=0.3)


def test_a_classifier_with_layers_and_dropout():
    r = np.random.default_rng(1)
    xs = r.standard_normal((128, 2)).astype("f")
    labels = (xs[:, 0] * xs[:, 1] > 0).astype(np.int64)
    x = tf.placeholder(tf.float32, shape=[None, 2])
    y = tf.placeholder(tf.int64, shape=[None])
    keep = tf.placeholder(tf.float32)
    h = tf.nn.dropout(tf.layers.dense(x, 32, activation=tf.nn.relu), keep)
    logits = tf.layers.dense(h, 2)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    right = tf.equal(tf.argmax(logits, 1), y)
    accuracy = tf.reduce_mean(tf.cast(right, tf.float32))
    train = tf.train.AdamOptimizer(0.02).minimize(loss)
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        for _ in range(150):
            s.run(train, {x: xs, y: labels, keep: 0.9})
        assert accuracy.eval({x: xs, y: labels, keep: 1.0}) > 0.9


@pytest.mark.parametrize("check", [False, True, "reference"])
def test_programs_compute_on_the_device_they_are_made_on(check):
    """Feeds and results are NumPy's wherever the graph computes."""
    xs = np.random.default_rng(0).standard_normal((8, 3)).astype("f")
    found = {}
    for device in ("cpu", "reference"):
        with wg.default_device(device), wg.config(check=check):
            tf.reset_default_graph()
            x = tf.placeholder(tf.float32, [None, 3])
            w = tf.Variable(tf.constant([[1.0], [0.5], [-1.0]]))
            keep = tf.placeholder(tf.float32)
            loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.dropout(x, keep), w) - 1.0))
            train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
            with tf.Session() as s:
                s.run(tf.global_variables_initializer())
                first = s.run(loss, {x: xs, keep: 1.0})
                for _ in range(20):
                    s.run(train, {x: xs, keep: 1.0})
                last, weights = s.run([loss, w], {x: xs, keep: 1.0})
                dropped = s.run(tf.nn.dropout(x, keep), {x: xs, keep: 0.5})
            assert isinstance(weights, np.ndarray) and last < 0.5 * first
            assert 0 < np.count_nonzero(dropped) < xs.size
        found[device] = weights
    np.testing.assert_allclose(found["reference"], found["cpu"], rtol=1e-4)


def test_losses_agree_with_numpy():
    z = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]], "f")
    p = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], "f")
    logits, labels = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
    feeds = {logits: z, labels: p}
    log_softmax = z - np.log(np.exp(z).sum(1, keepdims=True))
    got = run(tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits), feeds)
    np.testing.assert_allclose(got, -(p * log_softmax).sum(1), rtol=1e-5)
    got = run(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits), feeds)
    want = np.maximum(z, 0) - z * p + np.log1p(np.exp(-np.abs(z)))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert run(tf.nn.l2_loss(logits), feeds) == pytest.approx((z * z).sum() / 2)
    drawn = run(tf.truncated_normal([10000], stddev=2.0))
    assert abs(drawn).max() <= 4.0 and abs(drawn.std() - 2.0 * 0.8796) < 0.05


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (3, 1), (2, 3)])
def test_images_have_channels_last_and_tensorflow_s_padding(padding, size, stride):
    """Against loops over windows; of an odd padding the larger half is at the end."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 7, 5, 3)).astype("f")
    w = rng.standard_normal((size, size, 3, 4)).astype("f")
    counts, starts = [], []
    for n in x.shape[1:3]:
        count = -(-n // stride) if padding == "SAME" else (n - size) // stride + 1
        counts.append(count)
        starts.append(max((count - 1) * stride + size - n, 0) // 2 if padding == "SAME" else 0)
    conv = np.zeros((2, *counts, 4))
    largest, mean = np.zeros((2, *counts, 3)), np.zeros((2, *counts, 3))
    for i, j in np.ndindex(*counts):
        ends = [k * stride - start + size for k, start in zip((i, j), starts, strict=True)]
        rows, columns = (range(max(end - size, 0), end) for end in ends)
        rows, columns = [r for r in rows if r < 7], [c for c in columns if c < 5]
        window = x[:, rows][:, :, columns]
        part = w[[r - ends[0] + size for r in rows]][:, [c - ends[1] + size for c in columns]]
        conv[:, i, j] = np.einsum("nhwc,hwcd->nd", window, part)
        largest[:, i, j], mean[:, i, j] = window.max((1, 2)), window.mean((1, 2))
    images = tf.placeholder(tf.float32, [None, 7, 5, 3])
    steps, windows = [1, stride, stride, 1], [1, size, size, 1]
    got = run(
        [
            tf.nn.conv2d(images, tf.constant(w), strides=steps, padding=padding),
            tf.nn.max_pool(images, ksize=windows, strides=steps, padding=padding),
            tf.nn.avg_pool(images, windows, steps, padding),
        ],
        {images: x},
    )
    for a, b in zip(got, (conv, largest, mean), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_what_windows_cannot_be_is_refused():
    x, w = tf.zeros([1, 4, 4, 2]), tf.zeros([3, 3, 2, 2])
    with pytest.raises(ValueError, match="'SAME' or 'VALID', got 'same'"):
        tf.nn.conv2d(x, w, [1, 1, 1, 1], "same")
    with pytest.raises(ValueError, match="strides over examples"):
        tf.nn.conv2d(x, w, [2, 1, 1, 1], "SAME")
    with pytest.raises(ValueError, match="windows and strides over examples"):
        tf.nn.max_pool(x, [1, 2, 2, 2], [1, 1, 1, 1], "SAME")


def test_lists_of_tensors_and_variables():
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    assert [v.tolist() for v in run(tf.unstack(x, 2, axis=1))] == [[1.0, 3.0], [2.0, 4.0]]
    with pytest.raises(ValueError, match="size 2, not 3"):
        tf.unstack(x, 3)
    assert [v.shape for v in run(tf.split(x, [1, 1], 1))] == [(2, 1), (2, 1)]
    assert run(tf.add_n([x, x, x])).tolist() == [[3.0, 6.0], [9.0, 12.0]]
    assert run(tf.squared_difference(x, 1.0)).tolist() == [[0.0, 1.0], [4.0, 9.0]]
    a, b = tf.Variable(1.0), tf.Variable(2.0, trainable=False)
    assert tf.global_variables() == [a, b] and tf.trainable_variables() == [a]
    swap = tf.group(tf.assign(a, b), tf.group(tf.assign(b, a)))
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        assert s.run([swap, a, b]) == [None, 1.0, 2.0] and s.run([a, b]) == [2.0, 1.0]
        assert s.run([tf.assign_add(a, 1.0), tf.assign_sub(b, 1.0)]) == [3.0, 0.0]
    step = tf.constant(25)
    for stairs, power in ((True, 2.0), (False, 2.5)):
        rate = tf.train.exponential_decay(0.1, step, 10, 0.5, staircase=stairs)
        assert run(rate) == pytest.approx(0.1 * 0.5**power)
    assert tf.placeholder("float", [None, 2]).get_shape().as_list() == [None, 2]
    assert tf.cast(x, "int").dtype == tf.int32


def test_noise_contrastive_estimation_is_that_of_its_formula():
    """With as many draws as wanted the mean over draws is the expectation over classes."""
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((5, 3)).astype("f"), rng.standard_normal(5).astype("f")
    x, labels = rng.standard_normal((4, 3)).astype("f"), np.array([[0], [3], [4], [1]])
    share = np.log((np.arange(5) + 2) / (np.arange(5) + 1)) / np.log(6)
    count = 20_000
    score = x @ w.T + b - np.log(share * count)
    want = np.log1p(np.exp(-score[np.arange(4), labels[:, 0]]))
    want += count * (share * np.log1p(np.exp(score))).sum(axis=1)
    tf.set_random_seed(1)
    args = [tf.constant(v) for v in (w, b, labels, x)]
    drawn = tf.nn.log_uniform_candidate_sampler(args[2], 1, count, False, 5)
    got = run(tf.nn.nce_loss(*args, count, 5, sampled_values=drawn))
    np.testing.assert_allclose(got, want, rtol=0.02)
