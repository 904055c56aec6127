"""Which way the 8-bit results of a device lie that are a step off the reference's, and how far both are from real values.

    python -m tests.differential.steps_left --device litert --operation ADD --models 400

Models of one operation are drawn of each 8-bit type, of the classes `ordinary` and `ties`, with larger tensors than those
of the comparison. A line has the elements compared; those above and below the reference's, farther from the zero point and
nearer to it; how many models have some; a score of the lean; and the mean error of both in steps of the output. Elements at
an end of their type do not count. A device that knows several forms of an operation runs the fastest and the exact one,
whatever was proved. Layers have a line with weights and bias constant, and one where the execution gives some of them.

The elements of one model share zero points and scales, so they lean together by chance. The score therefore counts models:
each adds the share of its differing elements by which one side has more. It is as a standard normal number where models
lean to either side alike.
"""

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import product
from typing import Any

import numpy as np

from nnhal.base.codes import type_name
from nnhal.base.errors import InvalidModel, NnhalError
from nnhal.base.operands import Array, quantised
from nnhal.base.records import Record
from nnhal.conformance.differential import THREADS, arrays_of, model_of, open_masks, run, with_other_values
from nnhal.conformance.draw import TRIES, Call, Cell, Drawn, cells
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Device, Hints
from nnhal.ops.schema import Q8, Q8S
from nnhal.runtime import discovery
from tests.differential import ask
from tests.differential.oracle import Unknown
from tests.matrix.devices import ENGINES

RERUNS = 4
VALUES = "ordinary", "ties"
UNLIKELY = 3.3  # score: a chance of one in a thousand
LEANING = 0.1  # of the differing elements of a model, that one side has more
ENOUGH, MODELS = 1000, 40  # differing elements, and models with some, that say enough
FEW = 40  # models after which an operation is left that does not differ


class Large(Drawn):
    """A call in the making with up to 12 elements along a dimension."""

    def _size(self) -> int:
        return int(self.whole(1, 12 if self.rng.random() < 0.4 else 5))


class Steps(Record, frozen=True):
    """Elements that differ, by the side that they lie to.

    compared: how many were. above, below: the reference's. outwards, inwards: farther from the zero point, nearer to it.
    models: those with a difference. sides, squares: what each of them has more above than below, as a share of what differs,
    added up, and its square. device, reference: errors against the real value in steps, added up; judged: of how many.
    """

    compared: int = 0
    above: int = 0
    below: int = 0
    outwards: int = 0
    inwards: int = 0
    models: int = 0
    sides: float = 0.0
    squares: float = 0.0
    judged: int = 0
    device: float = 0.0
    reference: float = 0.0

    def __add__(self, other: "Steps") -> "Steps":
        return Steps(*(getattr(self, name) + getattr(other, name) for name in COUNTS))

    @property
    def differing(self) -> int:
        """Elements."""
        return self.above + self.below

    @property
    def score(self) -> float:
        """How far the elements lie to one side, in standard deviations of models that lean to either side alike."""
        return self.sides / math.sqrt(self.squares) if self.squares else 0.0

    @property
    def leans(self) -> bool:
        """Whether the elements lie to one side, by more than chance and more than little."""
        return abs(self.score) > UNLIKELY and abs(self.sides) > LEANING * self.models


COUNTS = tuple(Steps.__annotations__)


def weights(call: Call) -> str:
    """Whether weights and bias of a layer are "constant", or some "given"; "" for other operations."""
    if not any(argument.name == "bias" for argument in call.arguments):
        return ""
    return "constant" if set(call.given) <= {0} else "given"


def draw(cell: Cell, rng: np.random.Generator, kept: str = "") -> Call:
    """A call that the record accepts. kept: the `weights` that it has."""
    for _ in range(TRIES):
        with suppress(InvalidModel):
            call = Large(cell, rng).call()
            if weights(call) == kept:
                return call
    raise AssertionError(f"{cell}: none of {TRIES} calls was valid")


def of_model(device: Device, call: Call, hints: Hints, rng: np.random.Generator) -> Steps | None:
    """What differs in one model, run with several inputs; None where the device refuses it."""
    model, found = model_of(call), Steps()
    with ExitStack() as held:
        claims = consider_support(device, model, hints)
        held.callback(claims.release_work)
        if claims.refused():
            return None
        mine = held.enter_context(closing(checked_prepared(discovery.cpu(), model, Hints())))
        try:
            theirs = held.enter_context(closing(checked_prepared(device, model, claims.hints(hints))))
        except NnhalError:  # of a form that no proof would let run
            return None
        for _ in range(RERUNS):
            try:
                wanted = run(mine, arrays_of(call))
            except NnhalError:
                break
            found += of_outputs(call, wanted, run(theirs, arrays_of(call)))
            call = with_other_values(call, rng)
    if not found.differing:
        return found
    side = (found.above - found.below) / found.differing
    return found + Steps(models=1, sides=side, squares=side**2)


def of_outputs(call: Call, wanted: Sequence[Array | None], actual: Sequence[Array | None]) -> Steps:
    """What differs in one execution."""
    found = Steps()
    try:
        numbers = ask(call)
    except Unknown:
        return found
    masks = open_masks(call, len(wanted))
    for value, w, a, number, left_open in zip(call.outputs, wanted, actual, numbers, masks, strict=True):
        if w is None or a is None or not quantised(value.type) or w.dtype.itemsize != 1:
            continue
        limits = np.iinfo(w.dtype)
        inside = (np.minimum(w, a) > limits.min) & (np.maximum(w, a) < limits.max) & ~np.asarray(left_open, bool)
        mine, theirs = w[inside].astype(np.int64), a[inside].astype(np.int64)
        off = np.sign(theirs - mine)
        out = off * np.sign(mine - value.zero_point)
        counts = [int(np.count_nonzero(each == side)) for each in (off, out) for side in (1, -1)]
        found += Steps(off.size, *counts)
        if number is not None and np.shape(number) == w.shape:
            steps = np.asarray(number, np.float64)[inside] / value.scale + value.zero_point
            near = np.abs(steps - mine) < 1
            errors = (float((each - steps)[near].sum()) for each in (theirs, mine))
            found += Steps(0, 0, 0, 0, 0, 0, 0, 0, int(near.sum()), *errors)
    return found


def measured(
    device: Device,
    each: Sequence[Cell],
    models: int,
    *,
    kept: str = "",
    options: Mapping[str, Any],
    seed: int = 1,
    seconds: float = 1e9,
) -> Steps:
    """What differs in models drawn of cells in turn, up to ENOUGH. kept: as of `draw`."""
    rng = np.random.default_rng([seed, *str(each[0]).encode()])
    total, end = Steps(), time.monotonic() + seconds
    for number in range(models):
        hints = Hints(threads=THREADS[number // len(each) % len(THREADS)], options=options)
        total += of_model(device, draw(each[number % len(each)], rng, kept), hints, rng) or Steps()
        enough = total.differing >= ENOUGH and total.models >= MODELS
        if enough or (number >= FEW and not total.differing) or time.monotonic() > end:
            break
    return total


def forms(device: Device, name: str, kind: int) -> tuple[str, ...]:
    """The forms to run an operation in: the fastest and the exact one, "" where there is one alone."""
    choices = device.proofs.choices() if device.proofs is not None else ()
    several = any((c.operation, c.type) == (name, kind) and len(c.known) > 1 for c in choices)
    return ("exact", "fast") if several else ("",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", action="append", default=[], help="measure this device; all by default")
    parser.add_argument("--operation", action="append", default=[], help="draw this operation; all by default")
    parser.add_argument("--models", type=int, default=300, help="draw so many models at most (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="of each line at most (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="draw other models (default: %(default)s)")
    given = parser.parse_args()
    of: dict[tuple[str, int, str], list[Cell]] = {}
    for cell in cells(given.operation):
        if cell.values in VALUES and cell.kind in (Q8, Q8S):
            of.setdefault((cell.op.name, cell.kind, cell.values), []).append(cell)
    print(
        "device form operation type class: compared, above/below, outwards/inwards, models, score, mean errors (steps)"
    )
    for name in given.device or ENGINES:
        (device,) = discovery.select([name])
        for (operation, kind, values), each in of.items():
            layer = any(argument.name == "bias" for argument in each[0].op.forms[0])
            for form, kept in product(forms(device, operation, kind), ("constant", "given") if layer else ("",)):
                options = {"forms": form} if form else {}
                s = measured(
                    device, each, given.models, kept=kept, options=options, seed=given.seed, seconds=given.seconds
                )
                if s.differing:
                    label = [name, form, operation, kept, type_name(kind).removeprefix("TENSOR_"), values]
                    print(f"{' '.join(filter(None, label)):62} {described(s)}", flush=True)


def described(s: Steps) -> str:
    """A line of counts."""
    sides = f"{s.above:5}/{s.below:<5} {s.outwards:5}/{s.inwards:<5}"
    errors = f"{s.device / max(1, s.judged):+.4f} {s.reference / max(1, s.judged):+.4f}"
    return f"{s.compared:8} {sides} {s.models:4} {s.score:+6.1f} {errors}{' leans' if s.leans else ''}"


if __name__ == "__main__":
    main()
