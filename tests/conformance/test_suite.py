"""What fails a vector; vectors made by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from nnhal.base.codes import OperandType as Type
from nnhal.base.codes import OperationType
from nnhal.base.errors import LoopTimeout, OperationFailed
from nnhal.conformance.compare import compare_all, compare_frequencies, tolerance
from nnhal.conformance.suite import run_vector
from nnhal.conformance.vectors import Expected
from nnhal.hal.wrappers import Wrapper
from nnhal.model.builder import ModelBuilder
from nnhal.runtime import discovery
from tests.models import doubling


def expected(data, kind=Type.TENSOR_FLOAT32, ignored=False):
    x = np.asarray(data, {Type.TENSOR_QUANT8_ASYMM: np.uint8, Type.TENSOR_INT32: np.int32}.get(kind, np.float32))
    return Expected(x, x.shape, kind, ignored)


def vector(id="by_hand", wanted=(2.0, 4.0), expect_failure=False, operations=("ADD",)):
    """y = x + x for 1 and 2."""
    model = doubling(2)
    return SimpleNamespace(
        id=id,
        model=lambda dynamic, signed: model,
        inputs=lambda signed: [np.float32([1, 2])],
        expected=lambda signed: [expected(wanted)],
        expect_failure=expect_failure,
        operations=set(operations),
        multinomial=0.0,
        half_precision=False,
        moves=False,
    )


class Raising(Wrapper):
    """The reference, every execution of which ends in an error."""

    def __init__(self, error):
        super().__init__(discovery.cpu())
        self.error = error

    def prepare(self, model, hints):
        prepared = super().prepare(model, hints)

        def run(request, control):
            raise self.error

        prepared.run = run
        return prepared


def verdict(outcome):
    return outcome.verdict, outcome.reason


def test_a_vector_passes_by_its_values_and_fails_by_others():
    assert verdict(run_vector(vector(), discovery.cpu())) == ("passed", "")
    found = run_vector(vector(wanted=(2.0, 5.0)), discovery.cpu())
    assert verdict(found) == ("failed", "output 0: 1 of 2 elements differ, the first at [1]: 4, must be 5")


def test_a_vector_that_must_fail_and_runs_fails():
    found = run_vector(vector(expect_failure=True), discovery.cpu())
    assert verdict(found) == ("failed", "ran, must end in an error")


@pytest.mark.parametrize(("must_fail", "wanted"), [(False, "failed"), (True, "passed")])
def test_a_vector_whose_model_is_invalid_is_no_fault_of_the_driver(must_fail, wanted):
    builder = ModelBuilder("by_hand")
    x = builder.operand(Type.TENSOR_FLOAT32, [2])
    builder.operation(OperationType.RELU, [x, x], [builder.operand(Type.TENSOR_FLOAT32, [2])])
    made = vector(expect_failure=must_fail)
    made.model = lambda dynamic, signed: builder.finish([x], [1])
    found = run_vector(made, discovery.cpu())
    assert (found.verdict, found.place) == (wanted, "")
    assert ("the model of the vector is invalid: RELU #0: has 2 inputs" in found.reason) is not must_fail


@pytest.mark.parametrize("must_fail", [False, True])
def test_a_drivers_own_exception_fails_a_vector_whatever_it_must_do(must_fail):
    found = run_vector(vector(expect_failure=must_fail), Raising(ValueError("oops")))
    assert verdict(found) == ("failed", "DriverFailed: device reference: ValueError: oops")


def test_an_error_fails_a_vector_that_must_run_and_passes_one_that_must_fail():
    device = Raising(OperationFailed("no"))
    assert verdict(run_vector(vector(), device)) == ("failed", "OperationFailed: device reference: no")
    assert verdict(run_vector(vector(expect_failure=True), device)) == (
        "passed",
        "fails as expected: device reference: no",
    )


@pytest.mark.parametrize(
    ("id", "error", "wanted"),
    [
        ("while_infinite_loop", LoopTimeout("slow"), "passed"),
        ("while_infinite_loop", OperationFailed("no"), "failed"),
        ("other", LoopTimeout("slow"), "failed"),
    ],
)
def test_only_an_endless_loop_may_end_by_its_time_out_and_in_no_other_way(id, error, wanted):
    assert run_vector(vector(id, expect_failure=True), Raising(error)).verdict == wanted


def test_quantised_elements_may_be_off_by_one_and_mobilenets_by_three():
    wanted = expected([100], Type.TENSOR_QUANT8_ASYMM)
    for off, plain, mobilenet in (
        (0, True, True),
        (1, True, True),
        (2, False, True),
        (3, False, True),
        (4, False, False),
    ):
        given = np.uint8([100 + off])
        for named, passes in (("other", plain), ("mobilenet_224", mobilenet)):
            found = compare_all(vector(named), [given], [wanted])
            assert (found == ("", "")) is passes, (named, off)


def test_tolerances_are_the_published_ones():
    half = (5 * 2**-10, 5 * 2**-10)
    assert tolerance(Type.TENSOR_FLOAT32, False) == tolerance(Type.FLOAT32, False) == (1e-5, 5 * 2**-23)
    assert tolerance(Type.TENSOR_FLOAT16, False) == tolerance(Type.TENSOR_FLOAT32, True) == half
    assert tolerance(Type.TENSOR_INT32, False) == (1.0, 0.0)


def test_a_wrong_output_fails_unless_it_does_not_count():
    v = vector()
    wrong, right = [np.float32([1])], [np.float32([2])]
    assert compare_all(v, right, [expected([2])]) == ("", "")
    assert (
        compare_all(v, wrong, [expected([2])])[0] == "output 0: 1 of 1 elements differ, the first at [0]: 1, must be 2"
    )
    assert compare_all(v, [None], [expected([2])]) == ("output 0: has no value", "")
    assert compare_all(v, wrong, [expected([2], ignored=True)]) == ("", "")


def test_frequencies_are_those_of_the_softmax():
    v = SimpleNamespace(multinomial=0.1)
    logits = np.float32([[0, np.log(3)]])  # shares of 1/4 and 3/4
    assert compare_frequencies(v, [logits], [np.int32([[0, 1, 1, 1]])]) == ("", "")
    wrong = "class frequencies are off by 0.250, must be within 0.1", ""
    assert compare_frequencies(v, [logits], [np.int32([[0, 0, 1, 1]])]) == wrong
    assert compare_frequencies(v, [logits], [None]) == ("has no value", "")
