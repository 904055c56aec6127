"""Attributes that are worked out when somebody first asks for them."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
S = TypeVar("S")


class kept(Generic[T]):  # noqa: N801 (a decorator)
    """As `functools.cached_property`, which before Python 3.12 holds a lock of the whole class meanwhile: others wait for
    what is worked out for one object, and in a process that is forked then for ever.

    Threads that ask at once may each work it out; all get what came of it first.
    """

    def __init__(self, work: Callable[[Any], T]) -> None:
        self._work, self._name, self.__doc__ = work, work.__name__, work.__doc__

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "kept[T]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        return vars(instance).setdefault(self._name, self._work(instance))
