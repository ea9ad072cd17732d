"""TensorFlow 1's names, for programs written with them: `import wengert.compat.v1 as tf`.

Each name is a function of wengert under TensorFlow's name and argument names; `OPS` is the table.
One graph is always open, results are NumPy's, and a variable has a value once its initializer ran.
What is not here is not provided: the rest of a program is better written with wengert's own names.

>>> import wengert.compat.v1 as tf
>>> x = tf.placeholder(tf.float32)
>>> with tf.Session() as session:
...     print(session.run(tf.reduce_sum(x * x), feed_dict={x: [1.0, 2.0, 3.0]}))
14.0
"""

import wengert as wg
from wengert.compat.v1._formulas import layers, nn, top
from wengert.compat.v1._state import (
    InteractiveSession,
    Session,
    Variable,
    assign,
    assign_add,
    assign_sub,
    constant,
    disable_v2_behavior,
    global_variables,
    global_variables_initializer,
    gradients,
    group,
    initialize_all_variables,
    placeholder,
    set_random_seed,
    trainable_variables,
)
from wengert.compat.v1._table import OPS, name_scope, of_table
from wengert.compat.v1._train import train
from wengert.graph import reset_default_graph

__all__ = [
    "InteractiveSession",
    "Session",
    "Variable",
    "assign",
    "assign_add",
    "assign_sub",
    "constant",
    "disable_v2_behavior",
    "global_variables",
    "global_variables_initializer",
    "gradients",
    "group",
    "initialize_all_variables",
    "layers",
    "name_scope",
    "nn",
    "placeholder",
    "reset_default_graph",
    "set_random_seed",
    "train",
    "trainable_variables",
]

for _name in OPS:
    if _name.startswith("nn."):
        setattr(nn, _name[3:], of_table(_name))
    else:
        top[_name] = of_table(_name)
globals().update(top)
__all__ += top

float16, float32, float64 = wg.float16, wg.float32, wg.float64
int8, int16, int32, int64 = wg.int8, wg.int16, wg.int32, wg.int64
uint8, bool = wg.uint8, wg.bool
__all__ += ["bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"]
