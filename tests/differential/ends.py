"""How far a device is off at the ends of the quantised types, and at the bounds of activations."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice

import numpy as np

from nnhal.conformance.differential import THREADS, arrays_of, model_of, run
from nnhal.conformance.draw import AT_BOUNDS
from nnhal.conformance.proving.hard import hard_calls
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Device, Hints
from nnhal.runtime import discovery
from tests.comparing import as_code

NOT_PROVED = 1  # a seed
SEEDS = 0, NOT_PROVED  # a proof looks at the calls of the first


def off(
    device: Device, operation: str, kind: int, seeds: Sequence[int] = SEEDS, every: int = 1
) -> tuple[str, Counter[str]]:
    """The worst result of every Nth hard call, "" where all are within a step, and how many ran and were refused.

    At a bound there is no step to be within.
    """
    worst, problem, came = 1, "", Counter[str]()
    for number, call in enumerate(
        islice(chain(*(hard_calls(operation, kind, seed) for seed in seeds)), 0, None, every)
    ):
        model, hints = model_of(call), Hints(threads=THREADS[number % len(THREADS)])
        claims = consider_support(device, model, hints)
        if claims.refused():
            claims.release_work()
            came["refused"] += 1
            continue
        theirs, mine = (
            checked_prepared(device, model, claims.hints(hints)),
            checked_prepared(discovery.cpu(), model, Hints()),
        )
        (actual,), (wanted,) = run(theirs, arrays_of(call)), run(mine, arrays_of(call))
        theirs.close()
        claims.release_work()
        assert actual is not None and wanted is not None and actual.dtype == wanted.dtype
        came["run"] += 1
        steps = int(np.abs(actual.astype(int) - wanted.astype(int)).max(initial=0))
        if steps > (0 if call.cell.values == AT_BOUNDS else worst):
            worst, problem = max(steps, worst), f"{call.cell}: off by {steps} steps\n{as_code(call)}"
    return problem, came
