"""What roles and a description together say of a buffer: all of it, or it is refused."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.base.codes import OperandType as Type
from nnhal.base.codes import OperationType as Op
from nnhal.base.errors import InvalidArgument
from nnhal.base.operands import ChannelQuant
from nnhal.hal.device import Prepared
from nnhal.hal.memory import BufferDesc, BufferRole, merge
from nnhal.model.builder import ModelBuilder
from tests.hal.devices import adding, device_of, prepare
from tests.models import one_operation

ANY = BufferDesc()
REFERENCE = device_of("reference")
F32, F16, Q8 = Type.TENSOR_FLOAT32, Type.TENSOR_FLOAT16, Type.TENSOR_QUANT8_ASYMM
CHANNEL = Type.TENSOR_QUANT8_SYMM_PER_CHANNEL

Dims = tuple[int, ...]
Kind = tuple[int, float, int]  # type, scale, zero point


def rectifier(kind: Kind, dims: Dims) -> Prepared:
    """RELU of an operand with these dimensions, () for an unknown rank."""
    b = ModelBuilder()
    type, scale, zero = kind
    x, y = (b.operand(type, dims, scale=scale, zero_point=zero) for _ in range(2))
    b.operation(Op.RELU, [x], [y])
    return prepare(REFERENCE, b.finish([x], [y]))


def dequantiser(channel: ChannelQuant) -> Prepared:
    b = ModelBuilder()
    x, y = b.operand(CHANNEL, (2, 3), channel=channel), b.operand(F32, (2, 3))
    b.operation(Op.DEQUANTIZE, [x], [y])
    return prepare(REFERENCE, b.finish([x], [y]))


KINDS = st.sampled_from([(F32, 0.0, 0)] * 6 + [(F16, 0.0, 0), (Q8, 0.5, 0), (Q8, 0.5, 128), (Q8, 0.25, 0)])
SIZE = st.sampled_from([0, 0, 1, 2, 2, 3])
DIMS = st.lists(SIZE, max_size=3).map(tuple)
UNIVERSE = [shape for rank in (1, 2, 3) for shape in product((1, 2, 3, 4), repeat=rank)]


def fits(shape: Dims, dims: Dims | None) -> bool:
    """Whether contents of this shape are what these dimensions say."""
    return not dims or (len(shape) == len(dims) and all(d in (0, n) for n, d in zip(shape, dims, strict=True)))


@settings(max_examples=150)
@given(st.lists(st.tuples(KINDS, DIMS, st.booleans()), min_size=1, max_size=3), DIMS)
def test_a_buffer_takes_exactly_the_shapes_that_all_roles_and_the_description_take(
    uses: Sequence[tuple[Kind, Dims, bool]], desc: Dims
) -> None:
    roles = [BufferRole(rectifier(kind, dims), 0, output) for kind, dims, output in uses]
    common = [s for s in UNIVERSE if fits(s, desc) and all(fits(s, dims) for _, dims, _ in uses)]
    agree = len({kind for kind, _, _ in uses}) == 1 and bool(common)
    try:
        facts = merge(BufferDesc(desc), roles)
    except InvalidArgument as error:
        assert not agree, str(error)
        return
    assert agree
    assert (facts.type, facts.scale, facts.zero_point) == uses[0][0]
    assert [s for s in UNIVERSE if fits(s, facts.dimensions)] == common
    assert facts.fixed == (common[0] if len(common) == 1 else None)


@settings(max_examples=30)
@given(st.permutations([((0, 2), 0), ((3, 0), 0), ((), 0), ((3, 2), 0)]))
def test_the_order_of_roles_does_not_matter(uses: Sequence[tuple[Dims, int]]) -> None:
    facts = merge(ANY, [BufferRole(rectifier((F32, 0.0, 0), dims), index) for dims, index in uses])
    assert facts.fixed == (3, 2)


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ((F32, 0.0, 0), (F16, 0.0, 0), "TENSOR_FLOAT16 .*must be as the first role: TENSOR_FLOAT32"),
        ((Q8, 0.5, 3), (Q8, 0.25, 3), "scale 0.25 .*must be as the first role: TENSOR_QUANT8_ASYMM scale 0.5"),
        ((Q8, 0.5, 3), (Q8, 0.5, 4), "zero point 4, must be as the first role: .* zero point 3"),
    ],
)
def test_roles_that_store_numbers_differently_are_refused(first: Kind, second: Kind, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        merge(ANY, [BufferRole(rectifier(kind, (2, 2)), 0) for kind in (first, second)])


def test_scales_by_channel_must_be_the_same() -> None:
    one, same, scales, axis = (
        dequantiser(ChannelQuant(scales, axis))
        for scales, axis in (((0.5, 1.0), 0), ((0.5, 1.0), 0), ((0.5, 2.0), 0), ((0.5, 1.0, 2.0), 1))
    )
    assert merge(ANY, [BufferRole(one, 0), BufferRole(same, 0)]).channel == ChannelQuant((0.5, 1.0), 0)
    for other in (scales, axis):
        with pytest.raises(InvalidArgument, match=r"must be as the first role: .* scales \[0.5, 1.0\] along axis 0"):
            merge(ANY, [BufferRole(one, 0), BufferRole(other, 0)])


def test_dimensions_that_follow_from_the_model_need_not_be_declared() -> None:
    model = one_operation(Op.RELU, (F32, (2, 3)), output=(F32, (0, 0)))
    facts = merge(ANY, [BufferRole(prepare(REFERENCE, model), 0, True)])
    assert facts.fixed == (2, 3)


def test_a_scalar_has_no_dimensions_and_takes_none() -> None:
    b = ModelBuilder()
    x, activation, y = b.operand(F32, (2, 3)), b.operand(Type.INT32), b.operand(F32, (2, 3))
    b.operation(Op.ADD, [x, x, activation], [y])
    role = BufferRole(prepare(REFERENCE, b.finish([x, activation], [y])), 1)
    assert merge(ANY, [role]).fixed == ()
    with pytest.raises(InvalidArgument, match="must agree with"):
        merge(BufferDesc((1,)), [role])


@pytest.mark.parametrize(
    ("index", "output", "frequency", "says"),
    [
        (1, False, 1.0, "input 1 is not there, the model has 1"),
        (-1, True, 1.0, "output -1 is not there, the model has 1"),
        (0, False, 0.0, "frequency of input 0 is 0.0, must be above 0 and at most 1"),
        (0, False, 1.5, "frequency of input 0 is 1.5, must be above 0 and at most 1"),
        (0, False, float("nan"), "frequency of input 0 is nan, must be above 0 and at most 1"),
    ],
)
def test_a_role_that_cannot_be_is_refused(index: int, output: bool, frequency: float, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        merge(ANY, [BufferRole(prepare(REFERENCE, adding()), index, output, frequency)])


def test_there_is_at_least_one_role_and_none_twice() -> None:
    prepared = prepare(REFERENCE, adding())
    with pytest.raises(InvalidArgument, match="no role is given"):
        merge(ANY, [])
    with pytest.raises(InvalidArgument, match="a role is given twice"):
        merge(ANY, [BufferRole(prepared, 0), BufferRole(prepared, 0, frequency=0.5)])
    merge(ANY, [BufferRole(prepared, 0), BufferRole(prepared, 0, True)])


@pytest.mark.parametrize("dims", [(-1, 4), (3, -4), (-3,)])
def test_dimensions_below_zero_are_refused(dims: Dims) -> None:
    for known in ((3, 4), (0, 0), ()):
        with pytest.raises(InvalidArgument, match="must all be at least 0"):
            merge(BufferDesc(dims), [BufferRole(rectifier((F32, 0.0, 0), known), 0)])


@pytest.mark.parametrize("dims", [(2, 3), (0, 3), ()])
def test_of_what_only_a_vendor_knows_the_dimensions_are_those_declared(dims: Dims) -> None:
    model = one_operation(Op.RELU, (F32, (2, 3)), output=(F32, (2, 3)))
    operation = replace(model.main.operations[0], type=0x55 << 16 | 1)
    operands = (model.main.operands[0], replace(model.main.operands[1], dimensions=dims))
    main = replace(model.main, operations=(operation,), operands=operands)
    model = replace(model, main=main, extensions=(("com.example.unknown", 0x55),))
    facts = merge(ANY, [BufferRole(SimpleNamespace(model=model), 0, True)])  # type: ignore[arg-type]
    assert facts.dimensions == (dims or None)
