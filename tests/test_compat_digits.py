"""Programs in the manner of TensorFlow 1's tutorials over handwritten digits, after one changed
import: each learns what its tutorial shows."""

import gzip
import math

import numpy as np
import pytest

import wengert.compat.v1 as tf
from wengert.compat.v1.contrib import rnn
from wengert.compat.v1.examples.tutorials.mnist import input_data


@pytest.fixture(scope="module")
def mnist():
    try:
        return input_data.read_data_sets("/nowhere/MNIST_data/", one_hot=True, seed=0)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def fresh():
    tf.reset_default_graph()
    tf.set_random_seed(0)


def test_digits_come_in_batches(mnist):
    assert mnist.train.images.shape[1:] == (784,) and mnist.train.labels.shape[1:] == (10,)
    assert mnist.train.images.min() >= 0 and mnist.train.images.max() == 1.0
    data = input_data.DataSet(np.arange(10), np.arange(10), seed=0)
    seen = [data.next_batch(4)[0] for _ in range(5)]
    first = np.concatenate(seen)
    assert (
        sorted(first[:10]) == sorted(first[10:]) == list(range(10)) and data.epochs_completed == 1
    )
    with pytest.raises(ValueError, match="11 of 10"):
        data.next_batch(11)


def test_files_of_mnist_are_read(tmp_path):
    rng = np.random.RandomState(0)
    wanted = {}
    for name, n in (("train", 7), ("t10k", 3)):
        images = rng.randint(0, 256, (n, 28, 28)).astype(np.uint8)
        labels = rng.randint(0, 10, n).astype(np.uint8)
        head = bytes([0, 0, 8, 3]) + np.array([n, 28, 28], ">u4").tobytes()
        path = tmp_path / f"{name}-images-idx3-ubyte.gz"
        path.write_bytes(gzip.compress(head + images.tobytes()))
        head = bytes([0, 0, 8, 1]) + np.array([n], ">u4").tobytes()
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
        wanted[name] = images, labels
    found = input_data.read_data_sets(tmp_path, validation_size=2, reshape=False)
    assert found.train.images.shape == (5, 28, 28, 1) and found.validation.num_examples == 2
    np.testing.assert_allclose(found.train.images[..., 0], wanted["train"][0][2:] / 255, rtol=1e-6)
    assert found.test.labels.tolist() == wanted["t10k"][1].tolist()
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="MNIST's format"):
        input_data.read_data_sets(tmp_path)


def test_softmax_regression(mnist):
    x = tf.placeholder(tf.float32, [None, 784])
    y_ = tf.placeholder(tf.float32, [None, 10])
    W = tf.Variable(tf.zeros([784, 10]))
    b = tf.Variable(tf.zeros([10]))
    y = tf.nn.softmax(tf.matmul(x, W) + b)
    cross_entropy = tf.reduce_mean(-tf.reduce_sum(y_ * tf.log(y), reduction_indices=[1]))
    train_step = tf.train.GradientDescentOptimizer(0.5).minimize(cross_entropy)
    sess = tf.InteractiveSession()
    tf.global_variables_initializer().run()
    for _ in range(300):
        batch_xs, batch_ys = mnist.train.next_batch(100)
        sess.run(train_step, feed_dict={x: batch_xs, y_: batch_ys})
    correct = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
    accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
    assert accuracy.eval({x: mnist.test.images, y_: mnist.test.labels}) > 0.85
    sess.close()


def test_nearest_neighbour(mnist):
    Xtr, Ytr = mnist.train.next_batch(1500)
    Xte, Yte = mnist.test.images[:40], mnist.test.labels[:40]
    xtr = tf.placeholder("float", [None, 784])
    xte = tf.placeholder("float", [784])
    distance = tf.reduce_sum(tf.abs(tf.add(xtr, tf.negative(xte))), reduction_indices=1)
    pred = tf.arg_min(distance, 0)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        found = [sess.run(pred, feed_dict={xtr: Xtr, xte: x}) for x in Xte]
    assert (Ytr[found].argmax(1) == Yte.argmax(1)).mean() > 0.8


def test_a_perceptron_with_summaries_and_checkpoints(mnist, tmp_path):
    """Scopes of names, summaries of variables, a saver, the global step."""

    def weight_variable(shape):
        return tf.Variable(tf.truncated_normal(shape, stddev=0.1))

    def variable_summaries(var):
        with tf.name_scope("summaries"):
            mean = tf.reduce_mean(var)
            tf.summary.scalar("mean", mean)
            with tf.name_scope("stddev"):
                stddev = tf.sqrt(tf.reduce_mean(tf.square(var - mean)))
            tf.summary.scalar("stddev", stddev)
            tf.summary.histogram("histogram", var)

    def nn_layer(input_tensor, input_dim, output_dim, layer_name, act=tf.nn.relu):
        with tf.name_scope(layer_name):
            with tf.name_scope("weights"):
                weights = weight_variable([input_dim, output_dim])
                variable_summaries(weights)
            with tf.name_scope("biases"):
                biases = tf.Variable(tf.constant(0.1, shape=[output_dim]))
                variable_summaries(biases)
            with tf.name_scope("Wx_plus_b"):
                preactivate = tf.matmul(input_tensor, weights) + biases
            return act(preactivate, name="activation")

    with tf.name_scope("input"):
        x = tf.placeholder(tf.float32, [None, 784], name="x-input")
        y_ = tf.placeholder(tf.float32, [None, 10], name="y-input")
    with tf.name_scope("input_reshape"):
        tf.summary.image("input", tf.reshape(x, [-1, 28, 28, 1]), 10)
    hidden1 = nn_layer(x, 784, 64, "layer1")
    with tf.name_scope("dropout"):
        keep_prob = tf.placeholder(tf.float32)
        tf.summary.scalar("dropout_keep_probability", keep_prob)
        dropped = tf.nn.dropout(hidden1, keep_prob)
    y = nn_layer(dropped, 64, 10, "layer2", act=tf.identity)
    with tf.name_scope("cross_entropy"):
        diff = tf.nn.softmax_cross_entropy_with_logits(labels=y_, logits=y)
        cross_entropy = tf.reduce_mean(diff)
    tf.summary.scalar("cross_entropy", cross_entropy)
    global_step = tf.Variable(0, name="global_step", trainable=False)
    with tf.name_scope("train"):
        train_step = tf.train.AdamOptimizer(0.003).minimize(cross_entropy, global_step=global_step)
    with tf.name_scope("accuracy"):
        right = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
        accuracy = tf.reduce_mean(tf.cast(right, tf.float32))
    tf.summary.scalar("accuracy", accuracy)
    merged = tf.summary.merge_all()
    saver = tf.train.Saver()
    test_feed = {x: mnist.test.images, y_: mnist.test.labels, keep_prob: 1.0}
    with tf.Session() as sess:
        train_writer = tf.summary.FileWriter(str(tmp_path / "train"), sess.graph)
        tf.global_variables_initializer().run()
        for i in range(150):
            xs, ys = mnist.train.next_batch(100)
            feed = {x: xs, y_: ys, keep_prob: 0.9}
            if i % 50 == 0:
                summary, _ = sess.run([merged, train_step], feed_dict=feed)
                train_writer.add_summary(summary, i)
            else:
                sess.run(train_step, feed_dict=feed)
        path = saver.save(sess, str(tmp_path / "model.ckpt"), global_step=global_step)
        train_writer.close()
        before = sess.run(accuracy, test_feed)
    assert before > 0.85 and path.endswith("model.ckpt-150")
    with tf.Session() as sess:
        saver.restore(sess, tf.train.latest_checkpoint(str(tmp_path)))
        assert sess.run([accuracy, global_step], test_feed) == [before, 150]


def test_a_convolutional_network_of_layers(mnist):
    def conv_net(x_dict, n_classes, dropout, reuse, is_training):
        with tf.variable_scope("ConvNet", reuse=reuse):
            x = tf.reshape(x_dict["images"], shape=[-1, 28, 28, 1])
            conv1 = tf.layers.conv2d(x, 8, 5, activation=tf.nn.relu)
            conv1 = tf.layers.max_pooling2d(conv1, 2, 2)
            conv2 = tf.layers.conv2d(conv1, 16, 3, activation=tf.nn.relu)
            conv2 = tf.layers.max_pooling2d(conv2, 2, 2)
            fc1 = tf.contrib.layers.flatten(conv2)
            fc1 = tf.layers.dense(fc1, 64)
            fc1 = tf.layers.dropout(fc1, rate=dropout, training=is_training)
            return tf.layers.dense(fc1, n_classes)

    X, Y = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.float32, [None, 10])
    logits_train = conv_net({"images": X}, 10, 0.25, reuse=False, is_training=True)
    logits_test = conv_net({"images": X}, 10, 0.25, reuse=True, is_training=False)
    names = [v.name for v in tf.trainable_variables()]
    assert names == [
        f"ConvNet/{layer}/{part}:0"
        for layer in ("conv2d", "conv2d_1", "dense", "dense_1")
        for part in ("kernel", "bias")
    ]
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            logits=logits_train, labels=tf.cast(tf.argmax(Y, 1), dtype=tf.int32)
        )
    )
    train_op = tf.train.AdamOptimizer(learning_rate=0.003).minimize(loss)
    acc, acc_op = tf.metrics.accuracy(
        labels=tf.argmax(Y, 1), predictions=tf.argmax(logits_test, axis=1)
    )
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for _ in range(60):
            xs, ys = mnist.train.next_batch(64)
            sess.run(train_op, feed_dict={X: xs, Y: ys})
        for k in range(0, 400, 100):
            part = {X: mnist.test.images[k : k + 100], Y: mnist.test.labels[k : k + 100]}
            sess.run(acc_op, part)
        assert sess.run(acc) > 0.8


@pytest.mark.parametrize("kind", ["static", "dynamic", "both directions"])
def test_recurrent_networks_read_rows_of_pixels(mnist, kind):
    num_input, timesteps, num_hidden = 28, 28, 32
    X = tf.placeholder("float", [None, timesteps, num_input])
    Y = tf.placeholder("float", [None, 10])
    width = 2 * num_hidden if kind == "both directions" else num_hidden
    weights = {"out": tf.Variable(tf.random_normal([width, 10]) * 0.2)}
    biases = {"out": tf.Variable(tf.zeros([10]))}
    x = tf.unstack(X, timesteps, 1)
    if kind == "static":
        cell = rnn.BasicLSTMCell(num_hidden, forget_bias=1.0)
        outputs, _ = rnn.static_rnn(cell, x, dtype=tf.float32)
        last = outputs[-1]
    elif kind == "dynamic":
        cells = [tf.nn.rnn_cell.GRUCell(num_hidden) for _ in range(2)]
        cells = [tf.nn.rnn_cell.DropoutWrapper(c, output_keep_prob=0.9) for c in cells]
        cell = tf.nn.rnn_cell.MultiRNNCell(cells)
        start = cell.zero_state(tf.shape(X)[0], tf.float32)
        outputs, state = tf.nn.dynamic_rnn(cell, X, initial_state=start)
        last = outputs[:, -1]
        assert len(state) == 2
    else:
        fw, bw = (rnn.BasicLSTMCell(num_hidden, forget_bias=1.0) for _ in range(2))
        outputs, _, _ = rnn.static_bidirectional_rnn(fw, bw, x, dtype=tf.float32)
        last = outputs[-1]
    logits = tf.matmul(last, weights["out"]) + biases["out"]
    loss_op = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(logits=logits, labels=Y))
    optimizer = tf.train.AdamOptimizer(0.01)
    grads = optimizer.compute_gradients(loss_op)
    capped = [(tf.clip_by_norm(g, 1.0), v) for g, v in grads if g is not None]
    train_op = optimizer.apply_gradients(capped)
    losses = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(60):
            batch_x, batch_y = mnist.train.next_batch(64)
            batch_x = batch_x.reshape((64, timesteps, num_input))
            losses.append(sess.run([loss_op, train_op], feed_dict={X: batch_x, Y: batch_y})[0])
    assert np.mean(losses[-10:]) < 0.6 * losses[0]


def test_a_variational_autoencoder(mnist):
    def glorot_init(shape):
        return tf.random_normal(shape=shape, stddev=1.0 / tf.sqrt(shape[0] / 2.0))

    sizes = {"encoder": (784, 64), "mean": (64, 4), "std": (64, 4), "hidden": (4, 64),
             "out": (64, 784)}  # fmt: skip
    weights = {k: tf.Variable(glorot_init(list(n))) for k, n in sizes.items()}
    biases = {k: tf.Variable(glorot_init([n[1]])) for k, n in sizes.items()}

    def layer(x, k):
        return tf.matmul(x, weights[k]) + biases[k]

    input_image = tf.placeholder(tf.float32, shape=[None, 784])
    encoder = tf.nn.tanh(layer(input_image, "encoder"))
    z_mean, z_std = layer(encoder, "mean"), layer(encoder, "std")
    eps = tf.random_normal(tf.shape(z_std), dtype=tf.float32, mean=0.0, stddev=1.0, name="epsilon")
    z = z_mean + tf.exp(z_std / 2) * eps
    decoder = tf.nn.sigmoid(layer(tf.nn.tanh(layer(z, "hidden")), "out"))
    kept = input_image * tf.log(1e-10 + decoder)
    rest = (1 - input_image) * tf.log(1e-10 + 1 - decoder)
    reconstruction = -tf.reduce_sum(kept + rest, 1)
    divergence = -0.5 * tf.reduce_sum(1 + z_std - tf.square(z_mean) - tf.exp(z_std), 1)
    loss = tf.reduce_mean(reconstruction + divergence)
    train_op = tf.train.RMSPropOptimizer(learning_rate=0.002).minimize(loss)
    losses = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(150):
            batch, _ = mnist.train.next_batch(64)
            losses.append(sess.run([train_op, loss], feed_dict={input_image: batch})[1])
        drawn = sess.run(decoder, {z: np.random.RandomState(0).randn(5, 4)})
    assert np.mean(losses[-10:]) < 0.5 * losses[0] and drawn.shape == (5, 784)


def test_a_convolutional_adversarial_network(mnist):
    """Transposed convolutions, batch norm, scopes that are reused, updates of two networks."""

    def generator(x, is_training, reuse=False):
        with tf.variable_scope("Generator", reuse=reuse):
            x = tf.layers.dense(x, units=7 * 7 * 8)
            x = tf.layers.batch_normalization(x, training=is_training)
            x = tf.nn.relu(x)
            x = tf.reshape(x, shape=[-1, 7, 7, 8])
            x = tf.layers.conv2d_transpose(x, 4, 5, strides=2, padding="same")
            x = tf.layers.batch_normalization(x, training=is_training)
            x = tf.nn.relu(x)
            x = tf.layers.conv2d_transpose(x, 1, 5, strides=2, padding="same")
            return tf.nn.tanh(x)

    def discriminator(x, is_training, reuse=False):
        with tf.variable_scope("Discriminator", reuse=reuse):
            x = tf.layers.conv2d(x, 4, 5, strides=2, padding="same")
            x = tf.layers.batch_normalization(x, training=is_training)
            x = tf.nn.leaky_relu(x)
            x = tf.layers.flatten(x)
            return tf.layers.dense(x, 2)

    noise_input = tf.placeholder(tf.float32, shape=[None, 16])
    real = tf.placeholder(tf.float32, shape=[None, 28, 28, 1])
    is_training = tf.placeholder(tf.bool)
    sample = generator(noise_input, is_training)
    assert sample.get_shape().as_list() == [None, 28, 28, 1]
    disc_real = discriminator(real, is_training)
    disc_fake = discriminator(sample, is_training, reuse=True)
    stacked = discriminator(sample, is_training, reuse=True)
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
    ones = tf.ones([tf.shape(disc_real)[0]], dtype=tf.int32)
    zeros = tf.zeros([tf.shape(disc_fake)[0]], dtype=tf.int32)
    disc_loss = tf.reduce_mean(entropy(logits=disc_real, labels=ones)) + tf.reduce_mean(
        entropy(logits=disc_fake, labels=zeros)
    )
    targets = tf.fill([tf.shape(stacked)[0]], 1)
    gen_loss = tf.reduce_mean(entropy(logits=stacked, labels=targets))
    gen_vars = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="Generator")
    disc_vars = [v for v in tf.trainable_variables() if v.name.startswith("Discriminator")]
    gen_updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS, scope="Generator")
    disc_updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS, scope="Discriminator")
    with tf.control_dependencies(gen_updates):
        gen = tf.train.AdamOptimizer(0.002, beta1=0.5).minimize(gen_loss, var_list=gen_vars)
    with tf.control_dependencies(disc_updates):
        disc = tf.train.AdamOptimizer(0.002, beta1=0.5).minimize(disc_loss, var_list=disc_vars)
    moving = [v for v in tf.global_variables() if "moving_mean" in v.name]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        first = None
        for _ in range(8):
            xs, _ = mnist.train.next_batch(16)
            xs = np.reshape(xs, (-1, 28, 28, 1)) * 2.0 - 1.0
            z = np.random.RandomState(0).uniform(-1.0, 1.0, size=[16, 16])
            feed = {real: xs, noise_input: z, is_training: True}
            _, _, gl, dl = sess.run([gen, disc, gen_loss, disc_loss], feed_dict=feed)
            first = dl if first is None else first
        assert dl < first and math.isfinite(gl)
        assert all(np.abs(m).max() > 0 for m in sess.run(moving))
        assert sess.run(sample, {noise_input: z, is_training: False}).shape == (16, 28, 28, 1)
