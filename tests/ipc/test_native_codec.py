"""Request and result packets: golden bytes, written out by hand from NN HAL 1.2, and what a decoder refuses."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnhal.ipc import _native
from tests.properties import STABLE

UNKNOWN = 2**64 - 1


def element(kind: int, *fields: int) -> bytes:
    return struct.pack("<6I", kind, *fields, *[0] * (5 - len(fields)))


def timing(on_device: int, in_driver: int) -> bytes:
    return struct.pack("<IIQQ", 3, 0, on_device, in_driver)


INPUTS = ((1, 64, 24, (2, 3)), None, (0, 2**32 - 1, 0, ()))
OUTPUTS = ((0, 128, 4, (1,)),)
REQUEST = (
    element(0, 10, 3, 1, 2),  # packetInformation: size, inputs, outputs, pools
    element(1, 0, 1, 64, 24, 2),  # inputOperandInformation: hasNoValue, pool, offset, length, dimensions
    element(2, 2),
    element(2, 3),
    element(1, 1, 0, 0, 0, 0),
    element(1, 0, 0, 2**32 - 1, 0, 0),
    element(3, 0, 0, 128, 4, 1),
    element(4, 1),
    element(5, 7),
    element(5, 2**32 - 7),
)
MEASURED = element(6, 1)
RESULT = (element(0, 6, 5, 2), element(1, 1, 2), element(2, 4), element(2, 0), element(1, 0, 0), timing(1000, 2**40))


def whole(*elements: bytes) -> bytes:
    """A packet of these elements whose size is right."""
    head = bytearray(elements[0])
    struct.pack_into("<I", head, 4, len(elements))
    return bytes(head) + b"".join(elements[1:])


def test_request_has_the_bytes_of_the_hal():
    golden = whole(*REQUEST, MEASURED)
    assert _native.encode_request(INPUTS, OUTPUTS, (7, -7), True) == golden
    assert _native.decode_request(golden) == (INPUTS, OUTPUTS, (7, -7), True)
    assert _native.encode_request(list(INPUTS), [(0, 128, 4, [1])], [7, -7], False) == whole(*REQUEST, element(6, 0))
    assert _native.encode_request((), (), (), False) == element(0, 2, 0, 0, 0) + element(6, 0)
    assert _native.decode_request(bytearray(golden)) == _native.decode_request(memoryview(golden))


def test_result_has_the_bytes_of_the_hal():
    golden = b"".join(RESULT)
    outputs = ((True, (4, 0)), (False, ()))
    assert _native.encode_result(5, outputs, 1000, 2**40) == golden
    assert _native.decode_result(golden) == (5, outputs, 1000, 2**40)


def test_times_that_were_not_measured_are_all_ones():
    for given_none in (None, UNKNOWN):
        packet = _native.encode_result(0, (), given_none, 7)
        assert packet == element(0, 2, 0, 0) + timing(UNKNOWN, 7)
        assert _native.decode_result(packet) == (0, (), None, 7)
    assert _native.decode_result(element(0, 2, 2**32 - 1, 0) + timing(7, UNKNOWN)) == (-1, (), 7, None)


u32 = st.integers(0, 2**32 - 1)
dims = st.lists(u32, max_size=32).map(tuple)


@st.composite
def requests(draw: st.DrawFn) -> tuple[object, ...]:
    pools = draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4).map(tuple))
    value = st.tuples(st.integers(0, max(len(pools) - 1, 0)), u32, u32, dims)
    operands = st.lists(st.none() | value if pools else st.none(), max_size=40).map(tuple)
    return draw(operands), draw(operands), pools, draw(st.booleans())


@STABLE
@given(requests())
def test_request_comes_back_as_it_was(parts):
    packet = _native.encode_request(*parts)
    assert _native.decode_request(packet) == parts
    assert struct.unpack_from("<2I", packet) == (0, len(packet) // 24)


@STABLE
@given(st.integers(-(2**31), 2**31 - 1), st.lists(st.tuples(st.booleans(), dims), max_size=90), st.tuples(u32, u32))
def test_result_comes_back_as_it_was(status, outputs, times):
    parts = (status, tuple(outputs), min(times), max(times))
    assert _native.decode_result(_native.encode_result(*parts)) == parts


def request_with(index: int, *fields: int, kind: int | None = None) -> bytes:
    """The golden request with one element replaced; its kind stays unless given."""
    elements = [*REQUEST, MEASURED]
    old = struct.unpack_from("<I", elements[index])[0]
    elements[index] = element(old if kind is None else kind, *fields)
    return b"".join([whole(*elements)[:24] if index else elements[0], *elements[1:]])


@pytest.mark.parametrize(
    ("packet", "why"),
    (
        (b"", "request packet has 0 bytes, must be a multiple of 24"),
        (whole(*REQUEST, MEASURED)[:-1], "request packet has 263 bytes, must be a multiple of 24"),
        (request_with(0, 12, 3, 1, 2), r"element 0 \(packetInformation\): packetSize is 12, must be 11"),
        (request_with(0, 10, 3, 1, 2), r"element 0 \(packetInformation\): packetSize is 10, must be 11"),
        (request_with(0, 11, 3, 1, 2, 9), r"element 0 \(packetInformation\): padding is 9, must be 0"),
        (
            request_with(0, 11, 3, 1, 2, kind=1),
            r"element 0 is kind 1 \(inputOperandInformation\), must be 0 \(packetInf",
        ),
        (request_with(0, 11, 4097, 1, 2), "numberOfInputOperands is 4097, must be at most 4096"),
        (request_with(0, 11, 3, 4097, 2), "numberOfOutputOperands is 4097, must be at most 4096"),
        (request_with(0, 11, 3, 1, 4097), "numberOfPools is 4097, must be at most 4096"),
        (request_with(0, 11, 2**32 - 1, 1, 2), "numberOfInputOperands is 4294967295"),
        (request_with(0, 11, 4096, 4096, 2), "packetSize is 11, must be at least 8196"),
        (request_with(0, 11, 2, 1, 2), r"element 5 is kind 1 \(inputOp.*must be 3 \(outputOperandInformation\)"),
        (request_with(0, 11, 4, 1, 2), r"element 6 is kind 3 \(outputOp.*must be 1 \(inputOperandInformation\)"),
        (request_with(0, 11, 3, 1, 1), r"element 1 \(inputOp.*: poolIndex is 1, must be less than numberOfPools = 1"),
        (request_with(0, 11, 3, 1, 3), r"element 10 is kind 6 \(measureTiming\), must be 5 \(poolIdentifier\)"),
        (
            request_with(1, 2, 1, 64, 24, 2),
            r"element 1 \(inputOperandInformation\): hasNoValue is 2, must be at most 1",
        ),
        (request_with(1, 0, 2, 64, 24, 2), "poolIndex is 2, must be less than numberOfPools = 2"),
        (request_with(1, 0, 1, 64, 24, 33), "numberOfDimensions is 33, must be at most 32"),
        (request_with(1, 0, 1, 64, 24, 1), r"element 3 is kind 2 \(inputOperandDimensionValue\), must be 1"),
        (request_with(2, 2, 1), r"element 2 \(inputOperandDimensionValue\): padding is 1, must be 0"),
        (request_with(3, 3, kind=77), r"element 3 is kind 77 \(unknown\), must be 2"),
        (request_with(4, 1, 1), r"location is \(1, 0, 0\) with 0 dimensions, must be zero where hasNoValue"),
        (request_with(4, 1, 0, 0, 0, 2), r"location is \(0, 0, 0\) with 2 dimensions, must be zero where hasNoValue"),
        (request_with(7, 1, kind=2), r"element 7 is kind 2 .* must be 4 \(outputOperandDimensionValue\)"),
        (request_with(8, 7, 0, 0, 0, 1), r"element 8 \(poolIdentifier\): padding is 1, must be 0"),
        (request_with(10, 2), r"element 10 \(measureTiming\): measureTiming is 2, must be at most 1"),
        (whole(*REQUEST, MEASURED, MEASURED), "element 11 is one too many, must be none after measureTiming"),
        (whole(*REQUEST), "element 10 is missing, must be measureTiming"),
    ),
)
def test_request_that_breaks_the_format_is_refused_by_element(packet, why):
    with pytest.raises(ValueError, match=why):
        _native.decode_request(packet)


@pytest.mark.parametrize(
    ("packet", "why"),
    (
        (bytes(23), "result packet has 23 bytes"),
        (b"".join(RESULT) + bytes(24), r"element 0 \(packetInformation\): packetSize is 6, must be 7"),
        (whole(element(0, 0, 0, 4097), *RESULT[1:]), "numberOfOperands is 4097, must be at most 4096"),
        (whole(element(0, 0, 0, 5), *RESULT[1:]), "packetSize is 6, must be at least 7"),
        (whole(element(0, 0, 0, 2, 1), *RESULT[1:]), "padding is 1"),
        (whole(RESULT[0], element(1, 2, 2), *RESULT[2:]), "isSufficient is 2, must be at most 1"),
        (whole(RESULT[0], element(1, 1, 33), *RESULT[2:]), "numberOfDimensions is 33, must be at most 32"),
        (
            whole(RESULT[0], element(1, 1, 3), *RESULT[2:]),
            r"element 4 is kind 1 .* must be 2 \(operandDimensionValue\)",
        ),
        (whole(*RESULT[:-1]), "element 5 is missing, must be executionTiming"),
        (whole(*RESULT, RESULT[-1]), "element 6 is one too many"),
        (whole(*RESULT[:-1], timing(8, 7)), "timeInDriver is 7, must be at least timeOnDevice = 8"),
        (whole(*RESULT[:-1], struct.pack("<IIQQ", 3, 1, 0, 0)), r"element 5 \(executionTiming\): padding is 1"),
    ),
)
def test_result_that_breaks_the_format_is_refused_by_element(packet, why):
    with pytest.raises(ValueError, match=why):
        _native.decode_result(packet)


def test_limits_hold_when_encoding():
    most = (None,) * 4096
    assert len(_native.encode_request(most, most, range(4096), False)) == 24 * (2 + 3 * 4096)
    for parts, why in (
        ((((*most, None)), (), (), False), "inputs: has 4097, must have at most 4096"),
        (((), (*most, None), (), False), "outputs: has 4097, must have at most 4096"),
        (((), (), range(4097), False), "pools: has 4097, must have at most 4096"),
        (([(0, 0, 0, (1,) * 33)], (), (0,), False), "dimensions: has 33, must have at most 32"),
        (([(1, 0, 0, ())], (), (0,), False), "operand 0: pool is 1, must be less than 1"),
        (([None, (0, 2**32, 0, ())], (), (0,), False), "operand 1: offset is 4294967296, must be 0 to 4294967295"),
        (([(0, 0, -1, ())], (), (0,), False), "operand 0: length is -1, must be 0 to 4294967295"),
        (([(0, 0, 0, (2**70,))], (), (0,), False), "operand 0: a dimension is 1180591620717411303424, must be 0 to"),
        (((), (), (2**31,), False), "pool 0: slot is 2147483648, must be -2147483648 to 2147483647"),
        (((), (), (-(2**80),), False), "pool 0: slot is -1208925819614629174706176, must be"),
    ):
        with pytest.raises(ValueError, match=why):
            _native.encode_request(*parts)
    for result, why in (
        ((2**31, (), None, None), "status is 2147483648, must be"),
        ((0, ((True, ()),) * 4097, None, None), "outputs: has 4097"),
        ((0, ((True, (1,) * 33),), None, None), "dimensions: has 33"),
        ((0, ((True, (-1,)),), None, None), "operand 0: a dimension is -1"),
        ((0, (), 2, 1), "timeInDriver is 1, must be at least timeOnDevice = 2"),
        ((0, (), -1, None), "on_device is -1, must be 0 to"),
    ):
        with pytest.raises(ValueError, match=why):
            _native.encode_result(*result)


def test_wrong_types_are_type_errors():
    for call in (
        lambda: _native.encode_request([(0, 0, 0)], (), (0,), False),
        lambda: _native.encode_request([7], (), (0,), False),
        lambda: _native.encode_request([("0", 0, 0, ())], (), (0,), False),
        lambda: _native.encode_request((), (), 5, False),
        lambda: _native.encode_request((), ()),
        lambda: _native.encode_result(0, [True], None, None),
        lambda: _native.encode_result(0, (), "1", None),
        lambda: _native.decode_request("text"),
        lambda: _native.decode_result(None),
    ):
        with pytest.raises(TypeError):
            call()
