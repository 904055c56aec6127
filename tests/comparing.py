"""Comparison of a device with the reference on drawn calls, and a differing call as code."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import cycle, islice

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.errors import ContractBroken, DriverFailed, NnhalError
from nnhal.base.operands import Value
from nnhal.base.records import Record
from nnhal.conformance.differential import OPEN, THREADS, arrays_of, compare_outputs, model_of, run, with_other_values
from nnhal.conformance.draw import Call, Cell, draw
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Device, Hints, Prepared


class Result(Record, frozen=True):
    """The result of one draw: "agrees", "refused" with the verdict's reason, or "differs" with the difference."""

    call: Call
    outcome: str
    reason: str = ""


def compare_device(
    device: Device, reference: Device, cell: Cell, rng: np.random.Generator, draws: int, reruns: int = 4
) -> Iterator[Result]:
    """Draw calls of one cell and compare a device with the reference; each supported model runs `reruns` times.

    Models are compiled for each number of THREADS alternately. The first number is drawn separately, so `rng` draws the
    same calls.
    """
    threads = islice(cycle(THREADS), int(rng.spawn(1)[0].integers(len(THREADS))), None)
    while draws > 0:
        call = draw(cell, rng, open=bool(rng.random() < OPEN))
        model = model_of(call)
        hints = Hints(threads=next(threads))
        claims = consider_support(device, model, hints)
        refused = [*claims.refused().values()]
        if refused:
            claims.release_work()
            draws -= 1
            yield Result(call, "refused", refused[0])
            continue
        with ExitStack() as held:
            held.callback(claims.release_work)
            mine = held.enter_context(closing(checked_prepared(reference, model, Hints())))
            try:
                theirs = held.enter_context(closing(checked_prepared(device, model, claims.hints(hints))))
            except NnhalError as error:
                draws -= 1
                yield Result(call, "differs", f"supports() accepts it, but prepare() fails: {error}")
                continue
            for _ in range(min(reruns, draws)):
                draws -= 1
                yield run_both(device, mine, theirs, call)
                call = with_other_values(call, rng)


def run_both(device: Device, mine: Prepared, theirs: Prepared, call: Call) -> Result:
    """Execute once on both."""
    try:
        wanted = run(mine, arrays_of(call))
    except (DriverFailed, ContractBroken):  # a fault of the reference
        raise
    except NnhalError as error:
        wanted, expected = [], error
    try:
        actual = run(theirs, arrays_of(call))
    except NnhalError as error:
        if not wanted and not isinstance(error, DriverFailed | ContractBroken):
            return Result(call, "agrees", f"both fail: {error}")
        return Result(call, "differs", f"fails: {error}")
    if not wanted:
        return Result(call, "differs", f"runs, must fail: {expected}")
    problem = compare_outputs(call, wanted, actual, device.relaxations)
    return Result(call, "differs" if problem else "agrees", problem)


def as_code(call: Call) -> str:
    """Return Builder code for a call that makes `model` and `inputs`."""
    lines = ["import numpy as np", "from numpy import inf, nan", "from nnhal import Builder, ChannelQuant"]
    lines += ["", "b = Builder()"]
    arguments, given = [], []
    for argument, start, end in call.bound.form.slots(len(call.inputs)):
        names = []
        for place in range(start, end):
            value = call.inputs[place]
            names.append("None" if value is None else value_text(value) if argument.scalar else f"x{place}")
            if value is None or argument.scalar:
                continue
            if place in call.given and value.channel is None:
                described = f"{value.known}, {kind(value)}"
                given.append((f"x{place}", value_text(value)))
                lines.append(f"x{place} = b.input({described})")
            else:
                lines.append(f"x{place} = b.constant({value_text(value)}, {kind(value)})")
        if names:
            arguments.append(
                f"{argument.name}={'[' + ', '.join(names) + ']' if argument.many is not None else names[0]}"
            )
    kinds = ", ".join(repr(OperandType(v.type).name) for v in call.outputs)
    scales, zeros = [v.scale or None for v in call.outputs], [v.zero_point for v in call.outputs]
    arguments += [f"out_type=[{kinds}]", f"scale={scales}", f"zero_point={zeros}", f"outputs={len(call.outputs)}"]
    lines.append(f"y = b.operation({call.cell.op.name!r}, {', '.join(arguments)})")
    lines.append("outputs = list(y) if isinstance(y, tuple) else [y]")
    lines.append(f"model = b.finish([{', '.join(name for name, _ in given)}], outputs)")
    lines.append(f"inputs = [{', '.join(text for _, text in given)}]")
    return "\n".join(lines)


def kind(value: Value) -> str:
    """Return the type and quantisation of a tensor, as arguments of the Builder."""
    name = repr(OperandType(value.type).name)
    if value.channel is not None:
        return f"{name}, channel=ChannelQuant({value.channel.scales}, {value.channel.axis})"
    return f"{name}, {value.scale!r}, {value.zero_point}" if value.scale else name


def value_text(value: Value) -> str:
    """Return the elements of a tensor, or the number of a scalar."""
    x = np.asarray(value.array)
    return f"np.array({x.tolist()!r}, np.{x.dtype})" if x.ndim else repr(x.item())
