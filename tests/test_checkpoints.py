"""Nested state in files: what is saved comes back; broken descriptions and indices are refused."""

import collections
import json
import math
import os

import numpy as np
import pytest

import wengert as wg
from wengert import nn, optim

PLAIN = [
    None, True, False, 0, -1, 1 << 200, 1.5, -0.0, math.inf, -math.inf, 1e-320, 2 - 3j, "",
    complex(math.inf, 0), "naïve \x00 \ud800", b"", b"\x00\xff", (), [], {}, wg.bfloat16, wg.bool,
]  # fmt: skip
NESTED = {
    "plain": PLAIN,
    "tuple": (1, (2, [3, (4,)])),
    "keys": {1: "a", (2, "b"): "c", None: "d", 1.5: 0, b"x": 1, "y": 2},
    "a.b": {"a": {"b": 1}},
}


def same(a, b):
    """Whether two states are equal, types, signs and tensors included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, wg.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    return repr(a) == repr(b)


def test_plain_values_come_back_as_they_were(tmp_path):
    for state in [*PLAIN, NESTED]:
        wg.save(state, tmp_path / "f")
        assert same(wg.load(tmp_path / "f"), state), state
    wg.save(math.nan, tmp_path / "f")
    assert math.isnan(wg.load(tmp_path / "f"))
    wg.save(collections.OrderedDict(b=1, a=2), tmp_path / "f")
    assert same(wg.load(tmp_path / "f"), {"b": 1, "a": 2})


def test_tensors_and_arrays_come_back_where_they_were(tmp_path):
    x = wg.arange(6.0).reshape(2, 3)
    state = {
        "a.b": x, "a": {"b": x + 1, "b.1": x.T}, "__metadata__": wg.ones(2),
        "list": [wg.ones((), dtype=wg.bfloat16), (x[:0],)], 7: wg.tensor([True]),
        "array": np.arange(4.0)[::2], "scalar": np.float32(1.5), "int": np.int8(-3),
    }  # fmt: skip
    wg.save(state, tmp_path / "f", metadata={"made": "here"})
    assert same(wg.load(tmp_path / "f"), state)
    wg.load(tmp_path / "f")["array"][0] = 5  # it may be written to
    wg.save(x, tmp_path / "f")
    assert same(wg.load(tmp_path / "f"), x)
    assert wg.load(tmp_path / "f", device="reference").device.type == "reference"
    p = nn.Parameter(x)
    wg.save([p, p], tmp_path / "f")
    back = wg.load(tmp_path / "f")
    assert same(back, [x, x]) and not back[0].requires_grad
    metadata = wg._core._safetensors_read(str(tmp_path / "f"))[1]
    assert set(metadata) == {"wengert"}
    wg.save({"x": x}, tmp_path / "f")  # a plain file has no description
    assert wg._core._safetensors_read(str(tmp_path / "f"))[1] == {}


def test_names_say_where_tensors_lie(tmp_path):
    reference = pytest.importorskip("safetensors.numpy")
    model = nn.Linear(2, 3)
    opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(wg.ones((1, 2))).sum().backward()
    opt.step()
    wg.save({"model": model.state_dict(), "opt": opt.state_dict()}, tmp_path / "f")
    theirs = reference.load_file(tmp_path / "f")
    assert theirs["model.weight"].tolist() == model.weight.tolist()
    assert {"model.bias", "model.weight"} < set(theirs)
    assert all(name.startswith(("model.", "opt.state.")) for name in theirs)


def odd():
    itself = []
    itself.append(itself)
    deep = 1
    for _ in range(101):
        deep = [deep]
    Pair = collections.namedtuple("Pair", "a b")
    return {
        "set": {1}, "itself": itself, "deep": deep, "pair": Pair(1, 2), "model": nn.ReLU(),
        "function": len, "complex": np.ones(1, complex), "objects": np.array([None]),
        "huge": 1 << 9000, "keys": {frozenset(): 1}, "device": wg.device("cpu"),
    }  # fmt: skip


@pytest.mark.parametrize("name", odd())
def test_what_cannot_be_saved_is_told_with_its_place(name, tmp_path):
    with pytest.raises(wg.ArgumentTypeError, match=rf"state\['x'\]\[1\]\['{name}'\]"):
        wg.save({"x": [0, {name: odd()[name]}]}, tmp_path / "f")
    assert not list(tmp_path.iterdir())


def test_all_that_cannot_be_saved_is_listed(tmp_path):
    with pytest.raises(wg.ArgumentTypeError) as error:
        wg.save({k: {k} for k in range(30)}, tmp_path / "f")
    assert "state[0]: set" in str(error.value) and "and 10 more" in str(error.value)
    with pytest.raises(wg.ArgumentError, match="'wengert' of the metadata"):
        wg.save({}, tmp_path / "f", metadata={"wengert": ""})
    with pytest.raises(wg.ArgumentTypeError, match="metadata is text"):
        wg.save({}, tmp_path / "f", metadata={"n": 1})


def described(path, text, tensors=None):
    texts = {"wengert": text if isinstance(text, str) else json.dumps(text)}
    wg._core.safetensors_save(str(path), tensors or {}, texts)


def of(state):
    return {"version": 1, "state": state}


BROKEN = {
    "no JSON": "{",
    "not an object": [],
    "no version": {"state": 1},
    "another version": {"version": 2, "state": 1},
    "more": {"version": 1, "state": 1, "x": 1},
    "an unknown kind": of({"set": []}),
    "two kinds": of({"tuple": [], "dict": {}}),
    "no kind": of({}),
    "another content": of({"tuple": {}}),
    "a name twice": '{"version":1,"state":{"dict":{"a":1,"a":2}}}',
    "a tensor that is not there": of({"tensor": "y"}),
    "a tensor left over": of(1),
    "NaN": '{"version":1,"state":NaN}',
    "a huge number": '{"version":1,"state":1e999}',
    "many digits": '{"version":1,"state":%s}' % ("1" * 5000),
    "a float": of({"float": "1_0"}),
    "a complex number": of({"complex": [1.0, "x"]}),
    "bytes": of({"bytes": "?"}),
    "a dtype": of({"dtype": "Tensor"}),
    "a pair": of({"pairs": [[1]]}),
    "a key": of({"pairs": [[[], 1]]}),
    "a key twice": of({"pairs": [[1, 1], [1, 2]]}),
    "deep lists": '{"version":1,"state":' + "[" * 200 + "]" * 200 + "}",
    "deeper lists": '{"version":1,"state":' + "[" * 100_000 + "]" * 100_000 + "}",
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_description_is_refused(case, tmp_path):
    tensors = {"x": wg.ones(1)} if case == "a tensor left over" else {}
    described(tmp_path / "f", BROKEN[case], tensors)
    with pytest.raises(wg.ArgumentError, match="load: the description is broken") as error:
        wg.load(tmp_path / "f")
    assert str(tmp_path / "f") in str(error.value)


def test_shards(tmp_path):
    state = {"layers": [wg.full((10,), 1.0 * i) for i in range(5)], "big": wg.ones(100), "n": 1}
    path = tmp_path / "m.safetensors.index.json"
    for _ in range(2):  # the files of the first are removed by the second
        wg.save(state, path, max_shard_size=100)
        assert same(wg.load(path), state)
        files = sorted(p.name for p in tmp_path.iterdir())
        assert len(files) == 5 and all("-of-00004.safetensors" in f for f in files[:-1])
    index = json.loads(path.read_text())
    assert index["metadata"]["total_size"] == 4 * (5 * 10 + 100)
    wg.save({"x": wg.ones(3)}, path, max_shard_size=1 << 20)
    assert same(wg.load(path), {"x": wg.ones(3)}) and len(list(tmp_path.iterdir())) == 2
    before = path.read_bytes()
    with pytest.raises(wg.ArgumentTypeError):
        wg.save({"x": wg.ones(3), "y": len}, path, max_shard_size=1)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 2
    for wrong, size in ((tmp_path / "m.safetensors", 10), (path, 0), (path, None)):
        with pytest.raises(wg.ArgumentError, match="max_shard_size"):
            wg.save(state, wrong, max_shard_size=size)


def test_a_save_of_shards_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors.index.json"
    wg.save({"x": wg.ones(3)}, path, max_shard_size=4)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    real = os.replace

    def replace(a, b):
        if str(b).endswith(".json"):
            raise OSError(28, "No space left on device")
        real(a, b)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="No space"):
        wg.save({"x": wg.zeros(3), "y": wg.ones(9)}, path, max_shard_size=4)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


INDICES = {
    "no JSON": "[",
    "a list": "[]",
    "no map": '{"metadata": {}}',
    "a map of numbers": '{"weight_map": {"x": 1}}',
    "a path": '{"weight_map": {"x": "a/part"}}',
    "a path upwards": '{"weight_map": {"x": ".."}}',
    "an absolute path": '{"weight_map": {"x": "/part"}}',
    "a name twice": '{"weight_map": {"x": "part", "x": "part"}}',
    "deep": '{"weight_map": ' + "[" * 100_000,
    "a tensor that is not there": '{"weight_map": {"x": "part", "y": "part"}}',
    "a tensor left over": '{"weight_map": {}, "metadata": {}}',
}


@pytest.mark.parametrize("case", INDICES)
def test_a_broken_index_is_refused(case, tmp_path):
    wg.save({"x": wg.ones(1)}, tmp_path / "part")
    path = tmp_path / "m.index.json"
    path.write_text(INDICES[case])
    if case == "a tensor left over":
        path.write_text('{"weight_map": {"z": "part"}}')
    with pytest.raises(wg.ArgumentError) as error:
        wg.load(path)
    assert "index" in str(error.value) and str(path) in str(error.value)


def test_an_index_whose_file_is_missing(tmp_path):
    (tmp_path / "m.index.json").write_text('{"weight_map": {"x": "part"}}')
    with pytest.raises(FileNotFoundError):
        wg.load(tmp_path / "m.index.json")
