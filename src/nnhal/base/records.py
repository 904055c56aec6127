"""What classes of values are made of: records, whose fields are declared, and which nobody changes.

A start makes a hundred such classes: one of `msgspec.Struct` takes a fortieth of the time of a dataclass. The functions of
`dataclasses` (`replace`, `fields`, `asdict`) work on records too.
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
    """The fields of each class as `dataclasses` looks for them, made when it first does: twice for each `replace`."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[type[Struct], Mapping[str, Field[Any]]] = WeakKeyDictionary()

    def __get__(self, record: object, kind: type[Struct]) -> "Mapping[str, Field[Any]]":
        from dataclasses import make_dataclass

        if kind not in self._made:
            made = make_dataclass(kind.__name__, kind.__struct_fields__)
            self._made[kind] = cast("Mapping[str, Field[Any]]", vars(made)["__dataclass_fields__"])
        return self._made[kind]


class Record(Struct, frozen=True, weakref=True):
    """A value made of fields: equal to another of its class whose fields are equal."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[Any]  # Field is not imported: what reads annotations could not evaluate it
    else:  # without an annotation, which msgspec would evaluate
        __dataclass_fields__ = _DataclassFields()


def as_dict(record: Record) -> dict[str, Any]:
    """Its fields by name, the same of the records in it."""
    from dataclasses import asdict

    return asdict(record)


class PartlyCompared(Record, frozen=True, eq=False):
    """A record with fields that do not matter where two are compared, or that are not shown."""

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
