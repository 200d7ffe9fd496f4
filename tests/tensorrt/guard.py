"""Classes that let through only what a real TensorRT has: names, arguments, and properties that may be set."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

Overload = list[list[Any]]


class Module:
    """A TensorRT as a table describes it; `offer` gives its classes something to do."""

    def __init__(self, table: dict[str, Any]) -> None:
        self._table = table
        self.__version__ = table["version"]
        for name, members in table["enums"].items():
            if "." not in name:
                setattr(self, name, IntEnum(name, members))

    def offer(self, cls: type, **state: Any) -> None:
        """Guard a class and put it in place under its own name, if this version has one."""
        name = cls.__name__
        if name in self._table["classes"]:
            setattr(self, name, _guarded(self, name, cls, self._table["classes"][name], state))

    def enum(self, name: str) -> Any:
        return IntEnum(name.split(".")[-1], self._table["enums"][name])


def _guarded(module: Module, name: str, cls: type, spec: dict[str, Any], state: dict[str, Any]) -> type:
    methods, properties = spec["methods"], spec["properties"]
    where = f"{name} of TensorRT {module.__version__}"

    class Guarded(cls):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            for key, value in state.items():
                object.__setattr__(self, key, value)
            self._module = module
            super().__init__(*arguments, **named)

        def __getattribute__(self, attribute: str) -> Any:
            if attribute.startswith("_"):
                return object.__getattribute__(self, attribute)
            if attribute in properties:
                return object.__getattribute__(self, attribute)
            if attribute not in methods:
                raise AttributeError(f"{where} has no {attribute}")
            does = object.__getattribute__(self, attribute)

            def call(*arguments: Any, **named: Any) -> Any:
                check(module, f"{where}: {attribute}", methods[attribute], arguments, named)
                return does(*arguments, **named)

            return call

        def __setattr__(self, attribute: str, value: Any) -> None:
            if not attribute.startswith("_") and not properties.get(attribute, False):
                raise AttributeError(f"{where} has no {attribute} that can be set")
            object.__setattr__(self, attribute, value)

    Guarded.__name__ = name
    return Guarded


def check(module: Any, what: str, overloads: list[Overload], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raise `TypeError` where no overload takes the arguments, as pybind11 does."""
    if not any(_takes(module, overload, arguments, named) for overload in overloads):
        raise TypeError(f"{what}(): incompatible arguments {arguments} {named}; it takes {overloads}")


def _takes(module: Any, overload: Overload, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    names = [name for name, _, _ in overload]
    if len(arguments) > len(names) or set(named) - set(names[len(arguments) :]):
        return False
    given = {**dict(zip(names, arguments, strict=False)), **named}
    if any(needed and name not in given for name, _, needed in overload):
        return False
    return all(name not in given or _is(module, given[name], kind) for name, kind, _ in overload)


def _is(module: Any, value: Any, kind: str) -> bool:
    """Whether a value is of a type, or becomes one as pybind11 converts it."""
    if kind in ("int", "SupportsInt"):
        return hasattr(value, "__int__") and not isinstance(value, str | float)
    if kind == "str":
        return isinstance(value, str)
    if kind == "bool":
        return isinstance(value, bool)
    if kind in ("Buffer", "buffer"):
        return isinstance(value, bytes | bytearray | memoryview)
    if kind in ("tuple", "list", "Dims"):
        wanted: Any = {"tuple": tuple, "list": list, "Dims": (tuple, list)}[kind]
        return isinstance(value, wanted) and all(isinstance(size, int) for size in value)
    wanted = getattr(module, kind, None)
    assert isinstance(wanted, type), f"the guard does not know {kind}"
    return value is None or isinstance(value, wanted)
