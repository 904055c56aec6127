"""What drivers of old levels get: models, verdicts and capabilities in the form of their level; reasons for the rest."""

import logging
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import Lifetime
from nnhal.base.codes import OperandType as Type
from nnhal.base.codes import OperationType as Op
from nnhal.base.errors import InvalidArgument, InvalidModel, OperationFailed
from nnhal.base.levels import V1_0, V1_1, V1_2, V1_3, Level
from nnhal.hal import utilities as u
from nnhal.hal.device import Capabilities, Performance, Verdict
from nnhal.hal.lowering import ask_about, lowered, performance_at, refusals, with_neighbours
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model, Operand, Operation
from tests.models import make_subgraph, one_operation

F32, F16, Q8 = Type.TENSOR_FLOAT32, Type.TENSOR_FLOAT16, Type.TENSOR_QUANT8_ASYMM
FAST, QUICK, NEVER = Performance(0.5, 0.25), Performance(0.125, 0.75), Performance(math.inf, math.inf)
YES = Verdict(True)


def chain(*operations: str, relaxed: bool = False) -> Model:
    """One operation after the other, each of one input."""
    b = nnhal.Builder("chain")
    x = y = b.input((2, 3))
    for name in operations:
        y = getattr(b, name)(y)
    return b.finish([x], [y], relaxed=relaxed)


def open_chain(dims: Sequence[tuple[int, ...]], ends: Sequence[int]) -> Model:
    """RESHAPE to a shape that the request gives, then RELU6 after RELU6, of these dimensions. ends: the outputs."""
    b = ModelBuilder()
    x, shape = b.operand(F32, (2, 3)), b.operand(Type.TENSOR_INT32, (2,))
    given = [b.operand(F32, d) for d in dims]
    b.operation(Op.RESHAPE, [x, shape], [given[0]])
    for one, other in pairwise(given):
        b.operation(Op.RELU6, [one], [other])
    return b.finish([x, shape], [given[n] for n in ends])


# --------------------------------------------------------------------------------------------------- utilities


def test_a_size_may_have_32_bits():
    assert u.size_of_data(Q8, (2**32 - 1,)) == 2**32 - 1
    with pytest.raises(InvalidArgument, match=r"has 4294967296 bytes, must be less than 2\*\*32"):
        u.size_of_data(Q8, (65536, 65536))


def test_what_is_not_stated_is_infinitely_slow_and_power_hungry():
    assert u.lookup(Capabilities(), Type.INT32) == NEVER


@pytest.mark.parametrize("relaxed", [None, QUICK])
def test_old_capabilities_stand_for_the_types_that_their_level_has(relaxed):
    found = u.upgrade(u.OldCapabilities(FAST, QUICK, relaxed))
    floats = {Type.FLOAT32, F32, Type.INT32, Type.UINT32, Type.TENSOR_INT32}
    assert found.operands == dict.fromkeys(floats, FAST) | {Q8: QUICK}
    assert found.relaxed_scalar == found.relaxed_tensor == (relaxed or FAST)
    assert found.if_performance == found.while_performance == NEVER


def stated(**changed: Performance) -> Capabilities:
    """What every level can hold, but for what is changed: `Capabilities`' fields."""
    table = dict.fromkeys((Type.FLOAT32, F32), FAST) | {Q8: QUICK}
    return Capabilities(table, **{"relaxed_scalar": FAST, "relaxed_tensor": FAST, **changed})


def updated(capabilities: Capabilities, type: int, performance: Performance) -> Capabilities:
    return replace(capabilities, operands={**capabilities.operands, type: performance})


def converted(capabilities: Capabilities, level: Level) -> tuple[object, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = u.convert_capabilities(capabilities, level)
    assert all(w.category is u.LossWarning for w in caught)
    return found, [str(w.message) for w in caught]


def test_what_a_level_holds_is_converted_without_a_word():
    assert converted(stated(), V1_0) == (u.OldCapabilities(FAST, QUICK), [])
    assert converted(stated(relaxed_tensor=QUICK), V1_1) == (u.OldCapabilities(FAST, QUICK, QUICK), [])
    since = updated(stated(), F16, FAST)  # since 1.2
    assert converted(stated(), V1_2) == (stated(), []) and converted(since, V1_2) == (since, [])
    whole = stated(if_performance=QUICK)
    assert converted(whole, V1_3) == (whole, [])


@pytest.mark.parametrize(
    ("capabilities", "level", "lost", "left"),
    [
        (
            stated(relaxed_tensor=QUICK),
            V1_0,
            "performance of relaxed float32 is lost at level 1.0",
            u.OldCapabilities(FAST, QUICK),
        ),
        (stated(if_performance=QUICK), V1_2, "performance of IF and WHILE is lost at level 1.2", stated()),
        (stated(while_performance=QUICK), V1_2, "performance of IF and WHILE is lost at level 1.2", stated()),
        (
            updated(stated(), Type.TENSOR_QUANT8_ASYMM_SIGNED, FAST),
            V1_2,
            "performance of operand types since 1.3 is lost at level 1.2",
            stated(),
        ),
        (
            updated(stated(), 1 << 16, FAST),
            V1_2,
            "performance of operand types since 1.3 is lost at level 1.2",
            stated(),
        ),
        (
            updated(stated(), F16, Performance(7.0, 7.0)),
            V1_1,
            "performance of other operand types than float32 and quant8 is lost at level 1.1",
            u.OldCapabilities(FAST, QUICK, FAST),
        ),
    ],
)
def test_what_is_lost_at_a_level_is_warned_of_by_name_and_the_rest_is_kept(capabilities, level, lost, left):
    assert converted(capabilities, level) == (left, [lost])


def test_each_conversion_warns_once():
    with pytest.warns(u.LossWarning) as caught:
        u.convert_to(chain("relu", relaxed=True), V1_0)
        u.convert_capabilities(stated(relaxed_tensor=QUICK), V1_0)
    assert len(caught) == 2


def test_capabilities_at_a_level_are_told_without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert performance_at(stated(relaxed_tensor=QUICK), V1_0) == u.upgrade(u.OldCapabilities(FAST, QUICK))
        assert performance_at(stated(if_performance=QUICK), V1_2) == stated()


def test_a_model_at_its_own_level_is_converted_and_one_below_it_is_not():
    model = chain("abs")
    assert u.convert_to(model, V1_2).main == model.main
    with pytest.raises(InvalidModel, match=r"model needs level 1.2, must be at most 1.1: ABS #0: ABS exists since 1.2"):
        u.convert_to(model, V1_1)


def test_relaxed_precision_exists_since_1_1():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert u.convert_to(chain("relu", relaxed=True), V1_1).relaxed
        assert not u.convert_to(chain("relu"), V1_0).relaxed


@pytest.mark.parametrize("given", ["nonsense", "", 100, -1, 1.0, None, "2"])
def test_a_preference_that_there_is_not_is_refused_with_those_there_are(given):
    says = "must be one of low_power, fast_single_answer, sustained_speed"
    with pytest.raises(InvalidArgument, match=says):
        u.validate_preference(given)


def test_members_are_named_in_either_case_or_by_number():
    found = [u.validate_preference(p) for p in ("LOW_POWER", "low_power", 0, nnhal.Preference.LOW_POWER)]
    assert found == [nnhal.Preference.LOW_POWER] * 4 and u.validate_priority("high") is nnhal.Priority.HIGH


# ---------------------------------------------------------------------------------------------------- refusals


def test_each_operation_above_the_level_is_refused_and_those_beside_it_are_not():
    model = chain("relu", "abs", "relu6")
    assert refusals(model, V1_1) == ["", "needs level 1.2: ABS exists since 1.2; the device is at 1.1", ""]
    assert refusals(model, V1_2) == refusals(model, V1_3) == ["", "", ""]


def test_control_flow_needs_the_level_of_what_is_inside():
    from nnhal import Builder

    b = Builder()
    x = b.input((2,), "TENSOR_INT32")
    late = make_subgraph(b, lambda s, y: s.reshape(y, [2]), ((2,), "TENSOR_INT32"))
    early = make_subgraph(b, lambda s, y: s.add(y, [1, 1]), ((2,), "TENSOR_INT32"))
    made = [b.if_([True], *parts, [x], out_type="TENSOR_INT32") for parts in ((late, early), (early, early))]
    model = b.finish([x], made)
    of_late, of_early = refusals(model, V1_3)
    assert of_early == "" and re.fullmatch(r"RESHAPE #0 of subgraph 0 needs level feature level 6: .*", of_late)
    assert refusals(model, Level.FL6) == ["", ""]


@pytest.mark.parametrize(
    ("dims", "ends", "level", "refused"),
    [
        ([(2, 3), (2, 3)], [1], V1_1, [0, 0]),
        ([(0, 0), (2, 3)], [1], V1_1, [0, 0]),  # unknown inside only
        ([(0, 0), (2, 3)], [1, 0], V1_1, [1, 1]),  # an output too
        ([(0, 0), (0, 0), (2, 3)], [2], V1_1, [0, 0, 0]),
        ([(0, 0), (0, 0), (2, 3)], [1, 2], V1_1, [1, 1, 1]),
        ([(0, 0), (2, 3), (2, 3)], [0, 2], V1_1, [1, 1, 0]),
        ([(0, 0), (0, 0)], [1], V1_2, [0, 0]),
    ],
)
def test_below_1_2_what_is_unknown_may_be_inside_alone(dims, ends, level, refused):
    reasons = refusals(open_chain(dims, ends), level)
    assert [int(bool(why)) for why in reasons] == refused
    assert all("inputs and outputs at level 1.1 must be fully specified" in why for why in reasons if why)


def test_what_is_refused_takes_along_who_shares_an_unknown_shape_and_no_others():
    model = open_chain([(0, 0), (0, 0), (2, 3), (2, 3)], [3])
    unknown = "operand %2 has shape [?, ?]; inputs and outputs at level 1.0 must be fully specified"
    further = unknown.replace("%2", "%3")
    assert with_neighbours(model, [""] * 4, V1_0) == [""] * 4
    assert with_neighbours(model, ["no", "", "", ""], V1_0) == ["no", unknown, further, ""]
    assert with_neighbours(model, ["", "", "", "no"], V1_0) == ["", "", "", "no"]
    assert with_neighbours(model, ["no", "", "", ""], V1_2) == ["no", "", "", ""]


def test_a_state_that_may_be_left_out_is_no_unknown_input():
    """The cell-to-gate weights of an LSTM, given as an input of [0]: the request says that there are none."""
    b = ModelBuilder()
    x, y = b.operand(F32, (2, 3)), b.operand(F32, (2, 3))
    absent = b.operand(F32, (0,))
    b.operation(Op.RELU, [x], [y])
    assert refusals(b.finish([x, absent], [y]), V1_0) == [""]


def test_a_part_of_which_a_level_has_nothing_is_not_asked_about():
    assert (
        ask_about(chain("abs", "abs"), V1_1, lambda part: pytest.fail("asked"))
        == [Verdict(False, "needs level 1.2: ABS exists since 1.2; the device is at 1.1")] * 2
    )


def test_a_driver_is_asked_about_the_part_that_its_level_has_and_its_verdicts_find_their_places():
    asked: list[Model] = []

    def ask(part: Model) -> list[Verdict]:
        asked.append(part)
        return [YES, Verdict(False, "not the second")]

    found = ask_about(chain("relu", "abs", "relu6"), V1_1, ask)
    assert found[0] == YES and found[2] == (False, "not the second") and not found[1].ok
    assert [o.type for o in asked[0].main.operations] == [Op.RELU, Op.RELU6]


@pytest.mark.parametrize("count", [1, 3])
def test_a_verdict_for_each_operation_that_was_asked_about_is_needed(count):
    with pytest.raises(OperationFailed, match=rf"gave {count} verdicts, must be 2, one an operation"):
        ask_about(chain("relu", "abs", "relu6"), V1_1, lambda part: [YES] * count)


# ----------------------------------------------------------------------------------------------------- lowered


def test_below_1_3_shapes_that_follow_are_filled_in_and_constants_stay():
    b = ModelBuilder()
    x, y, z = b.operand(F32, (2, 3)), b.operand(F32, (0, 3)), b.operand(F32, (2, 3))
    one = b.constant(F32, np.ones((1,), np.float32))
    b.operation(Op.ADD, [x, one, b.constant(Type.INT32, np.int32(0))], [y])
    b.operation(Op.RELU, [y], [z])
    model = b.finish([x], [z])
    for level in (V1_0, V1_1, V1_2):
        found = lowered(model, level)
        assert [o.dimensions for o in found.main.operands] == [(2, 3), (2, 3), (2, 3), (1,), ()]
        assert found.main.operations == model.main.operations
    assert lowered(model, V1_3).main.operands[y].dimensions == (0, 3)


def test_relaxed_precision_is_dropped_below_1_1_with_a_line_for_who_debugs(caplog):
    caplog.set_level(logging.DEBUG, "nnhal")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not lowered(chain("relu", relaxed=True), V1_0).relaxed
        assert "relaxed float32 is computed in full: the device is at level 1.0" in caplog.text
        assert lowered(chain("relu", relaxed=True), V1_1).relaxed and lowered(chain("relu", relaxed=True), V1_2).relaxed


def test_what_needs_a_shape_is_not_lowered_below_1_2():
    model = open_chain([(0, 0)], [0])
    with pytest.raises(InvalidModel, match=r"RESHAPE: operand %2 has shape \[\?, \?\]"):
        lowered(model, V1_1)
    assert lowered(model, V1_2).main.operands[2].dimensions == (0, 0)


def of_a_vendor(dims: tuple[int, ...] = (2, 3)) -> Model:
    """RELU, then an operation of a vendor whose records nobody has registered."""
    b = ModelBuilder()
    x, y, z = (b.operand(F32, d) for d in ((2, 3), dims, (2, 3)))
    b.operation(Op.RELU, [x], [y])
    b.operation(Op.RELU, [y], [z])
    model, code = b.finish([x], [z]), 0x55 << 16 | 1
    operations = (model.main.operations[0], replace(model.main.operations[1], type=code))
    main = replace(model.main, operations=operations)
    return replace(model, main=main, extensions=(("com.example.unknown", 0x55),))


def test_operations_of_vendors_exist_since_1_2() -> None:
    reasons = {level: refusals(of_a_vendor(), level) for level in (V1_0, V1_1, V1_2, V1_3)}
    assert [why[0] for why in reasons.values()] == [""] * 4
    assert [why[1] for why in reasons.values()] == [
        "extensions exist since 1.2, the device is at 1.0", "extensions exist since 1.2, the device is at 1.1", "", "",
    ]  # fmt: skip


def svdf(bias: tuple[int, ...], *, read_elsewhere: bool = False, by_a_vendor: bool = False) -> Model:
    """An SVDF whose bias, an optional argument, is an input of the model."""
    b = ModelBuilder()
    x, state, given = b.operand(F32, (1, 1)), b.operand(F32, (1, 2)), b.operand(F32, bias)
    feature, memory = b.constant(F32, np.ones((1, 1), np.float32)), b.constant(F32, np.ones((1, 2), np.float32))
    one, none = b.constant(Type.INT32, np.int32(1)), b.constant(Type.INT32, np.int32(0))
    after, y = b.operand(F32, (1, 2)), b.operand(F32, (1, 1))
    b.operation(Op.SVDF, [x, feature, memory, given, state, one, none], [after, y])
    outputs = [after, y]
    if read_elsewhere or by_a_vendor:
        outputs.append(b.operand(F32, bias))
        b.operation(Op.RELU, [given], [outputs[-1]])
    model = b.finish([x, given, state], outputs)
    if not by_a_vendor:
        return model
    first, second = model.main.operations
    main = replace(model.main, operations=(first, replace(second, type=0x55 << 16 | 1)))
    return replace(model, main=main, extensions=(("com.example.unknown", 0x55),))


def test_an_argument_that_may_be_left_out_is_no_unknown_input_where_nothing_else_reads_it() -> None:
    assert refusals(svdf((0,)), V1_0) == [""] == refusals(svdf((1,)), V1_0)
    unknown = r"operand %2 has shape [?]; inputs and outputs at level 1.0 must be fully specified"
    assert refusals(svdf((0,), read_elsewhere=True), V1_0) == [unknown, unknown]
    first, second = refusals(svdf((0,), by_a_vendor=True), V1_0)
    assert first == unknown and second.startswith("extensions exist since 1.2")


def test_what_a_vendors_operation_leaves_alone_may_still_be_left_out() -> None:
    model = svdf((0,))
    main = model.main
    again = Operation(0x55 << 16 | 1, (main.inputs[0],), (len(main.operands),))
    operands = (*main.operands, replace(main.operands[main.outputs[1]]))
    main = replace(
        main, operations=(again, *main.operations), operands=operands, outputs=(*main.outputs, len(operands) - 1)
    )
    model = replace(model, main=main, extensions=(("com.example.unknown", 0x55),))
    assert refusals(model, V1_0)[1:] == [""]


def test_a_late_type_is_refused_though_the_argument_that_has_it_is_left_out() -> None:
    model = svdf((0,))
    main = model.main
    operands = list(main.operands)
    operands[main.operations[0].inputs[3]] = Operand(F16, (0,), lifetime=Lifetime.NO_VALUE)
    inputs = (main.inputs[0], main.inputs[2])
    model = replace(model, main=replace(main, operands=tuple(operands), inputs=inputs))
    assert refusals(model, V1_1) == ["TENSOR_FLOAT16 exists since 1.2, the device is at 1.1"]
    assert refusals(model, V1_2) == [""]


def test_unknown_shapes_around_what_is_refused_are_refused_with_it() -> None:
    """The operand between the two operations is unknown, and one of the two runs elsewhere."""
    b = ModelBuilder()
    x, shape, y, z = (
        b.operand(F32, (2, 3)),
        b.operand(Type.TENSOR_INT32, (2,)),
        b.operand(F32, (0, 0)),
        b.operand(F32, (0, 0)),
    )
    b.operation(Op.RESHAPE, [x, shape], [y])
    b.operation(Op.ABS, [y], [z])  # since 1.2
    b.operation(Op.RELU, [x], [b.operand(F32, (2, 3))])
    reasons = refusals(b.finish([x, shape], [z, 4]), V1_1)
    assert reasons[0] == "operand %2 has shape [?, ?]; inputs and outputs at level 1.1 must be fully specified"
    assert reasons[1] == "needs level 1.2: ABS exists since 1.2; the device is at 1.1" and reasons[2] == ""


def test_an_unknown_rank_is_refused_wherever_it_is() -> None:
    b = ModelBuilder()
    x, shape = b.operand(F32, (2, 3)), b.operand(Type.TENSOR_INT32, (0,))
    y, z = b.operand(F32), b.operand(F32, (2, 3))
    b.operation(Op.RESHAPE, [x, shape], [y])
    b.operation(Op.RELU, [y], [z])
    model = b.finish([x, shape], [z])
    assert all("%2 has unknown rank; must be known at level 1.1" in why for why in refusals(model, V1_1)[1:])
    assert all(refusals(model, V1_1)) and refusals(model, V1_2) == ["", ""]


def test_scalars_and_what_nothing_is_known_of_are_no_unknown_shapes() -> None:
    b = ModelBuilder()
    x, n, y = b.operand(F32, (2,)), b.operand(Type.INT32), b.operand(F32, (2,))
    b.operation(Op.ADD, [x, x, n], [y])
    assert refusals(b.finish([x, n], [y]), V1_0) == [""]


def test_a_model_of_which_all_is_known_is_lowered_as_it_is() -> None:
    model = chain("relu")
    assert lowered(model, V1_1) == model
    for level in (V1_0, V1_1):
        with pytest.raises(InvalidModel, match=r"model needs level 1.2, must be at most"):
            lowered(chain("relu", "abs"), level)


def test_an_optional_argument_that_is_made_inside_is_unknown_where_who_makes_it_runs_elsewhere() -> None:
    b = ModelBuilder()
    x, state, shape = b.operand(F32, (1, 1)), b.operand(F32, (1, 2)), b.operand(Type.TENSOR_INT32, (1,))
    bias, after, y = b.operand(F32, (0,)), b.operand(F32, (1, 2)), b.operand(F32, (1, 1))
    feature, memory = b.constant(F32, np.ones((1, 1), np.float32)), b.constant(F32, np.ones((1, 2), np.float32))
    b.operation(Op.RESHAPE, [x, shape], [bias])
    one, none = b.constant(Type.INT32, np.int32(1)), b.constant(Type.INT32, np.int32(0))
    b.operation(Op.SVDF, [x, feature, memory, bias, state, one, none], [after, y])
    model = b.finish([x, state, shape], [after, y])
    assert with_neighbours(model, ["", ""], V1_0) == ["", ""]
    unknown = "operand %3 has shape [?]; inputs and outputs at level 1.0 must be fully specified"
    assert with_neighbours(model, ["no", ""], V1_0) == ["no", unknown]


def test_what_nothing_is_known_of_is_lowered_as_it_is() -> None:
    b = ModelBuilder()
    x, shape = b.operand(F32, (2, 3)), b.operand(Type.TENSOR_INT32, (0,))
    y, z = b.operand(F32), b.operand(F32, (2, 3))
    b.operation(Op.RESHAPE, [x, shape], [y])
    b.operation(Op.RELU, [y], [z])
    for model in (b.finish([x, shape], [z]), of_a_vendor()):
        assert lowered(model, V1_2) == model


def test_a_late_type_of_an_output_is_refused_with_the_operation() -> None:
    model = one_operation(Op.DEQUANTIZE, (Q8, (2,), 0.5), output=(F16, (2,)))
    assert refusals(model, V1_2) == [""] and "1.2; the device is at 1.1" in refusals(model, V1_1)[0]
