"""Event files: read back by hand, and by the package of TensorBoard."""

import itertools
import struct
import zlib

import numpy as np
import pytest

import wengert as wg
from wengert.io import _events
from wengert.io.tensorboard import Writer, graph_def

# CRC-32C of the bytes "123456789", the check value of its standard.
CHECK = 0xE3069283


def test_the_checksum_is_that_of_the_standard():
    crc = CHECK
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert _events.masked_crc(b"123456789") == masked


def test_long_records_have_the_same_checksum():
    rng = np.random.default_rng(0)
    for n in (4095, 4096, 4097, 5000, 9999, 1 << 16):
        raw, crc = rng.bytes(n), 0xFFFFFFFF
        for byte in raw:  # by the definition, bit by bit
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        crc ^= 0xFFFFFFFF
        assert _events.masked_crc(raw) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def messages(path):
    event = pytest.importorskip("tensorboard.compat.proto.event_pb2").Event
    raw, at = path.read_bytes(), 0
    while at < len(raw):
        (size,) = struct.unpack_from("<Q", raw, at)
        yield event.FromString(raw[at + 12 : at + 12 + size])
        at += size + 16


def test_what_is_written_is_read_by_tensorboards_messages(tmp_path):
    x = np.array([-2.0, -2.0, 0.0, 1e-3, 5.0])
    with Writer(tmp_path) as writer:
        writer.add_scalar("s", wg.tensor(1.5), 3)
        writer.add_histogram("h", x, 4)
        writer.add_image("i", np.full((3, 2, 5), 0.5, "f"))
        writer.add_scalar("large", 1e300)
        writer.add_text("t", "a **naïve** text", 6)
    version, scalar, histogram, image, large, note = messages(next(tmp_path.iterdir()))
    assert version.file_version == "brain.Event:2" and abs(version.wall_time - scalar.wall_time) < 9
    assert (scalar.step, scalar.summary.value[0].simple_value) == (3, 1.5)
    assert large.summary.value[0].simple_value == np.inf
    h = histogram.summary.value[0].histo
    assert (h.min, h.max, h.num, h.sum) == (-2.0, 5.0, 5, x.sum())
    assert h.sum_squares == pytest.approx((x * x).sum())
    # Each bucket ends at its limit and begins at the one before it.
    edges = [-np.inf, *h.bucket_limit]
    wanted = [((x >= a) & (x < b)).sum() for a, b in itertools.pairwise(edges)]
    assert list(h.bucket) == wanted
    value = note.summary.value[0]
    assert (note.step, value.metadata.plugin_data.plugin_name) == (6, "text")
    assert value.tensor.string_val == ["a **naïve** text".encode()] and value.tensor.dtype == 7
    assert [d.size for d in value.tensor.tensor_shape.dim] == [1]
    i = image.summary.value[0].image
    assert (i.height, i.width, i.colorspace) == (2, 5, 3)


def test_images_are_png_files():
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    raw = _events._png(pixels)
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(raw):
        (size,) = struct.unpack_from(">I", raw, at)
        kind, data = raw[at + 4 : at + 8], raw[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", raw, at + 8 + size)[0] == zlib.crc32(kind + data)
        parts[kind] = data
        at += size + 12
    assert struct.unpack(">IIBBBBB", parts[b"IHDR"]) == (3, 2, 8, 6, 0, 0, 0)
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(2, -1)
    assert (rows[:, 0] == 0).all() and (rows[:, 1:] == pixels.reshape(2, -1)).all()


def test_pixels_fill_the_range():
    assert _events.grid(np.array([0.0, 0.5, 1.0]), False).tolist() == [0, 128, 255]
    assert _events.grid(np.array([0.0, 2.0, 4.0]), True).tolist() == [0, 127, 255]
    assert _events.grid(np.array([-2.0, 0.0, 1.0]), True).tolist() == [1, 128, 191]
    assert _events.grid(np.zeros(2), True).tolist() == [0, 0]
    assert _events.grid(np.array([7, 9], np.uint8), True).tolist() == [7, 9]


def test_a_graph_is_the_message_that_the_package_makes(tmp_path):
    types = pytest.importorskip("tensorboard.compat.proto.graph_pb2")
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 3))
        wg.Variable(wg.zeros((3, 1)), name="w")
        (x @ wg.ones((3, 2))).sum(axis=0).astype(wg.int32)
        wg.placeholder("open", None, wg.bool)
    assert types.GraphDef.FromString(_events.graph_bytes(g)) == graph_def(g)
    with Writer(tmp_path) as writer:
        writer.add_graph(g)
    assert list(messages(next(tmp_path.iterdir())))[1].graph_def == _events.graph_bytes(g)


def test_what_cannot_be_written_is_refused(tmp_path):
    with Writer(tmp_path) as writer:
        with pytest.raises(ValueError, match="h has values that are not finite"):
            writer.add_histogram("h", [1.0, np.nan])
        with pytest.raises(ValueError, match="2 channels"):
            writer.add_image("i", np.zeros((2, 4, 4)))
        with pytest.raises(ValueError, match="channels, height, width"):
            writer.add_image("i", np.zeros((1, 2, 4, 4)))
