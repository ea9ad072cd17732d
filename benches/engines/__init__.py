"""One adapter for each engine: how it spells what rows are made of, and how it is made to compute.

An adapter is imported only in the process that measures its engine.
"""

import importlib
import importlib.util

#: Name of an engine: (module here, class, package that must be installed)
ENGINES = {
    "wengert": ("ours", "Wengert", "wengert"),
    "wengert compiled": ("ours", "Compiled", "wengert"),
    "numpy": ("of_numpy", "Numpy", "numpy"),
    "numexpr": ("of_numpy", "Numexpr", "numexpr"),
    "torch": ("of_torch", "Torch", "torch"),
    "torch.compile": ("of_torch", "Compiled", "torch"),
    "jax": ("of_jax", "Jax", "jax"),
    "mlx": ("of_mlx", "Mlx", "mlx"),
    "onnxruntime": ("exchanged", "Onnxruntime", "onnxruntime"),
    "openvino": ("exchanged", "Openvino", "openvino"),
}
OURS = ("wengert", "wengert compiled")
EXCHANGE = ("torch", "onnx", "onnxscript")
#: Packages besides the engine's own: graphs are exchanged through torch.
BESIDES = {"onnxruntime": EXCHANGE, "openvino": EXCHANGE}


def installed(name):
    """Whether all that an engine needs can be imported."""
    packages = (ENGINES[name][2], *BESIDES.get(name, ()))
    return all(importlib.util.find_spec(package) is not None for package in packages)


def engine(name, threads):
    """The adapter of an engine that computes with so many threads."""
    module, kind, _ = ENGINES[name]
    return getattr(importlib.import_module(f"engines.{module}"), kind)(threads)
