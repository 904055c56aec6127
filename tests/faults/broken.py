"""Messages broken in one place, generated from the types of `wire`: each field by type, range, length, sign and count."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from nnhal.ipc.protocol import wire

Path = tuple[int, ...]
LONG = 1 << 16  # a list or text is made longer than its limit where that is no higher

NEW = "new"
# What kind of object a field names, "" where any may be, NEW where its sender picks it. A field of 64 bits that is not here
# is an amount.
NUMBERS: dict[str, str] = {
    "prepared": "model",
    "binding": "binding",
    "considered": "considered",
    "execution": "execution",
    "buffer": "buffer",
    "held": "held",
    "cache": "files",
    "objects": "",
    "roles": "model",
    "object": NEW,
}
AMOUNTS = {"cpus", "size", "offset", "length", "location", "deadline", "loop_timeout", "after", "begun"}
AMOUNTS |= {"on_device", "in_driver", "value"}


@dataclass(frozen=True)
class Breakage:
    """One field with another value. path: its place in the message. wrong: no peer may take it, else it may be right."""

    what: str
    path: Path
    value: Any
    wrong: bool

    @property
    def where(self) -> str:
        """The place, as the decoder's messages name it."""
        return "`$" + "".join(f"[{n}]" for n in self.path) + "`"


@dataclass(frozen=True)
class Numbered:
    """A field that holds the number of an object. of: what kind of object, as in `NUMBERS`."""

    what: str
    path: Path
    of: str


def plain(message: Any) -> Any:
    """A message as lists and numbers."""
    return msgspec.msgpack.decode(wire.encode(message))


def put(whole: Any, path: Path, value: Any) -> Any:
    """The same with another value in one place."""
    if not path:
        return value
    place, *rest = path
    return [*whole[:place], put(whole[place], tuple(rest), value), *whole[place + 1 :]]


def replaced(whole: Any, values: dict[int, Any]) -> Any:
    """The same with numbers replaced by others, wherever they stand."""
    if isinstance(whole, list):
        return [replaced(each, values) for each in whole]
    return values.get(whole, whole) if type(whole) is int else whole


def breakages(message: Any) -> Iterator[Breakage]:
    """Every field of a message in every way that its type can be broken."""
    yield from _of(inspect.type_info(type(message)), plain(message), (), type(message).__name__, type(message).__name__)


def numbers(message: Any) -> Iterator[Numbered]:
    """Every field of a message that holds a number of an object."""
    for leaf, path, what, name in _leaves(inspect.type_info(type(message)), plain(message), (), "", ""):
        if isinstance(leaf, inspect.IntType) and leaf.lt is leaf.le is None:
            if name and name not in NUMBERS and name not in AMOUNTS:
                raise LookupError(
                    f"{type(message).__name__}.{name}: is it a number of an object or an amount? Say so here"
                )
            if name in NUMBERS:
                yield Numbered(f"{type(message).__name__}{what}", path, NUMBERS[name])


def _children(info: Any, value: Any, path: Path, what: str, name: str) -> Iterator[tuple[Any, Any, Path, str, str]]:
    """What lies in a value: type, value, place, how it is called, the field's name."""
    if isinstance(info, inspect.StructType):
        first = 0 if info.tag_field is None else 1
        for place, field in enumerate(info.fields, first):
            yield field.type, value[place], (*path, place), f"{what}.{field.name}", field.name
    elif isinstance(info, inspect.VarTupleType) and value:
        yield info.item_type, value[0], (*path, 0), f"{what}[0]", name
    elif isinstance(info, inspect.TupleType):
        for place, kind in enumerate(info.item_types):
            yield kind, value[place], (*path, place), f"{what}[{place}]", "" if place else name


def _chosen(info: Any, value: Any) -> Any:
    """The type of a value where several are possible."""
    if not isinstance(info, inspect.UnionType):
        return info
    for kind in info.types:
        if isinstance(kind, inspect.StructType) and isinstance(value, list) and kind.tag in (None, value[0]):
            return kind
        fits: dict[type, Any] = {inspect.StrType: str, inspect.BytesType: bytes, inspect.VarTupleType: list}
        if isinstance(value, fits.get(type(kind), ())) or (isinstance(kind, inspect.IntType) and type(value) is int):
            return kind
    return inspect.NoneType()


def _leaves(info: Any, value: Any, path: Path, what: str, name: str) -> Iterator[tuple[Any, Path, str, str]]:
    info = _chosen(info, value)
    inside = False
    for child in _children(info, value, path, what, name):
        inside = True
        yield from _leaves(*child)
    if not inside:
        yield info, path, what, name


def _of(info: Any, value: Any, path: Path, what: str, name: str) -> Iterator[Breakage]:
    absent = isinstance(info, inspect.UnionType) and any(isinstance(t, inspect.NoneType) for t in info.types)
    others = {type(kind) for kind in info.types} if isinstance(info, inspect.UnionType) else set()
    info = _chosen(info, value)
    if path:  # a message that is none is another matter
        yield Breakage(f"{what} = nothing", path, None, not absent)
        for label, broken, wrong in _values(info, value):
            yield Breakage(
                f"{what} = {label}", path, broken, wrong and not (label == "text" and inspect.StrType in others)
            )
    for child in _children(info, value, path, what, name):
        yield from _of(*child)


def _values(info: Any, value: Any) -> Iterator[tuple[str, Any, bool]]:  # noqa: PLR0912 (a table)
    """Other values for a field: how they are called, what they are, whether they are wrong whatever else holds."""
    match info:
        case inspect.IntType():
            least, past = info.ge, info.lt if info.lt is not None else None if info.le is None else info.le + 1
            yield "text", "x", True
            yield "one half", 0.5, True
            if least is not None:
                yield str(least - 1), least - 1, True
            if past is not None:
                yield str(past), past, True
            highest = 2**64 - 1 if past is None else past - 1
            yield from ((str(n), n, False) for n in {0, 1, highest} - {value})
        case inspect.BoolType():
            yield "2", 2, True
            yield f"{not value}", not value, False
        case inspect.FloatType():
            yield "text", "x", True
            yield from ((str(x), x, False) for x in (float("nan"), float("inf"), -1.0, 0.0, 1e300))
        case inspect.StrType():
            yield "7.5", 7.5, True
            yield "no text", "", False
            yield "text of NULs and escapes", "\x00\x1b[2J\n" * 3, False
            yield "text beyond its limit", "x" * (info.max_length + 1), True
        case inspect.BytesType():
            yield "text", "x", True
            yield "no bytes", b"", False
            yield "one byte", b"\xff", False
        case inspect.VarTupleType():
            yield "7", 7, True
            yield "an empty list", [], bool(info.min_length)
            item = value[0] if value else _least(info.item_type)
            if item is not ...:
                yield "a list of two", [item, item], False
            if info.max_length is not None and info.max_length <= LONG and item is not ...:
                yield f"{info.max_length + 1} items", [item] * (info.max_length + 1), True
        case inspect.TupleType():
            yield "one item less", value[:-1], True
            yield "one item more", [*value, 0], True
        case inspect.StructType():
            required = sum(field.required for field in info.fields) + (info.tag_field is not None)
            yield "7", 7, True
            yield "an empty list", [], required > 0
            if required:
                yield "one field less than it needs", value[: required - 1], True
            if info.tag_field is not None:
                yield "of no known kind", [99, *value[1:]], True
        case inspect.DictType():
            yield "a list", [], True
            yield "an empty map", {}, False


def _least(info: Any) -> Any:
    """The smallest value of a type, ... where there is none that is known here."""
    return {inspect.IntType: 0, inspect.FloatType: 0.0, inspect.StrType: "", inspect.BoolType: False}.get(
        type(info), ...
    )
