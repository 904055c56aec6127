"""Random chains of quantised operations, for drivers whose forms of several operations meet in one graph."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import nnhal
from nnhal.base.codes import operation_name
from nnhal.base.operands import Array, ChannelQuant
from nnhal.frontends.tensor import Tensor
from nnhal.model.graph import Model
from nnhal.model.parts import extract_part, live_operands

KINDS: dict[str, type[np.integer[Any]]] = {
    "TENSOR_QUANT8_ASYMM": np.uint8,
    "TENSOR_QUANT8_ASYMM_SIGNED": np.int8,
}
BENT = "none", "relu", "relu1", "relu6"  # activations
HALVES = 2  # steps that halves, rounded up here and down there, may add up to in a chain
Run = Callable[[Model, Sequence[Array]], Sequence[Array]]


class Chain:
    """A model in the making: `tensors` are pictures of one type, all of them made of `x`."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.kind = str(self.rng.choice([*KINDS]))
        limits = np.iinfo(KINDS[self.kind])
        self.low, self.high = int(limits.min), int(limits.max)
        self.b = nnhal.Builder()
        shape = (1, *(int(n) for n in self.rng.integers(4, 9, 2)), int(self.rng.choice([3, 8, 16])))
        self.x = self.b.input(shape, self.kind, scale=self.scale(0.02), zero_point=self.zero())
        self.tensors = [self.x]

    def scale(self, about: float) -> float:
        return float(np.float32(about * 2 ** self.rng.uniform(-1, 1)))

    def zero(self) -> int:
        """An end, the middle, or somewhere."""
        anywhere, middle = int(self.rng.integers(self.low, self.high + 1)), (self.low + self.high + 1) // 2
        return int(self.rng.choice([self.low, self.high, middle, anywhere]))

    def stored(self, shape: tuple[int, ...]) -> Array:
        """The type's ends, or anything."""
        anything = self.rng.integers(self.low, self.high + 1, shape)
        ends = self.rng.choice([self.low, self.high], shape)
        return (ends if self.rng.random() < 0.3 else anything).astype(KINDS[self.kind])

    def finish(self) -> tuple[Model, Array]:
        """The model, and an input; its output is what was made last."""
        return self.b.finish([self.x], [self.tensors[-1]]), self.stored(tuple(self.x.value.known))

    def add(self) -> None:
        """One operation more, on what was made last or before."""
        rng, b = self.rng, self.b
        x = self.tensors[-1] if rng.random() < 0.7 else self.tensors[int(rng.integers(len(self.tensors)))]
        others = [t for t in self.tensors if t.value.known == x.value.known]
        other = others[int(rng.integers(len(others)))]
        kinds = ["conv", "scalar"] * 3 + ["depthwise", "pair", "float", "move"] * 2
        kinds += ["dense", "join", "pool", "curve", "mean"]
        kind = str(rng.choice(kinds))
        same: dict[str, Any] = {"scale": x.value.scale, "zero_point": x.value.zero_point}
        made: dict[str, Any] = {"scale": self.scale(x.value.scale), "zero_point": self.zero()}
        if kind in ("conv", "depthwise"):
            y = self.layer(x, kind)
        elif kind == "pair":
            name = str(rng.choice(["add", "sub", "mul"]))
            about = x.value.scale * other.value.scale * 100 if name == "mul" else x.value.scale + other.value.scale
            more = {"activation": str(rng.choice(BENT))}
            y = getattr(b, name)(x, other, **more, scale=self.scale(about), zero_point=self.zero())
        elif kind == "scalar":
            y = self.scalar(x, str(rng.choice(["add", "sub", "mul", "maximum", "minimum", "prelu"])))
        elif kind == "dense":
            y = self.dense(x)
        elif kind == "join":
            alike = (x.value.scale, x.value.zero_point) == (other.value.scale, other.value.zero_point)
            y = b.concatenation([x, other], 3, **(same if alike else made))
        elif kind == "pool":
            name = str(rng.choice(["average_pool_2d", "max_pool_2d"]))
            y = getattr(b, name)(x, padding=str(rng.choice(["same", "valid"])), filter_size=2, **same)
        elif kind == "move":
            y = self.moved(
                x,
                str(
                    rng.choice(
                        [
                            "pad",
                            "transpose",
                            "reshape",
                            "resize",
                            "slice",
                            "split",
                            "depth",
                            "shuffle",
                            "gather",
                            "batch",
                        ]
                    )
                ),
            )
        elif kind == "curve":
            y = self.curve(x, str(rng.choice(["relu", "relu6", "logistic", "tanh"])))
        elif kind == "mean":
            spread = b.mean(x, np.array([1, 2], np.int32), True, **same)
            y = b.sub(x, spread, scale=self.scale(x.value.scale), zero_point=self.zero())
        else:
            names = [
                "prelu",
                "resize_bilinear",
                "transpose_conv_2d",
                "softmax",
                "maximum",
                "l2_normalization",
                "reduce_max",
            ]
            y = self.unproved(x, other, str(rng.choice(names)))
        if np.prod(y.value.known) < 20_000 and min(y.value.known[1:3]) > 1:
            self.tensors.append(y)

    def scalar(self, x: Tensor, name: str) -> Tensor:
        """Arithmetic with a number: several of a model are stored alike, with scales of their own."""
        rng, b = self.rng, self.b
        stored, zero = (int(n) for n in rng.permutation([self.low, self.high]))
        real = float(rng.choice([0.5, 1.5, 2.0])) * (1.0 if name in ("mul", "prelu") else x.value.scale * 100)
        scale = float(np.float32(real / abs(stored - zero)))
        c = b.constant(np.full((1,), stored, KINDS[self.kind]), self.kind, scale=scale, zero_point=zero)
        about = x.value.scale * real if name == "mul" else x.value.scale + (name != "prelu") * scale
        more = {"activation": str(rng.choice(BENT))} if name in ("add", "sub", "mul") else {}
        return getattr(b, name)(x, c, **more, scale=self.scale(about), zero_point=self.zero())

    def dense(self, x: Tensor) -> Tensor:
        """A layer of pixels, or of single elements; its result is a picture of as many."""
        rng, b, shape = self.rng, self.b, tuple(x.value.known)
        size, units = (1, 1) if rng.random() < 0.5 else (shape[3], int(rng.choice([1, 3, 8])))
        rows = b.reshape(x, np.array([-1, size], np.int32))
        scale, zero = float(np.float32(2.0 ** rng.uniform(-9, -7) / size)), (self.low + self.high + 1) // 2
        w = b.constant(self.stored((units, size)), self.kind, scale=scale, zero_point=zero)
        bias_scale = float(np.float32(np.float32(x.value.scale) * np.float32(scale)))
        bias = b.constant(rng.integers(-3000, 3000, units).astype(np.int32), "TENSOR_INT32", scale=bias_scale)
        out = {"scale": max(self.scale(x.value.scale), 1.01 * bias_scale), "zero_point": self.zero()}
        y = b.fully_connected(rows, w, bias, activation=str(rng.choice(BENT)), **out)
        return b.reshape(y, np.array([*shape[:3], shape[3] // size * units], np.int32))

    def layer(self, x: Tensor, kind: str) -> Tensor:
        """A convolution."""
        rng, depth = self.rng, x.value.known[3]
        size, units = int(rng.choice([1, 1, 3])), depth if kind == "depthwise" else int(rng.choice([1, 5, 8, 16]))
        shape = (1, size, size, depth) if kind == "depthwise" else (units, size, size, depth)
        more: dict[str, Any] = {"depth_multiplier": 1} if kind == "depthwise" else {}
        count = size**2 * (1 if kind == "depthwise" else depth)
        least = x.value.scale / 256 / count**0.5
        if rng.random() < 0.7:
            scales = tuple(float(np.float32(least * 2 ** rng.uniform(-1, 1))) for _ in range(units))
            quant = ChannelQuant(scales, 3 if kind == "depthwise" else 0)
            stored = rng.integers(-127, 128, shape).astype(np.int8)
            weights = self.b.constant(stored, "TENSOR_QUANT8_SYMM_PER_CHANNEL", channel=quant)
            bias_scale = 0.0
        else:
            weights = self.b.constant(self.stored(shape), self.kind, scale=least, zero_point=self.zero())
            bias_scale = float(np.float32(x.value.scale * weights.value.scale))
        bias = self.b.constant(rng.integers(-3000, 3000, units).astype(np.int32), "TENSOR_INT32", scale=bias_scale)
        more |= {"stride": int(rng.choice([1, 1, 2])), "padding": str(rng.choice(["same", "same", "valid"]))}
        if size > min(x.value.known[1:3]):
            more["padding"] = "same"
        more |= {"activation": str(rng.choice(BENT))}
        out = {"scale": self.scale(x.value.scale * 0.3), "zero_point": self.zero()}
        return getattr(self.b, f"{kind}_2d" if kind == "conv" else "depthwise_conv_2d")(x, weights, bias, **more, **out)

    def unproved(self, x: Tensor, other: Tensor, name: str) -> Tensor:
        """What has no form of 8 bits in most drivers."""
        b, kind, shape = self.b, self.kind, tuple(x.value.known)
        made: dict[str, Any] = {"scale": self.scale(x.value.scale), "zero_point": self.zero()}
        if name == "prelu":
            return b.prelu(x, b.constant(self.stored((shape[3],)), kind, scale=0.002, zero_point=self.zero()), **made)
        if name == "resize_bilinear":
            return b.resize_bilinear(x, out_w=shape[2] + 1, out_h=2 * shape[1])
        if name == "transpose_conv_2d":
            w = b.constant(self.stored((5, 2, 2, shape[3])), kind, scale=0.002, zero_point=self.zero())
            scale = float(np.float32(np.float32(x.value.scale) * np.float32(0.002)))
            bias = b.constant(np.arange(5, dtype=np.int32), "TENSOR_INT32", scale=scale)
            return b.transpose_conv_2d(x, w, bias, padding=((0, 0), (0, 0)), nchw=False, **made)
        if name == "softmax":
            return b.softmax(x, 1.0, scale=1 / 256, zero_point=self.low)
        if name == "l2_normalization":
            return b.l2_normalization(x, scale=1 / 128, zero_point=(self.low + self.high + 1) // 2)
        if name == "maximum":
            return b.maximum(x, other, **made)
        most = b.reduce_max(x, np.array([1], np.int32), True)
        return b.add(x, most, scale=2 * x.value.scale, zero_point=self.zero())

    def moved(self, x: Tensor, kind: str) -> Tensor:
        """The elements elsewhere."""
        b, shape = self.b, tuple(x.value.known)
        if kind == "pad":
            return b.pad(x, np.array([[0, 0], [1, 0], [0, 1], [0, 0]], np.int32))
        if kind == "transpose":
            return b.transpose(x, np.array([0, 2, 1, 3], np.int32))
        if kind == "reshape":
            return b.reshape(x, np.array([shape[0], shape[2], shape[1], shape[3]], np.int32))
        if kind == "resize":
            return b.resize_nearest_neighbor(x, out_w=2 * shape[2], out_h=2 * shape[1], nchw=False)
        if kind == "split" and shape[3] % 2 == 0:
            return b.split(x, 3, 2, outputs=2)[int(self.rng.integers(2))]
        if kind == "depth" and shape[3] % 4 == 0:
            return b.depth_to_space(x, 2)
        if kind == "shuffle" and shape[3] % 2 == 0:
            return b.channel_shuffle(x, 2, 3)
        if kind == "gather":
            return b.gather(x, 2, np.array([1, 0, 1], np.int32))
        if kind == "batch" and shape[1] % 2 == 0 and shape[2] % 2 == 0 and shape[0] == 1:
            return b.space_to_batch_nd(x, np.array([2, 2], np.int32), np.zeros((2, 2), np.int32))
        begin, end = np.array([0, 1, 0, 0], np.int32), np.array(shape, np.int32)
        return b.strided_slice(x, begin, end, np.array([1, 1, 1, 1], np.int32), 0, 0, 0)

    def curve(self, x: Tensor, kind: str) -> Tensor:
        """A function of each element."""
        zero = {"logistic": self.low, "tanh": (self.low + self.high + 1) // 2}
        if kind in zero:
            return getattr(self.b, kind)(x, scale=1 / 256 if kind == "logistic" else 1 / 128, zero_point=zero[kind])
        return getattr(self.b, kind)(x)


def chain(seed: int, length: int) -> tuple[Model, Array]:
    """A model of some operations, and an input, the same for a seed."""
    made = Chain(seed)
    while len(made.tensors) <= length:
        made.add()
    return made.finish()


def steps(found: Array, wanted: Array) -> int:
    """How many steps two quantised tensors are apart at most."""
    return int(np.abs(found.astype(int) - wanted).max())


def require_within_a_step(model: Model, x: Array, run: Run, expected: Run) -> None:
    """Each operation is within a step of what is expected of its own inputs; what the chain gives hardly depends on whether
    somebody looks at what lies between.
    """
    operations = live_operands(model)
    whole = extract_part(model, operations, also=[i for n in operations for i in model.main.operations[n].outputs])
    known = {model.main.inputs[0]: x, **dict(zip(whole.outputs, run(whole.model, [x]), strict=True))}
    for number in operations:
        one = extract_part(model, [number])
        for place, wanted in zip(one.outputs, expected(one.model, [known[i] for i in one.inputs]), strict=True):
            name = operation_name(model.main.operations[number].type)
            assert steps(known[place], wanted) <= 1, (number, name)
    assert steps(run(model, [x])[0], known[model.main.outputs[0]]) <= HALVES
