"""wengert: a tensor engine with automatic differentiation.

Functions carry the Array API standard's names, the verbs of differentiation PyTorch's:

>>> import wengert as wg
>>> x = wg.tensor([1.0, 2.0, 3.0], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad.tolist()
[2.0, 4.0, 6.0]

`wengert.nn`, `optim`, `data`, `random`, `io`, `autodiff`, `pytree` and `testing` are imported when
they are first used.
"""

from math import e, inf, nan, pi

from wengert import _core, _tensor
from wengert._core import *
from wengert._core import __version__

newaxis = None
__array_api_version__ = "2024.12"

_core._set_package(__file__.removesuffix("__init__.py"))

# Names that are found in a submodule, which is imported when one of them is first used.
_LAZY = {
    "__array_namespace_info__": "_info",
    "autocast": "_precision",
    "Function": "autodiff",
    "CompiledFunction": "capture",
    "CustomOp": "host",
    "Graph": "graph",
    "Session": "session",
    "Variable": "graph",
    "bincount": "counting",
    "check": "control",
    "checkpoint": "autodiff",
    "Spec": "capture",
    "compile": "capture",
    "cond": "control",
    "config": "capture",
    "custom_op": "host",
    "fori_loop": "control",
    "grad": "autodiff",
    "hessian": "transforms",
    "histogram": "counting",
    "host_call": "host",
    "jacobian": "transforms",
    "get_printoptions": "_text",
    "jvp": "transforms",
    "map": "control",
    "print": "control",
    "scan": "control",
    "switch": "control",
    "vmap": "transforms",
    "while_loop": "control",
    "value_and_grad": "autodiff",
    "vjp": "autodiff",
    "Profile": "profiling",
    "check_finite": "profiling",
    "draw": "drawing",
    "named_scope": "drawing",
    "profile": "profiling",
    "default_device": "_devices",
    "default_graph": "graph",
    "load": "io",
    "parse_graph": "graph",
    "placeholder": "graph",
    "save": "io",
    "set_printoptions": "_text",
    "show_config": "_configuration",
}
_SUBMODULES = (
    "autodiff", "capture", "compat", "control", "data", "distributions", "drawing", "fft", "graph",
    "host", "io", "linalg", "nn", "optim", "profiling", "pytree", "random", "session", "special",
    "testing", "transforms", "webgpu",
)  # fmt: skip

# The same for type checkers, which the stub test compares with what is found; `as` exports a name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    # isort: off
    from wengert import (
        autodiff as autodiff,
        capture as capture,
        compat as compat,
        control as control,
        data as data,
        distributions as distributions,
        drawing as drawing,
        fft as fft,
        graph as graph,
        host as host,
        io as io,
        linalg as linalg,
        nn as nn,
        optim as optim,
        profiling as profiling,
        pytree as pytree,
        random as random,
        session as session,
        special as special,
        testing as testing,
        transforms as transforms,
        webgpu as webgpu,
    )
    from wengert._configuration import show_config as show_config
    from wengert._devices import default_device as default_device
    from wengert._info import __array_namespace_info__ as __array_namespace_info__
    from wengert._precision import autocast as autocast
    from wengert._text import (
        get_printoptions as get_printoptions,
        set_printoptions as set_printoptions,
    )
    from wengert.autodiff import (
        Function as Function,
        checkpoint as checkpoint,
        grad as grad,
        value_and_grad as value_and_grad,
        vjp as vjp,
    )
    from wengert.capture import (
        CompiledFunction as CompiledFunction,
        Spec as Spec,
        compile as compile,
        config as config,
    )
    from wengert.control import (
        check as check,
        cond as cond,
        fori_loop as fori_loop,
        map as map,
        print as print,
        scan as scan,
        switch as switch,
        while_loop as while_loop,
    )
    from wengert.counting import bincount as bincount, histogram as histogram
    from wengert.drawing import draw as draw, named_scope as named_scope
    from wengert.graph import (
        Graph as Graph,
        Variable as Variable,
        default_graph as default_graph,
        parse_graph as parse_graph,
        placeholder as placeholder,
    )
    from wengert.host import CustomOp as CustomOp, custom_op as custom_op, host_call as host_call
    from wengert.io import load as load, save as save
    from wengert.profiling import (
        Profile as Profile,
        check_finite as check_finite,
        profile as profile,
    )
    from wengert.session import Session as Session
    from wengert.transforms import (
        hessian as hessian,
        jacobian as jacobian,
        jvp as jvp,
        vmap as vmap,
    )
    # isort: on

# What the package itself needs of the core.
_INTERNAL = (
    "Body", "Definition", "Dispatcher", "Executable", "GradMode", "Number", "Runner", "Settings",
    "Trace", "alias", "host_node", "is_tracing", "outside_trace", "safetensors_load",
    "safetensors_save", "tape_leaves", "tick",
)  # fmt: skip
for _name in _INTERNAL:
    del globals()[_name]

__all__ = [
    *(name for name in _core.__all__ if name[0] != "_" and name not in _INTERNAL),
    *_LAZY,
    *_SUBMODULES,
    "__array_api_version__",
    "__version__",
    "e",
    "inf",
    "nan",
    "newaxis",
    "pi",
]


if not TYPE_CHECKING:  # to which it would say that there is every name

    def __getattr__(name):
        home = _LAZY.get(name) or (name if name in _SUBMODULES else None)
        if home is None:
            from wengert._words import unknown

            raise AttributeError(unknown("", name))
        from importlib import import_module

        found = import_module(f"wengert.{home}")
        if home != name:
            found = getattr(found, name)
        globals()[name] = found
        return found


def __dir__():
    return __all__
