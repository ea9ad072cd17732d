"""Runs tinygrad's `test/backend/test_ops.py`, which holds its tensor against PyTorch's, over the
ops of this package through `tinygrad_shim`. The file is the first argument; names of tests follow.
"""

import importlib.util
import re
import sys
import unittest
import warnings

import tinygrad_shim

# Documented differences, by test.
BY_DESIGN = {
    "int_or": "an int that a dtype does not hold is refused, where tinygrad wraps it",
    "masked_select_size nonzero_size": "nonzero has no size= that fills up",
    "nonzero": "nonzero refuses rank 0 (Array API)",
    "max_pool2d_padding_int max_pool2d_return_indices interpolate_bilinear interpolate_nearest"
    " interpolate_nearest_exact": "pooling and resizing are of floating dtypes",
    "pad_circular_mode": "wrap goes around as often as the width asks (NumPy)",
    "pad_replicate_mode pad_reflect_mode": "negative widths cut before the border is made",
    "repeat": "tile takes fewer repetitions than axes (Array API)",
    "scatter_no_reduce_tensor_src": "scatter_reduce takes tensors, and not only numbers, to reduce",
    "sigmoid_alt_extreme": "eˣ / (1 + eˣ) is inf / inf, as in PyTorch: tinygrad rewrites it",
    "slice_errors": "the words of an error",
    "clip": "the gradient at the ends of the range is 1; PyTorch 2.15 has 0 there",
    "pow_const pow_zero_tensor": "the gradient by the exponent is 0 where the base is 0",
    "einsum_ellipsis": "einsum: an ellipsis is not summed (NumPy)",
    "slice_fancy_indexing_dim_collapse_int":
        "an int beside index tensors is one of them (NumPy), in PyTorch it is not",
}  # fmt: skip


class Counting(unittest.TestResult):
    """Which tests pass."""

    def __init__(self):
        super().__init__()
        self.passed = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test)


def reason(text):
    """The last line that is an error, without numbers that vary."""
    lines = [x.strip() for x in text.strip().splitlines() if x.strip()]
    named = [x for x in lines if re.match(r"[\w.]*(Error|Exception)\b", x)]
    return (named or lines)[-1][:200]


def main(arguments):
    path, *wanted = arguments
    warnings.filterwarnings("ignore")
    sys.modules.update(tinygrad_shim.modules())
    spec = importlib.util.spec_from_file_location("tinygrad_test_ops", path)
    tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tests)
    suite = unittest.TestSuite()
    for case in unittest.defaultTestLoader.loadTestsFromModule(tests):
        for test in case:
            if not wanted or test.id().split(".")[-1] in wanted:
                suite.addTest(test)
    result = Counting()
    suite.run(result)
    failures = [(t.id().split(".")[-1], reason(text)) for t, text in
                result.failures + result.errors]  # fmt: skip
    design = {f"test_{word}": why for words, why in BY_DESIGN.items() for word in words.split()}
    known = [name for name, _ in failures if name in design]
    for name, why in sorted(failures):
        kind = f"by design, {design[name]}" if name in design else "differs"
        print(f"{name}: {kind}" + ("" if name in design else f": {why}"))
    print(f"\npass: {len(result.passed)} of {result.testsRun}, skipped by the file: "
          f"{len(result.skipped)}, differ by design: {len(known)}, "
          f"differ: {len(failures) - len(known)}")  # fmt: skip
    if wanted:
        for _, text in result.failures + result.errors:
            print(text)
