"""The canonical classes survive the wire: models of every operation, capabilities, errors, timing."""

import errno
import inspect
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.base import errors
from nnhal.base.codes import ErrorStatus, Lifetime, OperandType
from nnhal.base.errors import InvalidArgument, InvalidModel, NnhalError, OperationFailed
from nnhal.base.levels import V1_0, V1_1, V1_2, V1_3
from nnhal.base.memory import Memory
from nnhal.base.operands import ChannelQuant
from nnhal.conformance.vectors import index, read
from nnhal.drivers.reference import Reference
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Capabilities, Hints, Performance
from nnhal.hal.lowering import lowered
from nnhal.hal.request import Timing
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import (
    capabilities_from_wire,
    capabilities_to_wire,
    error_from_wire,
    error_to_wire,
    model_from_wire,
    model_to_wire,
    timing_from_wire,
    timing_to_wire,
)
from nnhal.model.graph import Location, Model, Operand, Operation, Subgraph, with_codes_of_here
from nnhal.model.validate import validate
from tests import requests
from tests.ipc.support import numbers
from tests.models import doubling, make_model


def through(model: Model) -> Model:
    """To bytes and back, as a service gets it; pools are the same objects by their place."""
    pools: list[Memory] = []

    def out(memory: Memory) -> wire.Pool:
        pools.append(memory)
        return wire.Pool(memory.kind, memory.size, memory.offset, memory.readonly, 1, len(pools) - 1)

    call = wire.GetSupportedOperations(V1_3, model_to_wire(model, out))
    back = wire.decode_call(wire.encode(call))
    assert isinstance(back, wire.GetSupportedOperations)
    return model_from_wire(back.model, lambda pool: pools[pool.place])


# -------------------------------------------------------------------------------------------------------------- models


def test_models_of_every_published_operation_survive(vectors: Path) -> None:
    seen: set[str] = set()
    for vector in read(vectors):
        names = set(vector.operations)
        if vector.expect_failure or names <= seen:
            continue
        model = vector.model()
        back = through(model)
        assert back == model
        validate(back)
        seen |= names
    primary = {entry["primary"] for entry in index(vectors).values() if entry.get("primary")}
    assert len(primary) > 90 and seen >= primary


OPERANDS = st.builds(
    Operand,
    type=st.sampled_from(list(OperandType)),
    dimensions=st.lists(st.integers(0, 2**32 - 1), max_size=8).map(tuple),
    scale=st.floats(allow_nan=False),
    zero_point=st.integers(-(2**31), 2**31 - 1),
    lifetime=st.sampled_from([x for x in Lifetime if x != Lifetime.CONSTANT_REFERENCE]),
    location=st.builds(Location, st.just(0), st.integers(0, 4), st.integers(0, 4)),
    channel=st.none()
    | st.builds(ChannelQuant, st.lists(st.floats(allow_nan=False), min_size=1).map(tuple), st.integers(0, 7)),
    extension=st.none() | st.binary(max_size=300),
    name=st.text(max_size=20),
)
GRAPHS = st.builds(
    Subgraph,
    st.lists(OPERANDS, max_size=4).map(tuple),
    st.lists(
        st.builds(
            Operation,
            st.integers(0, 2**32 - 1),
            st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple),
            st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple),
            st.text(max_size=9),
        ),
        max_size=3,
    ).map(tuple),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
)


@settings(max_examples=200)
@given(GRAPHS, st.lists(GRAPHS, max_size=2), st.booleans(), st.lists(st.tuples(st.text(max_size=9), st.integers(1, 9))))
def test_whatever_a_model_holds_survives(
    main: Subgraph, others: list[Subgraph], relaxed: bool, extensions: list[tuple[str, int]]
) -> None:
    model = Model(main, tuple(others), b"12345678", (), relaxed, tuple(extensions), name="any")
    back = through(model)
    assert back == with_codes_of_here(model) and back.name == "any"
    for mine, theirs in zip(model.subgraphs, back.subgraphs, strict=True):
        assert [o.name for o in mine.operands] == [o.name for o in theirs.operands]
        assert [o.name for o in mine.operations] == [o.name for o in theirs.operations]


def test_constants_in_pools_give_the_same_results_after_the_wire() -> None:

    model = make_model(lambda b, x: b.add(x, np.arange(64, dtype=np.float32)), (64,))
    assert len(model.pools) == 1  # what is longer than 128 bytes lies in a pool
    back = through(model)
    assert back.pools == model.pools
    done = requests.run(checked_prepared(Reference(), back, Hints()), [numbers(64)])
    assert np.array_equal(done.results[0], 2 * numbers(64))


def test_a_model_that_a_level_cannot_express_is_refused_before_it_is_sent() -> None:

    model = make_model(lambda b, x: b.hard_swish(x), (4,))
    assert through(model) == model
    with pytest.raises(InvalidArgument, match=r"1\.3"):
        through(lowered(model, V1_2))
    assert through(lowered(doubling(), V1_0)).main.operations == doubling().main.operations


LYING = [
    (
        Operand(3, (4,), lifetime=Lifetime.CONSTANT_COPY, location=Location(0, 6, 3)),
        "bytes 6 to 9 must lie inside the 8",
    ),
    (
        Operand(3, (4,), lifetime=Lifetime.CONSTANT_COPY, location=Location(0, 2**64 - 1, 2)),
        "bytes 18446744073709551615 to 18446744073709551617 must lie inside the 8",
    ),
    (
        Operand(3, (4,), lifetime=Lifetime.CONSTANT_REFERENCE, location=Location(1, 0, 4)),
        "pool is 1, must be below 1",
    ),
    (
        Operand(3, (4,), lifetime=Lifetime.CONSTANT_REFERENCE, location=Location(0, 14, 3)),
        "bytes 14 to 17 must lie inside the pool's 16",
    ),
]


@pytest.mark.parametrize(("operand", "says"), LYING)
def test_a_constant_outside_its_memory_is_refused(operand: Operand, says: str) -> None:
    pool = Memory.allocate(16)
    model = Model(Subgraph((operand,), (), (), ()), values=b"12345678", pools=(pool,))
    with pytest.raises(InvalidModel, match=f"subgraph 0 operand 0: {says}"):
        through(model)


def test_a_channel_quantisation_without_scales_is_refused_before_it_is_sent() -> None:
    model = Model(Subgraph((Operand(11, (4,), channel=ChannelQuant((), 0)),), (), (), ()))
    with pytest.raises(InvalidModel, match="subgraph 0 operand 0: has no per-channel scales"):
        through(model)


def test_a_lifetime_that_does_not_exist_is_refused() -> None:
    operand = wire.WireOperand(3, (4,), 0.0, 0, 17, (0, 0, 0))
    model = wire.WireModel((wire.WireSubgraph((operand,), (), (), ()),), b"", (), False, ())
    with pytest.raises(InvalidModel, match="lifetime is 17, must be one of TEMPORARY_VARIABLE"):
        model_from_wire(model, lambda _: Memory.allocate(1))


# -------------------------------------------------------------------------------------------------------- capabilities

STATED = Capabilities(
    {OperandType.TENSOR_FLOAT32: Performance(0.5, 0.25), OperandType.TENSOR_QUANT8_ASYMM: Performance(0.125, 0.75)},
    *(Performance(n, n + 1) for n in (2, 4, 6, 8)),
)


def test_capabilities_survive_at_the_newest_form() -> None:
    assert capabilities_from_wire(capabilities_to_wire(STATED, V1_3), V1_3) == STATED


@pytest.mark.parametrize("form", [V1_0, V1_1, V1_2])
def test_capabilities_of_old_forms_keep_what_these_have(form: int) -> None:
    back = capabilities_from_wire(wire.decode_reply(wire.encode(capabilities_to_wire(STATED, form))), form)
    for code in (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM):
        assert back.of(code) == STATED.of(code)
    relaxed = back.of(OperandType.TENSOR_FLOAT32, relaxed=True)
    assert relaxed == (STATED.relaxed_tensor if form > V1_0 else STATED.of(OperandType.TENSOR_FLOAT32))


@pytest.mark.parametrize("form", [V1_0, V1_1])
def test_capabilities_without_what_the_form_has_are_refused(form: int) -> None:
    with pytest.raises(OperationFailed, match="is missing, must be declared"):
        capabilities_from_wire(wire.CapabilitiesReply({}, ()), form)


def test_stated_numbers_travel_bit_by_bit_for_the_check_to_see() -> None:
    odd = Capabilities({3: Performance(math.nan, -1.0)}, Performance(math.inf, 0.1))
    back = capabilities_from_wire(wire.decode_reply(wire.encode(capabilities_to_wire(odd, V1_3))), V1_3)
    assert math.isnan(back.operands[3].exec_time) and back.operands[3].power_usage == -1.0
    assert back.relaxed_scalar == (math.inf, 0.1)


# -------------------------------------------------------------------------------------------------------------- errors

TREE = sorted(
    (
        c
        for _, c in inspect.getmembers(errors, inspect.isclass)
        if issubclass(c, NnhalError) and c is not errors.OutOfMemory
    ),
    key=lambda c: c.__name__,
)


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_an_error_of_every_class_survives_with_its_text(kind: type[NnhalError]) -> None:
    back = error_from_wire(wire.decode_reply(wire.encode(error_to_wire(kind("POOL #3: is odd, must be even")))))
    assert type(back) is kind and str(back) == "POOL #3: is odd, must be even"
    assert (back.status, back.code) == (kind("x").status, kind("x").code)


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_an_error_of_another_process_is_one_line_that_commands_no_terminal(kind: type[NnhalError]) -> None:
    failed = wire.Failed(int(kind.status), kind.__name__, "no\x1b[2J\nnnhal: all is fine")
    assert str(error_from_wire(failed)) == r"no\x1b[2J\nnnhal: all is fine"


@pytest.mark.parametrize("kind", [errors.MissedDeadline, errors.ResourceExhausted])
def test_whether_an_error_is_persistent_survives(kind: type[NnhalError]) -> None:
    for persistent in (False, True):
        error = kind("late", persistent=persistent)  # type: ignore[call-arg]
        assert error_from_wire(error_to_wire(error)).status == error.status


def test_shapes_of_an_output_that_is_too_small_survive() -> None:
    error = errors.OutputInsufficientSize("output 1", [(2, 3), None, ()])
    back = error_from_wire(wire.decode_reply(wire.encode(error_to_wire(error))))
    assert isinstance(back, errors.OutputInsufficientSize) and back.shapes == ((2, 3), None, ())


def test_what_is_no_error_of_nnhal_becomes_a_failure_that_names_it() -> None:
    failed = error_to_wire(ZeroDivisionError("by zero"))
    assert (failed.status, failed.kind) == (ErrorStatus.GENERAL_FAILURE, "DriverFailed")
    assert "ZeroDivisionError: by zero" in failed.message and not failed.recycle

    class OfTheDriver(InvalidModel):
        pass

    assert type(error_from_wire(error_to_wire(OfTheDriver("mine")))) is InvalidModel


@pytest.mark.parametrize(
    "error", [MemoryError(), errors.OutOfMemory("no"), OSError(errno.EMFILE, "many"), OSError(errno.ENOMEM, "none")]
)
def test_lack_of_memory_or_descriptors_asks_for_a_fresh_process(error: Exception) -> None:
    failed = error_to_wire(error)
    assert failed.recycle and failed.status == ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert not error_to_wire(OSError(errno.EPERM, "no")).recycle


def test_a_kind_that_is_no_error_class_is_not_called() -> None:
    for kind in ("Sequence", "ErrorStatus", "annotations", "__name__", "error_of", "Exit", ""):
        assert type(error_from_wire(wire.Failed(4, kind, "text"))) is InvalidArgument
    assert type(error_from_wire(wire.Failed(77, "Unheard", "text"))) is OperationFailed


def test_an_endless_text_is_cut() -> None:
    failed = error_to_wire(OperationFailed("x" * 100_000))
    assert len(failed.message) < 16384 and error_from_wire(wire.decode_reply(wire.encode(failed)))


# -------------------------------------------------------------------------------------------------------------- timing


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        (None, None),
        (Timing(), None),
        (Timing(10, 20), (10, 20)),
        (Timing(None, 20), (None, 20)),
        (Timing(10, None), (10, None)),
        (Timing(30, 20), (None, 20)),
    ],
)
def test_times_survive_and_impossible_ones_do_not(sent: Timing | None, arrives: tuple[int, int] | None) -> None:
    assert timing_from_wire(timing_to_wire(sent)) == arrives
