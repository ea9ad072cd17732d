"""Random cases. What can be called is found in the op table and the package, not listed here."""

import ast
import inspect
import keyword

from test_ops_values import samples

import wengert as wg

import odd
import ways
from support import TABLE, dtypes_of, label

STEPS = [step.__name__ for step in ways.laws.STEPS]
"""Steps of programs that hold for all sizes: updates, indexing, control flow, gradients."""

OPS = [op for op in TABLE if op["function"]]
MAPS = [
    op for op in OPS
    if op["kind"] == "elementwise" and all("float" in c for c in op["classes"])
]  # fmt: skip
RANDOM = ("random.", "nn.dropout", "empty")
"""Ops whose results are not the same in two calls."""
UNASKED = {
    "set_memory_limit": "would lift the limit of these processes",
    "draw": "starts Graphviz",
    "svg_of": "starts Graphviz",
    "to_svg": "starts Graphviz",
    "Explanation": "made by explain alone",
    "Tensor": "has no constructor",
    "register_pytree": "is there once for each type",
}
"""Public names that are not called, and why."""
DUNDERS = """abs add and array bool contains copy deepcopy delitem dir dlpack dlpack_device eq float
floordiv format ge getitem gt hash iadd iand ifloordiv ilshift imod imul index int invert ior
irshift isub iter itruediv ixor le len lshift lt matmul mod mul ne neg or pos pow radd rand repr
rfloordiv rlshift rmatmul rmod rmul ror round rpow rrshift rshift rsub rtruediv rxor setitem sizeof
str sub truediv xor""".split()
RECEIVERS = [
    "graph()", "session()", "traced()", "graph_function()", "graph().nodes[1]", "wg.Dim('n')",
    "wg.random.key(0)", "module()", "optimizer()", "traced().plan(x(2, 3), x(3, 2))",
    "traced().graph(x(2, 3), x(3, 2))", "traced().interpreter(x(2, 3), x(3, 2))",
    "graph().interpreter", "wg.profile()", "wg.finfo('float32')", "wg.float32", "wg.device('cpu')",
    "wg.pytree.flatten({'a': [1, x(2)]})[1]", "wg.data.DataLoader(wg.data.TensorDataset(x(4, 2)))",
    "wg.__array_namespace_info__()", "graph().nodes[1].site",
]  # fmt: skip
"""Things with methods, besides tensors."""


OF_ANYTHING = "repr({}) len({}) list({}) hash({}) bool({}) {}() {}[0] {}==0 copy({})".split()


def functions():
    """Every public callable by its dotted name, that of the package first."""
    found = {}
    places = {"wg": wg} | {f"wg.{name}": getattr(wg, name) for name in wg._SUBMODULES}
    for name in ("init",):
        places[f"wg.nn.{name}"] = getattr(wg.nn, name)
    for home, module in places.items():
        public = getattr(module, "__all__", None) or [n for n in dir(module) if n[0] != "_"]
        for name in public:
            value = getattr(module, name)
            exception = isinstance(value, type) and issubclass(value, BaseException)
            if callable(value) and not exception and name not in UNASKED:
                found.setdefault(f"{home}.{name}", value)
    return found


def methods():
    """Receivers, each with the names of what it has."""
    found = [(text, dir(eval(text, vars(ways)))) for text in RECEIVERS]
    return [(text, [n for n in names if n[0] != "_" and n not in UNASKED]) for text, names in found]


FUNCTIONS = functions()
METHODS = methods()
BY_NAME = {f"wg.{label(op)}": op for op in OPS}


def kinds_of(name):
    """The parameters of a callable: names, with kinds where the table knows them."""
    op = BY_NAME.get(name)
    if op:
        return [(p["name"], p["kind"], p["keyword_only"]) for p in op["params"]]
    try:
        parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    except (TypeError, ValueError):
        return [("", "", False)] * 2
    return [(p.name, "", p.kind == p.KEYWORD_ONLY) for p in parameters if p.name != "self"]


def call(random, name):
    """A call with arguments of which most may fit."""
    args, keywords = [], []
    for parameter, kind, by_name in kinds_of(name):
        if random.random() < 0.2:
            continue
        value = odd.of_kind(random, kind)
        if by_name or keywords or random.random() < 0.1:
            keywords.append(f"{parameter}={value}")
        else:
            args.append(value)
    if random.random() < 0.03:
        keywords.append("nonsense=1")
    keywords = [k for k in keywords if k.split("=")[0].isidentifier()]
    return f"{name}({', '.join(args + keywords)})"


def of_dtype(node, dtype):
    node.keywords.append(ast.keyword("dtype", ast.Constant(dtype)))
    return ast.unparse(node)


def sampled(random, op, changes):
    """A call of an op that is known to work, with some arguments changed."""
    sample = random.choice(samples(op))
    dtypes = dtypes_of(op, sample)
    dtype = random.choice(dtypes)
    if "float32" in dtypes and random.random() < 0.7:
        dtype = "float32"
    tree = ast.parse(f"wg.{label(op)}({sample})", mode="eval")
    if dtype != "float32":
        Operands(lambda node: of_dtype(node, dtype), "x").visit(tree)
    found = tree.body
    kinds = [p["kind"] for p in op["params"]]
    for _ in range(changes):
        at = random.randrange(len(found.args) + 1)
        rest = [p for p in op["params"][len(found.args) :] if not keyword.iskeyword(p["name"])]
        if at < len(found.args):
            kind = kinds[min(at, len(kinds) - 1)]
            found.args[at] = ast.parse(odd.of_kind(random, kind), mode="eval").body
        elif rest:
            p = random.choice(rest)
            value = ast.parse(odd.of_kind(random, p["kind"]), mode="eval").body
            found.keywords = [k for k in found.keywords if k.arg != p["name"]]
            found.keywords.append(ast.keyword(p["name"], value))
    return ast.unparse(tree)


def of_tensor(random):
    """A method, operator, index or update of a tensor."""
    owner = random.choice(odd.TENSORS)
    if random.random() < 0.5:
        name = f"__{random.choice(DUNDERS)}__"
    else:
        name = random.choice([n for n in dir(wg.ones(())) if n[0] != "_"])
    args = [odd.of_kind(random, "") for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3)))]
    value = getattr(wg.Tensor, name, None)
    return f"({owner}).{name}" + (f"({', '.join(args)})" if callable(value) else "")


def of_receiver(random):
    text, found = random.choice(METHODS)
    if not found or random.random() < 0.2:
        return random.choice(OF_ANYTHING).format(text)
    args = [random.choice(odd.ALL) for _ in range(random.choice((0, 0, 1, 1, 2, 3)))]
    return f"({text}).{random.choice(found)}" + random.choice(["", f"({', '.join(args)})"])


def calls(random):
    """A few calls with odd arguments."""
    lines = []
    for n in range(random.randint(2, 6)):
        way = random.random()
        if way < 0.35:
            text = call(random, random.choice(list(FUNCTIONS)))
        elif way < 0.7:
            text = sampled(random, random.choice(OPS), random.choice((1, 1, 2)))
        elif way < 0.9:
            text = of_tensor(random)
        else:
            text = of_receiver(random)
        lines.append(f"v{n} = {text}")
    return lines


class Operands(ast.NodeTransformer):
    """Replaces the tensors of a call by names of arguments, or by earlier values of their shape."""

    def __init__(self, give, kinds="xfib"):
        self.give, self.kinds = give, kinds

    def visit_Call(self, node):
        if isinstance(node.func, ast.Name) and node.func.id in self.kinds:
            return ast.parse(self.give(node), mode="eval").body
        return self.generic_visit(node)


def one_op(random):
    """An op, often with an odd argument, as a function that is run in several ways."""
    op = random.choice(OPS)
    arguments = []

    def give(node):
        text = ast.unparse(node)
        if random.random() < 0.1:
            text = random.choice(odd.TENSORS)
        arguments.append(text)
        return f"a{len(arguments) - 1}"

    tree = ast.parse(sampled(random, op, random.choice((0, 1, 1, 2))), mode="eval")
    body = ast.unparse(Operands(give).visit(tree))
    names = [f"a{n}" for n in range(len(arguments))]
    lines = [f"{name} = {text}" for name, text in zip(names, arguments, strict=True)]
    lines += [f"def program({', '.join(names)}):\n    return {body}"]
    return lines + ways_of(random, names, label(op).startswith(RANDOM))


def ways_of(random, names, different=False):
    """Runs of `program`, graphs with open sizes and feeds that do not fit among them."""
    lines = []
    every = ways.OTHER if different else ways.SAME * 2 + ways.OTHER
    for way in random.sample(every, k=4):
        options = ""
        if way in (ways.in_session, ways.as_function):
            options = options_of(random, names)
        lines.append(f"run({', '.join([way.__name__, 'program', *names])}{options})")
    return list(dict.fromkeys(lines))


def options_of(random, names):
    """Shapes of placeholders and further feeds."""
    shapes = {
        "fixed": "{0}.shape",
        "free": "[None] * {0}.ndim",
        "first": "({1}, *{0}.shape[1:])",
        "shared": "[wg.Dim(f'n{{n}}') for n in {0}.shape]",
    }
    way = random.choice(list(shapes))
    open_size = random.choice(["None", "wg.Dim('n')"])
    given = ", ".join(shapes[way].format(name, open_size) for name in names)
    feeds = []
    for _ in range(random.randint(1, 3)):
        fed = [random.choice((name, odd.of_kind(random, "Tensor"))) for name in names]
        feeds.append(f"({''.join(text + ', ' for text in fed)})")
    return f", shapes=[{given}], feeds=[{', '.join(feeds)}]"


def program(random):
    """A chain of steps over values of any shape: each is made to fit where it is read."""
    shape = random.choice(["3, 4", "5, 4", "1, 2", "2, 7", "0, 3"])
    values, body = ["a0", "a1"], []
    for n in range(random.randint(1, 6)):
        way = random.random()
        left, right = random.choice(values), random.choice(values)
        if way < 0.45:
            small = random.randint(0, 2), random.randint(0, 2)
            name = f"laws.{random.choice(STEPS)}"
            text = f"{name}(fit({left}, {shape}), fit({right}, {shape}), {small[0]}, {small[1]})"
        elif way < 0.6:
            op = random.choice(MAPS)
            text = f"wg.{label(op)}({', '.join([left, right, left][: len(op['params'])])})"
        else:
            op = random.choice([op for op in OPS if not label(op).startswith(RANDOM)])
            tree = ast.parse(sampled(random, op, int(random.random() < 0.25)), mode="eval")
            text = ast.unparse(Operands(lambda node: fitted(random, node, values)).visit(tree))
        body.append(f"v{n} = first({text})")
        values.append(f"v{n}")
    body.append(f"return {random.choice(values)}, {values[-1]}")
    lines = [f"a0 = x({shape})", f"a1 = x({shape}, low=-1.0)"]
    lines.append("def program(a0, a1):\n    " + "\n    ".join(body))
    return lines + ways_of(random, ["a0", "a1"])


def fitted(random, node, values):
    """An operand of a step: earlier values where floats are asked for, else as it is."""
    if node.func.id == "x" and not node.keywords and random.random() < 0.8:
        shape = "".join(", " + ast.unparse(a) for a in node.args)
        return f"fit({random.choice(values)}{shape})"
    return ast.unparse(node)


def texts(random):
    """Text of graphs and files of tensors with places changed."""
    seed = random.randrange(1 << 30)
    if random.random() < 0.7:
        return [
            f"v0 = wg.parse_graph(mutated(str(graph()), {seed}))",
            "run_parsed(v0)",
        ]
    return [f"v0 = loaded(mutated(saved(), {seed}, {random.choice((1, 3, 9))}))"]


KINDS = [(calls, 40), (one_op, 30), (program, 20), (texts, 10)]


def case(random):
    """The source of a case."""
    make = random.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
    return "\n".join(make(random)) + "\n"
