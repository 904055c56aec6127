"""64-bit integers of a file: taken as far as it is certain that 32 bits hold them, to the last number."""

from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperationType
from nnhal.frontends.tflite import load
from tests.frontends.cases import refused
from tests.frontends.flat import Writer, one_operator, tensor

MOST, LEAST = 2**31 - 1, -(2**31)
Step = tuple[str, Any]  # an operator, and its constant, of which ("-", n) stands before
OPTIONS = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "ABS": "Abs", "NEG": "Neg", "SUM": "Reducer", "PACK": "Pack"}


def chained(kind: str, steps: tuple[Step, ...]) -> bytes:
    """Integers of a type as 64-bit ones, through operators one after the other."""
    w = Writer()
    x = w.tensor([4], kind)
    last, size = w.tensor([4], "i8"), [4]
    w.operator("CAST", [x], [last], "Cast")
    for name, constant in steps:
        given = [last]
        if name == "PACK":
            size = [1, 4]
        elif name == "SUM":
            given.append(w.tensor([1], "i4", [0]))
            size = [1]
        elif isinstance(constant, tuple):
            given = [w.tensor([1], "i8", [constant[1]]), last]
        elif constant is not None:
            given.append(w.tensor([1], "i8", [constant]))
        last = w.tensor(size, "i8")
        fields = {"SUM": {"keepDims": True}, "PACK": {"valuesCount": 1}}.get(name, {})
        w.operator(name, given, [last], OPTIONS.get(name, ""), **fields)
    return w.file([x], [last])


SIGNED = ("SUB", 128)  # bytes from -128 to 127
CERTAIN: list[tuple[str, tuple[Step, ...], tuple[Step, ...]]] = [  # a type, what is taken, what is one too far
    ("u1", (("ADD", MOST - 255),), (("ADD", MOST - 254),)),
    ("u1", (("ADD", LEAST),), (("ADD", LEAST), ("ADD", -1))),
    ("u1", (SIGNED, ("ADD", MOST - 127)), (SIGNED, ("ADD", MOST - 126))),
    ("u1", (SIGNED, ("ADD", LEAST + 128)), (SIGNED, ("ADD", LEAST + 127))),
    ("b1", (("ADD", MOST - 1),), (("ADD", MOST),)),
    ("b1", (("ADD", LEAST),), (("ADD", LEAST), ("SUB", 1))),
    ("i4", (), (("ADD", 1),)),
    ("i4", (("MAXIMUM", 0),), (("SUB", 1),)),
    ("u1", (("SUB", MOST),), (("SUB", MOST), ("SUB", 2))),
    ("u1", (SIGNED, ("SUB", ("-", MOST - 128))), (SIGNED, ("SUB", ("-", MOST - 127)))),
    ("u1", (("MUL", 8421504),), (("MUL", 8421505),)),
    ("u1", (SIGNED, ("MUL", 2**24)), (SIGNED, ("MUL", 2**24 + 1))),
    ("u1", (SIGNED, ("MUL", 1 - 2**24)), (SIGNED, ("MUL", -(2**24)))),
    ("u1", (SIGNED, ("MUL", 2**24 - 1), ("NEG", None)), (SIGNED, ("MUL", 2**24), ("NEG", None))),
    ("u1", (SIGNED, ("MUL", 2**24 - 1), ("ABS", None)), (SIGNED, ("MUL", 2**24), ("ABS", None))),
    ("u1", (SIGNED, ("NEG", None), ("ADD", MOST - 128)), (SIGNED, ("NEG", None), ("ADD", MOST - 127))),
    ("u1", (SIGNED, ("NEG", None), ("ADD", LEAST + 127)), (SIGNED, ("NEG", None), ("ADD", LEAST + 126))),
    ("u1", (SIGNED, ("ABS", None), ("ADD", LEAST)), (SIGNED, ("ABS", None), ("ADD", LEAST), ("ADD", -1))),
    ("u1", (SIGNED, ("ABS", None), ("ADD", MOST - 128)), (SIGNED, ("ABS", None), ("ADD", MOST - 127))),
    (
        "b1",
        (("ADD", 5), ("ABS", None), ("ADD", LEAST), ("ADD", -5)),
        (("ADD", 5), ("ABS", None), ("ADD", LEAST), ("ADD", -6)),
    ),
    (
        "b1",
        (("SUB", 6), ("ABS", None), ("ADD", LEAST), ("ADD", -5)),
        (("SUB", 6), ("ABS", None), ("ADD", LEAST), ("ADD", -6)),
    ),
    ("b1", (("SUB", 6), ("ABS", None), ("ADD", MOST - 6)), (("SUB", 6), ("ABS", None), ("ADD", MOST - 5))),
    ("i4", (("SIGN", None), ("MUL", MOST)), (("SIGN", None), ("MUL", LEAST))),
    ("i4", (("SIGN", None), ("ADD", MOST - 1)), (("SIGN", None), ("ADD", MOST))),
    ("i4", (("SIGN", None), ("ADD", LEAST + 1)), (("SIGN", None), ("ADD", LEAST))),
    ("i4", (("FLOOR_MOD", 10), ("ADD", MOST - 9)), (("FLOOR_MOD", 10), ("ADD", MOST - 8))),
    ("i4", (("FLOOR_MOD", 10), ("ADD", LEAST)), (("FLOOR_MOD", 10), ("ADD", LEAST), ("ADD", -1))),
    ("i4", (("FLOOR_MOD", -10), ("ADD", LEAST + 9)), (("FLOOR_MOD", -10), ("ADD", LEAST + 8))),
    ("i4", (("FLOOR_MOD", -10), ("ADD", MOST)), (("FLOOR_MOD", -10), ("ADD", MOST), ("ADD", 1))),
    (
        "b1",
        (("ADD", 5), ("PACK", None), ("ADD", LEAST)),
        (("ADD", 5), ("PACK", None), ("ADD", LEAST), ("ADD", -1)),
    ),
    ("b1", (("SUB", 6), ("PACK", None), ("ADD", MOST)), (("SUB", 6), ("PACK", None), ("ADD", MOST), ("ADD", 1))),
    ("b1", (("ADD", 5), ("PACK", None), ("ADD", MOST - 6)), (("ADD", 5), ("PACK", None), ("ADD", MOST - 5))),
    ("u1", (SIGNED, ("SUM", None), ("ADD", MOST - 4 * 127)), (SIGNED, ("SUM", None), ("ADD", MOST - 4 * 127 + 1))),
    ("u1", (SIGNED, ("SUM", None), ("ADD", LEAST + 4 * 128)), (SIGNED, ("SUM", None), ("ADD", LEAST + 4 * 128 - 1))),
    (
        "b1",
        (("ADD", 5), ("SUM", None), ("ADD", LEAST)),
        (("ADD", 5), ("SUM", None), ("ADD", LEAST), ("ADD", -1)),
    ),
]


@pytest.mark.parametrize(("kind", "taken", "too_far"), CERTAIN)
def test_what_32_bits_hold_for_certain_is_taken_and_one_more_is_refused(kind, taken, too_far):
    assert nnhal.validate(load(chained(kind, taken)))
    refused(chained(kind, too_far), "is of INT64 and may need more than the 32 bits")


def test_floats_as_64_bit_integers_may_be_anything():
    refused(chained("f4", ()), "CAST #0: is of INT64 and may need more than the 32 bits")


def test_a_place_of_an_extreme_is_below_the_greatest_dimension():
    for name in ("ARG_MAX", "ARG_MIN"):
        for more, fits in ((MOST - 5, True), (MOST, False), (LEAST, True)):
            w = Writer()
            x, axis, place = w.tensor([2, 5]), w.tensor([], "i4", 1), w.tensor([2], "i8")
            constant, y = w.tensor([1], "i8", [more]), w.tensor([2], "i8")
            w.operator(name, [x, axis], [place], "ArgMax" if name == "ARG_MAX" else "ArgMin", outputType=4)
            w.operator("ADD", [place, constant], [y], "Add")
            w.ends([x], [y])
            if fits:
                assert load(w.bytes()).main.operations
            else:
                refused(w.bytes(), "ADD #1")


def test_values_that_are_moved_have_the_range_of_all_that_are_joined():
    for more, fits in ((MOST - 255, True), (MOST - 254, False), (LEAST, True)):
        w = Writer()
        a, b = w.tensor([2], "b1"), w.tensor([2], "u1")
        wide, both, y = [w.tensor([2], "i8") for _ in range(2)], w.tensor([2, 2], "i8"), w.tensor([2, 2], "i8")
        constant = w.tensor([1], "i8", [more])
        for given, made in zip((a, b), wide, strict=True):
            w.operator("CAST", [given], [made], "Cast")
        w.operator("PACK", wide, [both], "Pack", valuesCount=2)
        w.operator("ADD", [both, constant], [y], "Add")
        w.ends([a, b], [y])
        if fits:
            assert load(w.bytes()).main.operations
        else:
            refused(w.bytes(), "ADD #3")


def test_numbers_of_64_bits_keep_their_values():
    steps = (("MUL", -3), ("ADD", 7), ("ABS", None), ("FLOOR_MOD", 5))
    given = np.array([0, 1, 5, 255], "u1")
    expected = np.abs(given.astype("i8") * -3 + 7) % 5
    found = nnhal.compile(load(chained("u1", steps)), devices="reference")(given)
    assert found.dtype == np.int64 and found.tolist() == expected.tolist()


@pytest.mark.parametrize(("added", "divided"), [(0, False), (1, True), (-1, True)])
def test_only_what_may_be_more_than_a_byte_is_divided_to_become_one(added, divided):
    w = Writer()
    x, wide, y = w.tensor([4], "u1"), w.tensor([4], "i8"), w.tensor([4], "u1")
    w.operator("CAST", [x], [wide], "Cast")
    if added:
        other = w.tensor([4], "i8")
        w.operator("ADD", [wide, w.tensor([1], "i8", [added])], [other], "Add")
        wide = other
    w.operator("CAST", [wide], [y], "Cast")
    model = load(w.file([x], [y]))
    assert (OperationType.DIV in [o.type for o in model.main.operations]) == divided
    given = np.uint8([0, 1, 254, 255])
    assert (nnhal.compile(model, devices="reference")(given) == (given.astype(int) + added) % 256).all()


def test_64_bits_of_an_operator_of_which_no_range_is_known_are_refused():
    content = one_operator("BUCKETIZE", [tensor([3])], [tensor([3], "i8")], "Bucketize", boundaries=[0.0])
    refused(content, "BUCKETIZE #0: is of INT64 and may need more than the 32 bits")
