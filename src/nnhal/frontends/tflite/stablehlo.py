"""Entries of StableHLO's operators on single elements, which NNAPI has by other names."""

from nnhal.frontends.tflite.functions import cosine
from nnhal.frontends.tflite.integers import truncated_quotient
from nnhal.frontends.tflite.task import OperatorTask, entry
from nnhal.ops.schema import B8, I32

ONE = {"ABS": "ABS", "EXPONENTIAL": "EXP", "FLOOR": "FLOOR", "LOG": "LOG", "LOGISTIC": "LOGISTIC", "NEGATE": "NEG",
       "RSQRT": "RSQRT", "TANH": "TANH"}  # fmt: skip
TWO = {"ADD": "ADD", "SUBTRACT": "SUB", "MULTIPLY": "MUL", "MAXIMUM": "MAXIMUM", "MINIMUM": "MINIMUM", "POWER": "POW"}
TRUTH = {"AND": "LOGICAL_AND", "OR": "LOGICAL_OR"}
PREFIX = "STABLEHLO_"


@entry(*(PREFIX + name for name in ONE), single=True, becomes="the operation of that meaning")
def unary(t: OperatorTask) -> None:
    """One tensor."""
    t.give(ONE[t.name.removeprefix(PREFIX)], t.x(0))


@entry(*(PREFIX + name for name in TWO), inputs=2, single=True, becomes="the operation of that meaning")
def binary(t: OperatorTask) -> None:
    """Two tensors of equal shapes."""
    name = TWO[t.name.removeprefix(PREFIX)]
    t.give(name, t.x(0), t.x(1), **({"activation": 0} if name in ("ADD", "SUB", "MUL") else {}))


@entry(*(PREFIX + name for name in TRUTH), inputs=2, single=True, becomes="LOGICAL_AND, LOGICAL_OR")
def logic(t: OperatorTask) -> None:
    """Truth values; of integers they work on bits."""
    t.require(t.x(0).value.type == B8, "of integers works on bits, for which it is not imported yet")
    t.give(TRUTH[t.name.removeprefix(PREFIX)], t.x(0), t.x(1))


@entry("STABLEHLO_DIVIDE", inputs=2, single=True, becomes="DIV; of integers corrected to round towards 0")
def divide(t: OperatorTask) -> None:
    """Integers round towards 0."""
    x, y = t.x(0), t.x(1)
    if x.value.type == I32:
        t.result(0, truncated_quotient(t, x, y))
    else:
        t.give("DIV", x, y, activation=0)


entry("STABLEHLO_COSINE", single=True, becomes="1 - 2 SIN(x / 2)²")(cosine)
