"""`Module`, and the two marks for its state: `Parameter` and `Buffer`.

A module is an ordinary Python object. Its state is found by looking at its attributes in the
order of their definition, through lists, tuples and dicts; `super().__init__()` is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, SupportsIndex, TypeVar

from wengert import _touched
from wengert._core import Device, Dispatcher, DType, Tensor, asarray, isdtype, no_grad, tick
from wengert.pytree import register_pytree

__all__ = ["Buffer", "HookHandle", "Module", "Parameter"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class _HasForward(Protocol[P, R_co]):
    """What a type checker needs to know of a module to know its calls."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """What calling the module computes."""
        raise NotImplementedError


class _State(Tensor):
    """A tensor that belongs to the state of the module whose attribute it is."""

    __slots__ = ()

    def _mark(self) -> bool:
        """What the constructor takes besides the value."""
        raise NotImplementedError

    def _like(self, value: Tensor) -> Self:
        """`value` with this tensor's mark."""
        return type(self)(value, self._mark())  # type: ignore[call-arg]

    def __copy__(self) -> Self:
        return self._like(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._like(self)

    def __reduce_ex__(self, _: SupportsIndex) -> Any:
        return type(self), (self.detach(), self._mark())


def _value(data: Any) -> Tensor:
    return data.detach() if isinstance(data, Tensor) else asarray(data)


class Parameter(_State):
    """A tensor that a module learns. `data` is a tensor or anything `asarray` takes.

    Setting `requires_grad = False` freezes it; it stays a parameter.
    """

    __slots__ = ()

    def __new__(cls, data: Any, requires_grad: bool = True) -> Self:
        self = Tensor.__new__(cls, _value(data))
        self.requires_grad = requires_grad
        return self

    def _mark(self) -> bool:
        return self.requires_grad


class Buffer(_State):
    """A tensor that belongs to a module and is not learned, such as running statistics.

    A buffer that is not `persistent` is left out of `state_dict`.
    """

    __slots__ = ("persistent",)
    persistent: bool

    def __new__(cls, data: Any, persistent: bool = True) -> Self:
        self = Tensor.__new__(cls, _value(data))
        self.persistent = persistent
        return self

    def _mark(self) -> bool:
        return self.persistent


class HookHandle:
    """What registering a hook returns: `remove()` takes the hook off again."""

    def __init__(self, owner: Module, hooks: dict[int, Callable[..., Any]], key: int) -> None:
        self._owner, self._hooks, self._key = owner, hooks, key

    def remove(self) -> None:
        """Take the hook off; a second call does nothing."""
        if self._hooks.pop(self._key, None) is not None:
            self._owner._changed()


class Module:
    """What layers and models are made of. Users write `forward`.

    >>> class Scale(nn.Module):
    ...     def __init__(self, n):
    ...         self.weight = nn.Parameter(wg.ones(n))
    ...     def forward(self, x):
    ...         return x * self.weight
    >>> Scale(3)(wg.ones(3)).tolist()
    [1.0, 1.0, 1.0]
    """

    training: bool = True
    _version: int = 0
    _hooks: dict[int, Callable[..., Any]] | None = None
    _pre_hooks: dict[int, Callable[..., Any]] | None = None
    _backward_hooks: dict[int, Callable[..., Any]] | None = None

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        self = super().__new__(cls)
        _touched.made(self)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What calling the module computes; every module defines it."""
        raise NotImplementedError(f"{type(self).__qualname__}: forward is not defined")

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        record = _touched.here.record
        before = 0 if record is None else record.enter(self)
        try:
            if self._pre_hooks:
                for hook in tuple(self._pre_hooks.values()):
                    changed = hook(self, args)
                    if changed is not None:
                        args = changed if isinstance(changed, tuple) else (changed,)
            watched = None
            if self._backward_hooks:
                from wengert.nn._hooks import Watched

                watched = Watched(self, tuple(self._backward_hooks.values()), args)
                args = watched.inputs(args)
            y = self.forward(*args, **kwargs)
            if self._hooks:
                for hook in tuple(self._hooks.values()):
                    changed = hook(self, args, y)
                    y = y if changed is None else changed
            return y if watched is None else watched.outputs(y)
        finally:
            if record is not None:
                record.leave(before)

    # A call takes what `forward` takes, and gives what that gives.
    if TYPE_CHECKING:

        def __call__(self: _HasForward[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    else:
        __call__ = _call

    def register_forward_pre_hook(self, hook: Callable[[Module, tuple], Any]) -> HookHandle:
        """Call `hook(module, args)` before `forward`; what it returns, if anything, becomes the
        arguments."""
        self._pre_hooks = {} if self._pre_hooks is None else self._pre_hooks
        return _add_hook(self, self._pre_hooks, hook)

    def register_forward_hook(self, hook: Callable[[Module, tuple, Any], Any]) -> HookHandle:
        """Call `hook(module, args, output)` after `forward`; what it returns, if anything, becomes
        the output."""
        self._hooks = {} if self._hooks is None else self._hooks
        return _add_hook(self, self._hooks, hook)

    def register_full_backward_hook(
        self, hook: Callable[[Module, tuple, tuple], Any]
    ) -> HookHandle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of a call are known.

        `grad_input` has one for each positional argument, None where there is none; what the hook
        returns, if anything, goes on in its place. `grad_output` has those of the floating results.
        In a captured function the hook is called once, while its gradients are traced.
        """
        self._backward_hooks = {} if self._backward_hooks is None else self._backward_hooks
        return _add_hook(self, self._backward_hooks, hook)

    if not TYPE_CHECKING:  # to which it would say that there is every name

        def __getattr__(self, name: str) -> Any:
            """A parameter that a parametrisation computes; see `wengert.nn.parametrize`."""
            found = self.__dict__.get("parametrizations", {}).get(name)
            if found is None:
                message = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(message, name=name, obj=self)
            return found()

    # An assignment of something new changes `_version`, so that captured functions see it.

    def __setattr__(self, name: str, value: Any) -> None:
        old = self.__dict__.get(name)
        if value is old and name in self.__dict__:  # `self.count += 1` on a tensor, for one
            return
        if isinstance(old, _State) and isinstance(value, Tensor) and type(value) is not type(old):
            raise TypeError(
                f"{type(self).__qualname__}.{name} is a {type(old).__name__} and would stop being "
                f"one; use .{name}.assign(value) or wrap the value in nn.{type(old).__name__}"
            )
        _touched.assigning(self, name)
        object.__setattr__(self, name, value)
        self._changed()

    def _changed(self) -> None:
        self.__dict__["_version"] = self._version + 1
        tick()

    def __delattr__(self, name: str) -> None:
        _touched.assigning(self, name)
        object.__delattr__(self, name)
        self._changed()

    # What belongs to a module.

    def _items(self) -> Iterator[tuple[str, Any]]:
        """The attributes that may hold state, by the names they have in `state_dict`."""
        return (item for item in self.__dict__.items() if item[0] not in _OWN)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly below, with their names; each once."""
        return _once((n, x) for n, x in _leaves("", self._items()) if isinstance(x, Module))

    def children(self) -> Iterator[Module]:
        """The modules directly below."""
        return (m for _, m in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, with their dotted names; each once."""
        return _once(_modules(self, prefix, ()))

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        return (m for _, m in self.named_modules())

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """The parameters of this module and all below it, frozen ones too; each once."""
        return _once((n, t) for n, t in _tensors(self, prefix, ()) if isinstance(t, Parameter))

    def parameters(self) -> Iterator[Parameter]:
        """The parameters of this module and all below it."""
        return (p for _, p in self.named_parameters())

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Buffer]]:
        """The buffers of this module and all below it; each once."""
        return _once((n, t) for n, t in _tensors(self, prefix, ()) if isinstance(t, Buffer))

    def buffers(self) -> Iterator[Buffer]:
        """The buffers of this module and all below it."""
        return (b for _, b in self.named_buffers())

    # State as a dictionary.

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers by their dotted names, as they are now: later training
        does not change what was returned. A shared tensor stands under each of its names."""
        return {name: t.detach() for name, t in self._persistent()}

    def _persistent(self) -> Iterator[tuple[str, _State]]:
        for name, t in _tensors(self, "", ()):
            if not isinstance(t, Buffer) or t.persistent:
                yield name, t

    def load_state_dict(
        self, state: Mapping[str, Any], strict: bool = True
    ) -> tuple[list[str], list[str]]:
        """Give parameters and buffers the values in `state` (tensors or arrays), on their devices.

        All problems (names missing, names unexpected, shapes, dtypes) are listed in one
        `ValueError`, and then nothing is changed. With `strict=False` names may be missing or
        unexpected; both lists are returned.
        """
        own = dict(self._persistent())
        missing = [n for n in own if n not in state]
        unexpected = [n for n in state if n not in own]
        values = {n: asarray(state[n], device=own[n].device) for n in own if n in state}
        problems = [f"  {n}: {w}" for n, v in values.items() if (w := _mismatch(v, own[n]))]
        if strict:
            problems += [f"  {n}: missing" for n in missing]
            problems += [f"  {n}: unexpected" for n in unexpected]
        if problems:
            name = type(self).__qualname__
            raise ValueError("\n".join([f"load_state_dict: {name} refuses the state:", *problems]))
        with no_grad():
            for n, v in values.items():
                own[n].assign(v)
        return missing, unexpected

    # Changing a whole tree of modules. Each method returns the module itself.

    def train(self, mode: bool = True) -> Self:
        """Put this module and all below it in training mode (or evaluation mode)."""
        for m in self.modules():
            m.training = mode
        return self

    def eval(self) -> Self:
        """Put this module and all below it in evaluation mode."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze (`False`) or free every parameter."""
        for p in self.parameters():
            p.requires_grad = requires_grad
        return self

    def zero_grad(self) -> None:
        """Drop the gradient of every parameter."""
        for p in self.parameters():
            p.grad = None

    def apply(self, f: Callable[[Module], Any]) -> Self:
        """Call `f` on every module of the tree, children before parents."""
        for m in reversed(list(self.modules())):
            f(m)
        return self

    def to(
        self,
        device: str | Device | DType | None = None,
        dtype: DType | None = None,
    ) -> Self:
        """Convert floating parameters and buffers to `dtype`, and everything to `device`.

        The only argument may be either: `model.to("reference")`, `model.to(wengert.float64)`.

        A tensor's dtype and device are fixed for life, so the module gets new `Parameter`s:
        make the optimizer afterwards.
        """

        place: Any = device
        if isinstance(device, DType):
            place, dtype = dtype, device

        def convert(t: Any) -> Any:
            if not isinstance(t, _State):
                return t
            value: Tensor = t.detach()
            if dtype is not None and isdtype(value.dtype, "real floating"):
                value = value.astype(dtype)
            if place is not None:
                value = value.to_device(place)
            unchanged = value.dtype == t.dtype and value.device == t.device
            return t if unchanged else t._like(value)

        new = _remember(convert)
        for m in self.modules():
            for name, x in list(m.__dict__.items()):
                if name not in _OWN:
                    m.__dict__[name] = _substitute(x, new)
            m._changed()
        return self

    # How a module prints.

    def extra_repr(self) -> str:
        """The text between the parentheses: the arguments of `__init__` that the module keeps as
        plain attributes of the same name, without those that have their default."""
        import inspect

        words = []
        for p in list(inspect.signature(type(self).__init__).parameters.values())[1:]:
            value = self.__dict__.get(p.name, p)
            if value is None and p.default is True:  # e.g. bias=False leaves no bias
                words.append(f"{p.name}=False")
            elif not isinstance(value, (bool, int, float, str, tuple)) or value == p.default:
                continue
            elif p.default is p.empty:
                words.append(repr(value))
            else:
                words.append(f"{p.name}={value!r}")
        return ", ".join(words)

    def __repr__(self) -> str:
        count = sum(math.prod(p.shape) for p in self.parameters())
        own = [(n, x) for n, x in _leaves("", self._items()) if isinstance(x, Parameter)]
        note = f"  # {count:,} parameters" if count else ""
        if own:
            note += ": " + ", ".join(f"{n} {tuple(p.shape)}" for n, p in own)
        extra, head = self.extra_repr(), type(self).__name__
        below = [f"({n}): {m!r}".replace("\n", "\n  ") for n, m in self.named_children()]
        if not below:
            return f"{head}({extra}){note}"
        lines = [extra, *below] if extra else below
        return "\n".join([f"{head}({note}", *(f"  {line}" for line in lines), ")"])


_OWN = frozenset({"training", "_version", "_hooks", "_pre_hooks", "_backward_hooks"})

Named = Iterator[tuple[str, Any]]


def _add_hook(
    owner: Module, hooks: dict[int, Callable[..., Any]], hook: Callable[..., Any]
) -> HookHandle:
    key = max(hooks, default=-1) + 1
    hooks[key] = hook
    owner._changed()
    return HookHandle(owner, hooks, key)


def compiled_module(x: Any) -> Module | None:
    """The module that was compiled, if `x` is one that was."""
    module = getattr(x, "__wrapped__", None) if isinstance(x, Dispatcher) else None
    return module if isinstance(module, Module) else None


def _mismatch(got: Tensor, wanted: Tensor) -> str | None:
    """What keeps `got` from being a value of `wanted`, if anything."""
    if got.shape != wanted.shape:
        return f"shape {tuple(got.shape)}, wanted {tuple(wanted.shape)}"
    if got.dtype != wanted.dtype:
        return f"dtype {got.dtype}, wanted {wanted.dtype}"
    return None


def _leaves(prefix: str, items: Iterable[tuple[Any, Any]]) -> Named:
    """The state and the modules among `items`, through lists, tuples and dicts."""
    for key, x in items:
        name = f"{prefix}{key}"
        if isinstance(x, (_State, Module)):
            yield name, x
        elif isinstance(x, Dispatcher):
            if (module := compiled_module(x)) is not None:
                yield name, module
        elif isinstance(x, (list, tuple)):
            yield from _leaves(name + ".", enumerate(x))
        elif isinstance(x, dict):
            yield from _leaves(name + ".", x.items())


def _modules(module: Module, name: str, above: tuple[Module, ...]) -> Named:
    """`module` and all below it. A module that contains itself is not entered twice."""
    yield name, module
    for below, x in _leaves(name and name + ".", module._items()):
        if isinstance(x, Module) and all(x is not m for m in (*above, module)):
            yield from _modules(x, below, (*above, module))


def _tensors(module: Module, name: str, above: tuple[Module, ...]) -> Named:
    """The state of `module` and all below it, in the order of definition."""
    for below, x in _leaves(name and name + ".", module._items()):
        if isinstance(x, _State):
            yield below, x
        elif all(x is not m for m in (*above, module)):
            yield from _tensors(x, below, (*above, module))


def _once(named: Named) -> Named:
    """Each object under its first name."""
    seen: set[int] = set()
    for name, x in named:
        if id(x) not in seen:
            seen.add(id(x))
            yield name, x


def _remember(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`f`, called once for each object, so that what is shared stays shared."""
    known: dict[int, Any] = {}

    def g(x: Any) -> Any:
        if id(x) not in known:
            known[id(x)] = f(x)
        return known[id(x)]

    return g


def _substitute(x: Any, f: Callable[[Any], Any]) -> Any:
    """`x` with `f` applied to the state and the modules in it; `x` itself when nothing changed."""
    if isinstance(x, (_State, Module)):
        return f(x)
    if (module := compiled_module(x)) is not None:
        twin = f(module)
        return x if twin is module else twin
    if isinstance(x, dict):
        values = [_substitute(v, f) for v in x.values()]
        same = all(a is b for a, b in zip(values, x.values(), strict=True))
        return x if same else type(x)(zip(x, values, strict=True))
    if isinstance(x, (list, tuple)):
        values = [_substitute(v, f) for v in x]
        same = all(a is b for a, b in zip(values, x, strict=True))
        return x if same else type(x)._make(values) if hasattr(x, "_make") else type(x)(values)
    return x


# Modules as pytrees: the children are the tensors of the state.


class _Shell:
    """A module as a hashable value that equals only itself."""

    __slots__ = ("module", "names")

    def __init__(self, module: Module, names: tuple[str, ...]) -> None:
        self.module, self.names = module, names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shell) and other.module is self.module

    def __hash__(self) -> int:
        return id(self.module)

    def __repr__(self) -> str:
        return f"{type(self.module).__name__}({', '.join(self.names)})"

    @property
    def form(self) -> tuple[type, tuple[str, ...]]:
        """What modules have in common that differ in their tensors and attributes only."""
        return type(self.module), self.names


def _at(module: Module, name: str) -> Any:
    """What stands at a dotted name."""
    x: Any = module
    for part in name.split("."):
        if isinstance(x, (Module, dict)):
            items = x._items() if isinstance(x, Module) else x.items()
            x = next(v for k, v in items if str(k) == part)
        else:
            x = x[int(part)]
        x = compiled_module(x) or x
    return x


def _flatten(module: Module) -> tuple[list[Tensor], _Shell]:
    origin = module.__dict__.get("_origin")
    if origin is not None:
        return [_at(module, name) for name in origin.names], origin
    named = list(_once(_tensors(module, "", ())))
    return [t for _, t in named], _Shell(module, tuple(n for n, _ in named))


def _unflatten(shell: Any, values: list[Any]) -> Module:
    """A copy of the module's tree that holds `values`; what is not state is shared."""
    table = {id(t): v for t, v in zip(_flatten(shell.module)[0], values, strict=True)}

    def replace(x: Any) -> Any:
        if isinstance(x, _State):
            return table[id(x)]
        twin = object.__new__(type(x))
        _touched.made(twin)
        known[id(x)] = twin  # before its attributes, for a module that contains itself
        twin.__dict__.update((n, _substitute(v, new)) for n, v in x.__dict__.items())
        return twin

    known: dict[int, Any] = {}

    def new(x: Any) -> Any:
        return known[id(x)] if id(x) in known else replace(x)

    twin = new(shell.module)
    # Its state need not be parameters and buffers: it is known by the names of the original's.
    twin.__dict__["_origin"] = shell
    return twin


register_pytree(
    Module,
    _flatten,
    _unflatten,
    lambda shell, i: f".{shell.names[i]}",
    subclasses=True,
    form=lambda shell: shell.form,
)
