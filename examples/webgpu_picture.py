"""A picture drawn by an exported program, on a WebGPU device that belongs to somebody else.

    python examples/webgpu_picture.py [picture.png]

`wengert.webgpu.export` makes a program of an ordinary function: WGSL, buffers, a list of
dispatches. Here a host that knows nothing of tensors plays it through wgpu-py and draws its result,
without a copy: the render pass below reads the very buffer that the program wrote. Needs wgpu.
"""

import struct
import sys
import zlib
from typing import Any

import numpy as np
import wgpu

import wengert as wg
from wengert import webgpu

Pixels = np.ndarray[Any, Any]

HEIGHT, WIDTH, ROUNDS = 300, 480, 120

DRAW = f"""
@group(0) @binding(0) var<storage, read> field: array<f32>;

@vertex
fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {{
    return vec4(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);
}}

@fragment
fn colour(@builtin(position) at: vec4<f32>) -> @location(0) vec4<f32> {{
    let t = field[u32(at.y) * {WIDTH}u + u32(at.x)];
    let wave = 0.5 - 0.5 * cos(6.28318 * (t * 1.7 + vec3(0.02, 0.12, 0.25)));
    return vec4(select(wave, vec3(0.02, 0.02, 0.06), t >= 1.0), 1.0);
}}
"""


def mandelbrot(centre: wg.Tensor, size: wg.Tensor) -> wg.Tensor:
    """How long points of the plane take to leave the circle of radius 4, from 0 to 1 (never)."""
    x = centre[0] + size * (wg.arange(WIDTH, dtype=wg.float32) / WIDTH - 0.5)
    y = centre[1] + size * (wg.arange(HEIGHT, dtype=wg.float32)[:, None] - HEIGHT / 2) / WIDTH
    a, b = wg.zeros((HEIGHT, WIDTH)), wg.zeros((HEIGHT, WIDTH))
    left = wg.zeros((HEIGHT, WIDTH))
    for _ in range(ROUNDS):
        a, b = wg.clip(a * a - b * b + x, -1e4, 1e4), wg.clip(2.0 * a * b + y, -1e4, 1e4)
        left = left + (a * a + b * b < 16.0).astype(wg.float32)
    return left / ROUNDS


def draw(device: Any, field: Any) -> Pixels:
    """The pixels of a picture of a buffer of numbers, drawn by the caller's own render pass."""
    size = (WIDTH, HEIGHT, 1)
    usage = wgpu.TextureUsage.RENDER_ATTACHMENT | wgpu.TextureUsage.COPY_SRC
    texture = device.create_texture(size=size, format="rgba8unorm", usage=usage)
    module = device.create_shader_module(code=DRAW)
    pipeline = device.create_render_pipeline(
        layout="auto",
        vertex={"module": module, "entry_point": "corner"},
        fragment={"module": module, "entry_point": "colour",
                  "targets": [{"format": "rgba8unorm"}]},
        primitive={"topology": "triangle-list"},
    )
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0),
        entries=[{"binding": 0, "resource": {"buffer": field}}])
    encoder = device.create_command_encoder()
    view = {"view": texture.create_view(), "load_op": "clear", "store_op": "store",
            "clear_value": (0, 0, 0, 1)}
    step = encoder.begin_render_pass(color_attachments=[view])
    step.set_pipeline(pipeline)
    step.set_bind_group(0, group)
    step.draw(3)
    step.end()
    device.queue.submit([encoder.finish()])
    data = device.queue.read_texture(
        {"texture": texture}, {"bytes_per_row": WIDTH * 4, "rows_per_image": HEIGHT}, size)
    return np.frombuffer(data, np.uint8).reshape(HEIGHT, WIDTH, 4)


def png(pixels: Pixels) -> bytes:
    """A PNG file of pixels (height, width, 3)."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(
            ">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
            + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


def main() -> None:
    program = webgpu.export(mandelbrot, wg.Spec((2,)), wg.Spec(()))
    print(program)
    device = wgpu.gpu.request_adapter_sync().request_device_sync()
    player = webgpu.Player(program, device)
    player(np.array([-0.748, 0.1], "f"), np.array(0.06, "f"))
    pixels = draw(device, player.outputs[0])
    path = sys.argv[1] if len(sys.argv) > 1 else "picture.png"
    with open(path, "wb") as file:
        file.write(png(pixels[:, :, :3]))
    print(f"{path}: {len(np.unique(pixels.reshape(-1, 4), axis=0))} colours")


if __name__ == "__main__":
    main()
