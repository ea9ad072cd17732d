"""Trees: what `map` takes together, what it says of trees that differ."""

import collections
import dataclasses
import re

import pytest

import wengert as wg
from wengert import nn


def test_modules_of_one_structure_map_together():
    a, b = (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)) for _ in range(2))
    mean = wg.pytree.map(lambda x, y: (x + y) / 2, a, b)
    assert type(mean) is nn.Sequential
    for name, x in mean.state_dict().items():
        want = (a.state_dict()[name] + b.state_dict()[name]) / 2
        assert x.tolist() == want.tolist()
    x = wg.ones((4, 2))
    assert mean(x).shape == (4, 1)
    # A tree of a module maps with the module, in containers too, and may be the first.
    for first, second in ((mean, a), (a, mean)):
        total = wg.pytree.map(lambda x, y: x - y, {"m": first}, {"m": second})["m"]
        want = first[0].weight - second[0].weight
        assert total[0].weight.tolist() == want.tolist()
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    gradients = wg.grad(lambda m: m(x).sum())(model)
    stepped = wg.pytree.map(lambda p, g: p - 0.1 * g, model, gradients)
    want = model[2].bias - 0.1 * gradients[2].bias
    assert stepped[2].bias.tolist() == want.tolist()


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Key:
    """A key whose text would be its address."""


DIFFERENT = {
    "modules of other kinds": (nn.Linear(2, 3), nn.Conv1d(2, 3, 1), "a Linear and a Conv1d"),
    "modules with other state": (nn.Linear(2, 3), nn.Linear(2, 3, bias=False), "2 and 1 children"),
    "modules inside": (
        {"a": [nn.Sequential(nn.Linear(2, 3), nn.ReLU())]},
        {"a": [nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU())]},
        r"at \['a'\]\[0\]: a Sequential with 2 and 1 children",
    ),
    "a leaf": ({"a": 1}, {"a": [1]}, r"at \['a'\]: a leaf and a list"),
    "keys": ({"a": 1}, {"b": 1}, r"a dict with \['a'\] and \['b'\]"),
    "lengths": ((1, 2), (1, 2, 3), "a tuple with 2 and 3 children"),
    "dataclasses": (Point(1, 2), {"x": 1, "y": 2}, "a Point and a dict"),
    "lengths of queues": (collections.deque([1]), collections.deque([1], 3), "of another form"),
    "nothing": (None, 1, "a NoneType and a leaf"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_trees_that_differ_are_refused_at_the_place(name):
    a, b, text = DIFFERENT[name]
    for first, second in ((a, b), (b, a)):
        with pytest.raises(ValueError, match="map: the trees differ") as caught:
            wg.pytree.map(lambda *_: 0, first, second)
        assert not re.search("0x[0-9a-f]{6}", str(caught.value))
        if first is a:
            assert re.search(text, str(caught.value)), str(caught.value)


def test_nothing_that_is_said_of_a_tree_names_an_address():
    structure = wg.pytree.flatten({"m": nn.Linear(2, 3), "n": [nn.LSTM(2, 3)]})[1]
    assert "Linear(weight, bias)" in repr(structure)
    f = wg.compile(lambda x, m, o: m(x))
    f(wg.ones((1, 2)), nn.Linear(2, 3), Key())
    for text in (repr(structure), str(f.explain())):
        assert not re.search("0x[0-9a-f]{6}", text), text
