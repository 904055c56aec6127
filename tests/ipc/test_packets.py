"""Packets of a burst: their bytes, written out by hand, and what is none."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.ipc.protocol import wire
from nnhal.ipc.transport.packets import pack, unpack


def test_a_packet_has_kind_0_its_elements_its_bytes_and_the_message_padded_with_zeros() -> None:
    call = wire.encode(wire.ExecuteSynchronously(4, 2))
    assert pack(call) == bytes.fromhex("00000000 01000000 07000000 96150402c20000 0000000000")
    longer = bytes(range(1, 14))
    assert pack(longer) == bytes.fromhex("00000000 02000000 0d000000") + longer + bytes(23)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_a_message_comes_back_as_it_was(message: bytes) -> None:
    packet = pack(message)
    assert unpack(packet) == message
    assert len(packet) % 24 == 0 and struct.unpack_from("<3I", packet) == (0, len(packet) // 24, len(message))
    assert len(packet) - 12 - len(message) < 24


@pytest.mark.parametrize(
    ("kind", "count", "length"),
    [
        (1, 2, 20),
        (0, 1, 12),
        (0, 3, 20),
        (0, 2, 12),
        (0, 2, 37),
        (0, 2, 0),
        (0, 2, 2**32 - 1),
        (0, 2**31, 20),
    ],
)
def test_a_length_that_does_not_fill_the_elements_is_refused(kind: int, count: int, length: int) -> None:
    packet = struct.pack("<3I", kind, count, length).ljust(48, b"x")
    with pytest.raises(ValueError, match=f"burst packet: {length} bytes are announced, must fill its {count} elements"):
        unpack(packet)
