"""Holds the package against others, on the samples that those test themselves with. For
development: it needs torch (and expecttest), which no test of the project does.

    python tools/compare ops [NAME ...]          # op_db of PyTorch: values and two gradients
    python tools/compare modules [NAME ...]      # module_db of PyTorch: results and gradients
    python tools/compare optimizers [NAME ...]   # optim_db of PyTorch: five steps
    python tools/compare signatures [NAME ...]   # orders and defaults of arguments
    python tools/compare tinygrad test_ops.py [TEST ...]
                                                 # tinygrad's tests of its ops, over these
"""

import argparse
import importlib
import os
import sys

KINDS = ("ops", "modules", "optimizers", "signatures", "tinygrad")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("names", nargs="*", help="only these, with every reason")
    given = parser.parse_args()
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    importlib.import_module(given.kind).main(given.names)


if __name__ == "__main__":
    main()
