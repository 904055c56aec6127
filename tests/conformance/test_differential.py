"""The judge of two devices: what it must see, and what it must let pass."""

from dataclasses import replace

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.operands import Value
from nnhal.conformance.differential import (
    compare_outputs,
    kernel_outputs,
    model_of,
    other_constants,
    run,
    with_other_values,
)
from nnhal.conformance.draw import Call, Cell, cells, draw
from nnhal.conformance.proving.comparison import Wrong as Wrongs
from nnhal.conformance.proving.comparison import compared
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.wrappers import Wrapper
from nnhal.ops import OPS
from nnhal.ops.schema import bind
from nnhal.runtime import discovery
from tests.comparing import as_code, compare_device

F32, Q8, I32 = (OperandType[f"TENSOR_{n}"] for n in ("FLOAT32", "QUANT8_ASYMM", "INT32"))


def call(name: str, *inputs: Value, out: Value) -> Call:
    """A call by hand, every tensor given at run time."""
    a = bind(OPS[name], inputs, [out])
    form = OPS[name].forms.index(a.form)
    given = tuple(n for n, v in enumerate(inputs) if v.shape)
    outputs = tuple(replace(out, shape=shape) for shape in a.shapes)
    return Call(Cell(OPS[name], form, int(a.T or 0), "ordinary"), inputs, outputs, given, a)


def tensor(data: object, kind: int = F32, scale: float = 0.0, zero: int = 0) -> Value:
    x = np.asarray(data, {F32: np.float32, Q8: np.uint8, I32: np.int32}[kind])
    return Value(kind, x.shape, scale, zero, data=x)


def scalar(number: int) -> Value:
    return Value(OperandType.INT32, data=np.int32(number))


def added(x: object, y: object, activation: int = 0) -> Call:
    return call("ADD", tensor(x), tensor(y), scalar(activation), out=Value(F32, None))


class Wrong(Wrapper):
    """The reference, with one thing wrong in what it gives out."""

    def __init__(self, spoil):
        super().__init__(discovery.cpu())
        self.name, self.spoil = "wrong", spoil

    def prepare(self, model, hints):
        prepared = super().prepare(model, hints)
        inner = prepared.run

        def spoilt(request, control):
            true = request.inside(request.given, None)
            true.execute(inner, control)
            for n, result in enumerate(true.results):
                request.write(n, result if n else self.spoil(result))

        prepared.run = spoilt
        return prepared


@pytest.mark.parametrize(
    ("name", "kind", "spoil"),
    [
        ("ADD", F32, lambda x: x + np.float32(1e-3)),
        ("ADD", Q8, lambda x: np.where(x > 100, x - 2, x + 2).astype(np.uint8)),
        ("TRANSPOSE", F32, lambda x: x.ravel()[::-1].reshape(x.shape)),
        ("RELU", F32, np.zeros_like),
        ("CONV_2D", F32, lambda x: x * np.float32(1.001)),
        ("ARGMAX", F32, lambda x: x + 1),
        ("SPLIT", F32, lambda x: x[..., :0]),
        ("FLOOR", F32, lambda x: x.astype(np.float64)),
    ],
)
def test_a_wrong_device_is_found_out(name, kind, spoil):
    rng = np.random.default_rng(2)
    cell = next(c for c in cells([name]) if c.kind == kind)
    found = list(compare_device(Wrong(spoil), discovery.cpu(), cell, rng, 24))
    assert len(found) == 24
    assert sum(r.outcome == "differs" for r in found) > 12


class WrongBesideOthers(Wrong):
    """The reference, wrong where it is compiled for several threads."""

    def __init__(self):
        super().__init__(lambda x: x + np.float32(1))

    def prepare(self, model, hints):
        return super().prepare(model, hints) if hints.threads > 1 else self.inner.prepare(model, hints)


def test_a_device_that_is_wrong_with_several_threads_alone_is_found_out():
    rng, cell = np.random.default_rng(2), Cell(OPS["ADD"], 0, F32, "ordinary")
    found = [r.outcome for r in compare_device(WrongBesideOthers(), discovery.cpu(), cell, rng, 8, reruns=1)]
    assert sorted(found) == ["agrees"] * 4 + ["differs"] * 4


def test_a_proof_looks_at_kernels_for_several_threads_too():
    worst = Wrongs()
    assert compared(WrongBesideOthers(), added([1.0], [2.0]), worst) == ""
    assert worst.share == 1 / 3


def in_a_row(many):
    """A call of so many equal products, and their sum as float32 makes it one after the other."""
    x = np.full((1, many), 1.05, np.float32)
    arguments = tensor(x), tensor(np.ones_like(x)), tensor([0.0]), scalar(0)
    return call("FULLY_CONNECTED", *arguments, out=Value(F32, None)), [np.cumsum(x, 1)[:, -1:]]


@pytest.mark.parametrize("many", [2000, 5000])
def test_products_that_are_added_one_after_the_other_are_right_where_a_device_says_that_it_does_so(many):
    summed, actual = in_a_row(many)
    wanted = kernel_outputs(summed)
    assert compare_outputs(summed, wanted, actual).startswith("output 0 differs")
    assert compare_outputs(summed, wanted, actual, ["long_sums"]) == ""
    for off in (-1, 1):
        beyond = [wanted[0] * np.float32(1 + off * 1.1 * many / 4 * 2**-24)]
        assert compare_outputs(summed, wanted, beyond, ["long_sums"]).startswith("output 0 differs")


def test_a_device_that_fails_where_it_may_not_is_found_out():
    class Failing(Wrong):
        def prepare(self, model, hints):
            from nnhal.base.errors import OperationFailed

            raise OperationFailed("no")

    cell = Cell(OPS["ADD"], 0, F32, "ordinary")
    found = list(compare_device(Failing(None), discovery.cpu(), cell, np.random.default_rng(2), 4))
    assert {r.outcome for r in found} == {"differs"}
    assert "supports() accepts it, but prepare() fails: device wrong: no" in found[0].reason


def test_the_reference_agrees_with_itself():
    rng = np.random.default_rng(4)
    for cell in cells(["ADD", "CONV_2D", "SOFTMAX", "TOPK_V2"]):
        assert {r.outcome for r in compare_device(discovery.cpu(), discovery.cpu(), cell, rng, 4)} == {"agrees"}


def test_a_difference_names_its_place():
    found = compare_outputs(added([1, 2], [3, 4]), [np.float32([4, 6])], [np.float32([4, 7])])
    assert found == "output 0 differs in 1 of 2, the first at [1]: 7, must be 6"


def test_other_shape_or_type_differs():
    one = added([1, 2], [3, 4])
    assert (
        compare_outputs(one, [np.float32([4, 6])], [np.float32([[4, 6]])])
        == "output 0 is float32[1, 2], must be float32[2]"
    )
    assert (
        compare_outputs(one, [np.float32([4, 6])], [np.array([4.0, 6.0])])
        == "output 0 is float64[2], must be float32[2]"
    )
    assert compare_outputs(one, [np.float32([4, 6])], [None]) == "output 0 has no value"


def test_nan_for_a_number_differs_and_a_number_for_nan_too():
    one = added([1], [3])
    assert compare_outputs(one, [np.float32([4])], [np.float32([np.nan])])
    assert compare_outputs(one, [np.float32([np.nan])], [np.float32([4])])


def test_subnormal_numbers_may_be_lost_by_a_device_that_says_so_alone():
    one = call("FLOOR", tensor([-1e-40, 2.5]), out=Value(F32, None))
    wanted, actual = [np.float32([-1, 2])], [np.float32([-0.0, 2])]
    assert compare_outputs(one, wanted, actual)
    assert compare_outputs(one, wanted, actual, ["subnormals"]) == ""
    assert compare_outputs(one, wanted, [np.float32([-0.0, 3])], ["subnormals"])


def test_an_infinite_result_may_be_the_greatest_number_for_a_device_that_says_so_alone():
    one = added([3e38, -3e38], [3e38, -3e38])
    greatest = np.finfo(np.float32).max
    wanted, actual = [np.float32([np.inf, -np.inf])], [np.float32([greatest, -greatest])]
    assert compare_outputs(one, wanted, actual)
    assert compare_outputs(one, wanted, actual, ["infinities"]) == ""
    assert compare_outputs(one, wanted, [-actual[0]], ["infinities"])


def matmul(x: object, y: object) -> Call:
    return call("BATCH_MATMUL", tensor(x), tensor(y), out=Value(F32, None))


def test_sums_that_overflow_in_some_order_are_open():
    one = matmul([[3e38, 3e38, -3e38]], [[1.0], [1.0], [1.0]])
    assert compare_outputs(one, [np.float32([[3e38]])], [np.float32([[np.inf]])]) == ""


def test_an_execution_that_must_fail_and_runs_differs():
    bad = call("GATHER", tensor([1, 2, 3]), scalar(0), tensor([0, 2], I32), out=Value(F32, None))
    outside = replace(bad, inputs=(*bad.inputs[:2], tensor([0, 9], I32)))
    from tests.comparing import run_both

    class Lax(Wrong):
        def prepare(self, model, hints):
            prepared = super().prepare(model, hints)
            prepared.run = lambda request, control: request.write(0, np.zeros(2, np.float32))
            return prepared

    device = Lax(None)
    model = model_of(outside)
    mine, theirs = (checked_prepared(d, model, Hints()) for d in (discovery.cpu(), device))
    found = run_both(device, mine, theirs, outside)
    assert found.outcome == "differs" and "runs, must fail" in found.reason


def real(number: float) -> Value:
    return Value(OperandType.FLOAT32, data=np.float32(number))


def yes(answer: bool) -> Value:
    return Value(OperandType.BOOL, data=np.bool_(answer))


SQUARE = tensor([[1, 2], [3, 4]])
PICTURE = tensor(np.arange(4).reshape(1, 2, 2, 1))


@pytest.mark.parametrize(
    ("name", "inputs", "becomes"),
    [
        ("SOFTMAX", (SQUARE, real(3), scalar(0)), [1.5, 1]),  # half of a number, the next axis
        ("SOFTMAX", (SQUARE, real(0.75), scalar(1)), [0.375, 0]),  # the axis before: there is none after it
        ("SOFTMAX", (tensor([1, 2]), real(1), scalar(0)), [0.5, -1]),
        ("LOCAL_RESPONSE_NORMALIZATION", (PICTURE, scalar(3), real(2), real(4), real(5)), [4, 1, 2, 2.5]),
        ("RESIZE_NEAREST_NEIGHBOR", (PICTURE, scalar(2), scalar(2), *map(yes, (0, 0, 0))), [2, 2, 0, 1, 0]),  # not both
        ("RESIZE_NEAREST_NEIGHBOR", (PICTURE, scalar(2), scalar(2), *map(yes, (1, 0, 1))), [2, 2, 1, 0, 0]),
    ],
)
def test_a_parameter_that_is_given_has_another_value_of_which_no_shape_depends(name, inputs, becomes):
    one = call(name, *inputs, out=Value(F32, None))
    given = replace(one, given=tuple(range(len(inputs))))
    other = with_other_values(given, np.random.default_rng(0))
    assert [v.array.item() for v in other.inputs[1:]] == becomes
    assert [v.array.item() for v in with_other_values(one, np.random.default_rng(0)).inputs[1:]] == [
        v.array.item() for v in inputs[1:]
    ]
    assert other.bound.shapes == one.bound.shapes
    assert [v.array.dtype for v in other.inputs] == [v.array.dtype for v in inputs]
    assert other.outputs == one.outputs and not np.array_equal(other.inputs[0].array, inputs[0].array)
    assert [v.array.item() for v in other.bound.given[1:]] == becomes
    unsaid = replace(given, outputs=tuple(replace(v, shape=None) for v in given.outputs))
    assert [v.array.item() for v in with_other_values(unsaid, np.random.default_rng(0)).inputs[1:]] == becomes


def test_an_activation_that_is_given_becomes_each_of_the_others():
    one = replace(added([1], [2], activation=1), given=(2,))
    found = {with_other_values(one, np.random.default_rng(seed)).inputs[2].array.item() for seed in range(40)}
    assert found == {0, 2, 3}
    assert with_other_values(one, np.random.default_rng(0)).inputs[0] is one.inputs[0]


def test_what_has_a_range_of_its_own_or_is_left_out_stays_as_it_is():
    one = call("GATHER", SQUARE, scalar(0), tensor([1, 0], I32), out=Value(F32, None))
    other = with_other_values(one, np.random.default_rng(0))
    assert other.inputs[2] is one.inputs[2] and other.inputs[0] is not one.inputs[0]
    cell = next(c for c in cells(["LSTM"]) if c.kind == F32)
    for seed in range(20):
        drawn = draw(cell, np.random.default_rng(seed))
        assert [v is None for v in with_other_values(drawn, np.random.default_rng(0)).inputs] == [
            v is None for v in drawn.inputs
        ]


def test_other_constants_are_of_what_is_no_parameter_no_whole_number_and_not_given():
    one = replace(call("GATHER", SQUARE, scalar(0), tensor([1, 0], I32), out=Value(F32, None)), given=())
    other = other_constants(one, np.random.default_rng(0))
    assert not np.array_equal(other.inputs[0].array, SQUARE.array)
    resized = call(
        "RESIZE_NEAREST_NEIGHBOR", PICTURE, scalar(2), scalar(2), yes(0), yes(0), yes(0), out=Value(F32, None)
    )
    for kept, before in (
        (other.inputs[1:], one.inputs[1:]),
        (other_constants(replace(one, given=(0,)), np.random.default_rng(0)).inputs, one.inputs),
        (other_constants(resized, np.random.default_rng(0)).inputs, resized.inputs),
    ):
        assert all(x is y for x, y in zip(kept, before, strict=True))


CODED = [
    "ADD",
    "CONV_2D",
    "LSTM",
    "SPLIT",
    "GATHER",
    "DEQUANTIZE",
    "TOPK_V2",
    "CONCATENATION",
    "FULLY_CONNECTED",
    "PAD_V2",
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CODED)
def test_a_case_as_code_is_the_same_case(name):
    rng = np.random.default_rng(11)
    for cell in cells([name]):
        one = draw(cell, rng)
        room: dict[str, object] = {}
        exec(as_code(one), room)
        again = run(checked_prepared(discovery.cpu(), room["model"], Hints()), room["inputs"])
        for x, y in zip(kernel_outputs(one), again, strict=True):
            np.testing.assert_array_equal(x, y)
