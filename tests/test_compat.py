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
    pairs = [pair.split("@")[0].split("=") for pair in text.split()]
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
    for name in ("keras", "data", "Tensor", "while_loop", "estimator"):
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


def test_adam_takes_our_steps():
    x = tf.Variable([1.0, -2.0], name="x")
    train = tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(x * x * x))
    e = wg.tensor([1.0, -2.0], requires_grad=True)
    adam = wg.optim.Adam([e], lr=0.1)
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        for _ in range(5):
            s.run(train)
            adam.zero_grad()
            (e * e * e).sum().backward()
            adam.step()
        np.testing.assert_allclose(s.run(x), e.detach().numpy(), rtol=1e-6)


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
