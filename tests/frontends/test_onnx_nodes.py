"""Each node by itself, with the attributes that change what it means: as ONNX Runtime computes it."""

import numpy as np
import pytest

from nnhal import UnsupportedModel, load
from tests.frontends.onnx_models import check, element, model, node

RNG = np.random.default_rng(1)
CASES = []


def real(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def whole(*shape):
    return RNG.integers(-9, 9, shape)


def truths(*shape):
    return RNG.integers(0, 2, shape) > 0


def ints(*numbers):
    return np.array(numbers, np.int64)


def case(name, nodes, inputs, constants=None, opset=17, outputs="y"):
    nodes = nodes if isinstance(nodes, list) else [nodes]
    CASES.append(pytest.param(nodes, inputs, constants, outputs, opset, id=name))


x = real(2, 6, 9, 8)
for g, o in ((1, 4), (2, 4), (6, 12), (3, 6)):
    for d in ((1, 1), (2, 1)):
        case(
            f"conv g{g} d{d}",
            node("Conv", "x w b", group=g, dilations=list(d), pads=[1, 0, 2, 1], strides=[2, 1]),
            {"x": x},
            {"w": real(o, 6 // g, 3, 3), "b": real(o)},
        )
case("conv same up", node("Conv", "x w", auto_pad="SAME_UPPER", strides=[2, 2]), {"x": x}, {"w": real(4, 6, 3, 3)})
case("conv same low", node("Conv", "x w", auto_pad="SAME_LOWER", strides=[2, 3]), {"x": x}, {"w": real(4, 6, 4, 3)})
case("conv wide pad", node("Conv", "x w", pads=[3, 3, 3, 3]), {"x": x}, {"w": real(4, 6, 2, 2)})
case("conv dyn w", node("Conv", "x w"), {"x": x, "w": real(4, 6, 3, 3)})
x1 = real(2, 6, 20)
case(
    "conv1d chain",
    [
        node("Conv", "x w", "a", pads=[1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b w2", "c", group=4),
        node("Add", "c k", "d"),
        node("MaxPool", "d", "y", kernel_shape=[2], strides=[2]),
    ],
    {"x": x1},
    {"w": real(4, 6, 3), "w2": real(4, 1, 2), "k": real(1, 4, 1)},
)
for op in (0, 1):
    case(
        f"convT {op}",
        node("ConvTranspose", "x w b", strides=[2, 2], pads=[1, 1, 0, 1], output_padding=[op, op]),
        {"x": x},
        {"w": real(6, 4, 3, 3), "b": real(4)},
    )
case("convT grp", node("ConvTranspose", "x w", strides=[2, 2], group=3), {"x": x}, {"w": real(6, 2, 3, 3)})
case("convT dil", node("ConvTranspose", "x w", dilations=[2, 2]), {"x": x}, {"w": real(6, 2, 3, 3)})
case("convT 1d", node("ConvTranspose", "x w", strides=[2]), {"x": x1}, {"w": real(6, 2, 3)})
case(
    "convT shape",
    node("ConvTranspose", "x w", strides=[2, 2], output_shape=[17, 16]),
    {"x": x},
    {"w": real(6, 2, 3, 3)},
)
case(
    "convT same", node("ConvTranspose", "x w", strides=[2, 2], auto_pad="SAME_UPPER"), {"x": x}, {"w": real(6, 2, 3, 3)}
)
for n in ("MaxPool", "AveragePool"):
    for k in (
        {},
        {"pads": [1, 1, 1, 1]},
        {"ceil_mode": 1, "strides": [2, 2]},
        {"ceil_mode": 1, "strides": [2, 2], "pads": [1, 0, 1, 0]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ):
        case(f"{n} {k}", node(n, "x", kernel_shape=[3, 3], **k), {"x": x})
case("avg incl", node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1), {"x": x})
case("lppool", node("LpPool", "x", kernel_shape=[3, 3]), {"x": x})
for n in ("GlobalAveragePool", "GlobalMaxPool"):
    case(n, node(n, "x"), {"x": x})
    case(n, node(n, "x"), {"x": x1})
case(
    "BN",
    node("BatchNormalization", "x s b m v"),
    {"x": x},
    {"s": real(6), "b": real(6), "m": real(6), "v": np.abs(real(6))},
)
case(
    "BN fold",
    [node("Conv", "x w", "a"), node("BatchNormalization", "a s b m v", "c"), node("Relu", "c")],
    {"x": x},
    {"w": real(4, 6, 3, 3), "s": real(4), "b": real(4), "m": real(4), "v": np.abs(real(4))},
)
case("IN", node("InstanceNormalization", "x s b"), {"x": x}, {"s": real(6), "b": real(6)})
case("LN", node("LayerNormalization", "x s b"), {"x": x}, {"s": real(8), "b": real(8)})
case("LN ax", node("LayerNormalization", "x s b", axis=2), {"x": x}, {"s": real(9, 8), "b": real(9, 8)})
case("LRN", node("LRN", "x", size=3), {"x": x})
case("MVN", node("MeanVarianceNormalization", "x"), {"x": x})
case("LpN", node("LpNormalization", "x", axis=1), {"x": x})
case("GN", node("GroupNormalization", "x s b", num_groups=3), {"x": x}, {"s": real(6), "b": real(6)}, opset=21)
for os_ in (11, 13):
    for ax in (1, -1, 2):
        case(f"softmax {os_} {ax}", node("Softmax", "x", axis=ax), {"x": x}, opset=os_)
        case(f"lsm {os_} {ax}", node("LogSoftmax", "x", axis=ax), {"x": x}, opset=os_)
a, b = real(2, 3, 4), real(2, 4, 5)
case("mm", node("MatMul", "a b"), {"a": a, "b": b})
case("mm c", node("MatMul", "a b"), {"a": a}, {"b": real(4, 5)})
case(
    "mm add",
    [node("MatMul", "a b", "c"), node("Add", "c k", "d"), node("Relu", "d")],
    {"a": a},
    {"b": real(4, 5), "k": real(5)},
)
case("mm bcast", node("MatMul", "a b"), {"a": real(3, 1, 2, 4), "b": real(5, 4, 3)})
case("mm 1d", node("MatMul", "a b"), {"a": real(4), "b": real(4, 3)})
case("mm d1", node("MatMul", "a b"), {"a": real(2, 4), "b": real(4)})
case("mm 11", node("MatMul", "a b"), {"a": real(4), "b": real(4)})
case("mm 1c", node("MatMul", "a b"), {"a": real(4)}, {"b": real(4, 3)})
for ta in (0, 1):
    for tb in (0, 1):
        for const in (0, 1):
            A = real(4, 3) if ta else real(3, 4)
            B = real(5, 4) if tb else real(4, 5)
            C = real(5)
            k = {"transA": ta, "transB": tb, "alpha": 0.5, "beta": 2.0}
            case(
                f"gemm {ta}{tb}{const}",
                node("Gemm", "a b c", **k),
                {"a": A} if const else {"a": A, "b": B, "c": C},
                {"b": B, "c": C} if const else None,
            )
for e in ("ij,jk->ik", "bij,bkj->bik", "bhqd,bhkd->bhqk", "ij->ji", "bij->bj", "i,j->ij"):
    sh = {c: n for n, c in enumerate("ijkbhqd", 2)}
    ins = e.split("->")[0].split(",")
    case(
        f"einsum {e}",
        node("Einsum", " ".join("ab"[: len(ins)]), equation=e),
        {n: real(*[sh[c] for c in p]) for n, p in zip("ab"[: len(ins)], ins, strict=True)},
    )
y4 = real(1, 6, 1, 8)
for n in ("Add", "Sub", "Mul", "Div"):
    case(n, node(n, "x z"), {"x": x, "z": y4})
    case(n + " c", node(n, "x z"), {"x": x}, {"z": real(6, 1, 1)})
    case(n + " s", node(n, "x z"), {"x": x}, {"z": np.array(3, np.float32)})
    case(n + " 5", node(n, "x z"), {"x": real(2, 1, 3, 2, 4), "z": real(1, 5, 3, 1, 4)})
for n in ("Add", "Sub", "Mul"):
    case(n + " i32", node(n, "x z"), {"x": whole(3, 4).astype(np.int32), "z": whole(3, 4).astype(np.int32)})
divisors = whole(3, 4)
divisors[divisors == 0] = 3
case("Div i32", node("Div", "x z"), {"x": whole(3, 4).astype(np.int32), "z": divisors.astype(np.int32)})
case("Mod i32", node("Mod", "x z"), {"x": whole(3, 4).astype(np.int32), "z": divisors.astype(np.int32)})
case("Mod f", node("Mod", "x z", fmod=1), {"x": real(3, 4) * 5, "z": real(3, 4)})
case("fmod i", node("Mod", "x z", fmod=1), {"x": whole(3, 4).astype(np.int32), "z": divisors.astype(np.int32)})
for n in (
    "Abs",
    "Exp",
    "Floor",
    "Neg",
    "Sigmoid",
    "Sin",
    "Tanh",
    "Ceil",
    "HardSwish",
    "Relu",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Celu",
    "HardSigmoid",
    "ThresholdedRelu",
    "Erf",
    "Cos",
    "Tan",
    "Sign",
    "Round",
    "Softplus",
    "Softsign",
    "Sinh",
    "Cosh",
    "Atan",
    "Asinh",
    "Identity",
    "Reciprocal",
):
    case(n, node(n, "x"), {"x": real(3, 4, 5) * 2})
    if n not in ("Tan",):
        case(n + " 5d", node(n, "x"), {"x": real(2, 2, 2, 2, 2)})
for k in (-1, 0, 2):
    nodes = [node("EyeLike", "x", "e", k=k), node("Add", "x e")]
    case(f"EyeLike {k}", nodes, {"x": real(3, 4)})
case("EyeLike of a type", node("EyeLike", "x", dtype=6), {"x": real(3, 3)})
for n in ("Mish", "Gelu"):
    case(n, node(n, "x"), {"x": real(3, 4, 5) * 2}, opset=20)
case("Gelu far", node("Gelu", "x"), {"x": np.float32([np.inf, np.nan, 3e38, 41, 13, -13, -41, -3e38])}, opset=20)
case("Gelu tanh", node("Gelu", "x", approximate="tanh"), {"x": real(3, 4, 5) * 2}, opset=20)
case("Tan of FLOAT16", node("Tan", "x"), {"x": np.float16([-1.5, -0.3, 0, 1e-3, 1.4, 1.5, 1.55, 1.5625, 1.57])})
for n in ("Asin", "Acos", "Atanh"):
    case(n, node(n, "x"), {"x": np.float32([-1.2, -1, -0.999, -0.4, -1e-4, 0, 1e-4, 0.4, 0.999, 1, 1.2])})
case("Acosh", node("Acosh", "x"), {"x": np.float32([-3, -1, 0, 0.9, 1, 1.0001, 1.3, 4, 1e20])})
for n in ("Log", "Sqrt"):
    case(n, node(n, "x"), {"x": np.abs(real(3, 4))})
case("PRelu", node("PRelu", "x s"), {"x": x}, {"s": real(6, 1, 1)})
for lo, hi in ((0, 6), (-1, 1), (0, 1), (0.2, 0.7), (None, 1.0), (0.0, None)):
    c = {}
    ins = "x"
    ins += " lo" if lo is not None else " -"
    ins += " hi" if hi is not None else ""
    if lo is not None:
        c["lo"] = np.array(lo, np.float32)
    if hi is not None:
        c["hi"] = np.array(hi, np.float32)
    case(f"clip {lo} {hi}", node("Clip", ins), {"x": real(3, 4)}, c)
for e in (2.0, 0.5, 3.0):
    case(f"pow {e}", node("Pow", "x e"), {"x": np.abs(real(3, 4))}, {"e": np.array(e, np.float32)})
case("pow i", node("Pow", "x e"), {"x": whole(3, 4).astype(np.int32)}, {"e": np.array(3, np.int32)})
for n in ("Max", "Min", "Sum", "Mean"):
    case(n, node(n, "a b c"), {"a": real(3, 4), "b": real(4), "c": real(3, 1)})
for n in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
    case(n, node(n, "a b"), {"a": real(3, 4), "b": real(4)})
    case(n + " i", node(n, "a b"), {"a": whole(3, 4), "b": whole(4)})
for n in ("And", "Or", "Xor"):
    case(n, node(n, "a b"), {"a": truths(3, 4), "b": truths(4)})
case("Not", node("Not", "a"), {"a": truths(3, 4)})
case("Where", node("Where", "c a b"), {"c": truths(3, 4), "a": real(4), "b": real(3, 1)})
case("Where i", node("Where", "c a b"), {"c": truths(3, 4), "a": whole(4), "b": whole(3, 1)})
for fr, arr in (("f", real(3, 4) * 3), ("i4", whole(3, 4).astype(np.int32)), ("i8", whole(3, 4)), ("b", truths(3, 4))):
    for to in (1, 6, 7, 9, 10):
        case(f"cast {fr}->{to}", node("Cast", "x", to=to), {"x": arr})
case("OneHot", node("OneHot", "i d v"), {"i": whole(3) % 5}, {"d": np.array(5, np.int64), "v": real(2)})
case(
    "OneHot ax", node("OneHot", "i d v", axis=0), {"i": whole(3, 2) % 5 - 3}, {"d": np.array(5, np.int64), "v": real(2)}
)
# movement
case("reshape", node("Reshape", "x s"), {"x": x}, {"s": ints(0, -1, 4)})
case("flatten", node("Flatten", "x", axis=2), {"x": x})
case("squeeze", node("Squeeze", "x a"), {"x": real(1, 3, 1, 4)}, {"a": ints(0, -2)})
case("squeeze all", node("Squeeze", "x"), {"x": real(1, 3, 1)})
case("unsq", node("Unsqueeze", "x a"), {"x": real(3, 4)}, {"a": ints(0, -1)})
case("squeeze 11", node("Squeeze", "x", axes=[0]), {"x": real(1, 3)}, opset=11)
for p in ((0, 3, 1, 2), (3, 2, 1, 0)):
    case(f"tr {p}", node("Transpose", "x", perm=list(p)), {"x": x})
case("tr 5", node("Transpose", "x", perm=[0, 2, 4, 1, 3]), {"x": real(2, 3, 4, 2, 3)})
case("tr 6", node("Transpose", "x", perm=[0, 3, 1, 4, 2, 5]), {"x": real(2, 3, 2, 2, 3, 2)})
case("tr 6r", node("Transpose", "x"), {"x": real(2, 3, 2, 2, 3, 2)})
case("tr bool", node("Transpose", "x"), {"x": truths(3, 4)})
case("tr i", node("Transpose", "x"), {"x": whole(3, 4)})
case("d2s", node("DepthToSpace", "x", blocksize=2), {"x": real(2, 8, 3, 4)})
case("d2s crd", node("DepthToSpace", "x", blocksize=2, mode="CRD"), {"x": real(2, 8, 3, 4)})
case("s2d", node("SpaceToDepth", "x", blocksize=2), {"x": real(2, 3, 4, 6)})
case("concat", node("Concat", "a b", axis=1), {"a": real(2, 3), "b": real(2, 5)})
case("concat5", node("Concat", "a b", axis=3), {"a": real(2, 3, 1, 2, 2), "b": real(2, 3, 1, 4, 2)})
case("concat i", node("Concat", "a b", axis=0), {"a": whole(2, 3), "b": whole(1, 3)})
case("concat b", node("Concat", "a b", axis=0), {"a": truths(2, 3), "b": truths(1, 3)})
case("split", node("Split", "x s", "p q", axis=1), {"x": real(2, 5, 3)}, {"s": ints(2, 3)}, outputs="p q")
case("split eq", node("Split", "x", "p q", axis=1), {"x": real(2, 6, 3)}, outputs="p q")
case("slice", node("Slice", "x s e a"), {"x": x}, {"s": ints(1, -4), "e": ints(5, 1000), "a": ints(1, 3)})
case(
    "slice st",
    node("Slice", "x s e a t"),
    {"x": x},
    {"s": ints(-1, 0), "e": ints(-100, 7), "a": ints(2, 3), "t": ints(-2, 3)},
)
case("slice 5d", node("Slice", "x s e a"), {"x": real(2, 3, 4, 2, 2)}, {"s": ints(1), "e": ints(3), "a": ints(2)})
case(
    "slice 5ds",
    node("Slice", "x s e a t"),
    {"x": real(2, 3, 4, 2, 2)},
    {"s": ints(3, 0), "e": ints(-9, 1), "a": ints(2, 1), "t": ints(-1, 1)},
)
case("slice b", node("Slice", "x s e"), {"x": truths(4, 3)}, {"s": ints(1), "e": ints(3)})
for m in ("constant", "reflect", "edge"):
    case(f"pad {m}", node("Pad", "x p", mode=m), {"x": x}, {"p": ints(0, 0, 2, 1, 0, 0, 1, 3)})
case("pad wrap", node("Pad", "x p", mode="wrap"), {"x": x}, {"p": ints(0, 0, 2, 1, 0, 0, 1, 3)}, opset=19)
case("pad v", node("Pad", "x p v"), {"x": x}, {"p": ints(0, 1, -2, 1, 0, 0, 1, -3), "v": np.array(1.5, np.float32)})
case("pad i", node("Pad", "x p v"), {"x": whole(2, 3)}, {"p": ints(0, 1, 1, 0), "v": np.array(4, np.int64)})
case("tile", node("Tile", "x r"), {"x": real(2, 3)}, {"r": ints(2, 3)})
case("expand", node("Expand", "x s"), {"x": real(3, 1)}, {"s": ints(2, 1, 4)})
case("expand i", node("Expand", "x s"), {"x": whole(3, 1)}, {"s": ints(2, 1, 4)})
# reductions
for n in (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
):
    for k in (0, 1):
        case(f"{n} {k}", node(n, "x a", keepdims=k), {"x": real(2, 3, 4)}, {"a": ints(0, -1)}, opset=18)
        case(f"{n} all", node(n, "x", keepdims=k), {"x": real(2, 3, 4)}, opset=18)
    if n != "ReduceLogSumExp":
        case(f"{n} 5", node(n, "x a"), {"x": real(2, 3, 2, 2, 2)}, {"a": ints(1, 3)}, opset=18)
case("rmax i", node("ReduceMax", "x", axes=[0]), {"x": whole(3, 5).astype(np.int32)})
for kind in (np.int32, np.int64):
    for axes in ([1], [0, 2], [0, 1, 2]):
        numbers = np.arange(-13, 11).astype(kind).reshape(2, 3, 4)
        case(f"rmean i {axes}", node("ReduceMean", "x", axes=axes, keepdims=0), {"x": numbers})
case("rlogsum", node("ReduceLogSum", "x a"), {"x": np.abs(real(2, 3))}, {"a": ints(1)}, opset=18)
for e in (0, 1):
    for r in (0, 1):
        case(
            f"cumsum {e}{r}",
            node("CumSum", "x a", exclusive=e, reverse=r),
            {"x": real(2, 7, 3)},
            {"a": np.array(1, np.int64)},
        )
for n in ("ArgMax", "ArgMin"):
    for k in (0, 1):
        for flag in (0, 1):
            case(f"{n}", node(n, "x", axis=1, keepdims=k, select_last_index=flag), {"x": np.round(real(3, 6, 2))})
case("topk", node("TopK", "x k", "v i"), {"x": real(3, 8)}, {"k": ints(3)}, outputs="v i")
case("topk ax", node("TopK", "x k", "v i", axis=1, largest=0), {"x": real(3, 8, 2)}, {"k": ints(3)}, outputs="v i")
case("topk 9", node("TopK", "x", "v i", axis=1, k=3), {"x": real(3, 8, 2)}, outputs="v i", opset=9)
# indexing
case("gather", node("Gather", "x i", axis=1), {"x": real(2, 5, 3)}, {"i": np.array([[0, -1], [2, 2]], np.int64)})
case("gather dyn", node("Gather", "x i", axis=1), {"x": real(2, 5, 3), "i": np.array([[0, -1], [2, 2]], np.int64)})
case("gather sc", node("Gather", "x i", axis=1), {"x": real(2, 5, 3)}, {"i": np.array(-2, np.int64)})
case("gather dsc", node("Gather", "x i", axis=1), {"x": real(2, 5, 3), "i": np.array(-2, np.int64)})
case("gather sc0", node("Gather", "x i"), {"x": real(5)}, {"i": np.array(1, np.int64)})
case("gather b", node("Gather", "x i"), {"x": truths(5, 2)}, {"i": ints(1, 3)})
case(
    "gel",
    node("GatherElements", "x i", axis=1),
    {"x": real(3, 4)},
    {"i": np.array([[0, -1], [2, 1], [3, 3]], np.int64)},
)
case(
    "gel dyn",
    node("GatherElements", "x i", axis=1),
    {"x": real(3, 4), "i": np.array([[0, -1], [2, 1], [3, 3]], np.int64)},
)
case("gnd", node("GatherND", "x i"), {"x": real(3, 4, 2)}, {"i": np.array([[0, -1], [2, 1]], np.int64)})
case("gnd dyn", node("GatherND", "x i"), {"x": real(3, 4, 2), "i": np.array([[0, -1], [2, 1]], np.int64)})
case(
    "snd",
    node("ScatterND", "x i u"),
    {"x": real(3, 4, 2), "u": real(2, 2)},
    {"i": np.array([[0, -1], [2, 1]], np.int64)},
)
case(
    "sel",
    node("ScatterElements", "x i u", axis=1),
    {"x": real(3, 4), "u": real(3, 2)},
    {"i": np.array([[0, -1], [2, 1], [3, 2]], np.int64)},
)
for u in (0, 1):
    case("trilu", node("Trilu", "x k", upper=u), {"x": real(2, 4, 5)}, {"k": np.array(-1, np.int64)})
case("revseq", node("ReverseSequence", "x l"), {"x": real(5, 3, 2)}, {"l": ints(5, 2, 0 + 1)})
# resize
for mode in ("nearest", "linear", "cubic"):
    for ct in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"):
        for sc in ((1, 1, 2, 2), (1, 1, 1.7, 0.6), (1, 1, 3, 1)):
            for nm in (
                ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
                if mode == "nearest"
                else ("round_prefer_floor",)
            ):
                case(
                    f"resize {mode} {ct} {sc} {nm}",
                    node("Resize", "x - s", mode=mode, coordinate_transformation_mode=ct, nearest_mode=nm),
                    {"x": real(1, 2, 5, 6)},
                    {"s": np.array(sc, np.float32)},
                    opset=19,
                )
case("resize sizes", node("Resize", "x - - s", mode="linear"), {"x": real(1, 2, 5, 6)}, {"s": ints(1, 2, 11, 4)})
case("resize 1d", node("Resize", "x - s", mode="linear"), {"x": real(1, 2, 5)}, {"s": np.array([1, 1, 2], np.float32)})
case(
    "upsample",
    node("Upsample", "x s", mode="nearest"),
    {"x": real(1, 2, 5, 6)},
    {"s": np.array([1, 1, 2, 3], np.float32)},
    opset=9,
)
# recurrent
for d in ("forward", "reverse", "bidirectional"):
    D = 2 if d == "bidirectional" else 1
    case(
        f"lstm {d}",
        node("LSTM", "x w r b", "y h c", hidden_size=4, direction=d),
        {"x": real(5, 2, 3)},
        {"w": real(D, 16, 3), "r": real(D, 16, 4), "b": real(D, 32)},
        outputs="y h c",
    )
    case(
        f"lstm st {d}",
        node("LSTM", "x w r b - h0 c0 p", "y h c", hidden_size=4, direction=d),
        {"x": real(5, 2, 3), "h0": real(D, 2, 4), "c0": real(D, 2, 4)},
        {"w": real(D, 16, 3), "r": real(D, 16, 4), "b": real(D, 32), "p": real(D, 12)},
        outputs="y h c",
    )
    for flag in (0, 1):
        case(
            f"gru {d} {flag}",
            node("GRU", "x w r b - h0", "y h", hidden_size=4, direction=d, linear_before_reset=flag),
            {"x": real(5, 2, 3), "h0": real(D, 2, 4)},
            {"w": real(D, 12, 3), "r": real(D, 12, 4), "b": real(D, 24)},
            outputs="y h",
        )
    for a in ("Tanh", "Relu", "Sigmoid"):
        case(
            f"rnn {d} {a}",
            node("RNN", "x w r b - h0", "y h", hidden_size=4, direction=d, activations=[a] * D),
            {"x": real(5, 2, 3), "h0": real(D, 2, 4)},
            {"w": real(D, 4, 3), "r": real(D, 4, 4), "b": real(D, 8)},
            outputs="y h",
        )


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("nodes", "inputs", "constants", "outputs", "opset"), CASES)
def test_a_node_gives_what_onnx_runtime_gives(nodes, inputs, constants, outputs, opset):
    check(model(nodes, inputs, constants, outputs, opset), inputs)


DEVICES = "reference", "onnxruntime", "openvino"  # litert takes no initial states that are computed
RECURRENT = {
    "LSTM": (4, "x w r b l h0 c0 p", "y h c"),
    "GRU": (3, "x w r b l h0", "y h"),
    "RNN": (1, "x w r b l h0", "y h"),
}


def recurrent(op, kind, lengths, direction="bidirectional"):
    """A model of five time steps of two sequences, and its inputs. lengths: of the sequences."""
    gates, names, outputs = RECURRENT[op]
    count = 1 + (direction == "bidirectional")
    arrays = {"x": real(5, 2, 3), "w": real(count, 4 * gates, 3), "r": real(count, 4 * gates, 4) / 2}
    arrays |= {"b": real(count, 8 * gates), "h0": real(count, 2, 4), "c0": real(count, 2, 4), "p": real(count, 12)}
    constants = {name: array.astype(kind) for name, array in arrays.items() if name in names.split()}
    inputs = {name: constants.pop(name) for name in ("x", "h0")}
    made = node(op, names, outputs, hidden_size=4, direction=direction)
    constants["l"] = np.array(lengths, np.int32)
    return model([made], inputs, constants, outputs, infer=False, otherwise=element(inputs["x"])), inputs


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", RECURRENT)
def test_sequences_of_half_precision_are_computed_in_float32(op, device):
    """As in ONNX Runtime, which has no kernels of FLOAT16 for them."""
    check(*recurrent(op, np.float16, [5, 5]), device=device)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", RECURRENT)
def test_the_results_behind_sequences_that_are_shorter_than_the_input_are_0(op, direction):
    check(*recurrent(op, np.float32, [3, 3], direction))


@pytest.mark.parametrize(
    ("lengths", "why"),
    [([3, 5], "has sequences of different lengths"), ([6, 6], "sequence_lens is 6, must be from 1 to 5")],
)
def test_sequences_of_other_lengths_are_refused(lengths, why):
    with pytest.raises(UnsupportedModel, match=f"LSTM #0: {why}"):
        load(recurrent("LSTM", np.float32, lengths)[0].SerializeToString())


@pytest.mark.parametrize("device", (*DEVICES, "litert"))
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_the_greatest_and_the_least_of_bytes(op, kind, device):
    inputs = {"x": whole(2, 3, 4, 3, 2).astype(kind)}
    made = model([node(op, "x", axes=[1, 3])], inputs, otherwise=element(inputs["x"]))
    check(made, inputs, device=device)


@pytest.mark.parametrize(("op", "kind"), [("ReduceSum", np.uint8), ("ReduceMax", np.bool_)])
def test_reductions_without_an_operation_name_the_type(op, kind):
    made = model([node(op, "x")], {"x": np.zeros((4, 3), kind)}, opset=20, infer=False)
    with pytest.raises(
        UnsupportedModel, match=f"{op} #0: of {'BOOL' if kind is np.bool_ else 'UINT8'} has no operation"
    ):
        load(made.SerializeToString())


EMPTY = {
    "an output": ([node("Slice", "x n n")], r"output 'y': has shape \[0, 3\], must have elements"),
    "a result": ([node("Slice", "x n n", "t"), node("Relu", "t")], r"Relu #1: input 0 has shape \[0, 3\], must have"),
    "a constant": ([node("Gather", "x e")], r"Gather #0: an argument has shape \[0\], must have elements"),
}


@pytest.mark.parametrize("name", EMPTY)
def test_tensors_without_elements_are_refused_with_their_shape(name):
    nodes, why = EMPTY[name]
    made = model(nodes, {"x": real(4, 3)}, {"n": ints(2), "e": np.zeros(0, np.int64)})
    with pytest.raises(UnsupportedModel, match=why):
        load(made.SerializeToString())
