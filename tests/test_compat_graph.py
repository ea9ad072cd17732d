"""What TensorFlow 1 keeps beside a graph: scopes, collections, dependencies, branches, files, names
that are missing."""

import sys

import numpy as np
import pytest

import wengert as wg
import wengert.compat.v1 as tf
from wengert.compat.v1._missing import WORDS


@pytest.fixture(autouse=True)
def fresh():
    tf.reset_default_graph()
    tf.set_random_seed(0)


def test_scopes_name_variables_as_tensorflow_does():
    with tf.variable_scope("a") as a:
        with tf.variable_scope("b"):
            w = tf.get_variable("w", [1])
            v = tf.Variable(1.0, name="v")
        tf.layers.dense(tf.zeros([1, 2]), 3)
        tf.layers.dense(tf.zeros([1, 2]), 3)
    assert (w.name, w.op.name, v.name) == ("a/b/w:0", "a/b/w", "a/b/v:0")
    with tf.variable_scope("a", reuse=True), tf.variable_scope("b"):
        assert tf.get_variable("w") is w and tf.get_variable_scope().reuse
        assert tf.Variable(1.0, name="v").name == "a_1/b/v:0"
    with tf.variable_scope(a, reuse=True):
        again = tf.layers.dense(tf.zeros([1, 2]), 3)
        assert again is not None and tf.get_variable("b/w") is w
    with tf.variable_scope("c"):
        tf.get_variable_scope().set_initializer(tf.constant_initializer(3.0))
        made = tf.get_variable("w", [1])
        tf.get_variable_scope().reuse_variables()
        assert tf.get_variable("w", [1]) is made
    with tf.variable_scope(None, "d"), tf.name_scope("inside"):
        first = tf.get_variable("x", [1])
    with tf.variable_scope(None, "d"):
        second = tf.get_variable("x", [1])
    assert (first.name, second.name) == ("d/x:0", "d_1/x:0")
    dense = [v.name for v in tf.trainable_variables("a/dense")]
    assert dense == [f"a/dense{n}/{p}:0" for n in ("", "_1") for p in ("kernel", "bias")]
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        assert s.run(made).tolist() == [3.0]


def test_what_get_variable_refuses():
    tf.get_variable("w", [2, 3])
    with tf.variable_scope("", reuse=True):
        with pytest.raises(ValueError, match=r"w has shape \(2, 3\), asked for \(3, 2\)"):
            tf.get_variable("w", [3, 2])
        with pytest.raises(ValueError, match="dtype float32, asked for int32"):
            tf.get_variable("w", [2, 3], tf.int32)
    with pytest.raises(ValueError, match="shape of x is needed"):
        tf.get_variable("x")
    with pytest.raises(ValueError, match="must be known"):
        tf.get_variable("x", [None, 3])
    with pytest.raises(ValueError, match=r"\(3,\), its initializer \(2,\)"):
        tf.get_variable("x", [3], initializer=tf.constant([1.0, 2.0]))
    with pytest.raises(NotImplementedError, match="custom_getter"):
        tf.get_variable("x", [3], custom_getter=lambda: None)


def test_dependencies_run_along_and_order_what_is_read():
    v, w = tf.Variable(1.0, name="v"), tf.Variable(10.0, name="w")
    up = tf.assign_add(v, 1.0)
    with tf.control_dependencies([up]):
        new, again = v.read_value(), tf.identity(v)
        doubled = tf.multiply(v, 2.0)
        moved = w.assign(tf.add(v, 5.0))
        nothing = tf.no_op()
        with tf.control_dependencies(None):
            free = tf.constant(3.0) + 0.5
        late = tf.Variable(7.0, name="late")
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        assert s.run([v, late]) == [1.0, 7.0]
        assert s.run(free) == 3.5 and s.run(v) == 1.0
        assert s.run([new, again, doubled]) == [2.0, 2.0, 4.0] and s.run(v) == 2.0
        assert s.run(nothing) is None and s.run(v) == 3.0
        assert s.run(moved) == 9.0 and s.run([v, w]) == [4.0, 9.0]
        assert s.run(tf.group(up, nothing)) is None and s.run(v) == 5.0
        with tf.get_default_graph().control_dependencies([up]):
            pair = tf.tuple([tf.constant(1.0), None])
        assert s.run(pair[0]) == 1.0 and s.run(v) == 6.0


def test_several_updates_of_a_variable_in_one_run():
    v = tf.Variable(1.0, name="v")
    adds = [v.assign_add(2.0), v.assign_sub(0.5)]
    one, other = v.assign(5.0), v.assign(6.0)
    with tf.control_dependencies([one]):
        last = v.assign(tf.square(v))
    with tf.Session() as s:
        s.run(v.initializer)
        assert s.run(adds) == [3.0, 0.5] and s.run(v) == 2.5
        assert s.run([last, one]) == [25.0, 5.0] and s.run(v) == 25.0
        with pytest.raises(wg.GraphError, match=r'"v" is assigned twice in a run, in no order'):
            s.run([one, other])
        v.load(7.0, s)
        assert s.run(v) == 7.0
        with pytest.raises(wg.ShapeError, match="v:0"):
            v.load([7.0], s)


def test_the_branch_that_is_taken_assigns():
    v, p = tf.Variable(1.0, name="v"), tf.placeholder(tf.bool)

    def taken():
        with tf.control_dependencies([tf.assign_add(v, 2.0)]):
            return tf.identity(v), tf.constant(1)

    y, which = tf.cond(p, taken, lambda: (tf.identity(v) * 10.0, tf.constant(2)))
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        assert s.run([y, which], {p: True}) == [3.0, 1] and s.run(v) == 3.0
        assert s.run([y, which], {p: False}) == [30.0, 2] and s.run(v) == 3.0
        (slope,) = tf.gradients(y, v)
        assert s.run(slope, {p: False}) == 10.0
    with pytest.raises(wg.GraphError, match="twice in a branch"):
        tf.cond(p, lambda: [v.assign(1.0), v.assign(2.0)], lambda: [v, v])
    with wg.Graph():
        x = wg.Variable(wg.ones(2), name="x")
        with pytest.raises(wg.GraphError, match="in the body of a branch"):
            wg.cond(x.sum() > 0, lambda: x.assign(x + 1), lambda: x)


def test_batch_norm_of_the_first_tutorials():
    """Moving averages of moments, which one branch takes in and the other reads."""
    x, training = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.bool)
    mean, variance = tf.nn.moments(x, [0])
    ema = tf.train.ExponentialMovingAverage(decay=0.5)

    def learned():
        with tf.control_dependencies([ema.apply([mean, variance])]):
            return tf.identity(mean), tf.identity(variance)

    used = tf.cond(training, learned, lambda: (ema.average(mean), ema.average(variance)))
    rng = np.random.RandomState(0)
    a, b = rng.randn(2, 20, 4)
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        np.testing.assert_allclose(s.run(used[0], {x: a, training: True}), a.mean(0), atol=1e-6)
        s.run(used, {x: b, training: True})
        got = s.run(used, {x: a, training: False})
        # Weights 1/4 and 1/2, divided by their sum.
        np.testing.assert_allclose(got[0], (a.mean(0) + 2 * b.mean(0)) / 3, atol=1e-6)
        np.testing.assert_allclose(got[1], (a.var(0) + 2 * b.var(0)) / 3, rtol=1e-5)


def test_loops_and_cases():
    n = tf.placeholder(tf.int32, [])
    doubled = tf.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 2.0), (0, 1.0))
    limited = tf.while_loop(
        lambda i: i < n, lambda i: i + 1, [tf.constant(0)], maximum_iterations=3
    )
    kind = tf.case([(n < 2, lambda: tf.constant(1)), (n < 4, lambda: tf.constant(2))],
                   default=lambda: tf.constant(3))  # fmt: skip
    xs = tf.constant([1.0, 2.0, 3.0])
    sums = tf.scan(lambda a, x: a + x, xs)
    back = tf.scan(lambda a, x: a + x, xs, initializer=tf.constant(0.0), reverse=True)
    squares = tf.map_fn(lambda x: x * x, xs)
    total = tf.foldl(lambda a, x: a * x, xs)
    with tf.Session() as s:
        assert s.run([doubled[1], limited, kind], {n: 5}) == [32.0, 3, 3]
        assert s.run([kind, limited], {n: 1}) == [1, 1]
        assert s.run(sums).tolist() == [1.0, 3.0, 6.0] and s.run(back).tolist() == [6.0, 5.0, 3.0]
        assert s.run(squares).tolist() == [1.0, 4.0, 9.0] and s.run(total) == 6.0


def test_layers_in_bodies_make_their_variables_once():
    x = tf.placeholder(tf.float32, [None, 3])

    def body(h):
        with tf.variable_scope("body", reuse=tf.AUTO_REUSE):
            return tf.nn.dropout(tf.layers.dense(h, 3), 0.9)

    y = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, body(h)), [tf.constant(0), x])[1]
    z = tf.cond(tf.reduce_sum(x) > 0.0, lambda: body(x), lambda: x)
    names = [v.name for v in tf.trainable_variables()]
    assert names == ["body/dense/kernel:0", "body/dense/bias:0"]
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        assert s.run([y, z], {x: np.ones((2, 3))})[1].shape == (2, 3)


def test_open_sizes_make_shapes():
    x = tf.placeholder(tf.float32, [None, 3])
    n = tf.shape(x)[0]
    shapes = [
        tf.zeros([n, 2]),
        tf.random_normal(tf.shape(x)),
        tf.fill([n], 1),
        tf.reshape(x, tf.stack([n * 3, 1])),
        tf.ones(tf.concat([tf.shape(x)[:1], [4]], 0)),
        tf.tile(tf.zeros([1, 2]), [n, 1]),
        tf.range(n),
    ]
    feed = {x: np.ones((5, 3))}
    with tf.Session() as s:
        found = [v.shape for v in s.run(shapes, feed)]
        assert found == [(5, 2), (5, 3), (5,), (15, 1), (5, 4), (5, 2), (5,)]
        assert s.run([n, tf.shape(x), tf.size(x)], feed)[1].tolist() == [5, 3]
        assert s.run(tf.cast(n, tf.float32) * 2.0, feed) == 10.0
        assert s.run(tf.shape(x) * 2, feed).tolist() == [10, 6] and tf.rank(x) == 2
    with pytest.raises(wg.GraphError, match=r"rank of .* is open"):
        tf.shape(tf.placeholder(tf.float32))
    with pytest.raises(wg.GraphError, match="a shape is made of"):
        tf.zeros(tf.placeholder(tf.int32, [2]))


def test_defaults_of_placeholders():
    fixed = tf.placeholder_with_default(tf.constant([1.0, 2.0]), [2])
    base = tf.Variable(tf.ones([1, 2]))
    open_ = tf.placeholder_with_default(base * 3.0, [None, 2])
    y = tf.reduce_sum(open_) + tf.reduce_sum(fixed)
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        assert s.run(y) == 9.0 and s.run(y, {open_: np.zeros((4, 2))}) == 3.0
        assert s.run(y, {fixed: [0.0, 0.0]}) == 6.0
    with pytest.raises(wg.ShapeError, match="does not allow"):
        tf.placeholder_with_default(tf.zeros([1, 2]), [None, 3])


def test_ops_with_a_seed_go_on_from_run_to_run():
    x = tf.random_normal([3], seed=1)
    y = tf.nn.dropout(tf.ones([50]), 0.5, seed=2)
    runs = []
    for _ in range(2):
        with tf.Session() as s:
            runs.append([tuple(np.concatenate(s.run([x, y]))) for _ in range(2)])
    assert runs[0] == runs[1] and runs[0][0] != runs[0][1]
    assert tf.global_variables() == []


def test_dtypes_are_tensorflows():
    assert [tf.constant(v).dtype for v in (1, [1.0], True)] == [tf.int32, tf.float32, tf.bool]
    assert tf.constant(np.arange(3)).dtype == tf.int64 and tf.Variable(0).dtype == tf.int32
    x = tf.constant([3, 4])
    found = [tf.reduce_sum(x), tf.reduce_prod(x), tf.cumsum(x), tf.range(3), tf.div(x, 2)]
    assert {v.dtype for v in found} == {tf.int32}
    with tf.Session() as s:
        assert s.run(tf.div(x, 2)).tolist() == [1, 2] and s.run(tf.div(3.0, 2.0)) == 1.5
        assert s.run(tf.one_hot([1, 5], 2)).tolist() == [[0.0, 1.0], [0.0, 0.0]]
        rows = tf.where(tf.constant([True, False]), tf.ones([2, 2]), tf.zeros([2, 2]))
        assert s.run(rows).tolist() == [[1.0, 1.0], [0.0, 0.0]]
        reflected = tf.pad(tf.constant([1, 2, 3]), [[2, 1]], "REFLECT")
        assert s.run(reflected).tolist() == [3, 2, 1, 2, 3, 2]
        assert s.run(tf.pad(x, [[1, 0]], "SYMMETRIC")).tolist() == [3, 3, 4]


def test_savers_keep_files_and_say_what_is_wrong(tmp_path):
    w = tf.get_variable("w", [2])
    step = tf.train.get_or_create_global_step()
    assert tf.train.get_or_create_global_step() is step and step.dtype == tf.int64
    saver = tf.train.Saver({"other": w}, max_to_keep=2)
    with tf.Session() as s:
        with pytest.raises(wg.GraphError, match="not initialized"):
            saver.save(s, str(tmp_path / "m"))
        s.run(tf.global_variables_initializer())
        paths = [saver.save(s, str(tmp_path / "m"), global_step=k) for k in range(3)]
        kept = s.run(w)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint", "m-1.safetensors", "m-2.safetensors",
    ]  # fmt: skip
    assert (tmp_path / "checkpoint").read_text().splitlines() == [
        'model_checkpoint_path: "m-2"',
        'all_model_checkpoint_paths: "m-1"',
        'all_model_checkpoint_paths: "m-2"',
    ]
    found = tf.train.get_checkpoint_state(str(tmp_path))
    assert found.model_checkpoint_path == paths[2]
    assert found.all_model_checkpoint_paths == paths[1:]
    assert wg.load(paths[2] + ".safetensors")["other"].tolist() == kept.tolist()
    assert tf.train.list_variables(paths[2]) == [("other", [2])]
    with tf.Session() as s:
        with pytest.raises(ValueError, match="has no w; it has other"):
            tf.train.Saver([w]).restore(s, paths[2])
        with pytest.raises(ValueError, match="there is no file"):
            saver.restore(s, paths[0])
        saver.restore(s, paths[2])
        assert s.run(w).tolist() == kept.tolist()
    assert tf.train.latest_checkpoint(str(tmp_path / "none")) is None


@pytest.mark.parametrize("name", sorted(WORDS))
def test_a_name_that_is_missing_says_what_to_write(name):
    thing = tf
    *path, last = name.split(".")
    for part in path:
        thing = getattr(thing, part)
    with pytest.raises(AttributeError, match=f"{last!r}: use |{name}': use "):
        getattr(thing, last)


def test_any_other_name_says_where_to_look():
    for thing in (tf, tf.nn, tf.train, tf.contrib, tf.contrib.layers, tf.math):
        with pytest.raises(AttributeError, match=r"frobnicate'.*docs/tensorflow1\.md"):
            _ = thing.frobnicate
    assert not hasattr(tf, "__frobnicate__")


def test_flags_come_from_the_command_line(monkeypatch):
    flags = tf.app.flags
    flags.DEFINE_integer("compat_steps", 5, "steps")
    flags.DEFINE_boolean("compat_fast", False, "fast")
    monkeypatch.setattr(sys, "argv", ["program", "--compat_steps=7", "rest"])
    assert flags.FLAGS.compat_steps == 7 and flags.FLAGS.compat_fast is False
    flags.FLAGS.compat_steps = 8
    assert flags.FLAGS.compat_steps == 8
    with pytest.raises(AttributeError, match="compat_other"):
        _ = flags.FLAGS.compat_other
    seen = []
    with pytest.raises(SystemExit) as ended:
        tf.app.run(seen.append, ["program", "--compat_fast=true", "x"])
    assert ended.value.code is None and seen == [["program", "x"]] and flags.FLAGS.compat_fast


def test_graphs_are_found_and_options_accepted():
    g = tf.Graph()
    with g.as_default(), tf.name_scope("in"):
        x = tf.placeholder(tf.float32, [None, 2], name="x")
        y = tf.add(x, 1.0, name="y")
        tf.add_to_collection("mine", y)
        train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.square(tf.Variable(1.0)))
    assert g.get_tensor_by_name("in/y:0").name == y.name == "in/y:0" and y.op.type == "add"
    assert g.get_collection("mine") == [y] and "mine" in g.get_all_collection_keys()
    assert g.get_operation_by_name(train.name) is train
    config = tf.ConfigProto(log_device_placement=True, gpu_options=tf.GPUOptions())
    config.gpu_options.allow_growth = True
    with pytest.raises(AttributeError, match="no option 'grow'"):
        config.gpu_options.grow = True
    with tf.Session(graph=g, config=config) as s:
        assert tf.get_default_graph() is g and tf.get_default_session() is s
        feed = {"in/x:0": [[1.0, 2.0]]}
        assert s.run({"a": ["in/y:0", (y,)]}, feed)["a"][1][0].tolist() == [[2.0, 3.0]]
    if g.device.type != "gpu":
        with pytest.warns(UserWarning, match="computes on"), tf.device("/device:GPU:3"):
            pass
    shape = x.get_shape()
    assert shape[1].value == 2 and shape.ndims == 2 and shape.num_elements() is None
    with pytest.raises(ValueError, match="differ"):
        x.set_shape([None, 3])


def test_arguments_in_lists():
    x, y = np.arange(24.0).reshape(2, 3, 4), np.ones((3, 5))
    with tf.Session() as s:
        got = s.run(tf.tensordot(tf.constant(x), tf.constant(y), [[1], [0]]))
        np.testing.assert_allclose(got, np.tensordot(x, y, [[1], [0]]))
        got = s.run(tf.matrix_band_part(tf.constant(x), 0, 1))
        assert (got == np.tril(np.triu(x), 1)).all()
        assert (s.run(tf.matrix_band_part(tf.constant(x), 1, -1)) == np.triu(x, -1)).all()
        assert s.run(tf.squeeze(tf.constant(x)[:, :1], [1])).shape == (2, 4)
        assert s.run(tf.reshape(tf.constant(x), [-1, *tf.zeros([2, 6]).get_shape()])).shape == (
            2,
            2,
            6,
        )
    assert tf.test.is_gpu_available() is ("gpu" in str(wg.zeros(1).device))


def test_rows_at_indices():
    v = tf.Variable(tf.ones([3, 2]))
    ids, x = [0, 2, 0], np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "f")
    with tf.Session() as s:
        s.run(v.initializer)
        assert s.run(tf.scatter_add(v, ids, x)).tolist() == [[7.0, 9.0], [1.0, 1.0], [4.0, 5.0]]
        s.run(tf.scatter_sub(v, [1], [[0.5, 1.0]]))
        assert s.run(v)[1].tolist() == [0.5, 0.0]
        s.run(tf.scatter_update(v, [2, 0], x[:2]))
        assert s.run(v).tolist() == [[3.0, 4.0], [0.5, 0.0], [1.0, 2.0]]
        sums = tf.unsorted_segment_sum(x, ids, 3)
        assert s.run(sums).tolist() == [[6.0, 8.0], [0.0, 0.0], [3.0, 4.0]]
        counts = tf.confusion_matrix([0, 1, 1], [0, 1, 0], 2)
        assert s.run(counts).tolist() == [[1, 0], [1, 1]]
        assert s.run(tf.nn.zero_fraction(counts)) == 0.25
        z, t = np.array([-3.0, 0.5], "f"), np.array([1.0, 0.25], "f")
        got = s.run(tf.nn.weighted_cross_entropy_with_logits(t, z, 3.0))
        p = 1 / (1 + np.exp(-z))
        np.testing.assert_allclose(got, -3 * t * np.log(p) - (1 - t) * np.log(1 - p), rtol=1e-5)


def test_a_language_model_whose_scope_is_opened_twice():
    """Cells in a loop by hand, states fed back, a second model over the same variables."""

    def model(training):
        x, y = (tf.placeholder(tf.int32, [4, 5]) for _ in range(2))
        cells = []
        for _ in range(2):
            cell = tf.contrib.rnn.BasicLSTMCell(8, forget_bias=0.0)
            if training:
                cell = tf.contrib.rnn.DropoutWrapper(cell, output_keep_prob=0.95)
            cells.append(cell)
        cell = tf.contrib.rnn.MultiRNNCell(cells)
        begin = state = cell.zero_state(4, tf.float32)
        with tf.device("/cpu:0"):
            table = tf.get_variable("embedding", [12, 8])
            inputs = tf.nn.embedding_lookup(table, x)
        outputs = []
        with tf.variable_scope("RNN"):
            for step in range(5):
                if step > 0:
                    tf.get_variable_scope().reuse_variables()
                output, state = cell(inputs[:, step, :], state)
                outputs.append(output)
        flat = tf.reshape(tf.concat(axis=1, values=outputs), [-1, 8])
        logits = tf.nn.xw_plus_b(flat, tf.get_variable("w", [8, 12]), tf.get_variable("b", [12]))
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.reshape(y, [-1]), logits=logits
        )
        return x, y, begin, state, tf.reduce_mean(loss)

    initializer = tf.random_uniform_initializer(-0.3, 0.3)
    with tf.variable_scope("Model", initializer=initializer):
        x, y, begin, end, cost = model(True)
    with tf.variable_scope("Model", reuse=True):
        x2, y2, _, _, cost2 = model(False)
    variables = tf.trainable_variables()
    assert len(variables) == 7
    assert variables[1].name == "Model/RNN/multi_rnn_cell/cell_0/basic_lstm_cell/kernel:0"
    grads, _ = tf.clip_by_global_norm(tf.gradients(cost, variables), 5)
    train = tf.train.AdamOptimizer(0.05).apply_gradients(zip(grads, variables, strict=True))
    words = np.arange(20).reshape(4, 5) % 12
    with tf.Session() as s:
        s.run(tf.global_variables_initializer())
        state, first = s.run(begin), s.run(cost2, {x2: words, y2: (words + 1) % 12})
        for _ in range(60):
            feed = {x: words, y: (words + 1) % 12}
            for (c, h), value in zip(begin, state, strict=True):
                feed[c], feed[h] = value.c, value.h
            state, _ = s.run([end, train], feed)
        assert s.run(cost2, {x2: words, y2: (words + 1) % 12}) < 0.3 * first
