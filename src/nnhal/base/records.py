"""Immutable value classes with declared fields.

nnhal's start creates a hundred such classes: with `msgspec.Struct`, in a fortieth of the time that dataclasses take.
The functions of `dataclasses` (`replace`, `fields`, `asdict`) work on records too.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast
from weakref import WeakKeyDictionary

from msgspec import Struct, field, structs

if TYPE_CHECKING:
    from dataclasses import Field

__all__ = ["PartlyCompared", "Record", "Struct", "as_dict", "field", "replace"]

replace = structs.replace


class _DataclassFields:
    """Creates the fields of each class that `dataclasses` looks for on first use: twice for each `replace`."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[type[Struct], Mapping[str, Field[Any]]] = WeakKeyDictionary()

    def __get__(self, record: object, kind: type[Struct]) -> "Mapping[str, Field[Any]]":
        from dataclasses import make_dataclass

        if kind not in self._made:
            made = make_dataclass(kind.__name__, kind.__struct_fields__)
            self._made[kind] = cast("Mapping[str, Field[Any]]", vars(made)["__dataclass_fields__"])
        return self._made[kind]


class Record(Struct, frozen=True, weakref=True):
    """A value with fields: records of one class are equal if their fields are."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[Any]  # Field is not imported: what reads annotations could not evaluate it
    else:  # without an annotation, which msgspec would evaluate
        __dataclass_fields__ = _DataclassFields()


def as_dict(record: Record) -> dict[str, Any]:
    """Return the fields by name, recursively."""
    from dataclasses import asdict

    return asdict(record)


class PartlyCompared(Record, frozen=True, eq=False):
    """A record with fields that are not compared, or not shown."""

    _not_compared: ClassVar[frozenset[str]] = frozenset()
    _not_shown: ClassVar[frozenset[str]] = frozenset()

    def _compared(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__struct_fields__ if name not in self._not_compared])

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in self._not_shown]
        return f"{type(self).__name__}({', '.join(shown)})"
