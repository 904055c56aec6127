"""One message of every kind and its bytes, put together by hand from the MessagePack format.

9x: arrays, 8x: maps, ax: strings, c4: bytes, c0: nil, c2: false, c3: true, cb: float64, cd, cf: 16 and 64 bits, ff: -1.
Bytes that are here may not change: messages are append-only.
"""

from typing import Any

from nnhal.ipc.protocol import wire

HALF, ONE, TWO = "cb 3fe0000000000000", "cb 3ff0000000000000", "cb 4000000000000000"

_POOL = wire.Pool("ashmem", 4096, 0, False)
_POOL_HEX = "96 a6 6173686d656d cd 1000 00 c2 00 00"
_HELD = wire.Pool("ashmem", 4096, 64, True, 9, 2)
_HELD_HEX = "96 a6 6173686d656d cd 1000 40 c3 09 02"

_OPERAND = wire.WireOperand(3, (2, 0), 0.5, -1, 0, (0, 0, 0))
_OPERAND_HEX = f"9a 03 92 02 00 {HALF} ff 00 93 00 00 00 90 00 c0 a0"
_FILTER = wire.WireOperand(11, (2,), 0.0, 0, 2, (0, 0, 2), (1.0, 2.0), 0, b"\x01", "w")
_FILTER_HEX = f"9a 0b 91 02 cb 0000000000000000 00 02 93 00 00 02 92 {ONE} {TWO} 00 c4 01 01 a1 77"
_OPERATION = wire.WireOperation(0, (0, 0), (1,), "add")
_OPERATION_HEX = "94 00 92 00 00 91 01 a3 616464"
_GRAPH = wire.WireSubgraph((_OPERAND, _FILTER), (_OPERATION,), (0,), (1,))
_GRAPH_HEX = f"94 92 {_OPERAND_HEX} {_FILTER_HEX} 91 {_OPERATION_HEX} 91 00 91 01"
_MODEL = wire.WireModel((_GRAPH,), b"\x00\x01", (_POOL,), True, (("vendor.x", 1),), "m")
_MODEL_HEX = f"96 91 {_GRAPH_HEX} c4 02 0001 91 {_POOL_HEX} c3 91 92 a8 76656e646f722e78 01 a1 6d"

_REQUEST = wire.WireRequest(
    (wire.WireArgument(0, 64, 16, (4,)), None),
    (wire.WireArgument(-1, 0, 0, ()),),
    (wire.MemoryPool(_POOL), wire.BufferPool(3), wire.MemoryPool(_HELD)),
)
_REQUEST_HEX = f"93 92 94 00 40 10 91 04 c0 91 94 ff 00 00 90 93 92 00 {_POOL_HEX} 92 01 03 92 00 {_HELD_HEX}"

CALLS: list[tuple[Any, str]] = [
    (wire.Hello(2, 3), "93 00 02 03"),
    (wire.AttachLane(6, True), "93 01 06 c3"),
    (wire.Release((5, 7)), "92 02 92 05 07"),
    (wire.Cancel((5, 7)), "92 04 92 05 07"),
    (wire.Hold(6, (_POOL,)), f"93 03 06 91 {_POOL_HEX}"),
    (wire.GetCapabilities(4), "92 0a 04"),
    (wire.GetStatus(), "91 0b"),
    (wire.GetVersionString(), "91 0c"),
    (wire.GetType(), "91 0d"),
    (wire.GetSupportedExtensions(), "91 0e"),
    (wire.GetRelaxations(), "91 22"),
    (wire.GetSupportedOperations(4, _MODEL), f"93 0f 04 {_MODEL_HEX}"),
    (
        wire.PrepareModel(9, 4, _MODEL, 1, 100, 2**40, 2, b"{}"),
        f"9a 10 09 04 {_MODEL_HEX} 01 64 cf 0000010000000000 02 c4 02 7b7d 00",
    ),
    (wire.Bind(6, 2, _REQUEST), f"94 13 06 02 {_REQUEST_HEX}"),
    (wire.Execute(1, 3, 2, True, 0, 500), "97 14 01 03 02 c3 00 cd 01f4"),
    (wire.ExecuteSynchronously(4, 2), "96 15 04 02 c2 00 00"),
    (wire.ExecuteFenced(6, 2, 1, False, 0, 0, 1000), "98 16 06 02 01 c2 00 00 cd 03e8"),
    (wire.GetExecutionInfo(8), "92 17 08"),
    (wire.ConfigureExecutionBurst(6, 2), "93 18 06 02"),
    (wire.Allocate(6, (4,), ((2, 0, False, 1.0),)), f"94 1e 06 91 04 91 94 02 00 c2 {ONE}"),
    (wire.CopyTo(3, _POOL), f"93 1f 03 {_POOL_HEX}"),
    (wire.CopyFrom(3, _POOL, (4,)), f"94 20 03 {_POOL_HEX} 91 04"),
    (wire.GetShape(3), "92 21 03"),
    (wire.GetUsage(), "91 23"),
    (wire.GetMemoryUse(2), "92 24 02"),
    (wire.Reconfigure(2, b"{}"), "93 25 02 c4 02 7b7d"),
    (
        wire.Consider(9, _MODEL, 1, 100, 2**40, 2, b"{}"),
        f"98 26 09 {_MODEL_HEX} 01 64 cf 0000010000000000 02 c4 02 7b7d",
    ),
    (wire.PrepareConsidered(9, 8, (0, 2)), "95 27 09 08 92 00 02 00"),
    (wire.GetNumberOfCacheFiles(), "91 28"),
    (
        wire.PrepareModelFromCache(9, 4, _MODEL, 1, 100, 2**40, 2, b"{}", 6),
        f"9a 29 09 04 {_MODEL_HEX} 01 64 cf 0000010000000000 02 c4 02 7b7d 06",
    ),
    (wire.WriteTrace(6, _HELD, 500), f"94 2b 06 {_HELD_HEX} cd 01f4"),
    (wire.HoldFiles(6, bytes(range(32)), 2, 1), f"95 2a 06 c4 20 {bytes(range(32)).hex()} 02 01"),
]

_FAILED = wire.Failed(5, "InvalidArgument", "no", ((2,), None), True, "at")
_FAILED_HEX = "97 01 05 af 496e76616c6964417267756d656e74 a2 6e6f 92 91 02 c0 c3 a2 6174"

REPLIES: list[tuple[Any, str]] = [
    (wire.Acknowledged(), "91 00"),
    (_FAILED, _FAILED_HEX),
    (
        wire.Welcome(2, 8, "reference", 300, 3, False, {"seccomp": "applied"}, "nchw", "npu.py", b"\x07"),
        "9b 02 02 08 a9 7265666572656e6365 cd 012c 03 c2 81 a7 736563636f6d70 a7 6170706c696564 a4 6e636877"
        " a6 6e70752e7079 c4 01 07",
    ),
    (
        wire.CapabilitiesReply({3: wire.WirePerformance(0.5, 1.0)}, (wire.WirePerformance(1.0, 2.0),)),
        f"93 03 81 03 92 {HALF} {ONE} 91 92 {ONE} {TWO}",
    ),
    (wire.TextReply("v1"), "92 04 a2 7631"),
    (wire.TextReply(7), "92 04 07"),
    (wire.NamesReply(("a",)), "92 05 91 a1 61"),
    (wire.Verdicts(((True, ""), (False, "no"))), "92 06 92 92 c3 a0 92 c2 a2 6e6f"),
    (
        wire.ExecutedReply(((2, 2),), (True,), wire.WireTiming(10, 20), (0,), b"\x01\x02\x03\x04"),
        "96 08 91 92 02 02 91 c3 92 0a 14 91 00 c4 04 01020304",
    ),
    (wire.ExecutedReply(), "96 08 90 90 92 cf ffffffffffffffff cf ffffffffffffffff 90 c4 00"),
    (wire.ExecutionInfoReply(wire.WireTiming(1, 2), wire.WireTiming(3, 4)), "94 0a 92 01 02 92 03 04 90"),
    (wire.Shape((4,)), "92 0c 91 04"),
    (wire.Shape(None), "92 0c c0"),
    (
        wire.SupportReply(((True, ""),), (wire.WireGroup((0, 2), wire.WirePerformance(0.5, 1.0), 1),), True),
        f"94 10 91 92 c3 a0 91 93 92 00 02 92 {HALF} {ONE} 01 c3",
    ),
    (
        wire.Usage(64, (wire.Quota("lanes", 3), wire.Quota("memory", 4096, 2, 1)), (wire.Usages(300, (1, 5)),)),
        "94 0d 40 92 94 a5 6c616e6573 03 00 00 94 a6 6d656d6f7279 cd 1000 02 01 91 92 cd 012c 92 01 05",
    ),
    (wire.WireMemoryUse(7, None, 300, 0), "95 0e 07 c0 cd 012c 00"),
    (wire.CacheFileCounts(1, 32), "95 11 01 20 c4 00 a0"),
    (wire.CacheFileCounts(1, 0, b"\1\2", "why"), "95 11 01 00 c4 02 01 02 a3 77 68 79"),
]

CALLBACKS: list[tuple[Any, str]] = [
    (wire.NotifyPrepared(9, wire.Acknowledged()), "93 00 09 91 00"),
    (wire.NotifyPrepared(9, _FAILED), f"93 00 09 {_FAILED_HEX}"),
    (wire.NotifyPrepared(9, wire.PreparedTraits(False, ("g",))), "93 00 09 94 0f c2 91 a1 67 c2"),
    (wire.NotifyExecuted(1, _FAILED), f"93 01 01 {_FAILED_HEX}"),
    (
        wire.NotifyExecuted(1, wire.ExecutedReply()),
        "93 01 01 96 08 90 90 92 cf ffffffffffffffff cf ffffffffffffffff 90 c4 00",
    ),
]
