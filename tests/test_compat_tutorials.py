"""Programs in the manner of TensorFlow 1's tutorials run after one changed import, and learn.

Each is written as such a tutorial would be, over small data made here.
"""

import math

import numpy as np
import pytest

import wengert.compat.v1 as tf


@pytest.fixture(autouse=True)
def fresh():
    tf.reset_default_graph()
    tf.set_random_seed(0)


def digits(count, seed=0):
    """Images of 8 × 8 of four kinds: a bright half, and noise. Labels in one-hot rows."""
    rng = np.random.RandomState(seed)
    kinds = rng.randint(0, 4, count)
    images = 0.3 * rng.randn(count, 8, 8)
    halves = [np.s_[:4], np.s_[4:], np.s_[:, :4], np.s_[:, 4:]]
    for image, kind in zip(images, kinds, strict=True):
        image[halves[kind]] += 1.0
    return images.reshape(count, 64), np.eye(4)[kinds]


def test_linear_regression():
    rng = np.random.RandomState(1)
    learning_rate, epochs = 0.5, 20
    train_x = np.linspace(0, 4, 30)
    train_y = 2.0 * train_x - 1.0 + 0.05 * rng.randn(30)
    n_samples = train_x.shape[0]

    X = tf.placeholder("float")
    Y = tf.placeholder("float")
    W = tf.Variable(rng.randn(), name="weight")
    b = tf.Variable(rng.randn(), name="bias")
    pred = tf.add(tf.multiply(X, W), b)
    cost = tf.reduce_sum(tf.pow(pred - Y, 2)) / (2 * n_samples)
    optimizer = tf.train.GradientDescentOptimizer(learning_rate).minimize(cost)
    init = tf.global_variables_initializer()

    with tf.Session() as sess:
        sess.run(init)
        before = sess.run(cost, feed_dict={X: train_x, Y: train_y})
        for _ in range(epochs):
            for x, y in zip(train_x, train_y, strict=True):
                sess.run(optimizer, feed_dict={X: x, Y: y})
        after = sess.run(cost, feed_dict={X: train_x, Y: train_y})
        assert after < 0.01 < before
        assert abs(sess.run(W) - 2.0) < 0.1 and abs(sess.run(b) + 1.0) < 0.2


def test_softmax_regression_for_beginners():
    images, labels = digits(400)
    x = tf.placeholder(tf.float32, [None, 64])
    W = tf.Variable(tf.zeros([64, 4]))
    b = tf.Variable(tf.zeros([4]))
    y = tf.nn.softmax(tf.matmul(x, W) + b)
    y_ = tf.placeholder(tf.float32, [None, 4])
    cross_entropy = tf.reduce_mean(-tf.reduce_sum(y_ * tf.log(y), reduction_indices=[1]))
    train_step = tf.train.GradientDescentOptimizer(0.5).minimize(cross_entropy)
    correct_prediction = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
    accuracy = tf.reduce_mean(tf.cast(correct_prediction, tf.float32))

    sess = tf.InteractiveSession()
    tf.initialize_all_variables().run()
    for i in range(40):
        part = slice(i % 4 * 100, i % 4 * 100 + 100)
        sess.run(train_step, feed_dict={x: images[part], y_: labels[part]})
    test_images, test_labels = digits(200, seed=9)
    assert accuracy.eval(feed_dict={x: test_images, y_: test_labels}) > 0.95
    sess.close()


def test_convolutional_network_for_experts():
    images, labels = digits(256)

    def weight_variable(shape):
        return tf.Variable(tf.truncated_normal(shape, stddev=0.1))

    def bias_variable(shape):
        return tf.Variable(tf.constant(0.1, shape=shape))

    def conv2d(x, W):
        return tf.nn.conv2d(x, W, strides=[1, 1, 1, 1], padding="SAME")

    def max_pool_2x2(x):
        return tf.nn.max_pool(x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")

    x = tf.placeholder(tf.float32, shape=[None, 64])
    y_ = tf.placeholder(tf.float32, shape=[None, 4])
    x_image = tf.reshape(x, [-1, 8, 8, 1])
    W_conv1, b_conv1 = weight_variable([5, 5, 1, 4]), bias_variable([4])
    h_pool1 = max_pool_2x2(tf.nn.relu(conv2d(x_image, W_conv1) + b_conv1))
    W_conv2, b_conv2 = weight_variable([3, 3, 4, 8]), bias_variable([8])
    h_pool2 = max_pool_2x2(tf.nn.relu(tf.nn.bias_add(conv2d(h_pool1, W_conv2), b_conv2)))
    assert h_pool2.get_shape().as_list() == [None, 2, 2, 8]
    W_fc1, b_fc1 = weight_variable([2 * 2 * 8, 16]), bias_variable([16])
    h_flat = tf.reshape(h_pool2, [-1, W_fc1.get_shape().as_list()[0]])
    h_fc1 = tf.nn.relu(tf.matmul(h_flat, W_fc1) + b_fc1)
    keep_prob = tf.placeholder(tf.float32)
    h_drop = tf.nn.dropout(h_fc1, keep_prob)
    W_fc2, b_fc2 = weight_variable([16, 4]), bias_variable([4])
    y_conv = tf.matmul(h_drop, W_fc2) + b_fc2

    cross_entropy = tf.reduce_mean(
        tf.nn.softmax_cross_entropy_with_logits(labels=y_, logits=y_conv)
    )
    train_step = tf.train.AdamOptimizer(1e-2).minimize(cross_entropy)
    correct_prediction = tf.equal(tf.argmax(y_conv, 1), tf.argmax(y_, 1))
    accuracy = tf.reduce_mean(tf.cast(correct_prediction, tf.float32))

    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for i in range(60):
            part = slice(i % 4 * 64, i % 4 * 64 + 64)
            feeds = {x: images[part], y_: labels[part], keep_prob: 0.8}
            train_step.run(feed_dict=feeds)
        test_images, test_labels = digits(100, seed=9)
        feeds = {x: test_images, y_: test_labels, keep_prob: 1.0}
        assert accuracy.eval(feed_dict=feeds) > 0.95


def test_autoencoder():
    images, _ = digits(200)
    images = 1 / (1 + np.exp(-4 * (images - 0.5)))
    n_input, n_hidden_1, n_hidden_2 = 64, 24, 8
    X = tf.placeholder("float", [None, n_input])
    weights = {
        "encoder_h1": tf.Variable(tf.random_normal([n_input, n_hidden_1], stddev=0.2)),
        "encoder_h2": tf.Variable(tf.random_normal([n_hidden_1, n_hidden_2], stddev=0.2)),
        "decoder_h1": tf.Variable(tf.random_normal([n_hidden_2, n_hidden_1], stddev=0.2)),
        "decoder_h2": tf.Variable(tf.random_normal([n_hidden_1, n_input], stddev=0.2)),
    }
    biases = {
        "encoder_b1": tf.Variable(tf.random_normal([n_hidden_1])),
        "encoder_b2": tf.Variable(tf.random_normal([n_hidden_2])),
        "decoder_b1": tf.Variable(tf.random_normal([n_hidden_1])),
        "decoder_b2": tf.Variable(tf.random_normal([n_input])),
    }

    def layer(x, name):
        w, b = weights[name], biases[name.replace("_h", "_b")]
        return tf.nn.sigmoid(tf.add(tf.matmul(x, w), b))

    encoder_op = layer(layer(X, "encoder_h1"), "encoder_h2")
    decoder_op = layer(layer(encoder_op, "decoder_h1"), "decoder_h2")
    loss = tf.reduce_mean(tf.pow(X - decoder_op, 2))
    optimizer = tf.train.RMSPropOptimizer(0.02).minimize(loss)

    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        losses = [sess.run([optimizer, loss], feed_dict={X: images})[1] for _ in range(300)]
        assert losses[-1] < 0.5 * losses[0]
        assert sess.run(encoder_op, feed_dict={X: images[:4]}).shape == (4, n_hidden_2)


def test_a_recurrent_network_by_hand():
    """Whether an echo of the input two steps ago can be learnt."""
    num_steps, batch_size, state_size, num_classes, echo = 6, 20, 12, 2, 2
    rng = np.random.RandomState(0)

    x = tf.placeholder(tf.int32, [batch_size, num_steps], name="input_placeholder")
    y = tf.placeholder(tf.int32, [batch_size, num_steps], name="labels_placeholder")
    init_state = tf.placeholder(tf.float32, [batch_size, state_size])
    rnn_inputs = tf.unstack(tf.one_hot(x, num_classes), num=num_steps, axis=1)
    W = tf.Variable(tf.random_normal([num_classes + state_size, state_size], stddev=0.3))
    b = tf.Variable(tf.zeros([state_size]))
    W_out = tf.Variable(tf.random_normal([state_size, num_classes], stddev=0.3))
    b_out = tf.Variable(tf.zeros([num_classes]))

    state, outputs = init_state, []
    for rnn_input in rnn_inputs:
        state = tf.tanh(tf.matmul(tf.concat([rnn_input, state], 1), W) + b)
        outputs.append(state)
    logits = [tf.matmul(output, W_out) + b_out for output in outputs]
    losses = [
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logit)
        for logit, label in zip(logits, tf.unstack(y, num_steps, 1), strict=True)
    ]
    total_loss = tf.reduce_mean(losses[echo:])
    global_step = tf.Variable(0, trainable=False)
    rate = tf.train.exponential_decay(0.5, global_step, 50, 0.9, staircase=True)
    train_step = tf.train.AdagradOptimizer(rate).minimize(total_loss, global_step=global_step)

    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        training_losses = []
        for _ in range(200):
            bits = rng.randint(0, 2, (batch_size, num_steps))
            feeds = {
                x: bits,
                y: np.roll(bits, echo, axis=1),
                init_state: np.zeros((batch_size, state_size)),
            }
            loss, last, _ = sess.run([total_loss, state, train_step], feed_dict=feeds)
            training_losses.append(loss)
        assert last.shape == (batch_size, state_size) and sess.run(global_step) == 200
        assert training_losses[0] > 0.6 and np.mean(training_losses[-10:]) < 0.2


def test_word2vec():
    """Words that stand beside the same words come to lie near each other."""
    vocabulary_size, embedding_size, num_sampled, batch_size = 12, 8, 6, 64
    rng = np.random.RandomState(0)
    # Even words stand beside 0, odd ones beside 1.
    words = rng.randint(2, vocabulary_size, 2000)
    contexts = words % 2

    train_inputs = tf.placeholder(tf.int32, shape=[batch_size])
    train_labels = tf.placeholder(tf.int32, shape=[batch_size, 1])
    with tf.name_scope("embeddings"):
        embeddings = tf.Variable(tf.random_uniform([vocabulary_size, embedding_size], -1.0, 1.0))
        embed = tf.nn.embedding_lookup(embeddings, train_inputs)
    nce_weights = tf.Variable(
        tf.truncated_normal(
            [vocabulary_size, embedding_size], stddev=1.0 / math.sqrt(embedding_size)
        )
    )
    nce_biases = tf.Variable(tf.zeros([vocabulary_size]))
    loss = tf.reduce_mean(
        tf.nn.nce_loss(
            weights=nce_weights,
            biases=nce_biases,
            labels=train_labels,
            inputs=embed,
            num_sampled=num_sampled,
            num_classes=vocabulary_size,
        )
    )
    optimizer = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
    norm = tf.sqrt(tf.reduce_sum(tf.square(embeddings), 1, keep_dims=True))
    normalized_embeddings = embeddings / norm
    similarity = tf.matmul(normalized_embeddings, normalized_embeddings, transpose_b=True)

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = []
        for step in range(300):
            part = np.arange(step * batch_size, (step + 1) * batch_size) % len(words)
            feed_dict = {train_inputs: words[part], train_labels: contexts[part][:, None]}
            losses.append(session.run([optimizer, loss], feed_dict=feed_dict)[1])
        near = similarity.eval()[2:, 2:]
    assert np.mean(losses[-50:]) < 0.5 * np.mean(losses[:10])
    alike = np.equal.outer(np.arange(10) % 2, np.arange(10) % 2)
    assert near[alike].mean() > near[~alike].mean() + 0.3
