"""Random models over random partial drivers give what they give on the reference alone, to the bit.

    python -m tests.nightly.partitioned --models 500 --seed 1 [--isolate] [--only 17]

Some of six devices each take a random share of the operations (`drivers/share.py`), control flow too now and then; what
nobody takes of that the runtime runs itself. Each model runs in several ways, some of which give up an execution first. Some
devices fail now and then, and the CPU takes over. What differs is printed with the command that draws it again.
--isolate: each driver in a process of its own.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import nnhal
from nnhal.base.errors import InvalidArgument, LoopTimeout, MissedDeadline, NnhalError
from nnhal.base.operands import Array
from nnhal.hal.device import Device
from nnhal.runtime import costs, discovery, execute, interpreter, isolation
from nnhal.runtime.compilation import Fallback
from tests.runtime.drawn import draw

SHARES = tuple(f"share_{n}" for n in range(6))
LONG = 60.0  # seconds: a deadline that none misses
Way = Callable[[nnhal.Compiled, Sequence[Array]], Any]


def burst(compiled: nnhal.Compiled, x: Sequence[Array]) -> Any:
    with compiled.burst() as run:
        run(*x)
        return run(*x)


def fenced(compiled: nnhal.Compiled, x: Sequence[Array]) -> Any:
    try:
        return compiled.execute_fenced(*x).result()
    except InvalidArgument:  # an output's shape is not known before
        return compiled(*x)


def measured(compiled: nnhal.Compiled, x: Sequence[Array]) -> Any:
    results, report = compiled.run(*x, measure=True)
    assert report is not None and report.steps
    return results


def again(compiled: nnhal.Compiled, x: Sequence[Array]) -> Any:
    """Into the same memory, by other values first."""
    first = compiled(*[np.flip(each).copy() for each in x])
    rooms = [np.empty_like(y) for y in first] if isinstance(first, tuple) else [np.empty_like(first)]
    try:
        return compiled(*x, out=rooms)
    except nnhal.OutputInsufficientSize:
        return compiled(*x)


def bound(compiled: nnhal.Compiled, x: Sequence[Array]) -> Any:
    """By a binding, whose arguments hold other values before."""
    given = [np.flip(each).copy() for each in x]
    run = compiled.bind(*given)
    run()
    for one, other in zip(given, x, strict=True):
        one[...] = other
    return run()


def allocated(compiled: nnhal.Compiled, x: Sequence[Array]) -> Any:
    """All that can be in memory of the drivers' own, or in shared pools."""
    given = [nnhal.allocate([(compiled, "input", n)], each.shape) for n, each in enumerate(x)]
    for allocation, each in zip(given, x, strict=True):
        allocation.write(each)
    rooms = [
        None if spec.fixed is None else nnhal.allocate([(compiled, "output", n)])
        for n, spec in enumerate(compiled.outputs)
    ]
    made = compiled(*given, out=rooms)
    found = [
        one if room is None else room.read()
        for one, room in zip(made if isinstance(made, tuple) else [made], rooms, strict=True)
    ]
    for allocation in [*given, *rooms]:
        if allocation is not None:
            allocation.close()
    return tuple(found)


def late(compiled: nnhal.Compiled, x: Sequence[Array]) -> Any:
    """After executions with too little time, which write nothing once they have ended."""
    for deadline in (0.0002, 0.001, 0.003):
        with suppress(MissedDeadline):
            compiled.run(*x, deadline=deadline)
    return compiled(*x)


def cancelled(compiled: nnhal.Compiled, x: Sequence[Array]) -> Any:
    """After one that was cancelled, beside another."""
    one, other = compiled.submit(*x), compiled.submit(*x)
    one.cancel()
    with suppress(NnhalError):
        one.result(LONG)
    return other.result(LONG)


def impatient(compiled: nnhal.Compiled, x: Sequence[Array]) -> Any:
    """After one whose loops have hardly any time."""
    with suppress(LoopTimeout):
        compiled.run(*x, loop_timeout=1e-6)
    return compiled(*x)


WAYS: dict[str, Way] = {
    "call": lambda compiled, x: compiled(*x),
    "again": again,
    "burst": burst,
    "fenced": fenced,
    "submitted": lambda compiled, x: compiled.submit(*x).result(),
    "deadline": lambda compiled, x: compiled.run(*x, deadline=LONG)[0],
    "measured": measured,
    "bound": bound,
    "allocated": allocated,
    "late": late,
    "cancelled": cancelled,
    "impatient": impatient,
}


class Differs(Exception):
    """What the partitioned model gave is not what the whole one gives."""


@contextmanager
def devices() -> Iterator[None]:
    """The partial drivers, known by their names. What is noted of them is none of the user's."""
    source = Path(__file__).parent / "drivers" / "share.py"
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(discovery, "_registered", {}),
        mock.patch.dict(os.environ, {"NNHAL_STATE_DIR": folder}),
    ):
        for name in SHARES:
            shutil.copy(source, Path(folder, f"{name}.py"))
            nnhal.load_driver(Path(folder, f"{name}.py"))
        yield


def compiled_over_some(
    model: nnhal.Model, rng: np.random.Generator, isolate: bool, failing: bool
) -> tuple[nnhal.Compiled, dict[str, dict[str, int]]]:
    """The model over two to four of the devices, the last of which takes what the others leave, but hardly control flow."""
    names = [str(name) for name in rng.permutation(SHARES)[: int(rng.integers(2, 5))]]
    options = {
        name: {
            "seed": int(rng.integers(1 << 30)),
            "share": int(rng.choice([20, 50, 80])),
            "control": int(rng.choice([0, 0, 0, 30])),
            "fail": 20 if failing else 0,
        }
        for name in names
    }
    chosen: list[str | Device] = [*names]
    if rng.random() < 0.5:
        chosen.append(discovery.cpu())
    else:
        options[names[-1]]["share"] = 100
    how: isolation.Isolation = "process" if isolate else "none"
    fallback: Fallback = "allow" if failing else "forbid"
    compiled = nnhal.compile(model, devices=chosen, driver_options=options, isolation=how, fallback=fallback)
    return compiled, options


def check(seed: int, number: int, isolate: bool, told: Counter[str]) -> None:
    """Draw a model and compare; told: what came up. Differs where anything does."""
    model, inputs = draw([seed, number])
    rng = np.random.default_rng([seed, number, 1])
    small, free, failing = rng.random() < 0.5, rng.random() < 0.6, rng.random() < 0.2
    with ExitStack() as settings:
        if small:  # everything is worth keeping in memory of its own
            for module in (execute, interpreter):
                settings.enter_context(mock.patch.object(module, "LARGE", 1))
        if free:  # steps and crossings cost nothing: as many as there can be
            for name in ("STEP", "STEP_ELSEWHERE", "CROSSING", "BYTE"):
                settings.enter_context(mock.patch.object(costs, name, 0.0))
        whole = nnhal.compile(model, devices=[discovery.cpu()])
        expected = [_given(whole, x) for x in inputs]
        compiled, options = compiled_over_some(model, rng, isolate, failing)
        with compiled:
            placement = compiled.placement
            told["models"] += 1
            told["steps"] += len(placement.steps)
            told["loops and branches of the runtime's"] += placement.devices().get("runtime", 0)
            told["of several devices inside"] += any(len(b.placement.devices()) > 1 for b in placement.inside)
            ways = [way for way in WAYS if way != "fenced" or not failing]  # nothing takes over after the launch
            for way in rng.permutation(ways)[:3]:
                for x, wanted in zip([*inputs, inputs[0]], [*expected, expected[0]], strict=True):
                    made = _run(WAYS[str(way)], compiled, x)
                    why = difference(wanted, made)
                    if why:
                        raise Differs(f"{way}: {why}\noptions {options}\n{placement}")
            told["executions that fell back"] += placement.live.total
            told["errors"] += sum(isinstance(each, str) for each in expected)


def _given(compiled: nnhal.Compiled, x: Sequence[Array]) -> Any:
    return _run(WAYS["call"], compiled, x)


def _run(way: Way, compiled: nnhal.Compiled, x: Sequence[Array]) -> Any:
    """The outputs, or the name of the error that it ends in."""
    try:
        results = way(compiled, x)
    except NnhalError as error:
        return f"{type(error).__name__}: {error}"
    return list(results) if isinstance(results, tuple) else [results]


def difference(wanted: Any, made: Any) -> str:
    """Why two outcomes are not the same, "" where they are."""
    if isinstance(wanted, str) or isinstance(made, str):
        same = isinstance(wanted, str) and isinstance(made, str) and wanted.split(":")[0] == made.split(":")[0]
        return "" if same else f"gave {made}, must give {wanted}"
    for n, (w, y) in enumerate(zip(wanted, made, strict=True)):
        if (w.dtype, w.shape) != (y.dtype, y.shape):
            return f"output {n} is {y.dtype}{list(y.shape)}, must be {w.dtype}{list(w.shape)}"
        if w.tobytes() != y.tobytes():
            return f"output {n} is {y.ravel()[:8]}, must be {w.ravel()[:8]}"
    return ""


def run(seed: int, numbers: Sequence[int], isolate: bool, most: int = 5) -> tuple[Counter[str], list[str]]:
    """What came up, and what differs, each with the command for it."""
    told, wrong = Counter[str](), list[str]()
    with devices(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in numbers:
            try:
                check(seed, number, isolate, told)
            except Exception as error:
                again = f"python -m tests.nightly.partitioned --seed {seed} --only {number}{' --isolate' * isolate}"
                wrong.append(f"{again}\n{type(error).__name__}: {error}")
                if len(wrong) >= most:
                    break
        if isolate:
            isolation.close_all()
    return told, wrong


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="the one model of this number")
    parser.add_argument("--isolate", action="store_true", help="each driver in a process of its own")
    given = parser.parse_args()
    numbers = range(given.models) if given.only is None else [given.only]
    print(f"seed {given.seed}", flush=True)
    start = time.monotonic()
    told, wrong = run(given.seed, numbers, given.isolate)
    for each in wrong:
        print(each)
    print(", ".join(f"{count} {what}" for what, count in told.items()), f"in {time.monotonic() - start:.0f} s")
    print(f"{len(wrong)} differ")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
