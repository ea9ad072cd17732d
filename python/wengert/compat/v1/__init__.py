"""TensorFlow 1's names, for programs written with them: `import wengert.compat.v1 as tf`.

Each name is a function of wengert under TensorFlow's name and argument names; `OPS` is the table.
One graph is always open, results are NumPy's, and a variable has a value once its initializer ran.
A name that is not here gives an error that says what to write. docs/tensorflow1.md lists what is
here, and where a program that runs gives other numbers than TensorFlow's.

>>> import wengert.compat.v1 as tf
>>> x = tf.placeholder(tf.float32)
>>> with tf.Session() as session:
...     print(session.run(tf.reduce_sum(x * x), feed_dict={x: [1.0, 2.0, 3.0]}))
14.0
"""

from importlib import import_module

import wengert as wg
from wengert.compat.v1 import (
    _control,
    _formulas,
    _indexed,
    _layers,
    _losses,
    _nn,
    _random,
    _rnn,
    _sampled,
    _saver,
    _summary,
    _train,
)
from wengert.compat.v1._graph import (
    Graph,
    GraphKeys,
    add_to_collection,
    add_to_collections,
    get_collection,
    name_scope,
    reset_default_graph,
)
from wengert.compat.v1._graph import default_graph as get_default_graph
from wengert.compat.v1._indexed import scatter_add, scatter_sub, scatter_update
from wengert.compat.v1._missing import remedy
from wengert.compat.v1._order import control_dependencies
from wengert.compat.v1._program import app, errors, flags, gfile, logging, namespaces, test
from wengert.compat.v1._scopes import (
    AUTO_REUSE,
    VariableScope,
    constant_initializer,
    get_variable,
    get_variable_scope,
    glorot_normal_initializer,
    glorot_uniform_initializer,
    ones_initializer,
    random_normal_initializer,
    random_uniform_initializer,
    truncated_normal_initializer,
    variable_scope,
    variance_scaling_initializer,
    zeros_initializer,
)
from wengert.compat.v1._session import (
    ConfigProto,
    Dimension,
    GPUOptions,
    GraphOptions,
    InteractiveSession,
    Session,
    TensorShape,
    device,
    get_default_session,
)
from wengert.compat.v1._spaces import layers, losses, metrics, nn, summary, top, train
from wengert.compat.v1._state import (
    Operation,
    Variable,
    assign,
    assign_add,
    assign_sub,
    constant,
    convert_to_tensor,
    disable_eager_execution,
    disable_v2_behavior,
    global_variables,
    global_variables_initializer,
    gradients,
    group,
    identity,
    initialize_all_variables,
    local_variables,
    local_variables_initializer,
    no_op,
    placeholder,
    placeholder_with_default,
    rank,
    set_random_seed,
    shape,
    size,
    trainable_variables,
    variables_initializer,
)
from wengert.compat.v1._state import tuple_of as tuple
from wengert.compat.v1._table import OPS, of_table

# The modules that put their functions into the namespaces.
_PARTS = (
    _control,
    _formulas,
    _indexed,
    _layers,
    _losses,
    _nn,
    _random,
    _rnn,
    _sampled,
    _saver,
    _summary,
    _train,
)

for _name in OPS:
    if _name.startswith("nn."):
        setattr(nn, _name[3:], of_table(_name))
    else:
        top[_name] = of_table(_name)
globals().update(top)

_others = namespaces()
math, random, linalg = _others["math"], _others["random"], _others["linalg"]
initializers, manip = _others["initializers"], _others["manip"]
random.set_random_seed = set_random_seed
Tensor = wg.Tensor
float16, float32, float64, bfloat16 = wg.float16, wg.float32, wg.float64, wg.bfloat16
half, double = wg.float16, wg.float64
int8, int16, int32, int64 = wg.int8, wg.int16, wg.int32, wg.int64
uint8, uint16, uint32, uint64 = wg.uint8, wg.uint16, wg.uint32, wg.uint64
bool = wg.bool
newaxis = None
__version__ = "1.15.0"

__all__ = [
    "AUTO_REUSE",
    "ConfigProto",
    "Dimension",
    "GPUOptions",
    "Graph",
    "GraphKeys",
    "GraphOptions",
    "InteractiveSession",
    "Operation",
    "Session",
    "Tensor",
    "TensorShape",
    "Variable",
    "VariableScope",
    "add_to_collection",
    "add_to_collections",
    "assign",
    "assign_add",
    "assign_sub",
    "bfloat16",
    "bool",
    "constant",
    "constant_initializer",
    "control_dependencies",
    "convert_to_tensor",
    "device",
    "disable_eager_execution",
    "disable_v2_behavior",
    "double",
    "float16",
    "float32",
    "float64",
    "get_collection",
    "get_default_graph",
    "get_default_session",
    "get_variable",
    "get_variable_scope",
    "global_variables",
    "global_variables_initializer",
    "glorot_normal_initializer",
    "glorot_uniform_initializer",
    "gradients",
    "group",
    "half",
    "identity",
    "initialize_all_variables",
    "int8",
    "int16",
    "int32",
    "int64",
    "layers",
    "local_variables",
    "local_variables_initializer",
    "losses",
    "metrics",
    "name_scope",
    "newaxis",
    "nn",
    "no_op",
    "ones_initializer",
    "placeholder",
    "placeholder_with_default",
    "random_normal_initializer",
    "random_uniform_initializer",
    "rank",
    "reset_default_graph",
    "set_random_seed",
    "shape",
    "size", "summary", "train",
    "trainable_variables",
    "truncated_normal_initializer",
    "tuple",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "variable_scope",
    "variables_initializer",
    "variance_scaling_initializer",
    "zeros_initializer",
]  # fmt: skip
__all__ += [
    "app",
    "errors",
    "flags",
    "gfile",
    "initializers",
    "linalg",
    "logging",
    "manip",
    "math",
    "random",
]
__all__ += ["scatter_add", "scatter_sub", "scatter_update", "test"]
__all__ += sorted(top)


def __getattr__(name: str) -> object:
    if name == "contrib":
        return import_module("wengert.compat.v1.contrib")
    raise AttributeError(remedy(name))
