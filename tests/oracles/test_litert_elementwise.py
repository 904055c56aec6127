"""Elementwise operations, conversions and reductions against LiteRT's builtin kernels, drawn as in `test_formulas`.

Left to the formulas alone are float16, and what LiteRT computes otherwise than NNAPI defines: quantised comparisons,
MAXIMUM, MINIMUM and SELECT across scales (it wants one scale), HARD_SWISH in coarse fixed point, quantised
products that leave 16 bits. Nor are drawn for it sums that overflow to infinity, which it clips, infinite
elements to quantise, scales of which DEQUANTIZE loses bits, and sums whose scales lie far apart, which wrap around in it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnhal.base.operands import Array
from tests.ops.run import B8, F16, F32, I32, Q8, Q8PC, Q8S, Type, value
from tests.oracles.litert import TYPES, ask
from tests.oracles.strategies import POINTS, STABLE, Example, assert_agrees
from tests.oracles.test_formulas import (
    MILD,
    POSITIVE,
    SQUASHED,
    binary,
    cast,
    compared,
    from_steps,
    indexed,
    product,
    reduced,
    selected,
    to_steps,
    unary,
)

QUANT = (Q8, Q8S)
FUSED = partial(binary, fused=True)


@dataclass(frozen=True)
class Builtin:
    """How one operation is drawn, and LiteRT's name, options and constant inputs for it.

    scalar: which option the call's last input becomes; `axis`: a tensor instead.
    """

    name: str
    types: tuple[int, ...]
    draw: Callable[[int], st.SearchStrategy[Example]]
    builtin: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    scalar: str = ""
    const: tuple[int, ...] = ()

    def expected(self, example: Example) -> Array:
        options, tensors = dict(self.options), example.tensors
        if self.scalar == "axis":
            tensors.append(value(I32, [example.inputs[-1]]))
        elif self.scalar:
            options[self.scalar] = example.inputs[-1]
        y = ask(self.builtin or self.name, tensors, example.output, const=self.const, **options)
        return y.reshape(y.shape or (1,))


def fused(name: str, *types: int, draw: Any = FUSED, builtin: str = "") -> Builtin:
    table = {"table": name.capitalize()} if not builtin else {}
    scalar = "fusedActivationFunction" if not builtin else ""
    return Builtin(name, types, partial(draw, points=POINTS, wild=False), builtin, table, scalar)


def reduction(name: str, *types: int, builtin: str = "", **more: Any) -> Builtin:
    return Builtin(name, types, partial(reduced, **more), builtin, {"table": "Reducer"}, "keepDims", (1,))


def several(strategy: Callable[[int], st.SearchStrategy[Example]]) -> Callable[[int], st.SearchStrategy[Example]]:
    """Without the calls on one element: LiteRT takes such a condition for a scalar."""
    return lambda kind: strategy(kind).filter(lambda example: example.tensors[0].array.size > 1)


def single(strategy: Callable[[int], st.SearchStrategy[Example]]) -> Callable[[int], st.SearchStrategy[Example]]:
    """Without the calls whose output is float16."""
    return lambda kind: strategy(kind).filter(lambda example: example.output.type != F16)


INTO_ONE = {"table": "ArgMax", "outputType": TYPES[I32]}

BUILTINS = [
    fused("ADD", F32, I32, *QUANT),
    fused("SUB", F32, I32, *QUANT),
    fused("MUL", F32, I32, *QUANT, draw=partial(product, least=2)),
    fused("DIV", F32, draw=partial(FUSED, nonzero=True)),
    fused("DIV", I32, draw=partial(FUSED, nonzero=True), builtin="FLOOR_DIV"),
    Builtin("POW", (F32,), partial(binary, **MILD)),
    Builtin("MAXIMUM", (F32, I32), binary),
    Builtin("MINIMUM", (F32, I32), binary),
    Builtin("PRELU", (F32, *QUANT), partial(binary, narrower=True, wild=False, **MILD)),
    Builtin("ABS", (F32,), unary),
    Builtin("NEG", (F32, I32), unary),
    Builtin("SQRT", (F32,), partial(unary, points=POSITIVE)),
    Builtin("FLOOR", (F32,), unary),
    Builtin("RELU", (F32, *QUANT), partial(unary, same=True)),
    Builtin("RELU1", (F32, *QUANT), partial(unary, same=True), "RELU_N1_TO_1"),
    Builtin("RELU6", (F32, *QUANT), partial(unary, same=True)),
    Builtin("TANH", (F32, *QUANT), partial(unary, fixed=SQUASHED["TANH"])),
    Builtin("LOGISTIC", (F32, *QUANT), partial(unary, fixed=SQUASHED["LOGISTIC"])),
    Builtin("HARD_SWISH", (F32,), partial(unary, points={F32: POINTS})),
    Builtin("EQUAL", (F32, I32, B8), compared),
    Builtin("NOT_EQUAL", (F32, I32, B8), compared),
    Builtin("LESS", (F32, I32), compared),
    Builtin("LESS_EQUAL", (F32, I32), compared),
    Builtin("GREATER", (F32, I32), compared),
    Builtin("GREATER_EQUAL", (F32, I32), compared),
    Builtin("LOGICAL_OR", (B8,), compared),
    Builtin("LOGICAL_NOT", (B8,), unary),
    Builtin("SELECT", (F32, I32), several(selected)),
    Builtin("CAST", (F32, I32, Q8), single(cast)),
    Builtin("QUANTIZE", (F32,), partial(to_steps, ends=())),
    Builtin("DEQUANTIZE", (Q8, Q8S, Q8PC), single(partial(from_steps, exact=True))),
    reduction("REDUCE_SUM", F32, builtin="SUM"),
    reduction("REDUCE_PROD", F32, **MILD),
    reduction("REDUCE_MAX", F32, *QUANT),
    reduction("REDUCE_MIN", F32, *QUANT),
    reduction("REDUCE_ALL", B8),
    reduction("REDUCE_ANY", B8),
    reduction("MEAN", F32, *QUANT, number=True),
    Builtin("ARGMAX", (F32, I32, *QUANT), indexed, "ARG_MAX", INTO_ONE, "axis", (1,)),
    Builtin("ARGMIN", (F32, I32, *QUANT), indexed, "ARG_MIN", INTO_ONE | {"table": "ArgMin"}, "axis", (1,)),
]


@pytest.mark.parametrize(
    ("builtin", "kind"),
    [pytest.param(b, kind, id=f"{b.name}-{Type(kind).name}") for b in BUILTINS for kind in b.types],
)
@STABLE
@given(data=st.data())
def test_operation_agrees_with_litert(builtin: Builtin, kind: int, data: st.DataObject) -> None:
    example = data.draw(builtin.draw(kind))
    assert_agrees(builtin.name, example, builtin.expected(example))
