"""The 21 mutations of models, on a vector of every operation and form: each mutant is refused, or it is known why not."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import nnhal
from nnhal.base.codes import OperationType
from nnhal.base.errors import InvalidModel, NnhalError
from nnhal.conformance.mutate import BAD_HINTS, MUTATIONS, mutants
from nnhal.conformance.vectors import Vector, index, read
from nnhal.hal.utilities import validate_preference, validate_priority
from nnhal.model.validate import validate
from nnhal.ops import OPS
from tests.conformance.still_valid import STILL_VALID
from tests.models import doubling, make_model

NAMED = re.compile(r"(operand %|input \d|output \d|inputs|outputs|[A-Z0-9_]+ #\d|operation -?\d+ #\d|main: )")


def chosen(vectors: Path) -> Iterator[tuple[str, Vector]]:
    """A vector for every operation, form and number of inputs: the first whose graph is that one operation."""
    entries = index(vectors)
    seen = set()
    for vector in read(vectors):
        primary = entries[vector.id].get("primary")
        if not primary or vector.expect_failure or len(vector.test["main"]["operations"]) != 1:
            continue
        bound = validate(vector.model()).subgraphs[0].operations[0]
        key = primary, bound.op.forms.index(bound.form), len(vector.test["main"]["operations"][0]["inputs"])
        if key not in seen:
            seen.add(key)
            yield primary, vector


def test_there_are_21_mutations():
    assert len(MUTATIONS) + len(BAD_HINTS) == 21


def test_the_first_operand_that_is_not_there_is_among_the_mutants_of_each_place():
    model = doubling(2)
    count, operation = len(model.main.operands), model.main.operations[0]
    for field in ("inputs", "outputs"):
        places = range(len(getattr(operation, field)))
        reached = {
            place
            for mutant in mutants(model)
            for place in places
            if mutant.model.main.operations
            and getattr(mutant.model.main.operations[0], field)[place : place + 1] == (count,)
            and len(mutant.model.main.operands) == count
        }
        assert reached == set(places), field


@pytest.mark.timeout(600)
def test_every_mutant_is_refused_with_the_place_or_known_to_be_valid(vectors):
    valid: dict[tuple[str, str], str] = {}
    operations = set()
    for operation, vector in chosen(vectors):
        operations.add(operation)
        for mutant in mutants(vector.model()):
            try:
                validate(mutant.model)
            except InvalidModel as error:
                assert NAMED.search(str(error)), f"{vector.id}: {mutant.kind} {mutant.detail}: {error}"
            else:
                valid.setdefault((mutant.kind, operation), f"{vector.id} {mutant.detail}")
    missing = {key: example for key, example in valid.items() if key not in STILL_VALID}
    assert not missing, f"valid after a mutation, for no known reason: {missing}"
    stale = set(STILL_VALID) - set(valid)
    assert not stale, f"known as still valid, but refused: {stale}"
    without = {"BATCH_MATMUL", "ELU", "EXP", "INSTANCE_NORMALIZATION", "LOG", "LOGICAL_AND", "LOG_SOFTMAX", "REVERSE"}
    without |= {"RSQRT", "SIN"}  # no open vector of their own
    assert set(OPS) & set(OperationType.__members__) - operations <= without


@pytest.mark.parametrize(("check", "values"), [(validate_preference, "preference"), (validate_priority, "priority")])
def test_bad_hints_are_refused(check, values):
    for value in BAD_HINTS[values]:
        with pytest.raises(NnhalError, match=f"{values} is {value!r}, must be one of"):
            check(value)


def test_a_compilation_with_bad_hints_is_refused():
    model = make_model(lambda b, x: b.floor(x), (1,))
    for name, values in BAD_HINTS.items():
        for value in values:
            with pytest.raises(nnhal.InvalidArgument, match=name):
                nnhal.compile(model, **{name: value})
