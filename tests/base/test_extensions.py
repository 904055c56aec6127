"""Extensions of vendors: names, prefixes, codes."""

from collections.abc import Iterator

import numpy as np
import pytest

from nnhal.base import codes, extensions
from nnhal.base.codes import TYPE_FACTS, operation_name, type_name
from nnhal.base.errors import InvalidArgument
from nnhal.base.extensions import (
    EXTENSIONS,
    ExtensionType,
    canonical,
    converted_code,
    extension_name,
    local_prefixes,
    register_extension,
)
from nnhal.base.levels import V1_2

NAME = "com.example.codes"
TYPES = ExtensionType("TENSOR_COMPLEX64", "<c8"), ExtensionType("ANGLE", "<f4", tensor=False)


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    tables = (EXTENSIONS, TYPE_FACTS, codes.FOREIGN_TYPES, codes.FOREIGN_OPERATIONS)
    before = [dict(table) for table in tables]  # type: ignore[call-overload]
    yield
    for table, was in zip(tables, before, strict=True):
        table.clear()  # type: ignore[attr-defined]
        table.update(was)  # type: ignore[attr-defined]


def test_types_and_operations_have_codes_by_their_place_behind_the_prefix() -> None:
    made = register_extension(NAME, TYPES, ["FFT", "IFFT"])
    first = made.prefix << 16
    assert made.prefix == len(EXTENSIONS) and EXTENSIONS[NAME] is made
    assert [made.type("TENSOR_COMPLEX64"), made.type("ANGLE")] == [first, first + 1]
    assert [made.operation("FFT"), made.operation("IFFT")] == [first, first + 1]
    assert type_name(first + 1) == f"{NAME}.ANGLE" and operation_name(first + 1) == f"{NAME}.IFFT"
    assert TYPE_FACTS[first] == (np.dtype("<c8"), True, V1_2, None)
    assert TYPE_FACTS[first + 1] == (np.dtype("<f4"), False, V1_2, None)


def test_a_name_that_it_does_not_have_is_refused_with_those_it_has() -> None:
    made = register_extension(NAME, TYPES, ["FFT", "IFFT"])
    with pytest.raises(InvalidArgument, match=r"operation 'DFT' is not known, must be one of FFT, IFFT"):
        made.operation("DFT")
    with pytest.raises(
        InvalidArgument, match=r"operand type 'FFT' is not known, must be one of TENSOR_COMPLEX64, ANGLE"
    ):
        made.type("FFT")


def test_registered_again_it_is_the_same_and_with_other_contents_refused() -> None:
    made = register_extension(NAME, TYPES, ["FFT"])
    assert register_extension(NAME, list(TYPES), ("FFT",)) is made
    for types, operations in ((TYPES, ["FFT", "IFFT"]), (TYPES[:1], ["FFT"])):
        with pytest.raises(InvalidArgument, match="already registered with other types or operations"):
            register_extension(NAME, types, operations)


@pytest.mark.parametrize("name", ["fourier", "Com.example.x", "com..x", "com.example.", "com.exa mple.x", ""])
def test_a_name_that_is_no_domain_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="must be a reversed domain in lower case"):
        register_extension(name)
    assert name not in EXTENSIONS


def test_there_are_no_more_than_fit_into_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert extensions.MAX_PREFIX == 2**15 - 1
    monkeypatch.setattr(extensions, "MAX_PREFIX", len(EXTENSIONS) + 1)
    register_extension(NAME)
    with pytest.raises(InvalidArgument, match="are registered, must be no more"):
        register_extension("com.example.other")
    assert "com.example.other" not in EXTENSIONS


def test_codes_of_a_model_made_elsewhere_become_those_of_this_process() -> None:
    made = register_extension(NAME, TYPES, ["FFT", "IFFT"])
    theirs = [("com.example.other", 8), (NAME, 9)]
    assert canonical(9 << 16 | 1, theirs) == made.operation("IFFT")
    assert canonical(8 << 16 | 1, theirs) == 8 << 16 | 1  # registered nowhere here
    assert canonical(7 << 16 | 1, theirs) == 7 << 16 | 1
    assert canonical(3, [(NAME, 0)]) == 3  # NNAPI's own
    assert extension_name(9 << 16 | 1, theirs) == NAME and extension_name(8 << 16, theirs) == "com.example.other"
    assert extension_name(7 << 16, theirs) == "" and extension_name(3, [(NAME, 0)]) == ""


def test_swapped_prefixes_change_places() -> None:
    one, other = register_extension(NAME, TYPES, ["FFT", "IFFT"]), register_extension(f"{NAME}.two", [], ["ONE"])
    here = local_prefixes([(other.name, one.prefix), (one.name, other.prefix), ("com.example.nobodys", 999)])
    assert here == {one.prefix: other.prefix, other.prefix: one.prefix}
    assert converted_code(one.prefix << 16 | 5, here) == other.prefix << 16 | 5 and converted_code(3, here) == 3
    assert converted_code(999 << 16, here) == 999 << 16
    assert local_prefixes([(one.name, 7), (one.name, 8)]) == local_prefixes([("a.b", 7), (one.name, 7)]) == {}


def test_an_extension_nobody_knows_gets_a_prefix_that_neither_has() -> None:
    made, top = register_extension(NAME, TYPES, ["FFT"]), extensions.MAX_PREFIX
    assert local_prefixes([("com.example.other", made.prefix)]) == {made.prefix: top}
    assert local_prefixes([("com.example.other", made.prefix), ("a.b", top)]) == {made.prefix: top - 1}
    taken = [("com.example.other", made.prefix), ("a.b", top), ("a.c", top - 1)]
    assert local_prefixes(taken) == {made.prefix: top - 2}


def test_a_prefix_that_is_anothers_here_is_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    register_extension(NAME, TYPES, ["FFT"])
    monkeypatch.setattr(extensions, "MAX_PREFIX", max(e.prefix for e in EXTENSIONS.values()) + 1)
    for taken in [e.prefix for e in EXTENSIONS.values()]:
        assert local_prefixes([("com.example.other", taken)]) == {taken: extensions.MAX_PREFIX}
