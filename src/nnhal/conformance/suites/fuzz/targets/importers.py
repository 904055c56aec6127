"""Files of models: each is imported, shown, compiled and executed, or refused with an `NnhalError`."""

import math
import random
from collections.abc import Sequence
from typing import Any
from xml.parsers import expat

import numpy as np

from nnhal import api
from nnhal.base.errors import MissedDeadline, NnhalError, OutOfMemory, UnsupportedModel
from nnhal.base.operands import Array
from nnhal.conformance.device_under_test import ANY
from nnhal.conformance.suites.fuzz import onnx_changes, tflite_changes
from nnhal.conformance.suites.fuzz.inputs import changed, corpus_of
from nnhal.conformance.suites.fuzz.target import FuzzTarget, ProcessSpent, WrongAnswer
from nnhal.conformance.suites.suite import NotSupported, SuiteRun
from nnhal.frontends.formats import refused_outline
from nnhal.model.draw import svg
from nnhal.model.outline import Outline, outline
from nnhal.model.text import dot, listing, text
from nnhal.runtime import discovery

DEADLINE = 0.5  # seconds of an execution
OPEN = 2  # elements of an open dimension
MOST_INPUT = 1 << 24  # elements of an input
STRUCTURAL = 0.8  # the share of changes that leave a file readable


def tested(run: SuiteRun) -> str:
    """Load the drivers, and return the name of the device under test."""
    loaded = [discovery.load_driver(driver).name for driver in run.drivers]
    return run.device or (loaded[0] if loaded else discovery.CPU)


def driver_options(run: SuiteRun, device: str) -> dict[str, Any]:
    """Return the options of the device under test."""
    return {**run.options.get(ANY, {}), **run.options.get(device, {})}


def options_of(run: SuiteRun, device: str) -> dict[str, Any]:
    """Return the arguments of a compilation on the device under test."""
    options = driver_options(run, device)
    more = {"driver_options": {device: options}} if options else {}
    return {"isolation": "process" if run.isolate else "none", **more}


class _ImportTarget(FuzzTarget):
    """Imports, shows, compiles and executes a file on the device under test."""

    seconds = 10.0  # engines compile the 300 operations that a small file may become in 2 s
    guided = "nnhal.frontends", "nnhal.model"

    def __init__(self, run: SuiteRun) -> None:
        self._device = tested(run)
        self._how = options_of(run, self._device)
        self._compile_a_file()  # the driver and its engine are loaded before the memory is limited

    def _compile_a_file(self) -> None:
        """Compile a file of the corpus; NotSupported if the device rejects all of them."""
        reasons = []
        for data in corpus_of(self.name):
            try:
                with api.compile(api.load(data), devices=[self._device], fallback="forbid", **self._how):
                    return
            except UnsupportedModel as error:
                reasons.append(str(error))
        raise NotSupported(f"the device rejects all {len(reasons)} files of the corpus; the first: {reasons[0]}")

    def run(self, data: bytes) -> str:
        """Run one file."""
        try:
            model = api.load(data)
        except NnhalError as error:
            _require_message(error)
            if isinstance(error, UnsupportedModel) and error.refused:
                facts = refused_outline(data, error)
                _show(facts, listing(facts))
            return f"load: {type(error).__name__}"
        _show(outline(model), text(model))
        try:
            with api.compile(model, devices=[self._device], fallback="forbid", **self._how) as compiled:
                compiled.run(*[_input(spec) for spec in compiled.inputs], deadline=DEADLINE)
        except MissedDeadline:
            raise ProcessSpent("run: MissedDeadline") from None  # the engine still works on it
        except NnhalError as error:
            _require_message(error)
            return f"run: {type(error).__name__}"
        return "run: right"


class TfliteTarget(_ImportTarget):
    """`.tflite` files."""

    name = "tflite"

    def __init__(self, run: SuiteRun) -> None:
        super().__init__(run)
        self._readable = set(map(hash, self.seeds()))

    def mutate(self, rng: random.Random, data: bytes, other: bytes) -> bytes:
        """Change tables of a file, words that may be offsets, or any bytes."""
        if not tflite_changes.available() or rng.random() >= STRUCTURAL:
            return (
                tflite_changes.with_words(data, rng)
                if len(data) >= 4 and rng.random() < 0.5
                else changed(rng, data, other)
            )
        if hash(data) not in self._readable:  # others may make their reader run out of memory
            data = rng.choice(self.seeds())
        made = tflite_changes.changed_file(rng, data)
        self._readable.add(hash(made))
        return made


class OnnxTarget(_ImportTarget):
    """`.onnx` files."""

    name = "onnx"

    def mutate(self, rng: random.Random, data: bytes, other: bytes) -> bytes:
        """Change messages of a file, or its bytes."""
        if onnx_changes.available() and rng.random() < STRUCTURAL:
            return onnx_changes.changed_file(rng, data, corpus_of(self.name))
        return changed(rng, data, other)


def _require_message(error: NnhalError) -> None:
    """Raise WrongAnswer if an error does not explain itself in text that can be written."""
    if len(str(error)) < 8 or not str(error).encode():
        raise WrongAnswer(f"{type(error).__name__} has the message {str(error)!r}, must explain what is wrong")


def _show(facts: Outline, words: str) -> None:
    """Show a model as the command line does."""
    if not all(c.isprintable() or c == "\n" for c in words + dot(facts, {})):
        raise WrongAnswer("a control character of a file is shown")
    expat.ParserCreate().Parse(svg(facts), True)


def _input(spec: Any) -> Array:
    """Return an input of small numbers, or of values at the ends of its type."""
    shape: Sequence[int] = tuple(OPEN if n is None else n for n in spec.shape or ())
    if math.prod(shape) > MOST_INPUT:
        raise OutOfMemory("the input is not made: it is too large")
    rng = np.random.default_rng(len(shape))
    if spec.dtype.kind == "f":
        return rng.normal(size=shape).astype(spec.dtype)
    if spec.dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    limits = np.iinfo(spec.dtype)
    return rng.choice(np.array([0, 1, 2, 3, limits.min, limits.max], spec.dtype), shape)
