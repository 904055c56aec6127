"""A drawn call as a model, and the limits between what two devices may differ in and what they may not."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from nnhal.base.codes import Lifetime, OperandType
from nnhal.base.errors import DriverFailed
from nnhal.base.operands import Value
from nnhal.conformance.differential import arrays_of, compare_outputs, kernel_outputs, model_of, tensors_of
from nnhal.conformance.draw import Cell, cells, draw
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints, Verdict
from nnhal.hal.wrappers import Wrapper
from nnhal.model.graph import CONSTANTS
from nnhal.ops import OPS
from nnhal.ops.schema import T
from nnhal.runtime import discovery
from tests import comparing
from tests.comparing import compare_device, run_both
from tests.conformance.test_differential import F32, I32, Q8, added, call, matmul, scalar, tensor

INF, NAN, MOST = np.inf, np.nan, np.finfo(np.float32).max
F16 = OperandType.TENSOR_FLOAT16


@pytest.mark.parametrize("open", [False, True])
@pytest.mark.parametrize("name", ["CONV_2D", "LSTM", "CONCATENATION", "SPLIT", "GATHER", "QUANTIZE"])
def test_a_model_has_the_operands_of_its_call(name, open):
    rng, channels = np.random.default_rng(3), 0
    for cell in (c for c in cells([name]) if c.values == "ordinary"):
        for made in [draw(cell, rng) for _ in range(8)]:
            asked = replace(made, open=open)
            model = model_of(asked)
            (operation,) = model.main.operations
            inputs = [model.main.operands[i] for i in operation.inputs]
            assert operation.type == OPS[name].code and model.main.outputs == operation.outputs
            assert [operation.inputs[place] for place in asked.given] == list(model.main.inputs)
            arguments = asked.bound.form.each(len(asked.inputs))
            for place, (argument, value, o) in enumerate(zip(arguments, asked.inputs, inputs, strict=True)):
                if value is None:
                    kinds = [cell.kind] if argument.spec is T or not isinstance(argument.spec, dict) else argument.spec
                    assert (o.lifetime, o.type) == (Lifetime.NO_VALUE, next(iter(kinds)))
                    continue
                assert (o.type, o.zero_point, o.channel) == (value.type, value.zero_point, value.channel)
                assert o.scale == value.scale
                if place in asked.given:
                    channels += o.channel is not None
                    known = value.known if not open or o.channel is not None else (0,) * value.rank
                    assert (o.lifetime, o.dimensions) == (Lifetime.SUBGRAPH_INPUT, known)
                else:
                    assert o.lifetime in CONSTANTS
                    np.testing.assert_array_equal(model.constant(o), value.array)
            for value, i in zip(asked.outputs, operation.outputs, strict=True):
                o = model.main.operands[i]
                known = tuple(0 if open else n for n in value.shape)
                assert (o.type, o.dimensions, o.scale, o.zero_point) == (
                    value.type,
                    known,
                    value.scale,
                    value.zero_point,
                )
            given = [asked.inputs[place].array for place in asked.given]
            assert all(x is y for x, y in zip(arrays_of(asked), given, strict=True))
    assert channels or name != "CONV_2D"


def test_dimensions_that_are_not_known_are_0_in_the_model():
    made = added([1, 2], [3, 4])
    asked = replace(made, outputs=(replace(made.outputs[0], shape=(None,)),))
    model = model_of(asked)
    assert model.main.operands[model.main.outputs[0]].dimensions == (0,)


def test_kernels_take_subnormal_numbers_as_they_are_unless_asked_otherwise():
    made = added([1e-40], [1])
    assert tensors_of(made)[0] > 0 == tensors_of(made, flush=True)[0]


# --------------------------------------------------------------------------------------------------------------- limits


def agrees(one, wanted, actual, *relaxations, dtype=np.float32):
    return compare_outputs(one, [np.asarray(wanted, dtype)], [np.asarray(actual, dtype)], relaxations) == ""


def test_every_output_is_compared_with_one():
    one = added([1], [3])
    for wanted, actual in (([4.0], []), ([], [4.0]), ([4.0], [4.0, 4.0])):
        with pytest.raises(ValueError, match="zip"):
            compare_outputs(one, [np.float32([x]) for x in wanted], [np.float32([x]) for x in actual])


def test_the_tolerance_is_the_sum_of_the_absolute_and_the_relative_one():
    assert agrees(added([0], [1]), [1], [1 + 1.05e-5]) and agrees(added([0], [1]), [1], [1 - 1.05e-5])
    assert not agrees(added([0], [1]), [1], [1 + 1.075e-5])
    assert agrees(added([0], [0]), [0], [0.99e-5]) and not agrees(added([0], [0]), [0], [1.01e-5])


def test_nothing_but_infinity_is_near_infinity():
    one = added([INF], [1])
    assert agrees(one, [INF], [INF])
    assert not agrees(one, [INF], [-INF]) and not agrees(one, [INF], [1]) and not agrees(one, [INF], [MOST])


def test_results_of_float16_inputs_have_the_tolerance_of_float16():
    half = Value(F16, (1,), data=np.float16([1]))
    for x, fine in ((half, True), (tensor([1]), False)):
        assert agrees(call("CAST", x, out=Value(F32, None)), [1], [1.009]) is fine
    assert not agrees(call("CAST", half, out=Value(F32, None)), [1], [1.011])


def test_integers_are_exact_and_quantised_ones_may_be_off_by_a_step():
    whole = call("CAST", tensor([7]), out=Value(I32, None))
    assert agrees(whole, [7], [7], dtype=np.int32) and not agrees(whole, [7], [8], dtype=np.int32)
    x = tensor([7], Q8, 1.0, 0)
    steps = call("ADD", x, x, scalar(0), out=Value(Q8, None, 1.0, 0))
    for off, fine in ((0, True), (1, True), (-1, True), (2, False), (-2, False)):
        assert agrees(steps, [14], [14 + off], dtype=np.uint8) is fine


def test_sums_have_room_for_64_units_of_their_magnitudes_and_no_more():
    one = matmul([[1e7, 1, -1e7]], [[1.0], [1.0], [1.0]])  # 64 * 2^-23 * 20000001 = 152.59
    assert agrees(one, [[1]], [[153.5]]) and not agrees(one, [[1]], [[154]])
    assert agrees(one, [[1]], [[-151.5]]) and not agrees(one, [[1]], [[-152]])


def test_products_of_infinite_factors_are_open_and_sums_of_infinite_terms_are_not():
    for x, y in (([[INF, 0]], [[1.0], [1.0]]), ([[1, 0]], [[INF], [1.0]])):
        assert agrees(matmul(x, y), [[NAN]], [[3]])
    total = call("REDUCE_SUM", tensor([[INF, 1]]), tensor([1], I32), Value(OperandType.BOOL, data=np.bool_(False)),
                 out=Value(F32, None))  # fmt: skip
    assert agrees(total, [INF], [INF]) and not agrees(total, [INF], [5])


def test_products_that_reach_the_greatest_number_are_open_and_smaller_ones_are_not():
    assert agrees(matmul([[MOST]], [[1.0]]), [[MOST]], [[INF]])
    assert not agrees(matmul([[MOST / 2]], [[1.0]]), [[MOST / 2]], [[INF]])


@pytest.mark.parametrize("name", ["RELU", "RELU1", "RELU6", "FLOOR"])
def test_a_nan_stays_one_behind_an_operation_that_clips(name):
    one = call(name, tensor([NAN]), out=Value(F32, None))
    assert not any(agrees(one, [NAN], [x]) for x in (-2, -1, 0, 1, 2, 6, 7))
    assert agrees(one, [NAN], [NAN])


def test_elements_that_are_left_open_may_be_anything_and_others_may_not():
    one = call("DIV", tensor([1, 4], I32), tensor([0, 2], I32), scalar(0), out=Value(I32, None))
    assert agrees(one, [0, 2], [77, 2], dtype=np.int32)
    found = compare_outputs(one, [np.int32([0, 2])], [np.int32([77, 3])])
    assert found == "output 0 differs in 1 of 2, the first at [1]: 3, must be 2"


def test_an_undefined_output_may_be_anything_and_those_behind_it_may_not():
    cell = next(c for c in cells(["LSTM"]) if c.kind == F32 and c.values == "zeros")
    one = draw(cell, np.random.default_rng(1))
    wanted = kernel_outputs(one)
    wanted = [w.reshape(v.shape) for w, v in zip(wanted, one.outputs, strict=True)]
    assert compare_outputs(one, wanted, wanted) == ""
    assert compare_outputs(one, wanted, [wanted[0] + 9, *wanted[1:]]) == ""  # the scratch buffer
    for place in (1, 2, 3):
        spoilt = [w + 9 if n == place else w for n, w in enumerate(wanted)]
        assert compare_outputs(one, wanted, spoilt).startswith(f"output {place} differs in ")


def test_magnitudes_are_of_what_is_summed_up_before_an_activation():
    (found,) = kernel_outputs(added([3], [-4], activation=2), magnitudes=True)
    assert found.tolist() == [7]
    total = call("REDUCE_SUM", tensor([[[-1, 2], [3, -4]]]), tensor([-1], I32),
                 Value(OperandType.BOOL, data=np.bool_(False)), out=Value(F32, None))  # fmt: skip
    assert kernel_outputs(total, magnitudes=True)[0].tolist() == [[3, 7]]
    assert kernel_outputs(total)[0].tolist() == [[1, -1]]


def test_a_relaxation_makes_no_other_difference_of_what_is_wrong():
    whole, one = call("CAST", tensor([7]), out=Value(I32, None)), added([1], [3])
    for relaxations in ([], ["infinities"], ["infinities", "subnormals"]):
        found = compare_outputs(whole, [np.int32([7])], [np.int32([9])], relaxations)
        assert found == "output 0 differs in 1 of 1, the first at [0]: 9, must be 7"
        found = compare_outputs(one, [np.float32([4])], [np.float32([[4]])], relaxations)
        assert found == "output 0 is float32[1, 1], must be float32[1]"
        assert compare_outputs(one, [np.float32([4])], [None], relaxations) == "output 0 has no value"


# ------------------------------------------------------------------------------------------------------------ executions


class Noting(Wrapper):
    """The reference, with what it was asked, and a verdict of its own."""

    def __init__(self, verdict=None):
        super().__init__(discovery.cpu())
        self.verdict, self.models, self.hints = verdict, [], []

    def supports(self, model):
        self.models.append(model)
        return super().supports(model) if self.verdict is None else [self.verdict]

    def prepare(self, model, hints):
        self.hints.append(hints)
        return super().prepare(model, hints)


FLOOR = Cell(OPS["FLOOR"], 0, F32, "ordinary")


def test_what_a_device_refuses_is_told_with_its_reason_once_for_each_draw():
    device = Noting(Verdict(False, "not today"))
    found = list(compare_device(device, discovery.cpu(), FLOOR, np.random.default_rng(2), 7))
    assert [(r.outcome, r.reason) for r in found] == [("refused", "not today")] * 7
    assert not device.hints


def test_a_device_is_asked_for_one_thread_and_for_two_and_some_models_say_nothing_of_their_dimensions():
    device = Noting()
    found = list(compare_device(device, discovery.cpu(), FLOOR, np.random.default_rng(2), 120, reruns=1))
    assert len(found) == 120 and {r.outcome for r in found} == {"agrees"}
    assert [hints.threads for hints in device.hints] in ([1, 2] * 60, [2, 1] * 60)
    unknown = [0 in m.main.operands[m.main.inputs[0]].dimensions for m in device.models if m.main.inputs]
    assert 0.07 < sum(unknown) / len(unknown) < 0.25
    assert 0.07 < sum(r.call.open for r in found) / len(found) < 0.25


def outside():
    bad = call("GATHER", tensor([1, 2, 3]), scalar(0), tensor([0, 2], I32), out=Value(F32, None))
    return replace(bad, inputs=(*bad.inputs[:2], tensor([0, 9], I32)))


def test_two_devices_that_fail_where_they_must_agree():
    asked = outside()
    mine, theirs = (checked_prepared(discovery.cpu(), model_of(asked), Hints()) for _ in range(2))
    found = run_both(discovery.cpu(), mine, theirs, asked)
    assert found.outcome == "agrees" and found.reason.startswith("both fail: ")


def test_a_reference_that_breaks_is_no_difference_but_an_error(monkeypatch):
    asked = added([1], [3])
    mine, theirs = (checked_prepared(discovery.cpu(), model_of(asked), Hints()) for _ in range(2))
    monkeypatch.setattr(mine, "_run", lambda request, control: 1 // 0)
    with pytest.raises(DriverFailed, match="ZeroDivisionError"):
        run_both(discovery.cpu(), mine, theirs, asked)


def test_what_was_considered_is_let_go_once_whatever_the_verdict(monkeypatch):
    asked, released = [], []

    def considered(device, model, hints):
        asked.append(model)
        refused = {0: "not this"} if len(asked) % 2 else {}
        number = len(asked)
        return SimpleNamespace(
            refused=lambda: refused, release_work=lambda: released.append(number), hints=lambda hints: hints
        )

    monkeypatch.setattr(comparing, "consider_support", considered)
    cell, rng = Cell(OPS["FLOOR"], 0, F32, "ordinary"), np.random.default_rng(2)
    found = list(compare_device(discovery.cpu(), discovery.cpu(), cell, rng, 7, reruns=2))
    assert [r.outcome for r in found] == ["refused", "agrees", "agrees", "refused", "agrees", "agrees", "refused"]
    assert released == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("x", "y", "place"),
    [
        (tensor([1, 2]), tensor([[3, 4]]), 1),
        (tensor([[3, 4]]), tensor([1, 2]), 0),
        (tensor([[3], [4]]), tensor([1, 2]), None),
        (tensor([[1]], Q8, 1.0), tensor([[1]], Q8, 0.5), 1),
        (tensor([[1]], Q8, 0.5, 1), tensor([[1]], Q8, 0.5), 1),
        (tensor([[1]], Q8, 1.0), tensor([1], Q8, 0.5), None),
    ],
)
def test_a_result_can_be_given_for_the_first_input_of_its_type_shape_scale_and_zero_point(x, y, place):
    out = Value(x.type, None, 0.5 if x.type == Q8 else 0.0)
    one = call("ADD", x, y, scalar(0), out=out)
    assert one.returns_to() == place
    assert replace(one, given=()).returns_to() is None
    assert replace(one, outputs=one.outputs * 2).returns_to() is None
