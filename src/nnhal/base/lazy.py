"""Attributes that are computed on first use, and names of packages that import their module on first use."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
S = TypeVar("S")


class cached_property(Generic[T]):  # noqa: N801 (a decorator)
    """Like `functools.cached_property`, without its lock.

    Before Python 3.12, that lock is shared by the whole class: one object's computation blocks the others, and a forked
    child for ever. Threads may compute a value at the same time; all get the first result.
    """

    def __init__(self, work: Callable[[Any], T]) -> None:
        self._work, self._name, self.__doc__ = work, work.__name__, work.__doc__

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "cached_property[T]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        return vars(instance).setdefault(self._name, self._work(instance))


def exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the package's `__getattr__`. modules: the module of each name.

    It raises ResourceExhausted if descriptors or memory run out during the import; the name can be used later.
    """

    def found(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(modules[name]), name)
        except OSError as error:
            from nnhal.base.errors import ResourceExhausted, is_out_of_resources  # it imports numpy

            if not is_out_of_resources(error):
                raise
            raise ResourceExhausted(f"{package}.{name}: cannot be imported: {error.strerror}") from error
        setattr(sys.modules[package], name, value)
        return value

    return found
