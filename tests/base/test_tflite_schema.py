"""The schema's data against the package `tflite`, whose classes are generated from the published schema.

Its types of tensors are older than those of LiteRT's package.
"""

import struct
from collections.abc import Sequence
from typing import Any

import pytest
import tflite
from ai_edge_litert import schema_py_generated as schema  # noqa: TID251

from nnhal.base.tflite_schema import OPERATORS, OPTIONS, OPTIONS_2, TYPES, fields_of

ENUMS = {"BuiltinOperator": OPERATORS, "TensorType": TYPES, "BuiltinOptions": OPTIONS, "BuiltinOptions2": OPTIONS_2}
TABLES = [*OPTIONS[1:], *OPTIONS_2[1:]]
NO_FIELDS = ("Init", "GetRootAs", "BufferHasIdentifier")
SAMPLES = {  # what reads otherwise in any other form: zeros lie behind
    "b": -2, "B": 254, "i": -0x01020304, "I": 0xFEFDFCFB, "q": -0x0102030405060708, "Q": 0xFEFDFCFBFAF9F8F7, "f": 0.625,
}  # fmt: skip


@pytest.mark.parametrize("name", ENUMS)
def test_members_of_enums_have_their_numbers(name: str) -> None:
    newest = schema if name == "TensorType" else tflite
    published = {key: number for key, number in vars(getattr(newest, name)).items() if not key.startswith("_")}
    assert dict(zip(ENUMS[name], range(len(ENUMS[name])), strict=True)) == published


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_fields_of_the_schema(name: str) -> None:
    methods = {n for n in vars(getattr(tflite, name)) if not n.startswith("_") and not n.endswith(NO_FIELDS)}
    methods -= {f"GetRootAs{name}"}
    vectors = {n.removesuffix("AsNumpy") for n in methods if n.endswith("AsNumpy")}
    published = {n for n in methods if not any(n in (f"{v}AsNumpy", f"{v}Length", f"{v}IsNone") for v in vectors)}
    fields = fields_of(name)
    assert set(fields) == published
    assert {field for field, (_, form, _) in fields.items() if form.startswith("[")} == vectors


@pytest.mark.parametrize("name", TABLES)
def test_a_field_that_a_table_lacks_has_its_default(name: str) -> None:
    empty = read(name, -1, b"")
    for field, (_, form, default) in fields_of(name).items():
        if form.startswith("["):
            assert default is None and getattr(empty, f"{field}IsNone")()
        else:
            found = getattr(empty, field)()
            assert (type(found), found) == (type(default), default)


@pytest.mark.parametrize("name", TABLES)
def test_a_field_has_its_number_and_form(name: str) -> None:
    for field, (number, form, default) in fields_of(name).items():
        if form.startswith("["):
            items = [form == "[?" or SAMPLES[form[1:]], False if form == "[?" else 7]
            found = getattr(read(name, number, vector(form[1:], items)), f"{field}AsNumpy")()
            assert (found.itemsize, found.tolist()) == (struct.calcsize(form[1:]), items)
        elif form == "s":
            assert getattr(read(name, number, vector("B", b"text")), field)() == b"text"
        else:
            wanted = not default if form == "?" else SAMPLES[form]
            found = getattr(read(name, number, struct.pack(f"<{form}", wanted)), field)()
            assert (type(found), found) == (type(wanted), wanted)


def vector(form: str, items: Sequence[Any]) -> bytes:
    """A reference to what lies right behind it."""
    return struct.pack(f"<II{len(items)}{form}", 4, len(items), *items)


def read(name: str, number: int, value: bytes) -> Any:
    """A table by the generated class, with one field or, for -1, none."""
    slots = [8 if n == number else 0 for n in range(number + 1)]
    listed = struct.pack(f"<HH{len(slots)}H", 4 + 2 * len(slots), 16, *slots)
    listed += bytes(-len(listed) % 8)
    table = getattr(tflite, name)()
    table.Init(bytearray(listed + struct.pack("<iI", len(listed), 0) + value + bytes(16)), len(listed))
    return table
