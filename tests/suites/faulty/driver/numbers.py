"""Numbers that are wrong: within the contract, so that only who knows the right ones can see it."""

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.operands import Array, Value
from nnhal.ops.common import ACTIVATION_RANGE, padding
from nnhal.ops.schema import Bound

from .faults import CONTRACT, fault
from .healthy import Arithmetic

VALUES = "values"


@fault(
    "zero-point",
    "QUANTIZE's zero point is one too high, within the tolerance of the test vectors",
    "steps",
    (CONTRACT,),
    operation="QUANTIZE",
)
class ZeroPoint(Arithmetic):
    def quantise(self, a: Bound, x: Array) -> Array:
        stored = super().quantise(a, x)
        return np.where(stored < np.iinfo(stored.dtype).max, stored + 1, stored).astype(stored.dtype)


@fault(
    "rounds-down", "QUANTIZE truncates instead of rounding, within 1 LSB", "steps", (CONTRACT,), operation="QUANTIZE"
)
class RoundsDown(Arithmetic):
    def quantise(self, a: Bound, x: Array) -> Array:
        limits = np.iinfo(a.out.dtype)
        steps = np.floor(np.nan_to_num(x / np.float32(a.out.scale), nan=0.0)) + a.out.zero_point
        return np.clip(steps, limits.min, limits.max).astype(a.out.dtype)


class Requantised(Arithmetic):
    """Eight-bit results that are rounded otherwise; those of float32 are right."""

    def rounded(self, steps: Array) -> Array:
        raise NotImplementedError

    def finished(self, a: Bound, real: Array) -> Array:
        if not a.out.quantised:
            return super().finished(a, real)
        low, high = self.stored(a.out, np.array(ACTIVATION_RANGE[a.activation], np.float64)).tolist()
        steps = self.rounded(np.nan_to_num(real / a.out.scale)) + a.out.zero_point
        return np.clip(steps, low, high).astype(a.out.dtype)


@fault("one-step-high", "8-bit results are 1 LSB too high, within the bounds of their activation", "steps", (CONTRACT,))
class OneStepHigh(Requantised):
    def rounded(self, steps: Array) -> Array:
        return np.rint(steps) + 1


@fault("requantised-down", "8-bit results are rounded down", "steps", (CONTRACT,), operation="MUL")
class RequantisedDown(Requantised):
    def rounded(self, steps: Array) -> Array:
        return np.floor(steps)


@fault("requantised-to-zero", "8-bit results are truncated instead of rounded", "steps", (CONTRACT,), operation="MUL")
class RequantisedToZero(Requantised):
    def rounded(self, steps: Array) -> Array:
        return np.trunc(steps)


@fault("wraps-around", "values outside an 8-bit type's range wrap around", VALUES, operation="CONV_2D")
class WrapsAround(Arithmetic):
    def stored(self, value: Value, real: Array) -> Array:
        if not value.quantised:
            return super().stored(value, real)
        steps = np.nan_to_num(np.round(real / value.scale), nan=0.0, posinf=0.0, neginf=0.0) + value.zero_point
        return steps.astype(np.int64).astype(value.dtype)


@fault("scale-of-the-other", "the second input of ADD is taken to have the scale of the first", VALUES)
class OtherScale(Arithmetic):
    def add(self, a: Bound, x: Array, y: Array) -> Array:
        return self.finished(a, self.real(a, 0, x) + self.real(a, 0, y))


@fault("padding-other-side", "where SAME pads unevenly, the odd row and column come first", VALUES, operation="CONV_2D")
class PaddingOtherSide(Arithmetic):
    def padded(self, a: Bound, x: Array) -> Array:
        return np.pad(x, ((0, 0), padding(a, "h")[::-1], padding(a, "w")[::-1], (0, 0)))


@fault("border-repeated", "the padding repeats the picture's edge instead of being zero", VALUES, operation="CONV_2D")
class BorderRepeated(Arithmetic):
    def padded(self, a: Bound, x: Array) -> Array:
        return np.pad(x, ((0, 0), padding(a, "h"), padding(a, "w"), (0, 0)), "edge") if x.size else super().padded(a, x)


@fault("activation-ignored", "the fused activation is left out", VALUES, operation="MUL")
class ActivationIgnored(Arithmetic):
    def activated(self, a: Bound, real: Array) -> Array:
        return real


@fault("relu6-as-relu", "RELU6 has no upper end", VALUES, (CONTRACT,), operation="MUL")
class Relu6AsRelu(Arithmetic):
    def activated(self, a: Bound, real: Array) -> Array:
        return np.maximum(real, 0) if a.activation == Activation.RELU6 else super().activated(a, real)


@fault("axes-swapped", "height and width of square pictures are swapped", VALUES, (CONTRACT,), operation="CONV_2D")
class AxesSwapped(Arithmetic):
    def convolve(self, a: Bound, x: Array, weights: Array, bias: Array) -> Array:
        square = x.shape[1] == x.shape[2]
        return super().convolve(a, x.swapaxes(1, 2) if square else x, weights, bias)


@fault("bias-ignored", "CONV_2D adds no bias", VALUES, (CONTRACT,), operation="CONV_2D")
class BiasIgnored(Arithmetic):
    def convolve(self, a: Bound, x: Array, weights: Array, bias: Array) -> Array:
        return super().convolve(a, x, weights, np.zeros_like(bias))


@fault("half-precision", "float32 is computed as float16 without a declared relaxation", VALUES, (CONTRACT,))
class HalfPrecision(Arithmetic):
    def stored(self, value: Value, real: Array) -> Array:
        return super().stored(value, real if value.quantised else real.astype(np.float16))
