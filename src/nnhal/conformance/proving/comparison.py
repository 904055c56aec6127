"""Compares a device with the reference on one call, with each number of threads."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

import numpy as np

from nnhal.base.errors import ContractBroken, DriverFailed, NnhalError
from nnhal.base.operands import Array, quantised
from nnhal.conformance.differential import THREADS, Outputs, arrays_of, compare_outputs, model_of, run
from nnhal.conformance.draw import Call
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.model.graph import Model
from nnhal.runtime import discovery

BEYOND = 1e3  # relative to the greatest element: beyond, a share is meaningless


class Wrong:
    """The faults of all calls of a variant."""

    def __init__(self) -> None:
        self.problem, self.steps, self.share = "", 0.0, 0.0

    def note(self, call: Call, problem: str, wanted: Sequence[Array | None], actual: Sequence[Array | None]) -> None:
        """Add one wrong call."""
        self.problem = self.problem or f"{call.cell}: {problem}"
        for w, a in zip(wanted, actual, strict=True):
            if w is None or a is None or w.shape != a.shape or w.dtype.kind not in "iuf" or not w.size:
                continue
            with np.errstate(all="ignore"):
                off = np.abs(a.astype(np.float64) - w.astype(np.float64))
                share = float(
                    np.nan_to_num(off, nan=np.inf).max() / max(float(np.abs(w.astype(np.float64)).max()), 1e-300)
                )
            if quantised(call.outputs[0].type):
                self.steps = max(self.steps, float(off.max()))
            else:
                self.share = max(self.share, share)

    @property
    def message_text(self) -> str:
        """Summarise the faults."""
        if self.steps > 1:
            return f"is off by {self.steps:g} LSB on this processor"
        if 0 < self.share < BEYOND:
            return f"is off by {self.share:.2g} of the greatest element on this processor"
        return f"is wrong on this processor ({self.problem})"


def compared(device: Device, call: Call, worst: Wrong, at: Callable[[str], object] = str) -> str:
    """Run a call on a device and on the reference; return why the device refuses it, "" if it ran.

    worst: receives the faults. The device runs the call with each number of THREADS, because its kernel for several may
    differ. at: is called before each action, which has its own time limit.
    """
    model, found = model_of(call), []
    for threads in THREADS:
        refused, actual = _theirs(device, model, Hints(threads=threads), call, at)
        if refused:
            return refused
        found.append(actual)
    at("reference")
    with closing(checked_prepared(discovery.cpu(), model, Hints())) as mine:
        wanted = _run(mine, call)
    for actual in found:
        _judge(device, call, wanted, actual, worst)
    return ""


def _theirs(
    device: Device, model: Model, hints: Hints, call: Call, at: Callable[[str], object]
) -> tuple[str, Outputs | NnhalError]:
    """Return why a device refuses a call, "" if it ran, and its results."""
    at("consider")
    claims = consider_support(device, model, hints)
    with ExitStack() as held:
        held.callback(claims.release_work)
        if refused := claims.refused():
            return next(iter(refused.values())), []
        at("prepare")
        theirs = held.enter_context(closing(checked_prepared(device, model, claims.hints(hints))))
        at("run")
        return "", _run(theirs, call)


def _judge(
    device: Device, call: Call, wanted: Outputs | NnhalError, actual: Outputs | NnhalError, worst: Wrong
) -> None:
    if isinstance(actual, NnhalError):
        if isinstance(wanted, NnhalError):
            return
        raise actual
    if isinstance(wanted, NnhalError):
        raise ContractBroken(f"it runs, must fail: {wanted}")
    problem = compare_outputs(call, wanted, actual, device.relaxations)
    if problem:
        worst.note(call, problem, wanted, actual)


def _run(prepared: Prepared, call: Call) -> Outputs | NnhalError:
    """Return the results, or the error if a driver may fail as the definition does."""
    try:
        return run(prepared, arrays_of(call))
    except (DriverFailed, ContractBroken):
        raise
    except NnhalError as error:
        return error
