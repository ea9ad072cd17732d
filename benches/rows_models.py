"""Group E: whole models, training steps and inference."""

import math

import numpy as np
from case import integers, normal, row

# Parameters are drawn in the order of their names here: (shape, scale), a scale of None being ones.


def drawn(shapes):
    """Arrays for {name: (shape, scale)}."""
    arrays = {}
    for seed, (name, (shape, scale)) in enumerate(shapes.items()):
        ones = np.ones(shape, np.float32)
        arrays[name] = ones if scale is None else normal(*shape, seed=100 + seed, scale=scale)
    return arrays


# --- a perceptron and a small convolutional net

def perceptron(s):
    return drawn({"w1": ((s.pixels, s.hidden), 0.05), "b1": ((s.hidden,), 0.0),
                  "w2": ((s.hidden, s.hidden), 0.06), "b2": ((s.hidden,), 0.0),
                  "w3": ((s.hidden, 10), 0.06), "b3": ((10,), 0.0)})


def perceptron_loss(F, s, p, x, labels):
    x = F.relu(x @ p["w1"] + p["b1"])
    x = F.relu(x @ p["w2"] + p["b2"])
    return F.cross_entropy(x @ p["w3"] + p["b3"], labels)


row("E1", "MLP 784-512-512-10, step of 128 samples, Adam", perceptron_loss,
    lambda s: (normal(s.batch, s.pixels), integers(10, s.batch)),
    {"pixels": 784, "hidden": 512, "batch": 128}, {"pixels": 20, "hidden": 16, "batch": 6},
    kind="training", parameters=perceptron, optimizer=("adam", 1e-3),
    flops=lambda s: 6 * s.batch * s.hidden * (s.pixels + s.hidden + 10))


def lenet(s):
    return drawn({"c1": ((6, 1, 5, 5), 0.2), "d1": ((6,), 0.0), "c2": ((16, 6, 5, 5), 0.08),
                  "d2": ((16,), 0.0), "w1": ((400, 120), 0.05), "b1": ((120,), 0.0),
                  "w2": ((120, 84), 0.09), "b2": ((84,), 0.0), "w3": ((84, 10), 0.1),
                  "b3": ((10,), 0.0)})


def lenet_loss(F, s, p, x, labels):
    x = F.max_pool(F.relu(F.conv(x, p["c1"], p["d1"], 1, 2, 1)), 2, 2, 0)
    x = F.max_pool(F.relu(F.conv(x, p["c2"], p["d2"], 1, 0, 1)), 2, 2, 0)
    x = F.reshape(x, (s.batch, 400))
    x = F.relu(x @ p["w1"] + p["b1"])
    x = F.relu(x @ p["w2"] + p["b2"])
    return F.cross_entropy(x @ p["w3"] + p["b3"], labels)


row("E2", "LeNet, 28², step of 64 samples, SGD", lenet_loss,
    lambda s: (normal(s.batch, 1, 28, 28), integers(10, s.batch)), {"batch": 64}, {"batch": 3},
    kind="training", parameters=lenet, optimizer=("sgd", 1e-2),
    flops=lambda s: 6 * s.batch * (28**2 * 150 + 100 * 2400 + 400 * 120 + 120 * 84 + 840))


# --- a recurrent net over characters

def characters(s):
    n, v = s.hidden, s.letters
    return drawn({"letters": ((v, n), 0.1), "into": ((n, 4 * n), 0.05), "over": ((n, 4 * n), 0.05),
                  "bias": ((4 * n,), 0.0), "out": ((n, v), 0.06), "out_bias": ((v,), 0.0)})


def gates(F, n, g, c):
    """The next output and state of an LSTM from its gates (input, forget, candidate, output)."""
    kept = F.sigmoid(g[:, :n]) * F.tanh(g[:, 2 * n:3 * n])
    c = kept if c is None else F.sigmoid(g[:, n:2 * n]) * c + kept
    return F.sigmoid(g[:, 3 * n:]) * F.tanh(c), c


def unrolled_loss(F, s, p, x, labels):
    into, outputs, h, c = F.take(p["letters"], x) @ p["into"] + p["bias"], [], None, None
    for t in range(s.steps):
        g = into[t] if h is None else into[t] + h @ p["over"]
        h, c = gates(F, s.hidden, g, c)
        outputs.append(h)
    return spelled(F, s, p, F.stack(outputs), labels)


def scanned_loss(F, s, p, x, labels):
    outputs = F.lstm(F.take(p["letters"], x), p["into"], p["over"], p["bias"])
    return spelled(F, s, p, outputs, labels)


def spelled(F, s, p, outputs, labels):
    count = s.steps * s.batch
    logits = F.reshape(outputs, (count, s.hidden)) @ p["out"] + p["out_bias"]
    return F.cross_entropy(logits, F.reshape(labels, (count,)))


LSTM = {"hidden": 256, "letters": 96, "steps": 64, "batch": 32}
SMALL_LSTM = {"hidden": 6, "letters": 9, "steps": 4, "batch": 3}
for id, loss, name in (("E3a", unrolled_loss, "a Python loop"), ("E3b", scanned_loss, "the "
                                                                 "engine's own loop")):
    row(id, f"LSTM of 256, 64 steps, 32 samples, Adam, {name}", loss,
        lambda s: (integers(s.letters, s.steps, s.batch),
                   integers(s.letters, s.steps, s.batch, seed=4)), LSTM, SMALL_LSTM,
        kind="training", parameters=characters, optimizer=("adam", 1e-3),
        flops=lambda s: 6 * s.steps * s.batch * s.hidden * (8 * s.hidden + s.letters))


# --- transformers

def transformer(s):
    d, shapes = s.width, {}
    shapes["words"], shapes["places"] = ((s.words, d), 0.02), ((s.length, d), 0.02)
    for i in range(s.layers):
        for name, shape, scale in (
                ("norm1", (d,), None), ("shift1", (d,), 0.0), ("norm2", (d,), None),
                ("shift2", (d,), 0.0), ("qkv", (d, 3 * d), 0.02), ("qkv_bias", (3 * d,), 0.0),
                ("out", (d, d), 0.02), ("out_bias", (d,), 0.0), ("up", (d, 4 * d), 0.02),
                ("up_bias", (4 * d,), 0.0), ("down", (4 * d, d), 0.02), ("down_bias", (d,), 0.0)):
            shapes[f"{name}.{i}"] = (shape, scale)
    shapes["norm"], shapes["shift"] = ((d,), None), ((d,), 0.0)
    shapes["head"] = ((d, s.words), 0.02)
    return drawn(shapes)


def attended(F, s, p, i, x):
    b, n, d, h = s.batch, s.length, s.width, s.heads
    x = x @ p[f"qkv.{i}"] + p[f"qkv_bias.{i}"]

    def heads(part):
        return F.transpose(F.reshape(part, (b, n, h, d // h)), (0, 2, 1, 3))

    q, k, v = heads(x[:, :, :d]), heads(x[:, :, d:2 * d]), heads(x[:, :, 2 * d:])
    y = F.transpose(F.attention(q, k, v, s.causal), (0, 2, 1, 3))
    return F.reshape(y, (b, n, d)) @ p[f"out.{i}"] + p[f"out_bias.{i}"]


def widened(F, p, i, x):
    x = F.gelu(x @ p[f"up.{i}"] + p[f"up_bias.{i}"])
    return x @ p[f"down.{i}"] + p[f"down_bias.{i}"]


def logits(F, s, p, words):
    """A decoder: norms before attention and the wide layer."""
    x = F.take(p["words"], words) + p["places"]
    for i in range(s.layers):
        x = x + attended(F, s, p, i, F.layer_norm(x, p[f"norm1.{i}"], p[f"shift1.{i}"]))
        x = x + widened(F, p, i, F.layer_norm(x, p[f"norm2.{i}"], p[f"shift2.{i}"]))
    return F.layer_norm(x, p["norm"], p["shift"]) @ p["head"]


def encoded(F, s, p, words):
    """An encoder: norms behind them."""
    x = F.take(p["words"], words) + p["places"]
    for i in range(s.layers):
        x = F.layer_norm(x + attended(F, s, p, i, x), p[f"norm1.{i}"], p[f"shift1.{i}"])
        x = F.layer_norm(x + widened(F, p, i, x), p[f"norm2.{i}"], p[f"shift2.{i}"])
    return x


def text_loss(F, s, p, words, labels):
    count = s.batch * s.length
    y = F.reshape(logits(F, s, p, words), (count, s.words))
    return F.cross_entropy(y, F.reshape(labels, (count,)))


def forward_flops(s):
    products = 12 * s.width**2 * s.layers + (s.width * s.words if s.causal else 0)
    return 2 * s.batch * s.length * (products + 2 * s.layers * s.length * s.width)


def sentences(s):
    return (integers(s.words, s.batch, s.length),)


GPT = {"layers": 4, "width": 256, "heads": 4, "words": 1024, "length": 256, "batch": 8,
       "causal": True}
FEW = {"layers": 1, "width": 8, "heads": 2, "words": 11, "length": 5, "batch": 2}
row("E4", "GPT of 4 layers of 256, 256 words, step of 8 samples, AdamW", text_loss,
    lambda s: (*sentences(s), integers(s.words, s.batch, s.length, seed=4)), GPT, FEW,
    kind="training", parameters=transformer, optimizer=("adamw", 1e-3),
    flops=lambda s: 3 * forward_flops(s))
row("E5", "the same, inference, 128 words, 1 sample", logits, sentences,
    {**GPT, "length": 128, "batch": 1}, FEW, parameters=transformer, flops=forward_flops,
    tolerance=5e-3)
for b in (1, 8):
    row(f"E7_{b}", f"MiniLM, 6 layers of 384, inference, 128 words, {b} samples", encoded,
        sentences, {"layers": 6, "width": 384, "heads": 12, "words": 1000, "length": 128,
                    "batch": b, "causal": False}, FEW, parameters=transformer,
        flops=forward_flops, tolerance=5e-3)


# --- ResNet-18

def blocks(s):
    """Name, channels before and behind, stride of the blocks."""
    before = s.channels
    for stage in range(4):
        channels = s.channels << stage
        for i in range(2):
            yield f"{stage}{i}", before, channels, 2 if stage and not i else 1
            before = channels


def residual(s):
    shapes = {}

    def conv(name, before, behind, kernel):
        scale = math.sqrt(2 / (before * kernel**2))
        shapes[name] = ((behind, before, kernel, kernel), scale)
        for part, value in (("mean", 0.0), ("var", None), ("scale", None), ("shift", 0.0)):
            shapes[f"{name}.{part}"] = ((behind,), value)

    conv("stem", 3, s.channels, 7)
    for name, before, behind, stride in blocks(s):
        conv(f"a{name}", before, behind, 3)
        conv(f"b{name}", behind, behind, 3)
        if stride == 2:
            conv(f"c{name}", before, behind, 1)
    shapes["head"], shapes["bias"] = ((s.channels << 3, s.classes), 0.04), ((s.classes,), 0.0)
    return drawn(shapes)


def classified(F, s, p, x):
    def conv(x, name, stride, padding):
        x = F.conv(x, p[name], None, stride, padding, 1)
        parts = ("mean", "var", "scale", "shift")
        mean, var, scale, shift = (p[f"{name}.{part}"] for part in parts)
        return F.batch_norm(x, scale, shift, mean, var)

    x = F.max_pool(F.relu(conv(x, "stem", 2, 3)), 3, 2, 1)
    for name, _, _, stride in blocks(s):
        y = F.relu(conv(x, f"a{name}", stride, 1))
        y = conv(y, f"b{name}", 1, 1)
        x = F.relu(y + (conv(x, f"c{name}", 2, 0) if stride == 2 else x))
    return F.mean(x, (2, 3)) @ p["head"] + p["bias"]


def residual_flops(s):
    """Of the products in its convolutions and its head."""
    side = s.side // 2
    total = side**2 * s.channels * 3 * 49
    side //= 2
    for _, before, behind, stride in blocks(s):
        side //= stride
        total += side**2 * behind * (9 * before + 9 * behind + (before if stride == 2 else 0))
    return 2 * s.batch * (total + (s.channels << 3) * s.classes)


row("E6", "ResNet-18, inference, 224², 1 sample", classified,
    lambda s: (normal(s.batch, 3, s.side, s.side),),
    {"channels": 64, "classes": 1000, "side": 224, "batch": 1},
    {"channels": 2, "classes": 5, "side": 32}, parameters=residual, flops=residual_flops,
    tolerance=2e-2)


# --- MobileNet

def inverted(s):
    """Name, channels before, wide and behind, stride of the blocks of MobileNetV2."""
    before, blocks = s.channels, []
    for factor, behind, count, stride in ((1, 1, 1, 1), (6, 1.5, 2, 2), (6, 2, 3, 2), (6, 4, 4, 2),
                                          (6, 6, 3, 1), (6, 10, 3, 2), (6, 20, 1, 1)):
        behind = int(16 * behind) * s.channels // 32
        for i in range(count):
            name = f"{len(blocks)}"
            blocks.append((name, before, before * factor, behind, 1 if i else stride))
            before = behind
    return blocks


def narrow(s):
    shapes = {}

    def conv(name, before, behind, kernel):
        scale = math.sqrt(2 / (before * kernel**2))
        shapes[name] = ((behind, before, kernel, kernel), scale)
        for part, value in (("mean", 0.0), ("var", None), ("scale", None), ("shift", 0.0)):
            shapes[f"{name}.{part}"] = ((behind,), value)

    conv("stem", 3, s.channels, 3)
    for name, before, wide, behind, _ in inverted(s):
        if wide != before:
            conv(f"a{name}", before, wide, 1)
        conv(f"b{name}", 1, wide, 3)
        conv(f"c{name}", wide, behind, 1)
    conv("last", behind, s.last, 1)
    shapes["head"], shapes["bias"] = ((s.last, s.classes), 0.04), ((s.classes,), 0.0)
    return drawn(shapes)


def narrow_classified(F, s, p, x):
    def conv(x, name, stride, padding, groups):
        x = F.conv(x, p[name], None, stride, padding, groups)
        parts = ("mean", "var", "scale", "shift")
        mean, var, scale, shift = (p[f"{name}.{part}"] for part in parts)
        return F.batch_norm(x, scale, shift, mean, var)

    x = F.relu6(conv(x, "stem", 2, 1, 1))
    for name, before, wide, behind, stride in inverted(s):
        y = F.relu6(conv(x, f"a{name}", 1, 0, 1)) if wide != before else x
        y = F.relu6(conv(y, f"b{name}", stride, 1, wide))
        y = conv(y, f"c{name}", 1, 0, 1)
        x = x + y if stride == 1 and before == behind else y
    x = F.relu6(conv(x, "last", 1, 0, 1))
    return F.mean(x, (2, 3)) @ p["head"] + p["bias"]


def narrow_flops(s):
    """Of the products in its convolutions and its head."""
    side = s.side // 2
    total = side**2 * s.channels * 27
    for _, before, wide, behind, stride in inverted(s):
        total += side**2 * before * wide * (wide != before)
        side = -(-side // stride)
        total += side**2 * wide * (9 + behind)
    return 2 * s.batch * (total + side**2 * behind * s.last + s.last * s.classes)


for b in (1, 8):
    row(f"E8_{b}", f"MobileNetV2, inference, 224², {b} sample{'s' * (b > 1)}", narrow_classified,
        lambda s: (normal(s.batch, 3, s.side, s.side),),
        {"channels": 32, "classes": 1000, "last": 1280, "side": 224, "batch": b},
        {"channels": 4, "classes": 5, "last": 8, "side": 32}, parameters=narrow,
        flops=narrow_flops, tolerance=2e-2)
