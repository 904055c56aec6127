"""The rules of a whole model at their edges: what is just fine, what is one too many, and what is said of it."""

import copy
import math
import pickle  # noqa: TID251 (as applications do)
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import Lifetime, OperationType
from nnhal.base.codes import OperandType as Type
from nnhal.base.errors import BadState, ContractBroken, InvalidArgument, InvalidModel, InvalidRequest
from nnhal.base.levels import FL6, FL7, V1_0, V1_1, V1_2, V1_3
from nnhal.base.memory import Memory
from nnhal.base.operands import ChannelQuant, SubgraphFacts
from nnhal.model.builder import ModelBuilder
from nnhal.model.file import write_model
from nnhal.model.graph import EdgeForm, Location, Model, Operand, State, consumers, describe, operation_label
from nnhal.model.parts import extract_part, live_operands, without_defaults
from nnhal.model.validate import level_needed, release_constants, shape_of, validate, validate_outline
from tests.models import make_model, make_subgraph, one_operation

F32, F16, I32, Q8 = Type.TENSOR_FLOAT32, Type.TENSOR_FLOAT16, Type.TENSOR_INT32, Type.TENSOR_QUANT8_ASYMM
PER_CHANNEL = Type.TENSOR_QUANT8_SYMM_PER_CHANNEL
SPARE = 3  # the number of the operand that `with_spare` adds


def floored(*dims: int) -> ModelBuilder:
    """FLOOR of one input, operands %0 and %1."""
    b = ModelBuilder("floored")
    x, y = (b.operand(F32, dims or (2, 3)) for _ in range(2))
    b.operation("FLOOR", [x], [y])
    return b


def with_spare(values: bytes = b"", **fields: Any) -> Model:
    """An ABS, and an operand beside it that nobody reads: it is given, so it needs no writer."""
    b = ModelBuilder()
    x, y, z = b.operand(F32, (2,)), b.operand(F32, (2,)), b.operand(F32, (2,))
    b.operation("ABS", [x], [y])
    b.operation("ABS", [y], [z])
    model = b.finish([x], [z])
    lifetime = fields.pop("lifetime", Lifetime.SUBGRAPH_INPUT)
    spare = replace(Operand(F32, (2,), lifetime=lifetime), **fields)
    inputs = (0, SPARE) if lifetime == Lifetime.SUBGRAPH_INPUT else (0,)
    main = replace(model.main, operands=(*model.main.operands, spare), inputs=inputs)
    return replace(model, main=main, values=values)


def refuses(model: Model, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        validate(model)


# ----------------------------------------------------------------------------------------------------------- operands


@pytest.mark.parametrize(
    "fields",
    [
        {"dimensions": (0, 5)},
        {"dimensions": ()},
        {"dimensions": (1,) * 32},
        {"type": Q8, "scale": 0.5, "dimensions": (2**32 - 1,)},  # 4294967295 bytes
        {"dimensions": (2**30 - 1,)},
        {"type": Q8, "scale": 1e-30, "zero_point": 0},
        {"type": Q8, "scale": 1e30, "zero_point": 255},
        {"type": Type.TENSOR_QUANT8_ASYMM_SIGNED, "scale": 0.5, "zero_point": -128},
        {"type": Type.TENSOR_QUANT8_SYMM, "scale": 0.5},
        {"type": Type.TENSOR_QUANT16_ASYMM, "scale": 0.5, "zero_point": 65535},
        {"type": I32, "scale": 0.5},
        {"type": I32, "scale": 0.0},
        {"type": PER_CHANNEL, "dimensions": (2, 3), "channel": ChannelQuant((0.5, 1.0), 0)},
        {"type": PER_CHANNEL, "dimensions": (0, 3), "channel": ChannelQuant((0.5, 1.0, 2.0), 1)},
        {"type": Type.TENSOR_OEM_BYTE, "scale": -1.0, "zero_point": 7},
        {"type": Type.OEM, "dimensions": (), "scale": -1.0},
        {"lifetime": Lifetime.NO_VALUE, "type": Q8, "dimensions": ()},  # of what is left out only the type is said
        {"lifetime": Lifetime.NO_VALUE, "type": PER_CHANNEL, "dimensions": ()},
    ],
)
def test_operands_at_the_edge_are_fine(fields: dict[str, Any]) -> None:
    validate(with_spare(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": 99}, "type is 99, must be one of FLOAT32, INT32"),
        ({"type": 5 << 16}, "type is .*, must be of an extension that the model names"),
        ({"lifetime": 7}, "lifetime is 7, must be 0 to 6"),
        ({"lifetime": -1}, "lifetime is -1, must be 0 to 6"),
        ({"type": Type.INT32}, r"has dimensions \[2\], must have none: it is a scalar"),
        ({"dimensions": (1,) * 33}, "has rank 33, must be at most 32"),
        ({"dimensions": (2**32,)}, r"has dimensions \[4294967296\], must be 0 \(unknown\) to 2\*\*32 - 1"),
        ({"dimensions": (1, 2**32)}, r"has dimensions \[1, 4294967296\], must be 0 \(unknown\) to 2\*\*32 - 1"),
        ({"dimensions": (5, -1)}, r"has dimensions \[5, -1\], must be 0"),
        ({"dimensions": (2**30,)}, "has 4294967296 bytes, must be at most 4294967295"),
        ({"dimensions": (0, 2**30)}, "has 4294967296 bytes, must be at most 4294967295"),
        ({"type": Q8, "scale": 0.5, "dimensions": (2**16, 2**16)}, "has 4294967296 bytes"),
        ({"type": Q8}, "scale is 0.0, must be greater than 0"),
        ({"type": Q8, "scale": 0.5, "zero_point": -1}, "zero point is -1, must be 0 to 255"),
        ({"type": Type.TENSOR_QUANT8_SYMM, "scale": 0.5, "zero_point": 1}, "zero point is 1, must be 0 to 0"),
        ({"type": I32, "zero_point": 1}, "zero point is 1, must be 0"),
        ({"type": I32, "scale": float("inf")}, "scale is inf, must be a finite number, at least 0"),
        ({"scale": 0.5}, "scale is 0.5 and zero point 0, must be 0: the type is not quantised"),
        ({"zero_point": 3}, "scale is 0 and zero point 3, must be 0: the type is not quantised"),
        ({"channel": ChannelQuant((1.0,), 0)}, "has per-channel scales, only TENSOR_QUANT8_SYMM_PER_CHANNEL may"),
        ({"type": PER_CHANNEL}, "has no per-channel scales, must have one for each channel"),
        ({"type": PER_CHANNEL, "scale": 0.5, "channel": ChannelQuant((1.0, 1.0), 0)}, "scale is 0.5, must be 0: the"),
        ({"type": PER_CHANNEL, "channel": ChannelQuant((1.0, 1.0), 1)}, "channel dimension is 1, must be 0 to 0"),
        ({"type": PER_CHANNEL, "channel": ChannelQuant((1.0, 1.0), -1)}, "channel dimension is -1, must be 0 to 0"),
        ({"type": PER_CHANNEL, "channel": ChannelQuant((1.0,), 0)}, "has 1 scales, must be 2, one for each channel"),
        (
            {"type": PER_CHANNEL, "channel": ChannelQuant((1.0, 0.0), 0)},
            "has the channel scale 0.0, must be finite and greater",
        ),
        ({"type": PER_CHANNEL, "channel": ChannelQuant((1.0, float("inf")), 0)}, "has the channel scale inf"),
        ({"type": PER_CHANNEL, "zero_point": 1, "channel": ChannelQuant((1.0, 1.0), 0)}, "zero point is 1, must be 0"),
        ({"lifetime": Lifetime.SUBGRAPH}, "lifetime is SUBGRAPH; type SUBGRAPH and lifetime SUBGRAPH must go together"),
        ({"type": Type.SUBGRAPH, "dimensions": ()}, "lifetime is SUBGRAPH_INPUT; type SUBGRAPH and lifetime"),
        (
            {"type": Type.SUBGRAPH, "dimensions": (), "lifetime": Lifetime.SUBGRAPH},
            "refers to subgraph 0, must be less than 0",
        ),
    ],
)
def test_operands_beyond_the_edge_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    refuses(with_spare(**fields), rf"main: operand %3 .*: {message}")


COPY = Lifetime.CONSTANT_COPY


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (Location(0, 0, 8), ""),
        (Location(0, 4, 8), ""),  # its end is that of the values
        (Location(0, 5, 8), "value lies at bytes 5 to 13, must lie within 12"),
        (Location(0, -1, 8), "value lies at bytes -1 to 7, must lie within 12"),
        (Location(0, 0, 0), "value lies at bytes 0 to 0, must lie within 12"),
        (Location(0, 0, 4), "value has 4 bytes, must have 8"),
        (Location(0, 0, 12), "value has 12 bytes, must have 8"),
    ],
)
def test_a_constant_lies_within_the_values(at: Location, message: str) -> None:
    model = with_spare(bytes(12), lifetime=COPY, location=at)
    if message:
        refuses(model, message)
    else:
        validate(model)


@pytest.mark.parametrize(("pool", "fine"), [(0, True), (1, False), (-1, False)])
def test_a_reference_names_a_pool_that_there_is(pool: int, fine: bool) -> None:
    location = Location(pool, 0, 8)
    model = with_spare(lifetime=Lifetime.CONSTANT_REFERENCE, location=location)
    model = replace(model, pools=(Memory.allocate(8),))
    if fine:
        validate(model)
    else:
        refuses(model, f"refers to pool {pool}, must be less than 1")


def test_a_constant_has_every_dimension() -> None:
    for dims in ((), (0,), (2, 0)):
        refuses(
            with_spare(bytes(8), lifetime=COPY, location=Location(0, 0, 8), dimensions=dims),
            "is constant with dimensions .*, must have every dimension known",
        )
    scalar = with_spare(bytes(4), lifetime=COPY, location=Location(0, 0, 4), type=Type.INT32, dimensions=())
    validate(scalar)


def test_constants_of_types_that_nobody_knows_are_not_measured() -> None:
    at = {"lifetime": COPY, "location": Location(0, 0, 5)}
    validate(with_spare(bytes(5), type=Type.OEM, dimensions=(), **at))
    unknown = with_spare(bytes(5), type=5 << 16, dimensions=(3,), **at)
    validate(replace(unknown, extensions=(("com.example.nobody", 5),)))


@pytest.mark.parametrize(
    ("type", "dims", "shape"),
    [(F32, (), None), (F32, (0, 3), (None, 3)), (F32, (2,), (2,)), (Type.INT32, (), ()), (5 << 16, (2,), (2,))],
)
def test_a_declared_shape_is_known_as_far_as_it_is_stated(type: int, dims: Any, shape: Any) -> None:
    assert shape_of(Operand(type, dims)) == shape


# ---------------------------------------------------------------------------------------------------------- structure


def changed(model: Model, **fields: Any) -> Model:
    return replace(model, main=replace(model.main, **fields))


def operation(model: Model, **fields: Any) -> Model:
    return changed(model, operations=(replace(model.main.operations[0], **fields),))


@pytest.fixture
def model() -> Model:
    return floored().finish([0], [1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: changed(m, inputs=(2,)), "main: input 0 is operand 2, must be 0 to 1"),
        (lambda m: changed(m, inputs=(-1,)), "main: input 0 is operand -1, must be 0 to 1"),
        (
            lambda m: changed(m, outputs=(0,)),
            "output 0 is operand %0 .* of lifetime SUBGRAPH_INPUT, must be SUBGRAPH_OU",
        ),
        (lambda m: changed(m, inputs=(0, 0)), r"the inputs \[0, 0\] name an operand twice"),
        (lambda m: changed(m, outputs=(1, 1)), r"the outputs \[1, 1\] name an operand twice"),
        (lambda m: changed(m, outputs=()), "operand %1 .* is SUBGRAPH_OUTPUT, must be listed among the outputs"),
        (lambda m: operation(m, inputs=(2,)), "main: FLOOR #0: input 0 is operand 2, must be 0 to 1"),
        (lambda m: operation(m, outputs=(2,)), "main: FLOOR #0: output 0 is operand 2, must be 0 to 1"),
        (lambda m: operation(m, outputs=()), "main: FLOOR #0: has no outputs, must have at least one"),
        (lambda m: operation(m, inputs=(1,)), r"FLOOR #0: reads operand %1 .* before it is written"),
        (
            lambda m: operation(m, outputs=(0,)),
            "writes operand %0 .* of lifetime SUBGRAPH_INPUT, must be a temporary or",
        ),
        (lambda m: operation(m, type=9999), "main: unknown operation 9999 #0: must be one of the"),
        (lambda m: operation(m, type=5 << 16 | 1), "must be of an extension that the model names: it names none"),
        (
            lambda m: replace(operation(m, type=5 << 16 | 1), extensions=(("b.c", 7), ("a.b", 8))),
            "must be of an extension that the model names: a.b, b.c",
        ),
    ],
)
def test_what_does_not_hang_together_is_named_with_its_place(model: Model, change: Any, message: str) -> None:
    refuses(change(model), message)


def test_what_nobody_writes_must_be_an_input(model: Model) -> None:
    lonely = (*model.main.operands, Operand(F32, (2, 3), name="lonely"))
    unwritten = changed(model, operands=lonely)
    refuses(
        operation(unwritten, inputs=(2,)), r'reads operand %2 "lonely" .*, which no operation writes, must be one of'
    )
    refuses(unwritten, r'main: operand %2 "lonely" TENSOR_FLOAT32\[2,3\] is never written, must be by one operation')


def test_a_model_without_outputs_is_none(model: Model) -> None:
    operands = (model.main.operands[0], replace(model.main.operands[1], lifetime=Lifetime.TEMPORARY_VARIABLE))
    refuses(changed(model, operands=operands, outputs=()), "main: has no outputs, must have at least one")


def test_two_operations_write_no_operand_twice(model: Model) -> None:
    refuses(changed(model, operations=model.main.operations * 2), "FLOOR #1: writes operand %1 .* already written")


def test_oem_operations_are_carried_unread(model: Model) -> None:
    carried = operation(model, type=OperationType.OEM_OPERATION)
    assert validate(carried).subgraphs[0].operations == (None,)


@pytest.mark.parametrize(("depth", "fine"), [(63, True), (64, False)])  # the main subgraph is one more
def test_subgraphs_are_nested_64_deep_and_no_deeper(depth: int, fine: bool) -> None:
    b = ModelBuilder()
    for n in range(depth):
        sub = b.subgraph()
        if n:
            sub.subgraph_operand(Type.SUBGRAPH, n - 1)
            sub.subgraph_operand(Type.SUBGRAPH, 0)  # the longest way counts
        x, y = (sub.operand(F32, (1,)) for _ in range(2))
        sub.operation("FLOOR", [x], [y])
        sub.finish_subgraph([x], [y])
    b.subgraph_operand(Type.SUBGRAPH, depth - 1)
    x, y = (b.operand(F32, (1,)) for _ in range(2))
    b.operation("FLOOR", [x], [y])
    model = b.finish([x], [y])
    if fine:
        validate(model)
    else:
        refuses(model, "subgraphs are nested deeper than 64")


@pytest.mark.parametrize("refers", [{0: 1, 1: 0}, {0: 1, 1: 2, 2: 0}, {0: 2, 2: 1, 1: 0}])
def test_subgraphs_do_not_refer_to_each_other_in_circles(refers: dict[int, int]) -> None:
    b = ModelBuilder()
    for n in range(len(refers)):
        sub = b.subgraph()
        sub.subgraph_operand(Type.SUBGRAPH, refers[n])
        x, y = (sub.operand(F32, (1,)) for _ in range(2))
        sub.operation("FLOOR", [x], [y])
        sub.finish_subgraph([x], [y])
    x, y = (b.operand(F32, (1,)) for _ in range(2))
    b.operation("FLOOR", [x], [y])
    refuses(b.finish([x], [y]), r"subgraph \d refers to itself, directly or through others")


def test_two_may_refer_to_one_subgraph() -> None:
    b = ModelBuilder()
    inner = b.subgraph()
    x, y = (inner.operand(F32, (1,)) for _ in range(2))
    inner.operation("FLOOR", [x], [y])
    number = inner.finish_subgraph([x], [y])
    for _ in range(2):
        b.subgraph_operand(Type.SUBGRAPH, number)
    x, y = (b.operand(F32, (1,)) for _ in range(2))
    b.operation("FLOOR", [x], [y])
    facts = validate(b.finish([x], [y]))
    (found, other) = (v.data for v in facts.subgraphs[0].values[:2] if v is not None)
    assert isinstance(found, SubgraphFacts) and found == other
    assert found.index == 0 and [v.shape for v in (*found.inputs, *found.outputs)] == [(1,), (1,)]
    assert facts.level == V1_3 and facts.reasons == ("referenced subgraphs exist since 1.3",)


# --------------------------------------------------------------------------------------------------- shapes and levels


def test_shapes_follow_from_operation_to_operation_and_declared_dimensions_fill_them() -> None:
    b = ModelBuilder()
    x, y, z = b.operand(F32, (0, 3)), b.operand(F32), b.operand(F32, (4, 0))
    b.operation("FLOOR", [x], [y])
    b.operation("FLOOR", [y], [z])
    values = validate(b.finish([x], [z])).subgraphs[0].values
    assert [v.shape for v in values if v is not None] == [(None, 3), (None, 3), (4, 3)]


def test_an_error_says_in_which_subgraph_it_is() -> None:
    b = ModelBuilder()
    sub = b.subgraph()
    x, y = sub.operand(F32, (1,)), sub.operand(F32, (2,))
    sub.operation("FLOOR", [x], [y])
    sub.finish_subgraph([x], [y])
    x, y = (b.operand(F32, (1,)) for _ in range(2))
    b.operation("FLOOR", [x], [y])
    model = b.finish([x], [y])
    refuses(model, r"^FLOOR #0 of subgraph 0: output 0 \(output\) has shape \[2\], must be \[1\]")
    broken = replace(model.referenced[0], operations=())
    refuses(replace(model, referenced=(broken,)), "^subgraph 0: has no operations")
    refuses(changed(model, operations=()), "^main: has no operations")


@pytest.mark.parametrize(("name", "rank", "level"), [("ABS", 8, V1_2), ("ABS", 9, None), ("MIRROR_PAD", 9, FL7)])
def test_more_than_eight_dimensions_are_for_operations_since_feature_level_7(name: str, rank: int, level: Any) -> None:
    b = ModelBuilder()
    x, y = (b.operand(F32, (1,) * rank) for _ in range(2))
    more = []
    if name == "MIRROR_PAD":
        more = [b.constant(I32, np.zeros((rank, 2), np.int32)), b.constant(Type.INT32, 0)]
    b.operation(name, [x, *more], [y])
    model = b.finish([x], [y])
    if level is None:
        refuses(model, "ABS #0: operand %0 has rank 9, must be at most 8")
    else:
        assert validate(model).level == level


def test_the_level_is_the_newest_of_all_and_its_reasons_stand_once() -> None:
    b = ModelBuilder()
    x, y, z = (b.operand(F32, (2,)) for _ in range(3))
    b.operation("ABS", [x], [y])
    b.operation("ABS", [y], [z])
    facts = validate(b.finish([x], [z], relaxed=True))
    assert (facts.level, facts.reasons) == (V1_2, ("ABS #0: ABS exists since 1.2", "ABS #1: ABS exists since 1.2"))
    model = floored().finish([0], [1], relaxed=True)
    assert (validate(model).level, validate(model).reasons) == (V1_1, ("relaxed float32 exists since 1.1",))
    plain = validate(floored().finish([0], [1]))
    assert (plain.level, plain.reasons) == (
        V1_0,
        ("TENSOR_FLOAT32 exists since 1.0", "FLOOR #0: FLOOR exists since 1.0"),
    )
    model = one_operation("FLOOR", (F16, (2,)), output=(F16, (2,)))
    assert validate(model).reasons[0] == "TENSOR_FLOAT16 exists since 1.2"


def test_types_of_what_only_says_a_default_do_not_count() -> None:
    b = nnhal.Builder()
    x = b.input((1, 4, 4, 2))
    for nchw, level in ((False, V1_0), (True, V1_2)):
        layout = b.constant(np.array(nchw), "BOOL")
        model = b.finish([x], [b.max_pool_2d(x, padding="valid", filter_size=1, nchw=layout)])
        assert validate(model).level == level, nchw


def test_what_is_found_out_is_kept_and_no_model_is_no_model(model: Model) -> None:
    assert validate(model) is validate(model)
    with pytest.raises(InvalidArgument, match=r"model is 'words', must be a nnhal\.Model"):
        validate("words")  # type: ignore[arg-type]


def test_constants_are_let_go_of_and_shapes_stay() -> None:
    b = nnhal.Builder()
    x = b.input((2, 300))
    weights = np.ones((5, 300), np.float32)
    model = b.finish([x], [b.fully_connected(x, weights, np.zeros(5, np.float32))])
    facts = validate(model)
    held = model.constant(model.main.operands[1])
    assert not model.emptied
    release_constants(model, "gone with the wind")
    assert model.emptied and (held == 1).all()
    left = validate(model)
    assert (left.level, left.reasons) == (facts.level, facts.reasons)
    shapes = [[None if v is None else v.shape for v in each.subgraphs[0].values] for each in (left, facts)]
    assert shapes[0] == shapes[1] and all(v is None or v.data is None for v in left.subgraphs[0].values)
    for asks in (
        lambda: model.constant(model.main.operands[1]),
        lambda: model.pools[0],
        lambda: len(model.values),
        lambda: list(left.subgraphs[0].operations),
    ):
        with pytest.raises(ContractBroken, match="gone with the wind"):
            asks()


def test_what_a_builder_bound_is_kept_until_validation_alone() -> None:
    built = make_model(lambda b, x: b.relu(x), (2,))
    validate(built)
    assert "bounds" not in built._memo


def test_an_operation_needs_the_level_of_all_that_it_refers_to() -> None:
    b = nnhal.Builder()
    condition, x = b.input((1,), "TENSOR_BOOL8"), b.input((2, 2))
    flag, square = ((1,), "TENSOR_BOOL8"), (2, 2)
    newest = make_subgraph(b, lambda s, y: s.relu(s.batch_matmul(s.relu(y), y)), square)
    oldest = make_subgraph(b, lambda s, y: s.relu(y), square)
    nested = make_subgraph(
        b, lambda s, c, y: s.relu(s.if_(c, newest, oldest, [y], out_type="TENSOR_FLOAT32")), flag, square
    )
    flat = make_subgraph(b, lambda s, c, y: s.relu(y), flag, square)
    deep = b.if_(condition, nested, flat, [condition, x], out_type="TENSOR_FLOAT32")
    near = b.if_(condition, oldest, newest, [x], out_type="TENSOR_FLOAT32")
    old = b.if_(condition, oldest, oldest, [x], out_type="TENSOR_FLOAT32")
    model = b.finish([condition, x], [deep, near, old, b.relu(x)])
    assert [level_needed(model, n) for n in range(4)] == [FL6, FL6, V1_3, V1_0]


def test_an_operation_without_a_record_needs_no_level(model: Model) -> None:
    assert level_needed(operation(model, type=OperationType.OEM_OPERATION), 0) is None


# ------------------------------------------------------------------------------------------------------------ outlines


def ends(model: Model, **fields: Any) -> Model:
    """The inputs and outputs of a model alone."""
    return changed(model, operations=(), **fields)


def test_an_outline_is_known_as_valid_without_operations(model: Model) -> None:
    bare = ends(model)
    assert validate_outline(bare) is bare
    facts = validate(bare)
    assert (facts.level, facts.reasons, facts.subgraphs[0].operations) == (V1_0, (), ())
    assert [None if v is None else v.shape for v in facts.subgraphs[0].values] == [(2, 3), (2, 3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m, "outline: has operations, must have none"),
        (lambda m: replace(ends(m), referenced=(m.main,)), "outline: has operations, must have none"),
        (lambda m: ends(m, inputs=()), "outline: operand %0 .* is SUBGRAPH_INPUT, must be listed among the inputs"),
        (lambda m: ends(m, outputs=()), "outline: operand %1 .* is SUBGRAPH_OUTPUT, must be listed among the outputs"),
        (lambda m: ends(m, inputs=(2,)), "outline: input 0 is operand 2, must be 0 to 1"),
        (lambda m: ends(m, outputs=(0,)), "outline: output 0 is operand %0 .* of lifetime SUBGRAPH_INPUT"),
        (
            lambda m: ends(m, operands=(replace(m.main.operands[0], type=99), m.main.operands[1])),
            "outline: operand %0 .*: type is 99, must be one of",
        ),
    ],
)
def test_an_outline_is_checked_as_far_as_it_goes(model: Model, change: Any, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        validate_outline(change(model))


# -------------------------------------------------------------------------------------------------------------- graph


def test_operands_and_operations_have_names_for_people(model: Model) -> None:
    named = changed(model, operands=(replace(model.main.operands[0], name="x", dimensions=(0, 3)), Operand(Type.INT32)))
    assert describe(named, named.main, 0) == '%0 "x" TENSOR_FLOAT32[?,3]'
    assert describe(named, named.main, 1) == "%1 INT32"
    assert operation_label(OperationType.ADD, 3) == "ADD #3"


def test_readers_are_counted_by_operand() -> None:
    b = ModelBuilder()
    x, y, z = (b.operand(F32, (2,)) for _ in range(3))
    none = b.constant(Type.INT32, 0)
    b.operation("ADD", [x, x, none], [y])
    b.operation("ADD", [x, y, none], [z])
    assert consumers(b.finish([x], [z]).main) == [3, 1, 0, 2]


@pytest.mark.parametrize("data", [np.int64(5), 5, np.int32([5])])
def test_an_edge_may_be_a_scalar_and_of_64_bits(data: Any) -> None:
    form = EdgeForm(scalar=True, wide=True)
    inside = form.inside(np.asarray(data), "input 0")
    assert inside.shape == (1,) and inside.dtype == np.int32
    outside = form.outside(inside)
    assert outside.shape == () and outside.dtype == np.int64 and outside == 5


def test_an_edge_may_be_of_16_bits_with_a_scale() -> None:
    form = EdgeForm(scale=0.5)
    inside = form.inside(np.int16([-32768, 3]), "input 0")
    assert inside.dtype == np.float32 and inside.tolist() == [-16384, 1.5]
    outside = form.outside(np.float32([0.25, -0.25, 0.74, 1e9, -np.inf]))
    assert outside.dtype == np.int16 and outside.tolist() == [1, -1, 1, 32767, -32768]
    one = EdgeForm(scalar=True, scale=0.5).outside(np.float32([2.5]))
    assert one.shape == () and one == 5


@pytest.mark.parametrize(
    ("type", "form"),
    [
        (Type.TENSOR_INT32, EdgeForm(scale=0.5)),
        (Type.TENSOR_FLOAT16, EdgeForm(wide=True)),
        (Type.TENSOR_FLOAT32, EdgeForm(scale=math.inf)),
    ],
)
def test_a_file_whose_edge_does_not_fit_its_operand_is_refused(type: Type, form: EdgeForm, tmp_path: Path) -> None:
    b = ModelBuilder()
    x, y = b.operand(type, (2,)), b.operand(type, (2,))
    b.operation("ABS", [x], [y])
    write_model(b.finish([x], [y], edge={x: form}), tmp_path / "model.nnhal")
    with pytest.raises(InvalidModel, match=r"edge of operand 0 is .*, must be of TENSOR_FLOAT32"):
        nnhal.load(tmp_path / "model.nnhal")


def test_an_edge_is_as_the_operand_where_nothing_is_said_and_no_number_changes() -> None:
    x = np.float32([[1.5]])
    assert EdgeForm().inside(x, "") is x and EdgeForm().outside(x) is x
    assert EdgeForm(scalar=True).outside(np.float32([2.5])).dtype == np.float32
    assert EdgeForm(wide=True).outside(np.int32([1, 2])).shape == (2,)
    with pytest.raises(InvalidRequest, match="here"):
        EdgeForm(wide=True).inside(np.int64([2**31]), "here")
    for beyond in (-8, 8):
        with pytest.raises(InvalidRequest, match=f"here has {beyond}, must be from -7 to 7, so that"):
            EdgeForm(wide=True, most=7).inside(np.int64([-7, 7, beyond]), "here")
    assert EdgeForm(wide=True, most=7).inside(np.int64([]), "here").size == 0


def test_a_model_is_equal_to_its_copies_and_those_carry_what_is_known(model: Model) -> None:
    facts = validate(model)
    other = model.again()
    assert other is not model and other == model and validate(other) is facts
    assert copy.deepcopy(model) is model


def test_a_pickled_model_has_its_constants_again() -> None:
    b = nnhal.Builder("pickled")
    x = b.input((2, 300))
    weights = np.arange(300, dtype=np.float32)
    model = b.finish([x], [b.add(b.mul(x, weights), [1.0])])
    other = pickle.loads(pickle.dumps(model))
    assert (other.name, other.main, other.values, other.relaxed) == ("pickled", model.main, model.values, False)
    operand = next(o for o in model.main.operands if o.lifetime == Lifetime.CONSTANT_REFERENCE)
    found = other.constant(operand)
    assert np.array_equal(found, weights) and not found.flags.writeable
    assert pickle.loads(pickle.dumps(replace(model, relaxed=True))).relaxed


def test_a_model_tells_what_it_is(model: Model) -> None:
    assert repr(model) == "<Model 'floored', 1 operation, 1 input, 1 output: FLOAT32[2,3], -> FLOAT32[2,3]>"
    assert repr(model.main) == "<Subgraph: 2 operands, 1 operation, 1 input, 1 output>"
    validate(model)
    more = replace(model, name="", states=(State(0, 0, np.zeros(1)),), referenced=(model.main,))
    assert repr(more).startswith("<Model, 1 operation, 1 input, 1 output, 1 state, 1 subgraph: ")
    assert repr(model).startswith("<Model 'floored', 1 operation, level 1.0, 1 input")
    broken = changed(model, inputs=(-1, 0), outputs=(2,))  # what there is not is left out
    assert repr(broken) == "<Model 'floored', 1 operation, 2 inputs, 1 output: FLOAT32[2,3]>"


# -------------------------------------------------------------------------------------------------------------- parts


def diamond() -> Model:
    """x -> %1 -> (%2, %3) -> %4; and %5, which nobody reads."""
    b = ModelBuilder("diamond")
    x, a, left, right, end, lost = (b.operand(F32, (2,)) for _ in range(6))
    none = b.constant(Type.INT32, 0)
    b.operation("ABS", [x], [a], "first")
    b.operation("NEG", [a], [left])
    b.operation("EXP", [a], [right])
    b.operation("ADD", [left, right, none], [end])
    b.operation("SQRT", [right], [lost])
    return b.finish([x], [end])


@pytest.mark.parametrize(
    ("operations", "also", "inputs", "outputs"),
    [
        ([0], (), (0,), (1,)),
        ([1], (), (1,), (2,)),
        ([0, 1], (), (0,), (1, 2)),  # EXP reads %1 too
        ([0, 1, 2], (), (0,), (2, 3)),
        ([1, 2], (), (1,), (2, 3)),
        ([1, 2, 3, 4], (), (1,), (4, 5)),
        ([1, 2, 3], (), (1,), (3, 4)),
        ([3], (), (2, 3), (4,)),
        ([0, 1, 2], (1,), (0,), (1, 2, 3)),
        ([0, 1, 2, 3, 4], (1,), (0,), (1, 4, 5)),
        ([0, 1, 2, 3, 4], (4,), (0,), (4,)),  # the model itself
        ([4], (), (3,), (5,)),
    ],
)
def test_a_part_takes_what_it_reads_and_gives_what_others_read(
    operations: list[int], also: tuple[int, ...], inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    model = diamond()
    part = extract_part(model, operations, also)
    assert (part.inputs, part.outputs) == (inputs, outputs)
    assert [o.type for o in part.model.main.operations] == [model.main.operations[n].type for n in operations]
    assert [o.name for o in part.model.main.operations] == [model.main.operations[n].name for n in operations]
    assert (part.model is model) == (outputs == (4,) and len(operations) == 5)
    assert part.model.name == "diamond" and validate(part.model)
    x = np.float32([-2, 3])
    whole = {0: x, 1: abs(x), 2: -abs(x), 3: np.exp(abs(x)), 4: np.exp(abs(x)) - abs(x), 5: np.exp(abs(x)) ** 0.5}
    found = nnhal.compile(part.model, devices="reference")(*[whole[i] for i in inputs])
    for one, i in zip(found if isinstance(found, tuple | list) else [found], outputs, strict=True):
        np.testing.assert_allclose(one, whole[i], rtol=1e-6)


def test_a_part_knows_the_shapes_that_were_inferred_and_carries_what_the_model_says() -> None:
    b = ModelBuilder()
    x, y, z = b.operand(F32, (2, 3)), b.operand(F32), b.operand(F32)
    b.operation("ABS", [x], [y])
    b.operation("ABS", [y], [z])
    model = b.finish([x], [z], relaxed=True)
    part = extract_part(model, [1]).model
    assert [o.dimensions for o in part.main.operands] == [(2, 3), (2, 3)] and part.relaxed
    assert [o.lifetime for o in part.main.operands] == [Lifetime.SUBGRAPH_INPUT, Lifetime.SUBGRAPH_OUTPUT]


def test_a_part_leaves_open_what_is_not_known() -> None:
    b = ModelBuilder()
    x, y, z = b.operand(F32, (0, 3)), b.operand(F32), b.operand(F32)
    b.operation("ABS", [x], [y])
    b.operation("ABS", [y], [z])
    part = extract_part(b.finish([x], [z]), [1]).model
    assert [o.dimensions for o in part.main.operands] == [(0, 3), (0, 3)]


def test_only_a_part_that_refers_to_subgraphs_has_some() -> None:
    b = nnhal.Builder()
    flag, x = b.input((1,), "TENSOR_BOOL8"), b.input((1,))
    branches = make_subgraph(b, lambda s, y: s.neg(y), (1,)), make_subgraph(b, lambda s, y: s.abs(y), (1,))
    model = b.finish([flag, x], [b.exp(b.if_(flag, *branches, [x], out_type="TENSOR_FLOAT32"))])
    assert [len(extract_part(model, [n]).model.referenced) for n in (0, 1)] == [2, 0]


def test_what_nobody_needs_is_not_live() -> None:
    model = diamond()
    assert live_operands(model) == (0, 1, 2, 3) and live_operands(model) is live_operands(model)
    other = diamond()
    both = replace(other, main=replace(other.main, outputs=(4, 5)))
    assert live_operands(replace(both)) == (0, 1, 2, 3, 4)


def test_trailing_arguments_that_hold_their_defaults_go_with_their_operands() -> None:
    b = nnhal.Builder()
    x = b.input((1, 4, 4, 2))
    extra = b.constant(np.array(False), "BOOL")
    model = b.finish([x], [b.max_pool_2d(x, padding="valid", filter_size=1, nchw=extra)])
    shorter = without_defaults(model)
    (was,), (now,) = model.main.operations, shorter.main.operations
    assert len(now.inputs) == len(was.inputs) - 1 and len(shorter.main.operands) == len(model.main.operands) - 1
    assert validate(shorter).level == V1_0 and describe(shorter, shorter.main, shorter.main.inputs[0])
    data = np.random.default_rng(1).normal(size=(1, 4, 4, 2)).astype(np.float32)
    run = [nnhal.compile(m, devices="reference")(data) for m in (model, shorter)]
    assert np.array_equal(*run)


# ------------------------------------------------------------------------------------------------------------ builder


def test_a_builder_of_a_subgraph_and_one_of_a_model_end_each_in_its_way() -> None:
    b = ModelBuilder()
    with pytest.raises(BadState, match=r"finish_subgraph: this is the main subgraph's builder"):
        b.finish_subgraph([], [])
    with pytest.raises(BadState, match=r"finish: this builder is a subgraph's, must end with finish_subgraph"):
        b.subgraph().finish([], [])
    inner = b.subgraph().subgraph()
    assert inner.finish_subgraph([], []) == 0 and b.subgraph().finish_subgraph([], []) == 1


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ([2], [1], "SUBGRAPH_INPUT is operand 2, must be 0 to 1"),
        ([0], [-1], "SUBGRAPH_OUTPUT is operand -1, must be 0 to 1"),
        ([0], [0], "operand 0 is SUBGRAPH_INPUT and SUBGRAPH_OUTPUT"),
        ([0, 0], [1], "operand 0 is SUBGRAPH_INPUT and SUBGRAPH_INPUT"),
    ],
)
def test_an_end_of_a_graph_is_one_operand_that_there_is(inputs: list[int], outputs: list[int], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        floored().finish(inputs, outputs)


def test_a_builder_counts_operands_operations_and_pools() -> None:
    b = ModelBuilder("counted")
    assert [b.operand(F32, (2,)) for _ in range(3)] == [0, 1, 2]
    assert [b.operation("ABS", [0], [1]), b.operation(OperationType.ABS, [1], [2])] == [0, 1]
    one, two = Memory.allocate(16), Memory.allocate(8)
    assert [b.add_pool(one), b.add_pool(two)] == [0, 1]
    at = b.reference(F32, (2,), 1, 0, 8, name="there")
    large = b.constant(F32, np.ones(33, np.float32))
    model = b.finish([0], [2], notes=("a", "b"))
    assert model.main.operands[at].location == Location(1, 0, 8) and model.pools[:2] == (one, two)
    assert model.main.operands[large].location == Location(2, 0, 132) and model.notes == ("a", "b")
    assert repr(b) == "<ModelBuilder 'counted': 5 operands, 2 operations>" and repr(ModelBuilder()).startswith(
        "<ModelBuilder:"
    )


def test_small_constants_lie_at_multiples_of_eight_bytes() -> None:
    b = ModelBuilder()
    places = [b.constant(kind, value) for kind, value in ((Type.BOOL, True), (F32, [1.0, 2.0, 3.0]), (Type.INT32, 7))]
    model = b.finish([], [])
    found = [model.main.operands[i] for i in places]
    assert [o.location for o in found] == [Location(0, 0, 1), Location(0, 8, 12), Location(0, 24, 4)]
    assert [model.constant(o).tolist() for o in found] == [True, [1, 2, 3], 7] and len(model.values) == 28
    with pytest.raises(InvalidModel, match="constant 'none' has no elements, must have at least one"):
        b.constant(F32, np.zeros((2, 0), np.float32), name="none")
