"""Hostile `.tflite` files (and `.onnx`: `onnx_mutations`) through load, show, compile and run on both devices.

    python -m tests.faults.fuzz_files

File N of seed S is always the same (`file_mutations`). Workers live long and are forked from one process that has
everything imported; each file may take 2 seconds of processor time and 1 GB. What ends in anything but a result or an
error of nnhal's is a finding: an exception of another kind, a worker that dies, one that takes too long or too much.
`--first N` goes on where a run ended, `--keep DIR` keeps the files of findings, `--only N` examines one here.
"""

import argparse
import faulthandler
import json
import math
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.dom import minidom

import numpy as np
from ai_edge_litert import interpreter  # noqa: F401, TID251 (workers find it imported)

import nnhal
from nnhal.frontends.formats import refused_outline
from nnhal.model.draw import svg
from nnhal.model.outline import Outline, outline
from nnhal.model.text import dot, listing, text
from tests.faults.file_mutations import bases
from tests.faults.file_mutations import mutated as of_tflite

SECONDS, MEMORY = 2.0, 1 << 30
PATIENCE = 30.0  # seconds by the clock that a worker may take for one file on a busy machine
DEADLINE = 0.5  # seconds of an execution, which is given up then: the worker that still runs it is replaced
LIFE = 1000  # files that a worker examines
DEVICES = ("reference", "litert")
OPEN = 2  # what an open dimension is
MOST_INPUT = 1 << 24  # elements of an input that is made


@dataclass
class Findings:
    """What a run found. ends: how files ended. found: number and what is wrong."""

    files: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    found: list[tuple[int, str]] = field(default_factory=list)


class Replace(Exception):
    """The worker is to be replaced after this file: an execution was left behind in it."""


def examine(content: bytes) -> list[str]:
    """How far one file gets; raises what is no error of nnhal's."""
    ends = []
    try:
        model = nnhal.load(content)
    except nnhal.NnhalError as error:
        str(error).encode()
        if isinstance(error, nnhal.UnsupportedModel) and error.refused:
            facts = refused_outline(content, error)
            show(facts, listing(facts))
        return [f"load: {type(error).__name__}"]
    show(outline(model), text(model))
    for device in DEVICES:
        try:
            with nnhal.compile(model, devices=[device], fallback="forbid") as compiled:
                compiled.run(*[given(spec) for spec in compiled.inputs], deadline=DEADLINE)
                ends.append(f"{device}: ran")
        except nnhal.MissedDeadline as error:
            raise Replace from error
        except nnhal.NnhalError as error:
            str(error).encode()
            ends.append(f"{device}: {type(error).__name__}")
    return ends


def show(facts: Outline, words: str) -> None:
    """What `nnhal show` makes of it."""
    assert all(c.isprintable() or c == "\n" for c in words + dot(facts, {})), "a control character is shown"
    minidom.parseString(svg(facts))


def given(spec: Any) -> Any:
    """An input of small numbers, or the values at the ends of its type."""
    shape = tuple(OPEN if n is None else n for n in spec.shape or ())
    if math.prod(shape) > MOST_INPUT:
        raise nnhal.OutOfMemory("the input is not made")
    rng = np.random.default_rng(len(shape))
    if spec.dtype.kind == "f":
        return rng.normal(size=shape).astype(spec.dtype)
    if spec.dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    limits = np.iinfo(spec.dtype)
    return rng.choice(np.array([0, 1, 2, 3, limits.min, limits.max], spec.dtype), shape)


# ------------------------------------------------------------------------------------------------------------------ workers


def work(first: int, step: int, last: int, make: Callable[[int], bytes], out: int) -> None:
    """A worker: examines its share of the files, and writes a line as it begins and one as it ends each."""
    warnings.simplefilter("ignore")
    faulthandler.disable()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    os.dup2(quiet, 1)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def tell(*line: Any) -> None:
        os.write(out, json.dumps(line).encode() + b"\n")

    for number in range(first, min(last, first + LIFE * step), step):
        content = make(number)
        tell("begin", number)
        started, again = time.process_time(), False
        try:
            ends, wrong = examine(content), ""
        except Replace:
            ends, wrong, again = ["late"], "", True
        except BaseException as error:
            where = [f for f in traceback.extract_tb(error.__traceback__) if "nnhal" in f.filename]
            at = f"{Path(where[-1].filename).name}:{where[-1].lineno} {where[-1].name}" if where else "?"
            ends, wrong = ["wrong"], f"{type(error).__name__}: {str(error)[:200]} at {at}"
        took = time.process_time() - started
        if took > SECONDS and not again:
            wrong = wrong or f"took {took:.1f} s, {ends}"
        tell("end", number, ends, wrong)
        if again:
            break


class Worker:
    """A forked worker, seen from the run. place: which share of the files is its own."""

    def __init__(self, place: int, first: int, step: int, last: int, make: Callable[[int], bytes]) -> None:
        self.place, self.next, self._said = place, first, b""
        self.number: int | None = None  # of the file under way, begun at `since` with `before` seconds spent
        self.since = self.before = 0.0
        self.why = ""
        self.out, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.out)
                work(first, step, last, make, theirs)
            finally:
                os._exit(0)
        os.close(theirs)

    def lines(self) -> list[list[Any]] | None:
        """What it said since; None where it has ended."""
        chunk = os.read(self.out, 1 << 16)
        if not chunk:
            return None
        *whole, self._said = (self._said + chunk).split(b"\n")
        return [json.loads(line) for line in whole]

    def spent(self) -> float:
        """Seconds of processor time."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> str:
        """Wait for its end; by which signal it was."""
        os.close(self.out)
        _, status = os.waitpid(self.pid, 0)
        return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""


def fuzz(
    files: int, make: Callable[[int], bytes], *, first: int = 0, jobs: int = 2, told: Callable[[Findings], object] = id
) -> Findings:
    """Examine files `first` to `first + files`. told: is called with what was found so far, about once a second."""
    bases()
    found, last = Findings(), first + files
    workers = [Worker(n, first + n, jobs, last, make) for n in range(min(jobs, files))]
    said = time.monotonic()
    while workers:
        ready, _, _ = select.select([w.out for w in workers], [], [], 0.2)
        for worker in [w for w in workers if w.out in ready]:
            lines = worker.lines()
            for kind, number, *rest in lines or []:
                if kind == "begin":
                    worker.number, worker.since, worker.before = number, time.monotonic(), worker.spent()
                else:
                    worker.number, worker.next = None, number + jobs
                    count(found, number, *rest)
            if lines is None:
                workers.remove(worker)
                how = worker.end()
                if worker.number is not None:
                    count(found, worker.number, ["died"], f"the process ended by {how or 'itself'}{worker.why}")
                    worker.next = worker.number + jobs
                if worker.next < last:
                    workers.append(Worker(worker.place, worker.next, jobs, last, make))
        for worker in workers:
            stop_where_late(worker)
        if time.monotonic() - said > 1:
            told(found)
            said = time.monotonic()
    found.found.sort()
    return found


def stop_where_late(worker: Worker) -> None:
    """End a worker that takes too long for its file."""
    if worker.number is None:
        return
    busy, waited = worker.spent() - worker.before, time.monotonic() - worker.since
    if busy > 2 * SECONDS or waited > PATIENCE:
        worker.why = f" after {busy:.1f} s of processor time, {waited:.0f} s in all"
        os.kill(worker.pid, signal.SIGKILL)


def count(found: Findings, number: int, ends: list[str], wrong: str) -> None:
    """Enter one file."""
    found.files += 1
    found.ends.update(ends)
    if wrong:
        found.found.append((number, wrong))


# ------------------------------------------------------------------------------------------------------------------ command


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for the files of findings")
    parser.add_argument("--only", type=int, help="examine this file alone, in this process")
    parser.add_argument("--onnx", action="store_true", help="`.onnx` files instead")
    arguments = parser.parse_args()
    mutated = of_tflite
    if arguments.onnx:
        from tests.faults.onnx_mutations import mutated
    if arguments.only is not None:
        print(examine(mutated(arguments.seed, arguments.only)))
        return
    started = time.monotonic()

    written: set[int] = set()

    def told(found: Findings) -> None:
        for number, wrong in found.found:
            if number not in written:
                written.add(number)
                print(f"#{number}: {wrong}", flush=True)
                if arguments.keep:
                    arguments.keep.mkdir(parents=True, exist_ok=True)
                    path = arguments.keep / f"{arguments.seed}-{number}.tflite"
                    path.write_bytes(mutated(arguments.seed, number))
        rate = found.files / (time.monotonic() - started)
        line = f"{found.files} of {arguments.files} files, {rate:.0f}/s, {len(found.found)} findings"
        print(f"\r{line}" if sys.stderr.isatty() else line, end="" if sys.stderr.isatty() else "\n", file=sys.stderr)

    found = fuzz(
        arguments.files,
        lambda number: mutated(arguments.seed, number),
        first=arguments.first,
        jobs=arguments.jobs,
        told=told,
    )
    told(found)
    print(f"\n{found.files} files from {arguments.first} of seed {arguments.seed}")
    for end, times in found.ends.most_common():
        print(f"{times:8d}  {end}")
    sys.exit(bool(found.found))


if __name__ == "__main__":
    main()
