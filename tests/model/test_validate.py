"""Whole-graph validation: each fault is named with its place."""

from dataclasses import replace

import numpy as np
import pytest

from nnhal.base.codes import Lifetime, OperationType
from nnhal.base.codes import OperandType as Type
from nnhal.base.errors import InvalidModel
from nnhal.base.levels import V1_0, V1_1, V1_2
from nnhal.base.operands import ChannelQuant
from nnhal.frontends.python import Builder
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Location, Model, Operand, Operation
from nnhal.model.parts import extract_part
from nnhal.model.validate import level_of, optional_inputs, validate
from tests.models import make_model


def pooled(times: int = 1) -> Model:
    b = Builder("pooled")
    x = y = b.input((1, 8, 8, 3), name="x")
    for _ in range(times):
        y = b.average_pool_2d(y, padding="same", filter_size=2)
    return b.finish([x], [y])


def changed(model: Model, **fields) -> Model:
    return replace(model, main=replace(model.main, **fields))


def with_operand(model: Model, index: int, **fields) -> Model:
    operands = list(model.main.operands)
    operands[index] = replace(operands[index], **fields)
    return changed(model, operands=tuple(operands))


def refuses(model: Model, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        validate(model)


def test_a_good_model_is_valid_and_of_the_level_of_its_parts():
    assert level_of(pooled()) == V1_0


def test_relaxed_needs_1_1():
    assert level_of(replace(pooled(), relaxed=True)) == V1_1


def test_extensions_need_1_2():
    assert level_of(replace(pooled(), extensions=(("com.example.x", 1),))) == V1_2


def test_operand_index_out_of_range():
    model = pooled()
    wrong = replace(model.main.operations[0], inputs=(99, *model.main.operations[0].inputs[1:]))
    refuses(changed(model, operations=(wrong,)), "AVERAGE_POOL_2D #0: input 0 is operand 99, must be 0 to 7")


def test_negative_operand_index():
    model = pooled()
    wrong = replace(model.main.operations[0], outputs=(-1,))
    refuses(changed(model, operations=(wrong,)), "output 0 is operand -1, must be 0 to 7")


def test_read_before_write():
    model = pooled(2)
    refuses(
        changed(model, operations=model.main.operations[::-1]),
        r"AVERAGE_POOL_2D #0: reads operand .* before it is written",
    )


def test_two_writers():
    model = pooled(1)
    twice = model.main.operations * 2
    refuses(changed(model, operations=twice), "already written, must have one writer")


def test_never_written():
    model = pooled(1)
    lonely = Operand(Type.TENSOR_FLOAT32, (1,))
    refuses(changed(model, operands=(*model.main.operands, lonely)), "is never written")


def test_writing_a_constant():
    model = pooled(1)
    wrong = replace(model.main.operations[0], outputs=(1,))
    refuses(changed(model, operations=(wrong,)), "writes operand %1 INT32 of lifetime CONSTANT_COPY")


def test_unlisted_input():
    refuses(changed(pooled(), inputs=()), "is SUBGRAPH_INPUT, must be listed among the inputs")


def test_input_listed_twice():
    model = pooled()
    refuses(changed(model, inputs=model.main.inputs * 2), "name an operand twice")


def test_output_of_another_lifetime():
    refuses(
        changed(pooled(), outputs=(0,)), "output 0 is operand .* of lifetime SUBGRAPH_INPUT, must be SUBGRAPH_OUTPUT"
    )


def test_no_operations():
    refuses(changed(pooled(), operations=()), "main: has no operations, must have at least one")


def test_unknown_operation():
    refuses(changed(pooled(), operations=(Operation(4711, (0,), (7,)),)), "unknown operation 4711")


def test_operation_of_an_unnamed_extension():
    refuses(
        changed(pooled(), operations=(Operation(5 << 16, (0,), (7,)),)), "must be of an extension that the model names"
    )


def test_unknown_operand_type():
    refuses(with_operand(pooled(), 0, type=77), "type is 77, must be one of FLOAT32")


@pytest.mark.parametrize("dims", [(65536, 65536), (2**31, 2), (2**32 - 1, 2**32 - 1)])
def test_sizes_that_overflow(dims):
    refuses(with_operand(pooled(), 0, dimensions=dims), "bytes, must be at most 4294967295")


def test_negative_dimension():
    refuses(with_operand(pooled(), 0, dimensions=(-1, 2)), "must be 0 .unknown. to")


def test_rank_nine():
    with pytest.raises(InvalidModel, match=r"rank|has shape"):
        make_model(lambda b, x: b.floor(x), (1,) * 9)


def test_scalar_with_dimensions():
    refuses(with_operand(pooled(), 1, dimensions=(1,)), r"has dimensions \[1\], must have none")


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_scales(scale):
    refuses(with_operand(pooled(), 0, type=Type.TENSOR_QUANT8_ASYMM, scale=scale), "scale is")


def test_zero_point_outside_its_type():
    refuses(
        with_operand(pooled(), 0, type=Type.TENSOR_QUANT8_ASYMM, scale=1.0, zero_point=256),
        "zero point is 256, must be 0 to 255",
    )


def test_scale_on_a_float():
    refuses(with_operand(pooled(), 0, scale=1.0), "the type is not quantised")


def test_scale_count_of_a_per_channel_type():
    channel = ChannelQuant((1.0, 1.0), 3)
    operand = {"type": Type.TENSOR_QUANT8_SYMM_PER_CHANNEL, "channel": channel}
    refuses(with_operand(pooled(), 0, **operand), "has 2 scales, must be 3, one for each channel")


@pytest.mark.parametrize("axis", [0, 3])
def test_a_channel_dimension_that_is_not_known(axis):
    operand = {"type": Type.TENSOR_QUANT8_SYMM_PER_CHANNEL, "dimensions": (0, 2, 2, 0)}
    model = with_operand(pooled(), 0, **operand, channel=ChannelQuant((), axis))
    refuses(model, f"channel dimension {axis} is 0, must be known")


def test_constant_outside_its_pool():
    refuses(with_operand(pooled(), 1, location=Location(0, 10**6, 4)), "must lie within")


def test_constant_of_the_wrong_size():
    refuses(with_operand(pooled(), 1, location=Location(0, 0, 2)), "value has 2 bytes, must have 4")


def test_constant_in_no_pool():
    refuses(with_operand(pooled(), 1, lifetime=Lifetime.CONSTANT_REFERENCE), "refers to pool 0, must be less than 0")


def test_subgraph_that_refers_to_itself():
    builder = ModelBuilder()
    sub = builder.subgraph()
    sub.subgraph_operand(Type.SUBGRAPH, 0)
    x, y = (sub.operand(Type.TENSOR_FLOAT32, (1,)) for _ in range(2))
    sub.operation("FLOOR", [x], [y])
    sub.finish_subgraph([x], [y])
    x, y = (builder.operand(Type.TENSOR_FLOAT32, (1,)) for _ in range(2))
    builder.operation("FLOOR", [x], [y])
    refuses(builder.finish([x], [y]), "subgraph 0 refers to itself")


def test_ten_thousand_nested_subgraphs_end_in_an_error():
    builder = ModelBuilder()
    for depth in range(10_000):
        sub = builder.subgraph()
        if depth:
            sub.subgraph_operand(Type.SUBGRAPH, depth - 1)
        x, y = (sub.operand(Type.TENSOR_FLOAT32, (1,)) for _ in range(2))
        sub.operation("FLOOR", [x], [y])
        sub.finish_subgraph([x], [y])
    x, y = (builder.operand(Type.TENSOR_FLOAT32, (1,)) for _ in range(2))
    builder.operation("FLOOR", [x], [y])
    refuses(builder.finish([x], [y]), "nested deeper than 64")


def test_large_constants_lie_in_a_pool_and_small_ones_in_the_model():
    builder = ModelBuilder()
    small = builder.constant(Type.TENSOR_FLOAT32, np.zeros(32, np.float32))
    large = builder.constant(Type.TENSOR_FLOAT32, np.arange(33, dtype=np.float32))
    model = builder.finish([], [])
    lifetimes = [model.main.operands[i].lifetime for i in (small, large)]
    assert lifetimes == [Lifetime.CONSTANT_COPY, Lifetime.CONSTANT_REFERENCE]
    assert (model.constant(model.main.operands[large]) == np.arange(33)).all()


def test_a_part_reads_and_writes_what_it_shares_with_the_rest():
    model = pooled(3)
    part = extract_part(model, [1])
    first, second = (operation.outputs[0] for operation in model.main.operations[:2])
    assert (part.inputs, part.outputs) == ((first,), (second,))
    assert validate(part.model).level == V1_0


def test_a_part_of_everything_is_the_model_itself():
    model = pooled(2)
    assert extract_part(model, range(2)).model is model


@pytest.mark.parametrize(("needed", "optional"), [(False, {1}), (True, set())])
def test_an_input_may_be_left_out_where_nobody_who_reads_it_needs_it(needed, optional):
    b = Builder()
    x, order = b.input((2, 3)), b.input((2,), "TENSOR_INT32")
    outputs = [b.transpose(x, order), *([b.add(order, order)] if needed else [])]
    assert optional_inputs(b.finish([x, order], outputs)) == optional


@pytest.mark.parametrize(("place", "optional"), [(0, {1}), (1, set())])
def test_what_an_operation_without_a_record_reads_it_needs(place, optional):
    m = ModelBuilder()
    x, y, z = (m.operand(Type.TENSOR_FLOAT32, shape) for shape in ((2, 3), (2, 3), (3, 2)))
    order = m.operand(Type.TENSOR_INT32, (2,))
    m.operation(OperationType.OEM_OPERATION, [(x, order)[place]], [y])
    m.operation("TRANSPOSE", [x, order], [z])
    assert optional_inputs(m.finish([x, order], [y, z])) == optional
