"""Graphs of a few random ONNX nodes, run by nnhal and by ONNX Runtime.

    python -m tests.nightly.random_onnx --count 1000 --seed 1

A step draws a node on tensors that there are, with random attributes and constants; ONNX Runtime says what shape it gives. A
draw passes, is wrong, or is refused by nnhal; what ONNX Runtime does not take is drawn again.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import nnhal
from nnhal.base.operands import Array
from tests.frontends.onnx_models import by_nnhal, by_onnxruntime, model, node

MOST_ELEMENTS = 4000
MOST_MAGNITUDE = 1e3
ROOM = 5e-4  # of the greatest magnitude of a result
UNARY = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish", "Elu", "Neg", "Abs", "Softplus", "Erf",
         "Identity", "Floor", "Atan", "Asinh")  # fmt: skip

Recipe = Callable[["Graph", str], Any]


class Graph:
    """A graph that is being drawn. values: of each tensor what ONNX Runtime computes."""

    def __init__(self, seed: Any) -> None:
        self.random = np.random.default_rng(seed)
        shape = self.one((2, 4, 6, 5), (1, 3, 8, 8), (2, 6, 7), (3, 8), (1, 4, 1, 6), (2, 2, 3, 2, 2))
        self.inputs = {"x": self.real(*shape)}
        self.values: dict[str, Array] = dict(self.inputs)
        self.constants: dict[str, Array] = {}
        self.nodes: list[Any] = []
        self.opset = int(self.one(11, 13, 17, 18))

    def one(self, *choices: Any) -> Any:
        """One of several."""
        return choices[self.random.integers(len(choices))]

    def whole(self, low: int, high: int) -> int:
        """A number from low to high."""
        return int(self.random.integers(low, high + 1))

    def real(self, *shape: int) -> Array:
        """Numbers about 1."""
        return self.random.standard_normal(shape).astype(np.float32)

    def constant(self, array: Array) -> str:
        """The name of a new constant."""
        name = f"k{len(self.constants)}"
        self.constants[name] = array
        return name

    def ints(self, *numbers: int) -> str:
        """The name of a new constant of integers."""
        return self.constant(np.array(numbers, np.int64))

    def step(self) -> bool:
        """Draw one node; whether ONNX Runtime takes it."""
        name = f"t{len(self.nodes)}"
        source = self.one(*self.values)
        before = dict(self.constants)
        try:
            drawn = self.one(*RECIPES)(self, source)
        except Unfit:
            self.constants = before
            return False
        drawn.output[0] = name
        try:
            (value,) = by_onnxruntime(self.model(name, [drawn]), self.inputs)
        except Exception:
            self.constants = before
            return False
        if not (0 < value.size <= MOST_ELEMENTS and np.isfinite(value).all() and np.abs(value).max() < MOST_MAGNITUDE):
            self.constants = before
            return False
        self.nodes.append(drawn)
        self.values[name] = value
        return True

    def model(self, outputs: str, more: Any = ()) -> Any:
        """The model so far."""
        return model([*self.nodes, *more], self.inputs, self.constants, outputs, self.opset)


class Unfit(Exception):
    """A recipe does not take this tensor."""


def fit(condition: Any) -> None:
    """Draw again unless it holds."""
    if not condition:
        raise Unfit


def conv(g: Graph, x: str) -> Any:
    shape = g.values[x].shape
    fit(len(shape) in (3, 4))
    count, depth = len(shape) - 2, shape[1]
    group = g.one(1, 1, depth, 2 if depth % 2 == 0 else 1)
    units = group * g.whole(1, 3)
    kernel = [g.whole(1, 3) for _ in range(count)]
    weights = g.constant(g.real(units, depth // group, *kernel) / 2)
    bias = f" {g.constant(g.real(units))}" if g.one(True, False) else ""
    how = {"strides": [g.whole(1, 2) for _ in kernel], "pads": [g.whole(0, 2) for _ in range(2 * count)]}
    if g.one(True, False, False):
        how = {"auto_pad": g.one("SAME_UPPER", "SAME_LOWER", "VALID")}
    how |= {"dilations": [g.one(1, 1, 2)] * count, "group": group}
    return node("Conv", f"{x} {weights}{bias}", **how)


def conv_transpose(g: Graph, x: str) -> Any:
    shape = g.values[x].shape
    fit(len(shape) == 4)
    weights = g.constant(g.real(shape[1], g.whole(1, 3), g.whole(1, 3), g.whole(1, 3)) / 2)
    return node("ConvTranspose", f"{x} {weights}", strides=[g.whole(1, 2), g.whole(1, 2)], pads=[g.whole(0, 1)] * 4)


def pool(g: Graph, x: str) -> Any:
    count = len(g.values[x].shape) - 2
    fit(count in (1, 2))
    kernel = [g.whole(1, 3) for _ in range(count)]
    how = {"strides": [g.whole(1, 2) for _ in kernel], "ceil_mode": g.one(0, 0, 1)}
    if min(kernel) > 1:
        how["pads"] = [g.whole(0, 1) for _ in range(2 * count)]
    return node(g.one("MaxPool", "AveragePool"), x, kernel_shape=kernel, **how)


def normalise(g: Graph, x: str) -> Any:
    shape = g.values[x].shape
    fit(len(shape) in (3, 4))
    names = [
        g.constant(v) for v in (g.real(shape[1]), g.real(shape[1]), g.real(shape[1]), np.abs(g.real(shape[1])) + 0.1)
    ]
    return node("BatchNormalization", " ".join([x, *names]))


def unary(g: Graph, x: str) -> Any:
    return node(g.one(*UNARY), x)


def clip(g: Graph, x: str) -> Any:
    low, high = g.one((0, 6), (-1, 1), (0.5, 2))
    return node("Clip", f"{x} {g.constant(np.array(low, np.float32))} {g.constant(np.array(high, np.float32))}")


def binary(g: Graph, x: str) -> Any:
    shape = list(g.values[x].shape)
    other = g.one(*g.values)
    if g.one(True, False):
        drop = g.whole(0, len(shape) - 1) if shape else 0
        other = g.constant(g.real(*[g.one(1, d) for d in shape][drop:]))
    op = g.one("Add", "Sub", "Mul", "Max", "Min")
    return node(op, f"{x} {other}" if g.one(True, False) else f"{other} {x}")


def per_channel(g: Graph, x: str) -> Any:
    shape = g.values[x].shape
    fit(len(shape) in (3, 4))
    return node(g.one("Add", "Mul", "Sub"), f"{x} {g.constant(g.real(shape[1], *[1] * (len(shape) - 2)))}")


def product(g: Graph, x: str) -> Any:
    shape = g.values[x].shape
    fit(len(shape) >= 2)
    return node("MatMul", f"{x} {g.constant(g.real(shape[-1], g.whole(1, 5)) / 2)}")


def transpose(g: Graph, x: str) -> Any:
    return node("Transpose", x, perm=g.random.permutation(len(g.values[x].shape)).tolist())


def reshape(g: Graph, x: str) -> Any:
    size = g.values[x].size
    dims = []
    for _ in range(g.whole(1, 4)):
        factor = g.one(*[n for n in range(1, size + 1) if size % n == 0][:6])
        dims.append(factor)
        size //= factor
    return node("Reshape", f"{x} {g.ints(*dims, size)}")


def concat(g: Graph, x: str) -> Any:
    fit(g.values[x].ndim)
    return node("Concat", f"{x} {x}", axis=g.whole(-g.values[x].ndim, g.values[x].ndim - 1))


def slice_(g: Graph, x: str) -> Any:
    shape = g.values[x].shape
    fit(shape)
    axis = g.whole(0, len(shape) - 1)
    start, end, step = g.whole(-3, 2), g.whole(-2, 9), g.one(1, 1, 2, -1)
    return node("Slice", f"{x} {g.ints(start)} {g.ints(end)} {g.ints(axis)} {g.ints(step)}")


def pad(g: Graph, x: str) -> Any:
    rank = g.values[x].ndim
    fit(rank)
    pads = g.ints(*[g.whole(0, 1) for _ in range(2 * rank)])
    return node("Pad", f"{x} {pads}", mode=g.one("constant", "edge"))


def softmax(g: Graph, x: str) -> Any:
    fit(g.values[x].ndim)
    return node("Softmax", x, axis=g.whole(0, g.values[x].ndim - 1))


def reduce_(g: Graph, x: str) -> Any:
    rank = g.values[x].ndim
    fit(rank)
    return node(g.one("ReduceMean", "ReduceMax", "ReduceMin"), x, keepdims=g.one(0, 1), axes=[g.whole(0, rank - 1)])


def resize(g: Graph, x: str) -> Any:
    fit(g.values[x].ndim == 4)
    scales = g.constant(np.array([1, 1, g.one(0.5, 1, 1.5, 2, 3), g.one(0.5, 1, 2)], np.float32))
    how = {"mode": g.one("nearest", "linear", "cubic"), "coordinate_transformation_mode": g.one("half_pixel", "asymmetric",
           "align_corners", "pytorch_half_pixel"), "nearest_mode": g.one("floor", "round_prefer_floor")}  # fmt: skip
    return node("Resize", f"{x} {g.constant(np.zeros(0, np.float32))} {scales}", **how)


def gather(g: Graph, x: str) -> Any:
    shape = g.values[x].shape
    fit(shape)
    axis = g.whole(0, len(shape) - 1)
    indices = [g.whole(-shape[axis], shape[axis] - 1) for _ in range(g.whole(1, 3))]
    name = g.constant(np.array(indices[0], np.int64)) if g.one(True, False) else g.ints(*indices)
    return node("Gather", f"{x} {name}", axis=axis)


RECIPES: tuple[Recipe, ...] = (
    conv, conv, conv_transpose, pool, normalise, unary, unary, clip, binary, per_channel, product, transpose, reshape,
    concat, slice_, pad, softmax, reduce_, resize, gather,
)  # fmt: skip


def draw(seed: Any, most: int = 6) -> Graph:
    """A graph of one to `most` nodes."""
    graph = Graph(seed)
    wanted = graph.whole(1, most)
    for _ in range(20 * most):
        if len(graph.nodes) == wanted:
            break
        graph.step()
    return graph


def judge(seed: Any, device: str = "reference") -> tuple[str, str]:
    """What becomes of a draw: pass, wrong or refused; and what it is."""
    graph = draw(seed)
    if not graph.nodes:
        return "pass", "nothing"
    read = {name for each in graph.nodes for name in each.input}
    outputs = " ".join(each.output[0] for each in graph.nodes if each.output[0] not in read)
    made = graph.model(outputs)
    names = " ".join(each.op_type for each in graph.nodes)
    try:
        found = by_nnhal(made, graph.inputs, device)
    except nnhal.UnsupportedModel as error:
        return "refused", f"{names}: {error}"
    for name, mine in zip(outputs.split(), found, strict=True):
        theirs = graph.values[name]
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return "wrong", f"{names}: {name} is {mine.dtype}{mine.shape}, must be {theirs.dtype}{theirs.shape}"
        off = np.abs(mine - theirs).max(initial=0)
        if not off <= ROOM * max(1.0, np.abs(theirs).max(initial=0)):
            return "wrong", f"{names}: {name} is off by {off:.2g} of {np.abs(theirs).max():.2g}"
    return "pass", names


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="reference")
    arguments = parser.parse_args()
    verdicts: Counter[str] = Counter()
    for number in range(arguments.count):
        verdict, what = judge((arguments.seed, number), arguments.device)
        verdicts[verdict] += 1
        if verdict != "pass":
            print(f"#{number} {verdict}: {what[:300]}", flush=True)
    print(dict(verdicts))
    return 1 if verdicts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
