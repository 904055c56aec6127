"""A driver that is right: six operations on float32 and 8-bit tensors, in numpy. Every fault is a change of a part of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nnhal.base.codes import OperandType
from nnhal.base.errors import ResourceExhausted
from nnhal.base.operands import Array, Value
from nnhal.hal.device import YES, Capabilities, Device, Hints, Prepared, Verdict
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import CONSTANTS, Model
from nnhal.model.validate import validate
from nnhal.ops.common import ACTIVATION_RANGE, encode, padding
from nnhal.ops.schema import Bound

TYPES = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
CONTEXTS = 1024  # prepared models at once


class Arithmetic:
    """What operations compute: on real values, which are stored again at the end."""

    def supported(self) -> Mapping[str, Callable[..., Array]]:
        """The kernels by operation; each takes a bound operation and its tensors, as stored."""
        return {
            "ADD": self.add,
            "MUL": self.multiply,
            "RELU": self.relu,
            "CONV_2D": self.convolve,
            "QUANTIZE": self.quantise,
            "DEQUANTIZE": self.dequantise,
        }

    def add(self, a: Bound, x: Array, y: Array) -> Array:
        return self.finished(a, self.real(a, 0, x) + self.real(a, 1, y))

    def multiply(self, a: Bound, x: Array, y: Array) -> Array:
        return self.finished(a, self.real(a, 0, x) * self.real(a, 1, y))

    def relu(self, a: Bound, x: Array) -> Array:
        real = self.real(a, 0, x)
        return self.stored(a.out, np.where(real < 0, 0, real))

    def convolve(self, a: Bound, x: Array, weights: Array, bias: Array) -> Array:
        padded = self.padded(a, self.real(a, 0, x))
        reach = [(getattr(a, f"filter_{axis}") - 1) * getattr(a, f"dilation_{axis}") + 1 for axis in "hw"]
        seen = sliding_window_view(padded, reach, (1, 2))[
            :, :: a.stride_h, :: a.stride_w, :, :: a.dilation_h, :: a.dilation_w
        ]
        products = np.einsum("nyxcij,oijc->nyxo", seen, self.real(a, 1, weights), dtype=np.float64, optimize=True)
        return self.finished(a, products + self.real(a, 2, bias))

    def quantise(self, a: Bound, x: Array) -> Array:
        return self.stored(a.out, np.where(np.isnan(x), np.float32(0), x))

    def dequantise(self, a: Bound, x: Array) -> Array:
        return self.stored(a.out, self.real(a, 0, x))

    # ------------------------------------------------------------------------------------------------ what faults change

    def real(self, a: Bound, place: int, x: Array) -> Array:
        """The real values of a tensor that goes in: float32 as they are, quantised ones in float64."""
        value = a.inputs[place][1]
        assert isinstance(value, Value)
        return (x.astype(np.float64) - value.zero_point) * value.scale if value.scale else x

    def finished(self, a: Bound, real: Array) -> Array:
        """With the fused activation, stored."""
        return self.stored(a.out, self.activated(a, real))

    def activated(self, a: Bound, real: Array) -> Array:
        return np.clip(real, *ACTIVATION_RANGE[a.activation])

    def stored(self, value: Value, real: Array) -> Array:
        return encode(value, real)

    def padded(self, a: Bound, x: Array) -> Array:
        """Pictures with zeros around them."""
        return np.pad(x, ((0, 0), padding(a, "h"), padding(a, "w"), (0, 0)))


class Engine(Prepared):
    """A prepared model: operation by operation. Keeps no state between executions."""

    def __init__(self, device: "Healthy", model: Model) -> None:
        self.device, self.main = device, model.main
        self.bound = validate(model).subgraphs[0].operations
        self.constants = {i: model.constant(o) for i, o in enumerate(self.main.operands) if o.lifetime in CONSTANTS}
        self.kernels = device.arithmetic.supported()

    def run(self, request: Request, control: Control) -> Timing | None:
        self.give(request, self.computed(request.inputs, control))
        return None

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        """The outputs."""
        arrays: dict[int, Any] = {**self.constants, **dict(zip(self.main.inputs, inputs, strict=True))}
        with np.errstate(all="ignore"):
            for operation, a in zip(self.main.operations, self.bound, strict=True):
                control.check()
                tensors = a.form.tensors([arrays.get(i) for i in operation.inputs])
                arrays[operation.outputs[0]] = self.kernels[a.op.name](a, *tensors)
        return [arrays[i] for i in self.main.outputs]

    def give(self, request: Request, results: Sequence[Array]) -> None:
        for place, result in enumerate(results):
            request.write(place, result)

    def close(self) -> None:
        self.device.contexts -= 1


class Healthy(Device):
    """The device."""

    name = "healthy"
    version = "1"
    engine: type[Engine] = Engine
    arithmetic = Arithmetic()
    contexts = 0

    def capabilities(self) -> Any:
        return Capabilities.uniform(0.1)

    def supports(self, model: Model) -> Any:
        return [self.judged(a) for a in validate(model).subgraphs[0].operations]

    def judged(self, a: Bound | None) -> Verdict:
        """Whether it can run an operation."""
        if a is None or a.op.name not in self.arithmetic.supported():
            return Verdict(False, f"only {', '.join(self.arithmetic.supported())}")
        tensors = [
            value for _, value in a.inputs[:2] if isinstance(value, Value)
        ]  # a bias is of the type that goes with it
        if any(value.type not in TYPES or value.channel for value in (*tensors, *a.outs)):
            return Verdict(False, "only float32 and 8-bit asymmetric tensors")
        if a.deferred or any(value.shape is None or None in value.shape for value in tensors):
            return Verdict(False, "only what is known before the execution")
        return Verdict(False, "only NHWC") if a.op.name == "CONV_2D" and a.nchw else YES

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        if self.contexts >= CONTEXTS:
            raise ResourceExhausted(
                f"device {self.name}: has {CONTEXTS} prepared models, which is all that it can have"
            )
        prepared = self.engine(self, model)
        self.contexts += 1
        return prepared
