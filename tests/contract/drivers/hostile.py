"""A driver that breaks the contract of an execution on command: `driver_options={"hostile": {"breach": name}}`.

Its model is y = x + w, t = s + x, with a constant w. Every breach says what must come of it: an error, or the right results
all the same, whatever happens later.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnhal.base import errors
from nnhal.hal.device import YES, Device, Hints, Prepared
from nnhal.hal.request import Control, Request, Timing

LATE = 0.03  # seconds after the end that late writes come


class Untellable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Bare(BaseException):
    pass


class Hostile(Prepared):
    """x, s: the inputs; w: the constant, as the model has it; kept: memory of its own that it uses again and again."""

    def __init__(self, model: Any, breach: str) -> None:
        main = model.main
        (place,) = (
            o.inputs[1] for o in main.operations if main.operands[o.inputs[1]].lifetime.name.startswith("CONST")
        )
        self.w, self.breach = model.constant(main.operands[place]), BREACHES[breach]
        self.kept = np.zeros((2, 3), np.float32)
        self.before: list[Any] = []

    def run(self, request: Request, control: Control) -> Timing | None:
        x, s = request.inputs
        if x is None or s is None:
            raise RuntimeError("an input is missing")
        return self.breach.act(self, request, x, s)


@dataclass(frozen=True)
class Breach:
    """act: what `run` does. well: whether results are right all the same; otherwise it has to end in an error."""

    act: Callable[[Hostile, Request, Any, Any], Any]
    well: bool = False


def writing(value: Callable[[Any], Any], well: bool = False) -> Breach:
    """The first output is given something made of its value."""

    def act(p: Hostile, request: Request, x: Any, s: Any) -> None:
        request.write(0, value(x + p.w))
        request.write(1, s + x)

    return Breach(act, well)


def good(p: Hostile, request: Request, x: Any, s: Any) -> None:
    request.write(0, x + p.w)
    request.write(1, s + x)


def doing(before: Callable[[Hostile, Request, Any, Any], Any], well: bool = False) -> Breach:
    """Something first, then all as it should be."""

    def act(p: Hostile, request: Request, x: Any, s: Any) -> None:
        before(p, request, x, s)
        good(p, request, x, s)

    return Breach(act, well)


def afterwards(later: Callable[[Hostile, Request, Any, Any], Any]) -> Breach:
    """All as it should be, and something on another thread when it has ended."""

    def act(p: Hostile, request: Request, x: Any, s: Any) -> None:
        good(p, request, x, s)

        def work() -> None:
            time.sleep(LATE)
            with contextlib.suppress(Exception):
                later(p, request, x, s)

        threading.Thread(target=work, daemon=True).start()

    return Breach(act, well=True)


def raising(error: Callable[[], BaseException]) -> Breach:
    def act(p: Hostile, request: Request, x: Any, s: Any) -> None:
        raise error()

    return Breach(act)


def half_then_raising(p: Hostile, request: Request, x: Any, s: Any) -> None:
    request.write(0, x * 0 - 7)
    raise ValueError("in the middle")


def nothing(p: Hostile, request: Request, x: Any, s: Any) -> None:
    pass


def only_first(p: Hostile, request: Request, x: Any, s: Any) -> None:
    request.write(0, x + p.w)


def later_only(p: Hostile, request: Request, x: Any, s: Any) -> None:
    def work() -> None:
        time.sleep(LATE)
        with contextlib.suppress(Exception):
            good(p, request, x, s)

    threading.Thread(target=work, daemon=True).start()


def own_state(p: Hostile, request: Request, x: Any, s: Any) -> None:
    np.add(x, p.w, out=p.kept)
    request.write(0, p.kept)
    request.write(1, s + x)


def state_of_before(p: Hostile, request: Request, x: Any, s: Any) -> None:
    """Scribbles over all that it has given before."""
    for array in p.before:
        array[...] = -99
    y, t = x + p.w, s + x
    p.before += [y, t]
    request.write(0, y)
    request.write(1, t)


def in_place(p: Hostile, request: Request, x: Any, s: Any) -> None:
    y, t = request.outputs
    np.add(x, p.w, out=y)
    np.add(s, x, out=t)


def in_place_later(p: Hostile, request: Request, x: Any, s: Any) -> None:
    for array in p.before:
        array[...] = -99
    y, t = request.outputs
    p.before += [y, t[:1], y.reshape(-1)[1:]]
    np.add(x, p.w, out=y)
    np.add(s, x, out=t)


def taken_and_left(p: Hostile, request: Request, x: Any, s: Any) -> None:
    request.outputs[0]
    request.write(1, s + x)


def written_and_taken(p: Hostile, request: Request, x: Any, s: Any) -> None:
    good(p, request, x, s)
    request.outputs[0][...] = -99


def swallowing(p: Hostile, request: Request, x: Any, s: Any) -> None:
    for wrong in ((x + p.w).astype(np.float16), (x + p.w)[:1]):
        with contextlib.suppress(Exception):
            request.write(0, wrong)
    good(p, request, x, s)


def fills(p: Hostile, request: Request, x: Any, s: Any) -> None:
    x[...] = -99


def fills_constant(p: Hostile, request: Request, x: Any, s: Any) -> None:
    p.w[...] = -99


def unlocks_constant(p: Hostile, request: Request, x: Any, s: Any) -> None:
    p.w.flags.writeable = True
    p.w[...] = -99


def scribbles_results(p: Hostile, request: Request, x: Any, s: Any) -> None:
    for result in request.outputs:
        result[...] = -99


def timed(timing: Any) -> Breach:
    def act(p: Hostile, request: Request, x: Any, s: Any) -> Any:
        good(p, request, x, s)
        return timing

    return Breach(act, well=True)


def other_thread(p: Hostile, request: Request, x: Any, s: Any) -> None:
    worker = threading.Thread(target=good, args=(p, request, x, s))
    worker.start()
    worker.join()


def two_threads(p: Hostile, request: Request, x: Any, s: Any) -> None:
    workers = [threading.Thread(target=request.write, args=pair) for pair in ((0, x + p.w), (1, s + x))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def masked(value: Any) -> Any:
    return np.ma.masked_array(value, mask=value > 0)


class Sub(np.ndarray):
    pass


BREACHES: Mapping[str, Breach] = {
    "none": Breach(good, well=True),
    # the type
    "float16": writing(lambda y: y.astype(np.float16)),
    "float64": writing(lambda y: y.astype(np.float64)),
    "int32-of-the-same-bytes": writing(lambda y: y.view(np.int32)),
    "bytes": writing(lambda y: y.view(np.uint8)),
    "big-endian": writing(lambda y: y.astype(">f4")),
    "complex": writing(lambda y: y.astype(np.complex64)),
    "list": writing(lambda y: y.tolist()),
    "objects": writing(lambda y: y.astype(object)),
    "none-value": writing(lambda y: None),
    "memoryview": writing(memoryview),
    "subclass": writing(lambda y: y.view(Sub), well=True),
    "masked": writing(masked, well=True),
    # the shape
    "transposed": writing(lambda y: y.T),
    "transposed-copy": writing(lambda y: y.T.copy()),
    "too-short": writing(lambda y: y[:1]),
    "too-long": writing(lambda y: np.concatenate([y, y])),
    "flat": writing(lambda y: y.reshape(-1)),
    "one-more-rank": writing(lambda y: y[None]),
    "scalar": writing(lambda y: y[0, 0]),
    "no-elements": writing(lambda y: y[:0]),
    "gaps": writing(lambda y: np.repeat(y, 2, 1)[:, ::2], well=True),
    "column-major": writing(np.asfortranarray, well=True),
    "read-only": writing(lambda y: np.frombuffer(y.tobytes(), np.float32).reshape(2, 3), well=True),
    # which output, how often
    "nothing": Breach(nothing),
    "one-missing": Breach(only_first),
    "twice": doing(lambda p, r, x, s: r.write(0, x + p.w)),
    "twice-another": doing(lambda p, r, x, s: r.write(0, x - p.w)),
    "third-output": doing(lambda p, r, x, s: r.write(2, x)),
    "negative-output": doing(lambda p, r, x, s: r.write(-1, x)),
    "named-output": doing(lambda p, r, x, s: r.write("y", x)),  # type: ignore[arg-type]
    "swallows-the-error": Breach(swallowing),
    "from-another-thread": Breach(other_thread, well=True),
    "from-two-threads": Breach(two_threads, well=True),
    # memory
    "view-of-input": writing(lambda y: y, well=True),
    "own-state": Breach(own_state, well=True),
    "scribbles-over-what-it-gave": Breach(state_of_before, well=True),
    "in-place": Breach(in_place, well=True),
    "scribbles-over-what-it-filled": Breach(in_place_later, well=True),
    "taken-and-left": Breach(taken_and_left),
    "written-and-filled": Breach(written_and_taken, well=True),
    "writes-input": doing(fills),
    "writes-constant": doing(fills_constant),
    "unlocks-constant": doing(unlocks_constant),
    # late
    "late-only": Breach(later_only),
    "late-again": afterwards(lambda p, r, x, s: r.write(0, x * 0 - 99)),
    "late-in-place": afterwards(scribbles_results),
    "late-input": afterwards(fills),
    # what it raises
    "value-error": raising(lambda: ValueError("of its own")),
    "timeout-error": raising(lambda: TimeoutError("of its own")),
    "keyboard-interrupt": raising(KeyboardInterrupt),
    "system-exit": raising(lambda: SystemExit(3)),
    "memory-error": raising(MemoryError),
    "recursion-error": raising(RecursionError),
    "stop-iteration": raising(StopIteration),
    "generator-exit": raising(GeneratorExit),
    "asyncio-cancelled": raising(asyncio.CancelledError),
    "os-error": raising(lambda: OSError(5, "of its own")),
    "key-error": raising(lambda: KeyError("of its own")),
    "base-exception": raising(lambda: Bare("of its own")),
    "untellable": raising(Untellable),
    "half-then-error": Breach(half_then_raising),
    "invalid-request": raising(lambda: errors.InvalidRequest("hostile: of its own")),
    "invalid-argument": raising(lambda: errors.InvalidArgument("hostile: of its own")),
    "closed": raising(lambda: errors.Closed("hostile: of its own")),
    "cancelled": raising(lambda: errors.Cancelled("hostile: of its own")),
    "missed-deadline": raising(lambda: errors.MissedDeadline("hostile: of its own")),
    "too-small": raising(lambda: errors.OutputInsufficientSize("hostile: of its own", [(9, 9), None])),
    "dead-object": raising(lambda: errors.DeadObject("hostile: of its own")),
    # what it returns
    "timing-of-text": timed("fast"),
    "timing-of-three": timed((1, 2, 3)),
    "timing-below-zero": timed(Timing(-5, -7)),
    "timing-on-device-above-driver": timed(Timing(9, 3)),
    "timing-of-floats": timed(Timing(1.5, 2.5)),  # type: ignore[arg-type]
}


class HostileDevice(Device):
    name = "hostile"
    version = "1"

    def supports(self, model: Any) -> Any:
        return [YES] * len(model.main.operations)

    def prepare(self, model: Any, hints: Hints) -> Prepared:
        return Hostile(model, hints.options.get("breach", "none"))


def device() -> Device:
    return HostileDevice()
