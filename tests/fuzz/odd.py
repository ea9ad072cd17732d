"""Odd arguments as source text, by what they stand for."""

INTS = """0 1 -1 2 3 7 -7 True 10**6 2**31-1 2**31 2**32 -(2**31) 2**53 10**12 2**62-1 2**62 2**62+1
2**63-1 2**63 -(2**62) -(2**63) -(2**63)-1 2**64 10**30 np.int8(3) np.int64(2**62) wg.tensor(2)
Index(1) Index(2**62) Index(-(2**70)) wg.Dim("n")""".split()

FLOATS = """0.5 -0.0 1.0 float("nan") float("inf") -float("inf") 1e300 1e-320 np.float64(0.1)
np.float32(2) wg.tensor(0.5)""".split()

WORDS = """"" "text" "float32" "cpu" "tpu" "same" "mean" "sum" "ij,jk->ik" "...i->i" "i" "\\0" "é🙂"
"a"*10000 b"bytes" """.split()

DTYPES = """wg.bool wg.int8 wg.int64 wg.uint8 wg.uint64 wg.float16 wg.bfloat16 wg.float32 wg.float64
"float64" np.float32 np.dtype("int16") float int bool complex""".split()

SHAPES = [
    "()", "(0,)", "(1,)", "(2, 3)", "(3, 4)", "(-1,)", "(2, -1)", "(-1, -1)", "(0, 3)", "[2, 3]",
    "(2**40, 2**40)", "(2**62,)", "(2**63,)", "(2**31, 2**31, 4)", "(10**12,)", "(1,) * 70",
    "(None, 3)", "(2.5,)", "('a',)", "(wg.Dim('n'),)", "((1, 1),)", "((0, 2**62),)",
    "((1, 1), (0, 2))", "(0, 0)", "(1, 0)", "(0, 1, 2)", "(-1, -2)", "range(3)", "(2**62, 0)",
    "Long(2**62)", "Long(-1)", "(True, False)", "(Index(2), Index(3))",
]  # fmt: skip

TENSORS = [
    "x()", "x(0)", "x(1)", "x(3)", "x(2, 3)", "x(3, 4)", "x(0, 3)", "x(3, 0, 2)", "x(2, 1, 1)",
    "x(1, 2, 3, 4)", "x(2, 3, 4, 5)", "x(*(1,) * 20)", "x(3, 4).T", "x(8, 9)[::-2, 1::3]",
    "f(3)", "f(2, 3)", "i(3)", "i(2, 3)", "i(3, n=9)", "b(3)", "b(2, 3)", "x(300, 70)",
    "x(3, dtype='float16')", "x(2, 3, dtype='bfloat16')", "x(3, dtype='int8')",
    "x(2, 3, dtype='uint64')", "x(3, dtype='uint8')", "wg.full((2, 3), float('nan'))",
    "wg.tensor([2**63 - 1, -(2**63)])", "recorded(3)", "recorded(2, 3)", "foreign(3)",
    "foreign(None, 3)", "escaped(3)", "wide(10**12)", "wide(2**31, 2**31)", "wide(4, 10**9)",
    "wide(3, 4)", "wg.Variable(1.0)",
]  # fmt: skip

SEQUENCES = [
    "[]", "[1, 2]", "[0, 1]", "[[1, 2], [3]]", "[x(2), x(3)]", "[x(3), x(3)]", "(x(2, 3), 1.0)",
    "[foreign(None, 3), foreign(None, 3)]", "{}", "{'a': 1}", "{'a': x(2)}", "set()", "iter([1])",
    "(v for v in [x(2)])", "cyclic()", "deep(900)", "deep(100000)", "[[]] * 5", "[wide(10**12)]",
    "[True, False]", "[x(3)] * 1000", "(None,)", "[1.5, None]",
]  # fmt: skip

OBJECTS = [
    "None", "...", "slice(None)", "slice(2**62, None, -1)", "slice(None, None, 0)", "object()",
    "int", "Angry()", "1j", "lambda *v: None", "lambda *v: v", "lambda *v: v[0]", "wg.sin",
    "lambda v: v + 1", "lambda *v: wg.zeros(3)", "lambda *v: True", "graph()", "session()",
    "traced()", "module()", "optimizer()", "graph().nodes[-1]", "wg.Tensor", "wg", "wg.nn",
    "(..., ..., [True, False])", "(None, slice(1, None), 0)", "(slice(None, None, -1), 2**62)",
]  # fmt: skip

ARRAYS = [
    "np.ones((2, 3))", "np.zeros((0, 2))", "np.array('text')", "np.array([1j])",
    "np.zeros((1,) * 32)", "np.array([1, 2], dtype='datetime64[s]')", "np.arange(6)[::-2]",
    "np.array([1.5, 2], dtype='>f8')", "np.array([None, 'a'], dtype=object)",
    "np.broadcast_to(np.float32(1), (2**20, 2**20))", "np.float64('nan')", "memoryview(b'abc')",
    "np.ones(3, dtype=np.float16)", "np.array([2**64 - 1], dtype='uint64')",
]  # fmt: skip

ALL = INTS + FLOATS + WORDS + DTYPES + SHAPES + TENSORS + SEQUENCES + OBJECTS + ARRAYS

FITTING = {
    "Tensor": TENSORS, "MaybeTensor": TENSORS, "Tensors": SEQUENCES, "Ints": SHAPES + INTS,
    "Int": INTS, "MaybeInt": INTS, "Shape": SHAPES + INTS, "Pairs": SHAPES + INTS,
    "Bool": ["True", "False"], "Float": FLOATS, "MaybeFloat": FLOATS, "Number": FLOATS + INTS,
    "MaybeNumber": FLOATS + INTS, "DType": DTYPES, "MaybeDType": DTYPES, "Word": WORDS,
    "Text": WORDS, "MaybeDevice": WORDS, "Key": TENSORS,
}  # fmt: skip
"""What often fits a parameter, by its kind in the op table."""


def of_kind(random, kind):
    """An argument for a parameter: mostly one that may fit, else any."""
    fitting = FITTING.get(kind, ALL) if random.random() < 0.75 else ALL
    return random.choice(fitting)
