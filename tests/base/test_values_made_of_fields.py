"""Records: values made of fields, which compare, show and copy as dataclasses do."""

import copy
import dataclasses
import weakref

import pytest

from nnhal.base.records import PartlyCompared, Record, as_dict, field, replace


class Inner(Record, frozen=True):
    size: int
    names: tuple[str, ...] = ()


class Point(Record, frozen=True):
    x: int
    y: float = 0.5
    inner: Inner = Inner(3)
    kept: dict[str, int] = field(default_factory=dict)


class Labelled(PartlyCompared, frozen=True):
    number: int
    label: str = ""
    secret: bytes = b""

    _not_compared = frozenset({"label", "secret"})
    _not_shown = frozenset({"secret"})


class More(Labelled, frozen=True):
    also: int = 0


def test_records_of_equal_fields_are_equal_and_hash_alike() -> None:
    assert Inner(3) == Inner(3, ()) and hash(Inner(3)) == hash(Inner(3))
    assert Inner(3) != Inner(4) and Inner(3) != 3 and Inner(3) != (3, ())


def test_nobody_changes_a_record() -> None:
    with pytest.raises(AttributeError):
        Point(1).x = 2  # type: ignore[misc]


def test_replace_makes_another_with_some_fields_changed() -> None:
    assert replace(Point(1), y=2.0) == Point(1, 2.0)
    assert dataclasses.replace(Point(1), y=2.0) == Point(1, 2.0)
    with pytest.raises(TypeError, match="z"):
        replace(Point(1), z=3)


def test_dataclasses_functions_take_records() -> None:
    assert dataclasses.is_dataclass(Point) and dataclasses.is_dataclass(Point(1))
    assert [each.name for each in dataclasses.fields(Point)] == ["x", "y", "inner", "kept"]
    assert dataclasses.asdict(Point(1)) == {"x": 1, "y": 0.5, "inner": {"size": 3, "names": ()}, "kept": {}}
    assert dataclasses.astuple(Inner(1)) == (1, ())


def test_fields_are_made_for_dataclasses_once_for_each_class() -> None:
    assert dataclasses.fields(Labelled)[0] is dataclasses.fields(Labelled(1))[0]
    assert [each.name for each in dataclasses.fields(More)] == ["number", "label", "secret", "also"]


def test_as_a_dict_a_record_has_the_records_in_it_as_dicts() -> None:
    assert as_dict(Point(1)) == {"x": 1, "y": 0.5, "inner": {"size": 3, "names": ()}, "kept": {}}


def test_defaults_that_are_made_are_each_records_own() -> None:
    assert Point(1).kept is not Point(1).kept


def test_records_can_be_referred_to_weakly_and_copied() -> None:
    point = Point(1)
    assert weakref.ref(point)() is point
    assert copy.copy(point) == copy.deepcopy(point) == point


def test_fields_that_do_not_matter_are_not_compared() -> None:
    assert Labelled(1, "a", b"x") == Labelled(1, "b", b"y") and hash(Labelled(1, "a")) == hash(Labelled(1, "b"))
    assert Labelled(1) != Labelled(2) and Labelled(1) != 1
    assert len({Labelled(1, "a"), Labelled(1, "b"), Labelled(2)}) == 2


def test_fields_that_are_not_shown_stay_out_of_its_text() -> None:
    assert repr(Labelled(1, "a", b"x")) == "Labelled(number=1, label='a')"


def test_a_record_of_a_class_derived_from_another_is_not_equal_to_one_of_that() -> None:
    assert More(1) != Labelled(1) and Labelled(1) != More(1)
    assert More(1, "a") == More(1, "b") and More(1, also=1) != More(1)
