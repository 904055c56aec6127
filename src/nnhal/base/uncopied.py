"""Objects that belong to one process raise an error if they are pickled or copied."""

from typing import ClassVar, NoReturn

from nnhal.base.errors import BadState


class NotCopyable:
    """A class that cannot be pickled or copied. instead: what to do, for it and its subclasses."""

    __slots__ = ()
    _instead: ClassVar[str] = ""

    def __init_subclass__(cls, *, instead: str = "", **options: object) -> None:
        super().__init_subclass__(**options)
        cls._instead = instead or cls._instead

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise BadState(f"{type(self).__name__}: cannot be pickled or copied; {self._instead}")
