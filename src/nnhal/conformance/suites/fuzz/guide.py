"""Looks for inputs that reach new code: with atheris if it is installed, else with a trace of some executions."""

import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from nnhal.conformance.suites.fuzz.inputs import LONGEST
from nnhal.conformance.suites.fuzz.target import FuzzTarget

TRACED = 0.1  # the share of executions whose coverage is looked at
KEPT = 64 << 10  # bytes of the largest input that others are made from
LOOKS = 0.5  # seconds between two counts of the inputs that libFuzzer keeps
RECENT = 16  # inputs that were new last, of which half of all others are made

NEVER = 1_000_000  # seconds: with 0, atheris ends the process at an input of a second; the supervisor has its own limit

Execute = Callable[[bytes], None]


class Coverage:
    """Pairs of lines that were executed one after the other, in some packages."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._places = tuple(f"/{package.replace('.', '/')}" for package in packages)
        self._wanted: dict[CodeType, bool] = {}
        self._edges: set[tuple[CodeType, int, int]] = set()

    def of(self, call: Callable[[], None]) -> bool:
        """Call a function; return whether it reached new code."""
        before = len(self._edges)
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(None)
        return len(self._edges) > before

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        wanted = self._wanted.get(code)
        if wanted is None:
            wanted = self._wanted[code] = any(place in code.co_filename for place in self._places)
        if not wanted:
            return None
        edges, last = self._edges, 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            edges.add((code, last, frame.f_lineno))
            last = frame.f_lineno
            return line

        return line


def guided(target: FuzzTarget, rng: random.Random, count: int, execute: Execute, new: Callable[[int], None]) -> None:
    """Execute seeds and then changed inputs, until `execute` ends the process.

    count: the number of inputs; seeds are a quarter of them at most. new: receives the number of changed inputs that
    reached new code.
    """
    coverage, corpus, fresh = Coverage(target.guided), list(target.seeds()) or [b""], 0
    for seed in rng.sample(corpus, min(len(corpus), max(1, count // 4))):
        coverage.of(partial(execute, seed))
    while True:
        recent = corpus[-RECENT:] if fresh and rng.random() < 0.5 else corpus
        data = target.mutate(rng, rng.choice(recent), rng.choice(corpus))
        if not target.guided or rng.random() >= TRACED:
            execute(data)
        elif coverage.of(partial(execute, data)):
            fresh += 1
            new(fresh)
            corpus += [data] if len(data) <= KEPT else []


def has_atheris() -> bool:
    """Whether atheris is installed."""
    return find_spec("atheris") is not None


def guided_by_atheris(
    target: FuzzTarget, rng: random.Random, count: int, execute: Execute, new: Callable[[int], None]
) -> None:
    """Do the same as `guided`, with libFuzzer and all code that was imported under atheris."""
    import atheris  # type: ignore[import-untyped, unused-ignore]

    seeds, corpus = list(target.seeds()) or [b""], Path(tempfile.mkdtemp())  # the supervisor deletes it
    for number, seed in enumerate(seeds):
        (corpus / f"{number:04}").write_bytes(seed)
    looked = time.monotonic()

    def one(data: bytes) -> None:
        nonlocal looked
        execute(data)
        if time.monotonic() - looked > LOOKS:
            looked = time.monotonic()
            new(max(0, sum(1 for _ in corpus.iterdir()) - len(seeds)))

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        if seed % 4 == 0:
            return bytes(atheris.Mutate(data, longest))
        local = random.Random(seed)
        return target.mutate(local, data, local.choice(seeds))[:longest]

    options = (
        "-runs=-1",
        "-rss_limit_mb=0",
        "-handle_segv=0",
        "-handle_abrt=0",
        "-handle_term=0",
        f"-timeout={NEVER}",
        "-verbosity=0",
    )
    limits = f"-max_len={LONGEST}", f"-seed={rng.randrange(1, 2**31)}"
    atheris.Setup(["fuzz", *options, *limits, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()
