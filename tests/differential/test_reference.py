"""The reference kernels against oracles of their own, for every operation, form, type and class of values."""

from collections.abc import Sequence

import numpy as np
import pytest

from nnhal.base.operands import Array, Value, dtype_of, quantised
from nnhal.conformance.differential import bind_call, compare, kernel_outputs, open_masks
from nnhal.conformance.draw import Call, Cell, cells, draw
from nnhal.ops.schema import output_at
from tests.comparing import as_code
from tests.differential import EXACT, ORACLES, ask
from tests.differential.drawing import DRAWS, seeds
from tests.differential.oracle import PROPERTIES, STEPS, Unknown, arguments


def stored(value: Value, shape: tuple[int, ...], x: Array) -> Array:
    """The elements of an output's type that stand for real numbers: quantised ones rounded and saturated."""
    dtype = dtype_of(value.type)
    if not quantised(value.type):
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(x).astype(dtype).reshape(shape)
    limits = np.iinfo(dtype)
    steps = np.nan_to_num(x / np.float64(value.scale), nan=0.0)
    return np.clip(np.rint(steps) + value.zero_point, limits.min, limits.max).astype(dtype).reshape(shape)


def rescaled(call: Call, number: int) -> bool:
    """Whether an output's scale or zero point is free, and another than those of the inputs."""
    value, rule = call.outputs[number], output_at(call.cell.op, number).quant
    own = value.scale, value.zero_point
    return rule is None and any(v is not None and v.quantised and (v.scale, v.zero_point) != own for v in call.inputs)


def inexact(call: Call, wanted: Sequence[Array], made: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> str:
    """Where an operation that only moves elements gives others than those that went in, or in another shape."""
    if call.cell.op.name not in EXACT:
        return ""
    masks = open_masks(call, len(made))
    for number, (w, m, mask, shape) in enumerate(zip(wanted, made, masks, shapes, strict=True)):
        if m.shape != shape:
            return f"output {number} has shape {list(m.shape)}, must have {list(shape)}"
        same = (w == m) | (np.isnan(w) & np.isnan(m)) | mask
        if not rescaled(call, number) and not same.all():
            return f"output {number} is not exact in {int((~same).sum())} of {same.size}"
    return ""


def near(call: Call, wanted: Sequence[Array], made: Sequence[Array]) -> list[Array]:
    """What an oracle of real numbers wants, but what was made where that is as near as rounding on the way allows."""
    found = []
    for w, m, steps in zip(wanted, made, STEPS.get(call.cell.op.name, [0] * len(made)), strict=True):
        same = w.shape == m.shape
        found.append(np.where(np.abs(w.astype(np.int64) - m) <= steps, m, w) if steps and same else w)
    return found


def problem(call: Call) -> str:
    made = kernel_outputs(call)
    a = bind_call(call)
    wanted = [
        None if x is None else stored(v, np.shape(x) if s is None or None in s else s, np.asarray(x))
        for v, s, x in zip(call.outputs, a.shapes, ask(call), strict=True)
    ]
    kept = [m if w is None else w for m, w in zip(made, wanted, strict=True)]
    kept = near(call, kept, made)
    holds = PROPERTIES.get(call.cell.op.name, lambda c, outputs: "")
    return (
        compare(call, kept, made)
        or holds(arguments(call), made)
        or inexact(call, kept, made, [np.shape(x) for x in ask(call)])
    )


def smallest(cell: Cell) -> str:
    """The calls of a cell that disagree: the one with the fewest elements, as Builder code."""
    rng = np.random.default_rng(seeds(cell))
    found, compared = [], 0
    while compared < DRAWS:
        call = draw(cell, rng)
        try:
            why = problem(call)
        except Unknown:
            continue
        compared += 1
        if why:
            found.append((sum(v.array.size for v in call.inputs if v is not None), why, call))
    if not found:
        return ""
    _, why, call = min(found, key=lambda entry: entry[0])
    return f"{len(found)} of {DRAWS} differ: {why}\n{as_code(call)}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", dict.fromkeys(cell.op.name for cell in cells()))
def test_reference_agrees_with_its_oracle(name: str) -> None:
    assert name in ORACLES, f"{name} has no oracle"
    problems = [f"{cell}: {why}" for cell in cells([name]) if (why := smallest(cell))]
    assert not problems, "\n".join(problems)
