"""What every operation makes of real numbers, written apart from the reference: formulas in float64, scipy, exact integers.

An oracle is a function of the call's arguments by name: `oracle(c)` with `c.input` the numbers that a tensor stands for, in
float64 (integers and booleans as they are), `c.axis` a scalar, None for what is omitted, a list for a variadic argument. It
gives the numbers of the output, or a tuple of them; None for one that it says nothing of.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.conformance.draw import Call


class Unknown(Exception):
    """The oracle cannot say how far a correct result may be off: rounding on the way changes it much."""


ORACLES: dict[str, Callable[[SimpleNamespace], Any]] = {}
# Of operations that round on the way: how many steps of each output may lie between them and real numbers; with a reason.
STEPS: dict[str, tuple[int, ...]] = {}
# Of operations whose contents no formula gives: what is wrong with the outputs of a call, "" for nothing.
PROPERTIES: dict[str, Callable[[SimpleNamespace, list[Array]], str]] = {}
EXACT: set[str] = set()


def oracle(*names: str, exact: bool = False) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Make a function the oracle of operations; exact: of those that move elements, or pick them, and compute none."""
    if exact:
        EXACT.update(names)

    def add(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        for name in names:
            assert name not in ORACLES
            ORACLES[name] = function
        return function

    return add


def real(v: Value) -> Array:
    """The numbers that a tensor stands for, in float64; integers and booleans as they are."""
    x = np.asarray(v.array)
    if v.channel is not None:
        along = [-1 if axis == v.channel.axis else 1 for axis in range(x.ndim)]
        return x * np.reshape(np.asarray(v.channel.scales, np.float64), along)
    if v.quantised:
        return (x.astype(np.float64) - v.zero_point) * v.scale
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def arguments(call: Call) -> SimpleNamespace:
    """The arguments of a call by name. `name`: the operation's; `values`: the same as Values; `outs`: the outputs."""
    found: dict[str, Any] = {"name": call.cell.op.name, "values": {}, "outs": call.outputs, "kind": call.cell.kind}
    for argument, start, end in call.bound.form.slots(len(call.inputs)):
        given = list(call.inputs[start:end])
        found["values"][argument.name] = given if argument.many is not None else given[0] if given else None
        if argument.many is not None:
            found[argument.name] = [real(v) for v in given if v is not None]
        elif not given:
            found[argument.name] = argument.default
        elif given[0] is None:
            found[argument.name] = None
        elif argument.scalar:
            number = given[0].array.item()
            found[argument.name] = argument.enum(number) if argument.enum is not None else number
        else:
            found[argument.name] = real(given[0])
    return SimpleNamespace(**found)


def ask(call: Call) -> list[Array | None]:
    """What the outputs of a call must be, as real numbers in float64, or as integers and booleans."""
    with np.errstate(all="ignore"):
        made = ORACLES[call.cell.op.name](arguments(call))
    return list(made) if isinstance(made, tuple) else [made]


LIMITS = ((-np.inf, np.inf), (0, np.inf), (-1, 1), (0, 6))


def activated(c: SimpleNamespace, x: Array) -> Array:
    """The fused activation of a call."""
    low, high = LIMITS[int(c.activation)]
    return np.where(np.isnan(x), x, np.clip(x, low, high))


def nhwc(c: SimpleNamespace, x: Array) -> Array:
    """A picture as NHWC, whatever the call's layout is."""
    return np.moveaxis(x, 1, -1) if c.nchw else x


def laid_out(c: SimpleNamespace, x: Array) -> Array:
    """A picture in NHWC as the call wants it."""
    return np.moveaxis(x, -1, 1) if c.nchw else x
