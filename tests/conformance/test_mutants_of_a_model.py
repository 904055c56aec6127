"""Each mutation of models by itself, on a small model that is written out: which mutants there are, and how they differ."""

from dataclasses import replace

import numpy as np
import pytest

from nnhal import Builder, ChannelQuant
from nnhal.base.codes import TYPE_FACTS, Lifetime, OperandType, OperationType, Preference, Priority
from nnhal.base.errors import InvalidModel
from nnhal.conformance.mutate import BAD_HINTS, INVALID_CODES, INVALID_OPERATIONS, MUTATIONS, mutants
from nnhal.model.validate import validate
from tests.models import make_model

INPUT, OUTPUT, TEMPORARY, COPY = (
    Lifetime[name] for name in ("SUBGRAPH_INPUT", "SUBGRAPH_OUTPUT", "TEMPORARY_VARIABLE", "CONSTANT_COPY")
)


def small():
    """y = floor(x + c): x %0, c %1, the activation %2, the sum %3, y %4."""
    return make_model(lambda b, x: b.floor(b.add(x, np.float32([1, 2]))), (2,))


MODEL = small()
MAIN = MODEL.main
ADD, FLOOR = MAIN.operations
X, C, ACTIVATION = ADD.inputs
(SUM,), (Y,) = ADD.outputs, FLOOR.outputs


def of(kind):
    return [m for m in mutants(MODEL) if m.kind == kind]


def changed(kind):
    """Operands that differ from the model's, by mutant."""
    found = []
    for mutant in of(kind):
        pairs = enumerate(zip(MAIN.operands, mutant.model.main.operands, strict=True))
        ((index, operand),) = [(i, now) for i, (was, now) in pairs if was != now]
        assert mutant.model.main == replace(
            MAIN, operands=(*MAIN.operands[:index], operand, *MAIN.operands[index + 1 :])
        )
        assert f"%{index} " in mutant.detail
        assert mutant.operation == ("ADD" if index in (X, C, ACTIVATION, SUM) else "FLOOR")
        found.append((index, operand))
    return found


def lists(kind):
    """(operation's inputs and outputs) of each mutant."""
    return [[(o.inputs, o.outputs) for o in m.model.main.operations] for m in of(kind)]


def test_the_model_is_as_it_is_taken_for():
    assert [OperationType(o.type).name for o in MAIN.operations] == ["ADD", "FLOOR"]
    assert sorted((X, C, ACTIVATION, SUM, Y)) == list(range(5)) and FLOOR.inputs == (SUM,)
    assert [MAIN.operands[i].lifetime for i in (X, C, ACTIVATION, SUM, Y)] == [INPUT, COPY, COPY, TEMPORARY, OUTPUT]


@pytest.mark.parametrize("kind", MUTATIONS)
def test_every_mutation_makes_mutants_and_each_is_refused(kind):
    found = of(kind)
    assert found
    for mutant in found:
        assert mutant.model.main != MAIN and mutant.operation in ("ADD", "FLOOR") and mutant.detail
        with pytest.raises(InvalidModel):
            validate(mutant.model)
    assert len({m.detail for m in found}) == len(found)


def test_an_operation_comes_before_the_one_that_it_reads_from():
    (mutant,) = of("execution order")
    assert mutant.model.main == replace(MAIN, operations=(FLOOR, ADD)) and mutant.detail == "#1 before #0"


def test_every_operand_has_each_type_that_there_is_not():
    codes = (16, 9999, 10002, 65535, -1)
    assert [(i, o.type) for i, o in changed("operand type")] == [(i, code) for i in range(5) for code in codes]


def test_scalars_alone_have_dimensions():
    assert [(i, o.dimensions) for i, o in changed("operand rank")] == [(ACTIVATION, d) for d in ((1,), (0,), (1, 1))]


def test_scales_are_those_that_the_type_does_not_have():
    found = [(i, str(o.scale)) for i, o in changed("operand scale")]
    assert found == [(i, scale) for i in range(5) for scale in ("1.0", "-1.0", "nan", "inf")]


def quantised(kind, zero):
    return make_model(lambda b, x: b.dequantize(x), ((2,), kind, 0.5, zero))


@pytest.mark.parametrize(
    ("kind", "scales"),
    [("TENSOR_QUANT8_ASYMM", ["0.0", "-1.0", "nan", "inf"]), ("TENSOR_INT32", ["-1.0", "nan", "inf"])],
)
def test_a_quantised_type_must_have_a_scale_and_int32_may(kind, scales):
    if kind == "TENSOR_INT32":
        model = make_model(lambda b, x: b.cast(x, out_type="TENSOR_FLOAT32"), ((2,), kind))
    else:
        model = quantised(kind, 7)
    found = [m for m in mutants(model) if m.kind == "operand scale"]
    at = model.main.inputs[0]
    assert [str(m.model.main.operands[at].scale) for m in found if f"%{at} " in m.detail] == scales


def test_a_type_with_scales_by_channel_has_none_of_its_own():
    b = Builder()
    w = b.constant(np.int8([1, 2]), "TENSOR_QUANT8_SYMM_PER_CHANNEL", channel=ChannelQuant((0.5, 0.25), 0))
    main = b.finish([], [b.dequantize(w)]).main
    (at,) = (i for i, o in enumerate(main.operands) if o.channel is not None)
    found = [each.operands[at] for _, detail, each in MUTATIONS["operand scale"](main) if f"%{at} " in detail]
    assert [str(operand.scale) for operand in found] == ["1.0", "-1.0", "nan", "inf"]
    assert {operand.channel for operand in found} == {ChannelQuant((0.5, 0.25), 0)}


@pytest.mark.parametrize(
    ("kind", "zeros"),
    [("TENSOR_QUANT8_ASYMM", (-1, 256)), ("TENSOR_QUANT8_ASYMM_SIGNED", (-129, 128)), ("TENSOR_QUANT8_SYMM", (-1, 1))],
)
def test_zero_points_are_one_beyond_the_range_of_the_type(kind, zeros):
    model = quantised(kind, TYPE_FACTS[OperandType[kind]].zero_points[0])
    found = [m for m in mutants(model) if m.kind == "operand zero point"]
    at, to = model.main.inputs[0], model.main.outputs[0]
    assert tuple(m.model.main.operands[at].zero_point for m in found if f"%{at} " in m.detail) == zeros
    assert tuple(m.model.main.operands[to].zero_point for m in found if f"%{to} " in m.detail) == (-1, 1)  # of float32


def test_every_operand_has_each_other_lifetime_but_a_constant_that_of_other_constants():
    constants = {Lifetime.CONSTANT_COPY, Lifetime.CONSTANT_REFERENCE}
    wanted = [
        (i, lifetime)
        for i, o in enumerate(MAIN.operands)
        for lifetime in Lifetime
        if lifetime not in (constants if o.lifetime in constants else {o.lifetime})
    ]
    assert [(i, o.lifetime) for i, o in changed("operand lifetime")] == wanted


def test_every_operand_is_an_input_or_output_that_is_none():
    found = [(m.model.main.inputs, m.model.main.outputs) for m in of("operand role")]
    more_inputs = [((*MAIN.inputs, i), MAIN.outputs) for i in range(5) if i != X]
    more_outputs = [(MAIN.inputs, (*MAIN.outputs, i)) for i in range(5) if i != Y]
    assert sorted(found) == sorted(more_inputs + more_outputs)


def test_what_another_writes_or_nobody_may_is_written_by_a_second_operation_behind_the_first():
    add, floor = (ADD.inputs, ADD.outputs), (FLOOR.inputs, FLOOR.outputs)
    wanted = [[add, (ADD.inputs, (i,)), floor] for i in range(5) if i != SUM]
    wanted += [[add, floor, (FLOOR.inputs, (i,))] for i in range(5) if i != Y]
    assert sorted(lists("second writer")) == sorted(wanted)


def test_every_operand_has_each_other_type_that_its_bytes_allow():
    found = changed("operand type of an operation")
    kinds = {i: {o.type for n, o in found if n == i} for i in range(5)}
    every = {
        k for k in OperandType if k not in (OperandType.SUBGRAPH, OperandType.TENSOR_FLOAT32) and k < OperandType.OEM
    }
    assert kinds[X] == kinds[SUM] == kinds[Y] == every == kinds[C]  # each takes at most the 8 bytes that there are
    four_bytes = {k for k in OperandType if k < OperandType.OEM and k not in (OperandType.INT32, OperandType.SUBGRAPH)}
    assert kinds[ACTIVATION] == {k for k in four_bytes if TYPE_FACTS[k].dtype.itemsize <= 4}
    for index, operand in found:
        facts, was = TYPE_FACTS[operand.type], MAIN.operands[index]
        scalar = not TYPE_FACTS[was.type].tensor
        assert operand.dimensions == (() if not facts.tensor else (1,) if scalar else was.dimensions)
        by_channel = operand.type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
        assert operand.scale == (1.0 if facts.zero_points is not None and not by_channel else 0.0)
        assert (operand.channel is not None) == by_channel
        if by_channel:
            assert (operand.channel.scales, operand.channel.axis) == ((1.0,) * operand.dimensions[0], 0)
        low, high = facts.zero_points or (0, 0)
        assert low <= operand.zero_point <= high
        size = int(np.prod(operand.dimensions)) * facts.dtype.itemsize
        assert operand.location.length == (size if was.lifetime == COPY else 0)


def test_every_operation_has_each_type_that_there_is_not():
    found = [[o.type for o in m.model.main.operations] for m in of("operation type")]
    codes = (106, 9999, 10001, 65535, -1)
    assert found == [[code, FLOOR.type] for code in codes] + [[ADD.type, code] for code in codes]


def test_every_index_is_beyond_the_operands_or_negative():
    bad = 5, 2**31 - 1, -1
    add, floor = (ADD.inputs, ADD.outputs), (FLOOR.inputs, FLOOR.outputs)
    wanted = [[((*ADD.inputs[:p], n, *ADD.inputs[p + 1 :]), ADD.outputs), floor] for p in range(3) for n in bad]
    assert lists("input index") == wanted + [[add, ((n,), FLOOR.outputs)] for n in bad]
    wanted = [[(ADD.inputs, (n,)), floor] for n in bad] + [[add, (FLOOR.inputs, (n,))] for n in bad]
    assert lists("output index") == wanted


def test_a_new_operand_is_written_instead():
    add, floor = (ADD.inputs, ADD.outputs), (FLOOR.inputs, FLOOR.outputs)
    assert lists("removed write") == [[(ADD.inputs, (5,)), floor], [add, (FLOOR.inputs, (5,))]]
    for mutant, index in zip(of("removed write"), (SUM, Y), strict=True):
        *others, fresh = mutant.model.main.operands
        assert tuple(others) == MAIN.operands
        assert fresh.lifetime == TEMPORARY
        assert (fresh.type, fresh.dimensions) == (MAIN.operands[index].type, MAIN.operands[index].dimensions)


def test_an_operand_that_is_gone_is_named_nowhere_and_those_behind_it_move_up():
    for gone, mutant in enumerate(of("removed operand")):
        left = [i for i in range(5) if i != gone]
        main = mutant.model.main
        assert main.operands == tuple(MAIN.operands[i] for i in left)

        def kept(indices, left=left):
            return tuple(left.index(i) for i in indices if i in left)

        assert (main.inputs, main.outputs) == (kept(MAIN.inputs), kept(MAIN.outputs))
        assert [(o.inputs, o.outputs) for o in main.operations] == [
            (kept(o.inputs), kept(o.outputs)) for o in MAIN.operations
        ]
    assert len(of("removed operand")) == 5


def test_an_operation_is_gone_or_lacks_one_operand():
    add, floor = (ADD.inputs, ADD.outputs), (FLOOR.inputs, FLOOR.outputs)
    assert lists("removed operation") == [[floor], [add]]
    wanted = [[(ADD.inputs[:p] + ADD.inputs[p + 1 :], ADD.outputs), floor] for p in range(3)]
    assert lists("removed input") == [*wanted, [add, ((), FLOOR.outputs)]]
    assert lists("removed output") == [[(ADD.inputs, ()), floor], [add, (FLOOR.inputs, ())]]


def test_an_operation_has_one_more_operand_of_the_model():
    add, floor = (ADD.inputs, ADD.outputs), (FLOOR.inputs, FLOOR.outputs)
    assert lists("added input") == [[((*ADD.inputs, 5), ADD.outputs), floor], [add, ((SUM, 5), FLOOR.outputs)]]
    assert lists("added output") == [[(ADD.inputs, (SUM, 5)), floor], [add, (FLOOR.inputs, (Y, 5))]]
    for kind, lifetime, like in (("added input", INPUT, (ACTIVATION, SUM)), ("added output", OUTPUT, (SUM, Y))):
        for mutant, index in zip(of(kind), like, strict=True):
            main = mutant.model.main
            fresh, last = main.operands[5], MAIN.operands[index]
            assert (fresh.lifetime, fresh.type, fresh.dimensions) == (lifetime, last.type, last.dimensions)
            roles = main.inputs, main.outputs
            assert roles == (((X, 5), (Y,)) if lifetime == INPUT else ((X,), (Y, 5)))


def test_an_operation_moves_before_its_source_and_the_others_stay_in_order():
    main = make_model(lambda b, x: b.neg(b.abs(b.floor(x))), (2,)).main
    one, two, three = main.operations
    found = [(detail, each.operations) for _, detail, each in MUTATIONS["execution order"](main)]
    assert found == [("#1 before #0", (two, one, three)), ("#2 before #1", (one, three, two))]


def test_an_operand_without_a_value_has_no_scale_zero_point_or_type_to_be_wrong_and_those_behind_it_have():
    omitted = replace(MAIN.operands[0], lifetime=Lifetime.NO_VALUE)
    main = replace(MAIN, operands=(omitted, *MAIN.operands[1:]))
    for kind in ("operand scale", "operand zero point", "operand type of an operation"):
        details = [detail for _, detail, _ in MUTATIONS[kind](main)]
        assert {detail.split()[0] for detail in details} == {f"%{i}" for i in range(1, 5)}, kind


def test_an_operand_that_nobody_uses_has_no_type_to_be_wrong():
    main = replace(MAIN, operands=(*MAIN.operands, MAIN.operands[SUM], MAIN.operands[Y]), outputs=(Y,))
    details = [detail for _, detail, _ in MUTATIONS["operand type of an operation"](main)]
    assert {detail.split()[0] for detail in details} == {f"%{i}" for i in range(5)}


def test_another_type_has_a_zero_point_of_its_own_range():
    main = quantised("TENSOR_QUANT8_ASYMM", 200).main
    at = main.inputs[0]
    found = [
        each.operands[at] for _, detail, each in MUTATIONS["operand type of an operation"](main) if f"%{at} " in detail
    ]
    zeros = {o.type.name: o.zero_point for o in found}
    assert zeros["TENSOR_FLOAT32"] == zeros["TENSOR_QUANT8_SYMM"] == zeros["TENSOR_INT32"] == 0
    assert (zeros["TENSOR_QUANT8_ASYMM_SIGNED"], zeros["TENSOR_QUANT16_ASYMM"]) == (127, 200)


def test_bad_hints_are_one_beyond_the_ends_and_a_word():
    assert BAD_HINTS == {"preference": (-1, 3, "fast"), "priority": (-1, 3, "urgent")}
    assert {int(p) for p in Preference} == {0, 1, 2} == {int(p) for p in Priority}


def test_codes_that_do_not_exist_are_those_beside_the_ones_that_do():
    """16 types and the two of OEMs, 10000 and 10001; 106 operations and OEM_OPERATION, 10000."""
    assert INVALID_CODES == (16, 9999, 10002, 65535, -1)
    assert not set(INVALID_CODES) & {*OperandType} and {15, 10000, 10001} <= {*OperandType}
    assert INVALID_OPERATIONS == (106, 9999, 10001, 65535, -1)
    assert not set(INVALID_OPERATIONS) & {*OperationType} and {105, 10000} <= {*OperationType}


def test_an_operation_without_inputs_gets_no_further_one_and_those_behind_it_do():
    none = replace(ADD, inputs=())
    model = replace(MODEL, main=replace(MAIN, operations=(none, FLOOR)))
    assert [m.operation for m in mutants(model) if m.kind == "added input"] == ["FLOOR"]
