"""Runs a folder of vectors over several processes."""

import contextlib
import hashlib
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any

from nnhal.base.errors import InvalidArgument, as_error
from nnhal.base.values import parsed_level
from nnhal.conformance.suite import Outcome, run_vector, variants
from nnhal.conformance.vectors import index, members, read_member
from nnhal.hal.device import Device
from nnhal.ipc.client.process import Resilient
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.fate import pidfd
from nnhal.runtime import discovery, isolation

CHUNK = 12  # specifications that one task runs


@dataclass(frozen=True)
class Selection:
    """Which vectors to run, and on what. rerun: also the further ways that the index flags.

    way: one of `WAYS`. isolate: the device in a process of its own. level: the device at this lower level, such as "1.0".
    share: the part of all vectors that runs, chosen by a hash of the id. flag: only vectors with this flag in the index.
    """

    path: Path
    device: str
    drivers: tuple[str, ...] = ()
    pattern: str = ""
    operations: frozenset[str] = frozenset()
    rerun: bool = True
    way: str = "plain"
    isolate: bool = False
    level: str = ""
    share: float = 1.0
    flag: str = ""

    def __post_init__(self) -> None:
        """InvalidArgument where it selects by what is no expression, no share or no level."""
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise InvalidArgument(f"filter is {self.pattern!r}, must be a regular expression: {error}") from None
        if not 0 < self.share <= 1:
            raise InvalidArgument(f"share is {self.share}, must be above 0 and at most 1")
        if self.level:
            parsed_level(self.level)

    def takes(self, vector: str) -> bool:
        """Whether the vector is of the share; the same ones always."""
        digest = hashlib.sha256(vector.encode()).digest()
        return int.from_bytes(digest[:4], "big") < self.share * 2**32


_worker: dict[str, Any] = {}


@dataclass(frozen=True)
class TaskResult:
    """What one task did: outcomes, and how often it called each method of an isolated driver."""

    outcomes: list[Outcome]
    calls: Counter[str]


def run_all(selection: Selection, jobs: int) -> Generator[tuple[TaskResult, int, int], None, None]:
    """Outcomes as they come, with the number of tasks done and of all; in this process where `jobs` is 1."""
    work = members(selection.path)
    chunks = [work[i : i + CHUNK] for i in range(0, len(work), CHUNK)]
    if jobs == 1:
        _start(selection)
        try:
            for done, chunk in enumerate(chunks, 1):
                yield _run(chunk), done, len(chunks)
        finally:
            _worker.clear()  # and with it a process that was started for this selection
        return
    others, futures = set(active_children()), []
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _start_worker, (selection,))
    try:
        with _started_whole():
            futures = [pool.submit(_run, chunk) for chunk in chunks]
        for done, future in enumerate(as_completed(futures), 1):
            yield future.result(), done, len(chunks)
    finally:
        with _on_interrupt(signal.SIG_IGN):  # a second one changes nothing: what it would end, ends
            if not futures or not all(future.done() for future in futures):
                for worker in set(active_children()) - others:
                    worker.kill()  # its driver ends with it
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _started_whole() -> Iterator[None]:
    """A Ctrl-C is heard at the end, when workers that are started here have all that they read at their start.

    They hear none themselves: a terminal sends it to them too, and it is for this process.
    """
    late: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _on_interrupt(lambda number, _: late.append(number)):  # another thread, as BLAS's, may be given it
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if late:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _on_interrupt(handler: Any) -> Iterator[None]:
    """What a Ctrl-C does meanwhile; the main thread alone hears it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_worker(selection: Selection) -> None:
    starter = parent_process()
    assert starter is not None and starter.pid is not None
    _native.end_with(pidfd(starter.pid), 0)  # the pool's own pipes are open in every worker, and tell none of them
    if os.getppid() != starter.pid:  # it had ended before
        os._exit(1)
    try:
        _start(selection)
    except Exception as error:  # a pool whose workers do not start tells nobody why
        _worker["error"] = as_error(error, f"device {selection.device}")


def _start(selection: Selection) -> None:
    for driver in selection.drivers:
        discovery.load_driver(driver)
    device = isolation.at_level(selection.device, selection.level, own_process=selection.isolate)
    _worker.update(selection=selection, device=device, index=index(selection.path))


def _run(chunk: Sequence[tuple[Path, str]]) -> TaskResult:
    if "error" in _worker:
        raise _worker["error"]
    selection: Selection = _worker["selection"]
    device: Device = _worker["device"]
    entries: Mapping[str, Mapping[str, Any]] = _worker["index"]
    outcomes = []
    calls = _calls(device)
    for archive, name in chunk:
        for vector in read_member(archive, name):
            entry = entries.get(vector.id, {})
            primary = entry.get("primary") or "several"
            if not re.search(selection.pattern, vector.id):
                continue
            if selection.operations and primary not in selection.operations:
                continue
            if not selection.takes(vector.id) or (selection.flag and selection.flag not in entry.get("flags", ())):
                continue
            for variant in variants(vector, entry.get("flags", ())) if selection.rerun else [""]:
                start = time.monotonic_ns()
                outcome = run_vector(vector, device, variant, selection.way)
                outcomes.append(replace(outcome, primary=primary, nanoseconds=time.monotonic_ns() - start))
    return TaskResult(outcomes, _calls(device) - calls)


def _calls(device: Device) -> Counter[str]:
    return Counter(device.calls) if isinstance(device, Resilient) else Counter()
