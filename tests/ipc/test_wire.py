"""Messages: their bytes, what is refused, and the HAL's methods and fields by level."""

import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from nnhal.base.levels import FL8, V1_0, V1_1, V1_2, V1_3, Level
from nnhal.ipc.protocol import wire
from tests.execution import PROGRAM_LIMIT
from tests.ipc.golden import CALLBACKS, CALLS, REPLIES

KINDS = [
    *((message, text, wire.decode_call) for message, text in CALLS),
    *((message, text, wire.decode_reply) for message, text in REPLIES),
    *((message, text, wire.decode_callback) for message, text in CALLBACKS),
]
GOLDEN = pytest.mark.parametrize(
    ("message", "text", "decode"), KINDS, ids=[f"{n}-{type(m).__name__}" for n, (m, _, _) in enumerate(KINDS)]
)
Decode = Callable[[bytes], Any]
AS_MADE = "96 a0 00 00 c2 00 00"  # a pool


# --------------------------------------------------------------------------------------------------------------- bytes


@GOLDEN
def test_a_message_has_its_golden_bytes(message: Any, text: str, decode: Decode) -> None:
    assert wire.encode(message).hex() == text.replace(" ", "")
    assert decode(bytes.fromhex(text)) == message


def test_every_kind_of_message_has_golden_bytes() -> None:
    for union, golden in ((wire.ClientCalls, CALLS), (wire.Replies, REPLIES), (wire.ServiceCalls, CALLBACKS)):
        assert {type(message) for message, _ in golden} == set(get_args(union))


@GOLDEN
def test_a_message_that_is_cut_off_or_has_an_appendix_is_refused(message: Any, text: str, decode: Decode) -> None:
    data = bytes.fromhex(text)
    for length in range(len(data)):
        with pytest.raises(wire.WireError):
            decode(data[:length])
    with pytest.raises(wire.WireError):
        decode(data + b"\x00")


def test_tags_that_do_not_exist_are_refused() -> None:
    for decode, used in ((wire.decode_call, CALLS), (wire.decode_reply, REPLIES), (wire.decode_callback, CALLBACKS)):
        known = {bytes.fromhex(text)[1] for _, text in used}
        for tag in set(range(128)) - known:
            with pytest.raises(wire.WireError):
                decode(bytes([0x91, tag]))
    for data in ("90", "a3616464", "80", "00", "c0", "92a6437265617465c0"):
        with pytest.raises(wire.WireError):
            wire.decode_call(bytes.fromhex(data))


def test_a_field_that_is_missing_is_refused_but_for_appended_ones() -> None:
    assert wire.decode_call(bytes.fromhex("93 18 05 02")) == wire.ConfigureExecutionBurst(5, 2)
    with pytest.raises(wire.WireError, match="length 3"):
        wire.decode_call(bytes.fromhex("92 18 05"))
    for shorter in ("94 15 04 02 c3", "93 15 04 02"):  # written before deadline and loop_timeout
        call = wire.decode_call(bytes.fromhex(shorter))
        assert isinstance(call, wire.ExecuteSynchronously) and (call.deadline, call.loop_timeout) == (0, 0)
    operand = msgspec.msgpack.decode(
        bytes.fromhex("96 03 90 cb 0000000000000000 00 01 93 00 00 00"), type=wire.WireOperand
    )
    assert (operand.scales, operand.axis, operand.extension, operand.name) == ((), 0, None, "")
    assert wire.decode_reply(bytes.fromhex("94 01 05 a0 a0")) == wire.Failed(5, "", "")


def test_fields_that_a_later_peer_appended_are_passed_over() -> None:
    assert wire.decode_call(bytes.fromhex("95 18 05 02 a3 6e6577 07")) == wire.ConfigureExecutionBurst(5, 2)
    assert wire.decode_reply(bytes.fromhex("93 04 01 92 01 02")) == wire.TextReply(1)


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("93 00 c3 03", "93 00 02 03"),  # a boolean for a number
        ("93 00 ff 03", "93 00 00 03"),  # -1 for an unsigned number
        ("93 00 cf 0000000100000000 03", "93 00 ce ffffffff 03"),  # 2**32 for one of 32 bits
        ("93 00 cb 3ff8000000000000 03", "93 00 01 03"),  # 1.5
        ("93 01 06 01", "93 01 06 c3"),  # a number for a boolean
        ("92 17 a1 38", "92 17 38"),  # text for a number
        ("94 13 06 02 93 91 94 ce 80000000 00 00 90 90 90", "94 13 06 02 93 91 94 ce 7fffffff 00 00 90 90 90"),  # 2**31
        ("94 13 06 02 93 91 94 d3 ffffffff7fffffff 00 00 90 90 90", "94 13 06 02 93 91 94 d2 80000000 00 00 90 90 90"),
        ("98 16 06 02 41 c2 00 00 00", "98 16 06 02 40 c2 00 00 00"),  # 65 fences
        ("93 03 06 dc 0041" + 65 * AS_MADE, "93 03 06 dc 0040" + 64 * AS_MADE),  # pools with one message
        (
            "94 13 06 02 93 90 90 91 92 00 96 a1 ff 00 00 c2 00 00",
            "94 13 06 02 93 90 90 91 92 00 96 a1 61 00 00 c2 00 00",
        ),
        (
            "94 18 06 02" + 5000 * "91" + "c0",
            "94 18 06 02" + 50 * "91" + "c0",
        ),  # nested too deep, where it is passed over
    ],
)
def test_a_value_out_of_its_type_or_range_is_refused(text: str, fine: str) -> None:
    with pytest.raises(wire.WireError):
        wire.decode_call(bytes.fromhex(text))
    wire.decode_call(bytes.fromhex(fine))


def test_version_and_sizes_are_those_that_the_page_of_the_protocol_states() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "contributing" / "ipc.md").read_text().split())
    assert "More than 64 KiB travel in a sealed memfd, 1 GiB at most; more than 64 descriptors are refused" in page
    assert (wire.INLINE, wire.MAX_MESSAGE, wire.MAX_DESCRIPTORS) == (65_536, 1_073_741_824, 64)
    assert wire.VERSION == 3  # of what goes on: another one where bytes that are there change


def test_no_part_of_a_message_can_be_changed() -> None:
    parts = [kind for kind in vars(wire).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    assert len(parts) > 60
    assert [kind.__name__ for kind in parts if not kind.__struct_config__.frozen] == []


# -------------------------------------------------------------------------------------------------------------- limits


def headers(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Where the headers of arrays, maps, text and bytes stand: (start, end, the same with a count of 2**32 - 1)."""
    at = 0
    while at < len(data):
        byte, start = data[at], at
        fixed = {0xCB: 9, 0xCF: 9, 0xCE: 5, 0xCD: 3, 0xCC: 2, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
        if byte & 0xF0 in (0x80, 0x90):
            at += 1
            yield start, at, bytes([0xDF if byte & 0xF0 == 0x80 else 0xDD]) + b"\xff" * 4
        elif byte & 0xE0 == 0xA0:
            at += 1 + (byte & 0x1F)
            yield start, start + 1, b"\xdb" + b"\xff" * 4
        elif byte == 0xC4:
            at += 2 + data[at + 1]
            yield start, start + 2, b"\xc6" + b"\xff" * 4
        else:
            at += fixed.get(byte, 1)


LIMITED = """
import resource, sys
from nnhal.ipc.protocol import wire
decode = {"call": wire.decode_call, "reply": wire.decode_reply, "callback": wire.decode_callback}
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
for number, line in enumerate(sys.stdin, 1):
    kind, text = line.split()
    data = bytes.fromhex(text)
    try:
        decode[kind](data)
    except wire.WireError:
        continue
    sys.exit(f"accepted: {line}")
print(number)
"""


def test_no_count_makes_the_decoder_allocate_before_it_is_checked() -> None:
    names = {wire.decode_call: "call", wire.decode_reply: "reply", wire.decode_callback: "callback"}
    lines = []
    for _, text, decode in KINDS:
        data = bytes.fromhex(text)
        for start, end, huge in headers(data):
            lines.append(f"{names[decode]} {(data[:start] + huge + data[end:]).hex()}")
    assert len(lines) > 150
    program = [sys.executable, "-c", LIMITED]
    done = subprocess.run(
        program, input="\n".join(lines), capture_output=True, text=True, timeout=PROGRAM_LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == len(lines)


def array(count: int, item: bytes) -> bytes:
    return b"\xdd" + struct.pack(">I", count) + item * count


def text(length: int) -> bytes:
    return b"\xdb" + struct.pack(">I", length) + b"a" * length


POOL, FIELDS = bytes.fromhex("96a00000c20000"), bytes.fromhex
LIMITS: dict[str, tuple[Decode, int, Callable[[int], bytes]]] = {
    "dimensions": (wire.decode_reply, 32, lambda n: FIELDS("920c") + array(n, b"\x01")),
    "text": (wire.decode_reply, 16384, lambda n: FIELDS("9204") + text(n)),
    "names": (wire.decode_reply, 4096, lambda n: FIELDS("9205") + array(n, b"\xa0")),
    "verdicts": (wire.decode_reply, 1 << 20, lambda n: FIELDS("9206") + array(n, FIELDS("92c3a0"))),
    "released objects": (wire.decode_call, 1 << 16, lambda n: FIELDS("9202") + array(n, b"\x01")),
    "cancelled calls": (wire.decode_call, 1 << 16, lambda n: FIELDS("9204") + array(n, b"\x01")),
    "held pools": (wire.decode_call, 64, lambda n: FIELDS("930306") + array(n, POOL)),
    "arguments": (wire.decode_call, 4096, lambda n: FIELDS("9413060293") + array(n, b"\xc0") + FIELDS("9090")),
    "pools": (wire.decode_call, 4096, lambda n: FIELDS("94130602939090") + array(n, FIELDS("920103"))),
    "roles": (wire.decode_call, 1024, lambda n: FIELDS("941e0690") + array(n, FIELDS("940200c2") + b"\xcb" + bytes(8))),
    "shapes": (wire.decode_reply, 4096, lambda n: FIELDS("9208") + array(n, b"\x90")),
    "operands": (
        wire.decode_call,
        1 << 20,
        lambda n: (
            FIELDS("930f04969194")
            + array(n, FIELDS("960390cb0000000000000000000193000000"))
            + FIELDS("909090c40090c290a0")
        ),
    ),
    "subgraphs": (
        wire.decode_call,
        1 << 12,
        lambda n: FIELDS("930f0496") + array(n, FIELDS("9490909090")) + FIELDS("c40090c290a0"),
    ),
    "extensions": (
        wire.decode_call,
        256,
        lambda n: FIELDS("930f0496919490909090c40090c2") + array(n, FIELDS("92a001")) + b"\xa0",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_count_at_its_limit_is_taken_and_one_more_is_refused(name: str) -> None:
    decode, limit, message = LIMITS[name]
    decode(message(limit))
    with pytest.raises(wire.WireError, match=rf"of length <= {limit}"):
        decode(message(limit + 1))


def test_a_model_without_a_subgraph_is_refused() -> None:
    with pytest.raises(wire.WireError, match="of length >= 1"):
        wire.decode_call(FIELDS("930f049690c40090c290a0"))


# -------------------------------------------------------------------------------------------------------------- levels

# What the interfaces of the HAL declare, by the version whose .hal file has it.
METHODS: dict[Level, set[str]] = {
    V1_0: {"getCapabilities", "getSupportedOperations", "prepareModel", "getStatus", "execute"},
    V1_1: {"getCapabilities_1_1", "getSupportedOperations_1_1", "prepareModel_1_1"},
    V1_2: {
        *("getVersionString", "getType", "getCapabilities_1_2", "getSupportedExtensions", "getSupportedOperations_1_2"),
        *("prepareModel_1_2", "execute_1_2", "executeSynchronously", "configureExecutionBurst"),
        *("getNumberOfCacheFilesNeeded", "prepareModelFromCache"),
    },
    V1_3: {
        *("getCapabilities_1_3", "getSupportedOperations_1_3", "prepareModel_1_3", "allocate", "execute_1_3"),
        *(
            "prepareModelFromCache_1_3",
            "executeSynchronously_1_3",
            "executeFenced",
            "getExecutionInfo",
            "copyTo",
            "copyFrom",
        ),
    },
}
# What a method's later forms take besides, by the same files.
LATER_FIELDS: dict[str, dict[str, Level]] = {
    "prepareModel": {"preference": V1_1, "priority": V1_3, "deadline": V1_3, "cache": V1_2},
    "prepareModelFromCache": {"priority": V1_3, "deadline": V1_3},
    "execute": {"measure": V1_2, "deadline": V1_3, "loop_timeout": V1_3},
    "executeSynchronously": {"deadline": V1_3, "loop_timeout": V1_3},
}
VERSIONED = {type(m): m for m, _ in CALLS if m.method}
OWN = {
    "Hello", "AttachLane", "Release", "Cancel", "GetUsage", "Hold", "Bind", "GetShape", "GetRelaxations", "GetMemoryUse",
    "Reconfigure", "HoldFiles", "WriteTrace",
}  # fmt: skip


def in_form(call: wire.ClientCall, form: Level) -> wire.ClientCall:
    """The call in a form, with no field that came later."""
    late = {n: f.default for f in msgspec.structs.fields(call) for n in [f.name] if call.since.get(n, V1_0) > form}
    return msgspec.structs.replace(call, **late, **({"form": form} if hasattr(call, "form") else {}))


def test_calls_have_the_methods_of_the_hal_at_their_levels() -> None:
    found: dict[Level, set[str]] = {level: set() for level in METHODS}
    for kind, call in VERSIONED.items():
        for form in kind.forms:
            found[form].add(wire.hal_name(in_form(call, form)))
    assert found == METHODS
    assert {wire.hal_name(m) for m, _ in CALLS if not m.method} == OWN


def test_later_forms_have_the_later_fields_of_the_hal() -> None:
    assert {kind.method: kind.since for kind in VERSIONED if kind.since} == LATER_FIELDS


@pytest.mark.parametrize("level", [V1_0, V1_1, V1_2, V1_3, FL8])
def test_a_service_refuses_the_methods_of_later_levels_and_no_others(level: Level) -> None:
    there = set().union(*(names for since, names in METHODS.items() if since <= level))
    for kind, call in VERSIONED.items():
        for form in kind.forms:
            made = in_form(call, form)
            why = wire.refusal(made, level)
            assert (why == "") == (wire.hal_name(made) in there), why
            assert not why or f"requires HAL version {form}, the service has {level}" in why
    for message, _ in CALLS:
        assert message.method or wire.refusal(message, level) == ""


@pytest.mark.parametrize(("method", "name"), [(m, f) for m, fields in LATER_FIELDS.items() for f in fields])
def test_a_field_is_refused_in_forms_before_it_came(method: str, name: str) -> None:
    kind = next(k for k in VERSIONED if k.method == method)
    since = LATER_FIELDS[method][name]
    given = {"preference": 0, "priority": 100, "measure": True}.get(name, 5)
    for form in kind.forms:
        call = msgspec.structs.replace(in_form(VERSIONED[kind], form), **{name: given})
        why = wire.refusal(call, V1_3)
        assert (why == "") == (since <= form)
        assert not why or f"{name} is set, must be left out before HAL version {since}" in why


def test_a_form_that_does_not_exist_is_refused() -> None:
    assert wire.refusal(wire.GetCapabilities(9), V1_3) == (
        "getCapabilities: HAL version is 9, must be one of 1.0, 1.1, 1.2, 1.3"
    )
    assert "HAL version is 1.1, must be one of" in wire.refusal(in_form(VERSIONED[wire.Execute], V1_1), V1_3)


def test_codes_of_levels_and_errors_are_the_published_ones(vectors: Path) -> None:
    from nnhal.base.codes import ErrorStatus

    facts = msgspec.json.decode((vectors / "facts.json").read_bytes())
    names = {int(number): entry["hal"] for number, entry in facts["featureLevels"].items()}
    assert [names[level] for level in (V1_0, V1_1, V1_2, V1_3)] == [f"HIDL {v}" for v in ("1.0", "1.1", "1.2", "1.3")]
    for name, entry in facts["errorStatus"].items():
        assert ErrorStatus[name] == entry["code"]


def test_an_encoded_message_is_small() -> None:
    call = next(m for m, _ in CALLS if isinstance(m, wire.ExecuteSynchronously))
    assert len(wire.encode(call)) < 100 < wire.INLINE < 212_992  # a SEQPACKET message of that size fails
    assert resource.getpagesize() <= wire.INLINE
