"""Layers of the Rust core point down: a module in `src/lib.rs` names only those above it there.

The one list of layers is the order of the `mod` lines in `src/lib.rs`. Tests may name any layer: a
plan is tested by running it.
"""

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"

PATH = re.compile(r"\bcrate::(?:\{(?P<group>[^;]*?)\}\s*;|(?P<name>\w+))")
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))? )?mod (\w+);")
INNER_TESTS = re.compile(r"#\[cfg\(test\)\]\s*mod \w+ \{[\s\S]*\Z")
TEST_ITEM = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))? )?use [^;]*;")
STRINGS = re.compile(r'r#"[\s\S]*?"#|"(?:\\.|[^"\\])*"')


def layers() -> list[str]:
    return re.findall(r"^(?:pub )?mod (\w+);", (SOURCE / "lib.rs").read_text(), re.M)


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*[\s\S]*?\*/", "", STRINGS.sub('""', text))


def first_names(group: str) -> list[str]:
    """The leading segments of `a::{b, c}, d::e` are `a` and `d`."""
    flat = group
    while "{" in flat:
        flat = re.sub(r"\{[^{}]*\}", "", flat)
    return [part.strip().split("::")[0] for part in flat.split(",") if part.strip()]


def named(text: str) -> set[str]:
    """The top-level modules that a source text names by a `crate::` path."""
    names = set()
    for match in PATH.finditer(without_comments(text)):
        names |= set(first_names(match["group"])) if match["group"] else {match["name"]}
    return names


def without_tests(text: str) -> str:
    return TEST_ITEM.sub("", INNER_TESTS.sub("", text))


def files() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.rs")) if path.name != "lib.rs"]


def files_of_tests() -> set[Path]:
    """The files of modules that are compiled for tests only."""
    found = set()
    for path in sorted(SOURCE.rglob("*.rs")):
        own = path.parent if path.name in ("mod.rs", "lib.rs") else path.with_suffix("")
        for name in TEST_MODULE.findall(path.read_text()):
            found |= {own / f"{name}.rs", *(own / name).rglob("*.rs")}
    return found & set(files())


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".rs")


def test_the_parser_sees_every_form_of_path():
    text = """
        use crate::{error::{self, Result}, shape::Shape};
        use crate::dtype::DType; // crate::gpu
        macro_rules! m { () => { $crate::layout::Layout } }
        const TEXT: &str = "crate::py::x";
    """
    assert named(text) == {"error", "shape", "dtype", "layout"}


def test_every_source_file_belongs_to_a_layer():
    assert {layer_of(path) for path in files()} <= set(layers())


def test_tests_are_told_apart():
    names = {str(path.relative_to(SOURCE)) for path in files_of_tests()}
    assert {"schedule/tests.rs", "schedule/tests/memory.rs", "graph/testing.rs"} <= names
    assert not {"schedule/mod.rs", "passes/fold.rs", "cpu/execute.rs"} & names
    text = "use crate::ops;\n#[cfg(test)]\nmod tests {\n    use crate::cpu;\n}\n"
    assert named(without_tests(text)) == {"ops"}


COMPILED = [path for path in files() if path not in files_of_tests()]


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_layer_names_only_layers_below_it(path):
    order = layers()
    own = order.index(layer_of(path))
    text = without_tests(path.read_text())
    upward = {name for name in named(text) & set(order) if order.index(name) > own}
    assert not upward, f"{layer_of(path)} names {sorted(upward)}, which stand above it in lib.rs"


# The modules of the engine, bottom-up.
ENGINE = [
    "context",
    "site",
    "executors",
    "pending",  # large elementwise ops that wait for others
    "tape",
    "observe",
    "trace",
    "transfer",
    "random",
    "eager",  # ops and calls of composites: computed at once, or written as nodes
    "autocast",
    "index",
    "definition",  # the third way: calls that wait for sizes
    "backward",
    "oracle",
    "interpret",
    "config",
    "check",
    "program",
    "export",
    "control",
    "call",
    "frozen",
    "compile",
    "picture",
]


def engine_names(path: Path, modules: set[str]) -> set[str]:
    """The other modules of the engine that a file names, by `crate::engine::` or `super::`."""
    parts = path.relative_to(SOURCE).parts
    climb = "super::" * (len(parts) - (2 if path.name == "mod.rs" else 1))
    way = rf"(?<![\w:])(?:crate::engine::|{climb})(?!super)(?:\{{([^;]*?)\}}\s*;|(\w+))"
    found = set()
    for group, name in re.findall(way, without_comments(without_tests(path.read_text()))):
        found |= set(first_names(group)) if group else {name}
    return found & modules - {parts[1].removesuffix(".rs")}


def test_modules_of_the_engine_name_those_below():
    """The order of `ENGINE`, in which every module stands once."""
    height = {module: i for i, module in enumerate(ENGINE)}
    text = (SOURCE / "engine/mod.rs").read_text()
    assert sorted(height) == sorted(set(re.findall(r"^pub mod (\w+);", text, re.M)))
    files = [path for path in COMPILED if path.is_relative_to(SOURCE / "engine")]
    for path in files:
        own = path.relative_to(SOURCE).parts[1].removesuffix(".rs")
        if own == "mod":
            continue
        upward = {x for x in engine_names(path, set(height)) if height[x] > height[own]}
        assert not upward, f"{path.relative_to(SOURCE)} names {sorted(upward)}, which stand above"


# Executors, each with its kernels: none names another.
SIBLINGS = {"cpu", "gpu", "reference"}
# What only the CPU's may use.
KERNELS = {"tile", "simd", "threads"}


def test_executors_share_no_kernel():
    assert set(layers()) >= SIBLINGS
    for path in COMPILED:
        own = layer_of(path)
        if own in SIBLINGS:
            others = SIBLINGS - {own} | (set() if own == "cpu" else KERNELS)
            used = named(without_tests(path.read_text())) & others
            assert not used, f"{path.relative_to(SOURCE)} names {sorted(used)}"


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_layer_is_left_by_super(path):
    """`super::` chains never climb out of a layer, so that `crate::` paths say everything."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    depth = len(parts) - (parts[-1] == "mod")
    # One more for an inner module such as `tests`.
    climbs = [chain.count("super::") for chain in re.findall(r"(?:super::)+", path.read_text())]
    assert max(climbs, default=0) <= depth


def test_a_structural_op_is_declared_in_few_files():
    """The example stands where any structural op has to; matches on all ops would ask for more."""
    names = re.compile(r"\b(?:Increments|increments|INCREMENTS)\b")
    named_in = {
        str(path.relative_to(SOURCE))
        for path in files()
        if "tests" not in path.parts and names.search(path.read_text())
    }
    assert named_in == {
        "ops/op/mod.rs",
        "ops/structural/mod.rs",
        "ops/structural/example.rs",
        "ops/example.rs",
        "cpu/execute.rs",
        "gpu/op.rs",
        "reference/mod.rs",
        "graph/cases.rs",
    }
    assert len(named_in) < 10


def test_the_engine_names_executors_in_one_table():
    named_in = {
        str(path.relative_to(SOURCE))
        for path in COMPILED
        if layer_of(path) in ("engine", "py") and "cpu" in named(without_tests(path.read_text()))
    }
    assert named_in == {"engine/executors.rs"}
