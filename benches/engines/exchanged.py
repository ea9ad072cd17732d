"""Engines that run graphs: rows are written by PyTorch's exporter as ONNX. Forward rows only."""

import tempfile
import warnings
from pathlib import Path

import numpy as np
from case import Missing

from .base import Engine
from .of_torch import Torch


class Exchanged(Engine):
    """An engine of ONNX graphs."""

    def prepare(self, case, s):
        import torch

        if case.kind != "forward" or case.dtype != "float32" or case.group == "A":
            raise Missing("forward graphs of float32 only")
        engine = Torch(1)
        arrays = [engine.array(x) for x in case.inputs(s)]
        weights = {}
        if case.parameters is not None:
            weights = {k: engine.array(x) for k, x in case.parameters(s).items()}

        class Row(torch.nn.Module):
            def forward(self, *inputs):
                given = (weights,) if weights else ()
                return case.function(engine, s, *given, *inputs)

        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = Path(folder) / "row.onnx"
            torch.onnx.export(Row(), tuple(arrays), str(path), dynamo=True, verbose=False)
            return self.loaded(str(path), [np.ascontiguousarray(x.numpy()) for x in arrays])


class Onnxruntime(Exchanged):
    """ONNX Runtime."""

    def __init__(self, threads):
        import onnxruntime

        onnxruntime.set_default_logger_severity(3)
        self.package, self.options = onnxruntime, onnxruntime.SessionOptions()
        self.options.intra_op_num_threads, self.options.inter_op_num_threads = threads, 1

    def loaded(self, path, arrays):
        session = self.package.InferenceSession(path, self.options, ["CPUExecutionProvider"])
        feed = {x.name: a for x, a in zip(session.get_inputs(), arrays, strict=True)}
        return lambda: session.run(None, feed)


class Openvino(Exchanged):
    """OpenVINO, in float32."""

    def __init__(self, threads):
        import openvino

        self.package, self.threads = openvino, threads

    def loaded(self, path, arrays):
        wishes = {"INFERENCE_NUM_THREADS": self.threads, "PERFORMANCE_HINT": "LATENCY",
                  "INFERENCE_PRECISION_HINT": "f32"}
        model = self.package.Core().compile_model(path, "CPU", wishes)
        request = model.create_infer_request()
        for i, x in enumerate(arrays):
            request.set_input_tensor(i, self.package.Tensor(x, shared_memory=True))
        count = len(model.outputs)

        def call():
            request.infer()
            return [request.get_output_tensor(i).data for i in range(count)]
        # Its tensors lie in their memory, and do not hold it.
        call.arrays = arrays
        return call
