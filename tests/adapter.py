"""A WebGPU adapter in a process of its own, which runs shaders through wgpu-py.

A process of its own, because other tests fork, and a driver's threads do not survive that. Without
the package wgpu, or without an adapter, `start` gives the reason.
"""

import functools
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path


def start():
    """An `Adapter`, or the reason why there is none."""
    adapter = Adapter()
    return adapter if adapter.name else adapter.close()


class Adapter:
    """The process, and the name of what it runs on."""

    def __init__(self):
        # Mesa says on every start that this is missing.
        env = {"XDG_RUNTIME_DIR": "/tmp", "NODEVICE_SELECT": "1", **os.environ}
        self.process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, env=env)
        self.name, self.problem = receive(self.process.stdout)

    def run(self, text, words, groups, memory, sizes):
        """The bytes of the results, of these sizes, from the bytes of the operands."""
        return self.ask("run", text, words, groups, memory, sizes)

    def play(self, dispatches, memory, sizes, wanted):
        """The bytes of the wanted memory after dispatches in order. Dispatches are
        `(text, words, groups, names of the memory that is bound)`; memory has the bytes of
        `memory`, else a size in `sizes`, and holds nonsense then.
        """
        return self.ask("play", dispatches, memory, sizes, wanted)

    def perform(self, path, calls):
        """What a player of the program of a file gives for calls in order: arrays, or the name and
        the text of an error. A call is a way, inputs and sizes; see `performed`.
        """
        return self.ask("perform", path, calls)

    def execute(self, code):
        """Runs Python code; gives what it prints."""
        return self.ask("execute", code)

    def ask(self, kind, *job):
        send(self.process.stdin, (kind, job))
        results, problem = receive(self.process.stdout)
        assert problem is None, f"{problem}\n{job}"
        return results

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(30)
        return self.problem


def send(pipe, value):
    data = pickle.dumps(value)
    pipe.write(struct.pack("q", len(data)) + data)
    pipe.flush()


def receive(pipe):
    head = pipe.read(8)
    if len(head) < 8:
        return None, "the process of the adapter ended"
    return pickle.loads(pipe.read(*struct.unpack("q", head)))


def serve(requests, answers):
    try:
        import wgpu

        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        device = adapter.request_device_sync()
    except Exception as error:
        return send(answers, (None, f"no WebGPU adapter: {type(error).__name__}: {error}"))
    send(answers, (f"{adapter.info['device']}, {adapter.info['description']}", None))
    jobs = {"run": dispatched, "play": played, "perform": performed, "execute": executed}
    while len(head := requests.read(8)) == 8:
        kind, job = pickle.loads(requests.read(*struct.unpack("q", head)))
        try:
            send(answers, (jobs[kind](wgpu, device, *job), None))
        except Exception as error:
            send(answers, (None, f"{type(error).__name__}: {error}"))


@functools.cache
def compiled(device, text):
    module = device.create_shader_module(code=text)
    return device.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"})


def pad(data, filling):
    return data + filling * max(32 - len(data), -len(data) % 32)


def played(wgpu, device, dispatches, memory, sizes, wanted):
    usage = wgpu.BufferUsage
    # What is read before it is written shows in the results.
    given = {name: pad(b"\xa5" * size, b"\xa5") for name, size in sizes.items()}
    given |= {name: pad(data, b"\x5a") for name, data in memory.items()}
    buffers = {name: device.create_buffer_with_data(data=data, usage=usage.STORAGE | usage.COPY_SRC)
               for name, data in given.items()}
    encoder = device.create_command_encoder()
    run = encoder.begin_compute_pass()
    for text, words, groups, names in dispatches:
        uniform = device.create_buffer_with_data(data=struct.pack(f"{len(words)}I", *words),
                                                 usage=usage.UNIFORM)
        pipeline = compiled(device, text)
        bound = [{"binding": i, "resource": {"buffer": buffer}}
                 for i, buffer in enumerate([*(buffers[name] for name in names), uniform])]
        run.set_pipeline(pipeline)
        run.set_bind_group(0, device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0), entries=bound))
        run.dispatch_workgroups(*groups)
    run.end()
    device.queue.submit([encoder.finish()])
    length = {**sizes, **{name: len(data) for name, data in memory.items()}}
    return [bytes(device.queue.read_buffer(buffers[name])[:length[name]]) for name in wanted]


def dispatched(wgpu, device, text, words, groups, memory, sizes):
    usage = wgpu.BufferUsage
    padded = [pad(data, b"\0") for data in memory]
    operands = [device.create_buffer_with_data(data=data, usage=usage.STORAGE) for data in padded]
    results = [device.create_buffer(size=max(32, size + -size % 32),
                                    usage=usage.STORAGE | usage.COPY_SRC) for size in sizes]
    uniform = device.create_buffer_with_data(data=struct.pack(f"{len(words)}I", *words),
                                             usage=usage.UNIFORM)
    pipeline = compiled(device, text)
    bound = [{"binding": i, "resource": {"buffer": buffer}}
             for i, buffer in enumerate([*operands, *results, uniform])]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=bound)
    encoder = device.create_command_encoder()
    run = encoder.begin_compute_pass()
    run.set_pipeline(pipeline)
    run.set_bind_group(0, group)
    run.dispatch_workgroups(*groups)
    run.end()
    device.queue.submit([encoder.finish()])
    return [bytes(device.queue.read_buffer(buffer)[:size])
            for buffer, size in zip(results, sizes, strict=True)]


def performed(wgpu, device, path, calls):
    from wengert import webgpu

    player = webgpu.Player(webgpu.load(path), device)
    return [performance(wgpu, device, player, *call) for call in calls]


def performance(wgpu, device, player, way, inputs, sizes):
    """One call: of arrays; of buffers that are exactly as long, or longer, or one buffer for all
    inputs; of the outputs before; recorded into an encoder."""
    usage = wgpu.BufferUsage

    def buffer(x, more=0):
        data = x.tobytes() + b"\x5a" * more
        made = device.create_buffer(size=len(data), usage=usage.STORAGE | usage.COPY_DST)
        device.queue.write_buffer(made, 0, data)
        return made

    try:
        if way == "arrays":
            return player(*inputs, sizes=sizes)
        if way == "outputs":
            return player(*player.outputs, sizes=sizes)
        if way == "state":
            return tuple(x.numpy() for x in player.state())
        if way == "one":
            return player(*[buffer(inputs[0])] * len(inputs), sizes=sizes)
        buffers = [buffer(x, 64 if way == "longer" else 0) for x in inputs]
        if way != "encode":
            return player(*buffers, sizes=sizes)
        encoder = device.create_command_encoder()
        player.encode(encoder, *buffers, sizes=sizes)
        device.queue.submit([encoder.finish()])
        player.check()
        return tuple(bytes(device.queue.read_buffer(x)) for x in player.outputs)
    except Exception as error:
        return type(error).__name__, str(error)


def executed(wgpu, device, code):
    import contextlib
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {"__name__": "__main__"})
    return printed.getvalue()


if __name__ == "__main__":
    # What a driver prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.path.remove(str(Path(__file__).parent))
    serve(sys.stdin.buffer, answers)
