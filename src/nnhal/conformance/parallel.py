"""Runs a folder of vectors over several processes."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from nnhal.conformance.suite import Outcome, run_vector, variants
from nnhal.conformance.vectors import index, members, read_member
from nnhal.hal.device import Device
from nnhal.runtime import discovery

CHUNK = 12  # specifications that one task runs


@dataclass(frozen=True)
class Selection:
    """Which vectors to run, and on what. rerun: also the further ways that the index flags."""

    path: Path
    device: str
    drivers: tuple[str, ...] = ()
    pattern: str = ""
    operations: frozenset[str] = frozenset()
    rerun: bool = True


_worker: dict[str, Any] = {}


def run_all(selection: Selection, jobs: int) -> Iterator[tuple[list[Outcome], int, int]]:
    """Outcomes as they come, with the number of tasks done and of all; in this process where `jobs` is 1."""
    work = members(selection.path)
    chunks = [work[i : i + CHUNK] for i in range(0, len(work), CHUNK)]
    if jobs == 1:
        _start(selection)
        for done, chunk in enumerate(chunks, 1):
            yield _run(chunk), done, len(chunks)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), _start, (selection,)) as pool:
        futures = [pool.submit(_run, chunk) for chunk in chunks]
        for done, future in enumerate(as_completed(futures), 1):
            yield future.result(), done, len(chunks)


def _start(selection: Selection) -> None:
    for driver in selection.drivers:
        discovery.load_driver(driver)
    device = discovery.select([selection.device])[0]
    _worker.update(selection=selection, device=device, index=index(selection.path))


def _run(chunk: Sequence[tuple[Path, str]]) -> list[Outcome]:
    selection: Selection = _worker["selection"]
    device: Device = _worker["device"]
    entries: Mapping[str, Mapping[str, Any]] = _worker["index"]
    outcomes = []
    for archive, name in chunk:
        for vector in read_member(archive, name):
            entry = entries.get(vector.id, {})
            primary = entry.get("primary") or "several"
            if not re.search(selection.pattern, vector.id):
                continue
            if selection.operations and primary not in selection.operations:
                continue
            for variant in variants(vector, entry.get("flags", ())) if selection.rerun else [""]:
                start = time.monotonic_ns()
                outcome = run_vector(vector, device, variant)
                outcomes.append(replace(outcome, primary=primary, nanoseconds=time.monotonic_ns() - start))
    return outcomes
