"""Nested containers as flat lists of leaves, and the structure that puts them back.

Dicts (in insertion order), ordered and default dicts, lists, deques, tuples, named tuples,
dataclasses, `nn.Module`s and `None` are
containers; everything else is a leaf. `register_pytree` adds containers. A `Structure` is
hashable and comparable, so that it can be part of a key.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

from wengert._core import ShapeError, Tensor, asarray, concat, zeros

__all__ = [
    "Structure",
    "flatten",
    "flatten_with_paths",
    "leaves",
    "map",
    "ravel",
    "register_pytree",
    "unflatten",
]

Children = tuple[Iterable[Any], Hashable]


class _Container(NamedTuple):
    flatten: Callable[[Any], Children]
    unflatten: Callable[[Hashable, list[Any]], Any]
    name_child: Callable[[Hashable, int], str]
    # Which trees `map` takes together; those of equal `aux` by default.
    form: Callable[[Any], Hashable] = lambda aux: aux


class Structure(NamedTuple):
    """What remains of a tree when its leaves are taken out."""

    kind: type | None
    """The container's type; `None` stands for a leaf."""
    aux: Hashable
    """What the container needs besides its children: keys, field names."""
    children: tuple[Structure, ...]
    leaves: int
    """The number of leaves below."""


_LEAF = Structure(None, None, (), 1)


def _by_position(_: Hashable, i: int) -> str:
    return f"[{i}]"


def _by_key(keys: Any, i: int) -> str:
    return f"[{keys[i]!r}]"


def _with_names(names: Any, children: list[Any]) -> dict[Any, Any]:
    return dict(zip(names, children, strict=True))


def _by_attribute(names: Any, i: int) -> str:
    return f".{names[i]}"


_containers: dict[type, _Container] = {
    type(None): _Container(lambda _: ((), None), lambda _, __: None, _by_position),
    list: _Container(lambda t: (t, None), lambda _, c: c, _by_position),
    tuple: _Container(lambda t: (t, None), lambda _, c: tuple(c), _by_position),
    dict: _Container(
        lambda t: (t.values(), tuple(t)),
        _with_names,
        _by_key,
    ),
    OrderedDict: _Container(
        lambda t: (t.values(), tuple(t)),
        lambda keys, c: OrderedDict(zip(keys, c, strict=True)),  # type: ignore[call-overload]
        _by_key,
    ),
    defaultdict: _Container(
        lambda t: (t.values(), (t.default_factory, tuple(t))),
        lambda aux, c: defaultdict(aux[0], zip(aux[1], c, strict=True)),  # type: ignore[index]
        lambda aux, i: f"[{aux[1][i]!r}]",  # type: ignore[index]
    ),
    deque: _Container(lambda t: (t, t.maxlen), lambda n, c: deque(c, n), _by_position),  # type: ignore[call-overload]
}


_bases: dict[type, _Container] = {}  # kinds whose subclasses are containers too
# What was found out about other kinds, which may be local to something that is dropped.
_found: WeakKeyDictionary[type, _Container] = WeakKeyDictionary()
_leaves: WeakSet[type] = WeakSet()


def register_pytree(
    kind: type,
    flatten: Callable[[Any], Children],
    unflatten: Callable[[Any, list[Any]], Any],
    name_child: Callable[[Any, int], str] = _by_position,
    subclasses: bool = False,
    form: Callable[[Any], Hashable] | None = None,
) -> None:
    """Make instances of `kind` (and, if asked, of its subclasses) containers.

    `flatten(x)` gives the children and something hashable; `unflatten(that, children)` gives an
    equal object back; `name_child(that, i)` is how a path to the child is written in messages. A
    type can be registered once: `ValueError` otherwise. `map` takes containers together whose
    `form(that)` is equal, by default that itself.
    """
    if kind in _containers or kind in _bases:
        raise ValueError(f"register_pytree: {kind.__qualname__} is registered already")
    table = _bases if subclasses else _containers
    table[kind] = _Container(flatten, unflatten, name_child, form or (lambda aux: aux))
    _found.clear()
    _leaves.clear()


def _dataclass(kind: type) -> _Container:
    import dataclasses

    fields = tuple(f.name for f in dataclasses.fields(kind) if f.init)
    weak = ref(kind)

    def build(names: Hashable, children: list[Any]) -> Any:
        kind: Any = weak()
        return kind(**_with_names(names, children))

    return _Container(lambda x: ([getattr(x, n) for n in fields], fields), build, _by_attribute)


def _container_of(kind: type) -> _Container | None:
    found = _containers.get(kind)
    if found is not None or kind in _leaves:
        return found
    found = _found.get(kind)
    if found is not None:
        return found
    found = next((c for base, c in _bases.items() if issubclass(kind, base)), None)
    if found is None and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names, weak = kind._fields, ref(kind)
        found = _Container(lambda t: (t, names), lambda _, c: weak()(*c), _by_attribute)  # type: ignore
    elif found is None and hasattr(kind, "__dataclass_fields__"):
        found = _dataclass(kind)
    if found is not None:
        _found[kind] = found
    else:
        _leaves.add(kind)
    return found


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of `tree` in order, and its structure.

    >>> wg.pytree.flatten({"a": 1, "b": (2, None)})[0]
    [1, 2]
    """
    leaves: list[Any] = []
    try:
        return leaves, _flatten(tree, leaves)
    except RecursionError:
        pass  # raised anew, without a traceback as long as the stack
    raise RecursionError("flatten: the tree contains itself, or is nested too deeply")


def leaves(tree: Any) -> list[Any]:
    """The leaves of `tree` in order.

    >>> wg.pytree.leaves({"a": 1, "b": (2, None)})
    [1, 2]
    """
    return flatten(tree)[0]


def ravel(tree: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """The elements of all leaves, tensors or numbers, as one vector, and the function that makes a
    tree of such a vector.

    The vector has the leaves' common dtype (`DTypeError` where they have none); the tree's tensors
    have the shapes and dtypes that they had. Both directions are differentiated, batched and
    captured as what they are: reshapes and slices. `ShapeError` for a vector of another length.

    >>> flat, back = wg.pytree.ravel({"w": wg.ones((2, 2)), "b": wg.zeros(1)})
    >>> flat.tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0]
    >>> back(flat * 3.0)["w"].tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    found, structure = flatten(tree)
    tensors = [asarray(x) for x in found]
    forms = [(tuple(x.shape), x.dtype) for x in tensors]
    length = sum(x.size for x in tensors)
    flat = concat([x.reshape(-1) for x in tensors]) if tensors else zeros(0)

    def back(vector: Tensor) -> Any:
        if tuple(vector.shape) != (length,):
            raise ShapeError(f"ravel: the tree has shape ({length},), got {tuple(vector.shape)}")
        start, values = 0, []
        for shape, dtype in forms:
            stop = start + math.prod(shape)
            values.append(vector[start:stop].reshape(shape).astype(dtype))
            start = stop
        return unflatten(structure, values)

    return flat, back


def _flatten(tree: Any, leaves: list[Any]) -> Structure:
    container = _container_of(type(tree))
    if container is None:
        leaves.append(tree)
        return _LEAF
    children, aux = container.flatten(tree)
    below = tuple(_flatten(c, leaves) for c in children)
    return Structure(type(tree), aux, below, sum(c.leaves for c in below))


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """The tree of `structure` with these leaves; `ValueError` when their number is wrong.

    >>> leaves, structure = wg.pytree.flatten({"a": 1, "b": (2, None)})
    >>> wg.pytree.unflatten(structure, [x * 10 for x in leaves])
    {'a': 10, 'b': (20, None)}
    """
    if not isinstance(structure, Structure):
        kind = type(structure).__name__
        raise TypeError(f"unflatten: expected a structure that flatten gave, got {kind}")
    leaves = list(leaves)
    if len(leaves) != structure.leaves:
        raise ValueError(f"unflatten: got {len(leaves)} leaves, wanted {structure.leaves}")
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure.kind is None:
        return next(leaves)
    children = [_unflatten(c, leaves) for c in structure.children]
    container = _container_of(structure.kind)
    assert container is not None, "a structure names containers only"
    return container.unflatten(structure.aux, children)


def flatten_with_paths(tree: Any) -> tuple[list[tuple[str, Any]], Structure]:
    """As `flatten`, each leaf with its path, for messages.

    >>> wg.pytree.flatten_with_paths({"a": 1, "b": (2,)})[0]
    [("['a']", 1), ("['b'][0]", 2)]
    """
    leaves, structure = flatten(tree)
    return list(zip(_paths(structure, ""), leaves, strict=True)), structure


def _paths(structure: Structure, prefix: str) -> Iterator[str]:
    if structure.kind is None:
        yield prefix
        return
    container = _container_of(structure.kind)
    assert container is not None, "a structure names containers only"
    for i, child in enumerate(structure.children):
        yield from _paths(child, prefix + container.name_child(structure.aux, i))


def map(f: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """`tree` with every leaf replaced by `f(leaf, *leaves of rest at the same place)`.

    >>> wg.pytree.map(lambda a, b: a + b, {"x": 1}, {"x": 2})
    {'x': 3}
    """
    leaves, structure = flatten(tree)
    others = []
    for other in rest:
        more, s = flatten(other)
        if s != structure:
            _check_alike(structure, s, "")
        others.append(more)
    return unflatten(structure, [f(*each) for each in zip(leaves, *others, strict=True)])


def _check_alike(a: Structure, b: Structure, path: str) -> None:
    """Refuses two trees that `map` cannot take together, naming the first place that differs."""
    where = f" at {path}" if path else ""
    if a.kind is not b.kind:
        raise ValueError(f"map: the trees differ{where}: {_called(a)} and {_called(b)}")
    if a.kind is None:
        return
    container = _container_of(a.kind)
    assert container is not None, "a structure names containers only"
    if len(a.children) != len(b.children):
        counts = f"{len(a.children)} and {len(b.children)} children"
        raise ValueError(f"map: the trees differ{where}: {_called(a)} with {counts}")
    names = [[container.name_child(x.aux, i) for i in range(len(a.children))] for x in (a, b)]
    for left, right in zip(*names, strict=True):
        if left != right:
            raise ValueError(f"map: the trees differ{where}: {_called(a)} with {left} and {right}")
    if container.form(a.aux) != container.form(b.aux):
        raise ValueError(f"map: the trees differ{where}: {_called(a)} of another form")
    for left, right, name in zip(a.children, b.children, names[0], strict=True):
        _check_alike(left, right, path + name)


def _called(structure: Structure) -> str:
    return "a leaf" if structure.kind is None else f"a {structure.kind.__qualname__}"
