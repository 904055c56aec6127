"""Sums and products with constants, one after the other, whose constants a compiler must not join.

`(x + a) * b` is `x * b + a * b` for numbers, but not in float32: with a great `a * b`, what is added next is lost. The
attention mask `(1 - x) * -3.4e38` before a bias is such a sequence. Here each operation is exact or rounded once, so that
every device that computes one after the other has the same results.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnhal.base.operands import Array
from nnhal.conformance.evaluation import Evaluated
from nnhal.conformance.suites.random.trials import Subjects, prepared, run
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.ops import OPS
from nnhal.ops.schema import F32, INT32

SHAPE = 3, 5
GREATEST = float(np.finfo(np.float32).max)
CLOSE = 1e-3  # of a result, or of 1 if that is greater


class SumOrProduct(NamedTuple):
    """ADD, SUB or MUL with a constant, which a SUB may have first."""

    name: str
    constant: Array
    constant_first: bool = False

    def __call__(self, x: Array) -> Array:
        given = (self.constant, x) if self.constant_first else (x, self.constant)
        with np.errstate(all="ignore"):
            return np.asarray({"ADD": np.add, "SUB": np.subtract, "MUL": np.multiply}[self.name](*given))


def _mask(rng: np.random.Generator) -> list[SumOrProduct]:
    """Return a mask that is 0 where the input is 1, and a small number that is added to it."""
    sign, greatest = rng.choice([-1, 1]), rng.choice([1e9, 2.0**100, GREATEST])
    bias = rng.integers(-64, 64, SHAPE[-1]) / 8 + 0.125
    first = [("SUB", 1, True), ("SUB", 1, False), ("ADD", -1, False)][int(rng.integers(3))]
    return _sequence([first, ("MUL", sign * greatest, False), ("ADD", bias, False)])


def _rounding(rng: np.random.Generator) -> list[SumOrProduct]:
    """Return a factor with a fraction, and two sums that round it to a whole number, even or a multiple of four."""
    great = 1.5 * 2.0 ** rng.integers(23, 26)
    back = [("SUB", great, False), ("ADD", -great, False)][int(rng.integers(2))]
    return _sequence([("MUL", rng.integers(2, 20) + 3 / 7, False), ("ADD", great, False), back])


def _small_behind_great(rng: np.random.Generator) -> list[SumOrProduct]:
    """Return a sum with a great number, one with its negative, and one with a small number."""
    great = 2.0**23 * rng.choice([-1, 1])
    return _sequence([("ADD", great, False), ("ADD", -great, False), ("ADD", rng.choice([0.25, 0.5, -0.25]), False)])


def _long_mask(rng: np.random.Generator) -> list[SumOrProduct]:
    """Return a mask whose great number is the product of several, and a small number that is added to it."""
    factors = rng.choice([10.0, 100.0, 1000.0], 6)
    return _sequence([("ADD", -1, False), *(("MUL", factor, False) for factor in factors), ("ADD", 0.125, False)])


def _sequence(given: Sequence[tuple[str, float | Array, bool]]) -> list[SumOrProduct]:
    return [SumOrProduct(name, np.atleast_1d(np.asarray(number, np.float32)), first) for name, number, first in given]


KINDS = _mask, _rounding, _small_behind_great, _long_mask


def drawn(rng: np.random.Generator, number: int) -> list[SumOrProduct]:
    """Draw a sequence of the kind that the number chooses."""
    return KINDS[number % len(KINDS)](rng)


def model_of(sequence: Sequence[SumOrProduct]) -> Model:
    """Make the model of a sequence: one input and one output `[3, 5]`, float32."""
    b = ModelBuilder("constants")
    current = given = b.operand(F32, SHAPE)
    activation = b.constant(INT32, 0)
    for each in sequence:
        pair = [current, b.constant(F32, each.constant)]
        current = b.operand(F32, SHAPE)
        b.operation(OPS[each.name].code, [*(reversed(pair) if each.constant_first else pair), activation], [current])
    return b.finish([given], [current])


def difference(s: Subjects, sequence: Sequence[SumOrProduct]) -> str:
    """Run a sequence; return how a result differs from that of its operations one by one, "" if none does."""
    with prepared(s) as made:
        for (x,) in s.sets:
            wanted = x
            for each in sequence:
                wanted = each(wanted)
            room = CLOSE * np.maximum(np.abs(wanted), 1)
            problem = Evaluated((wanted,), (room,)).differences(run(made, [x]))
            if problem:
                said = ", ".join(f"{each.name} {_text(each.constant)}" for each in sequence)
                return f"{problem} after {said}"
    return ""


def inputs(rng: np.random.Generator) -> list[list[Array]]:
    """Draw two inputs: all elements 1, and a few others."""
    ones = np.ones(SHAPE, np.float32)
    return [[ones], [np.where(rng.random(SHAPE) < 0.7, ones, 0).astype(np.float32)]]


def _text(constant: Array) -> str:
    return f"{constant[0]:.6g}" if constant.size == 1 else f"[{constant[0]:.6g}, ...]"
