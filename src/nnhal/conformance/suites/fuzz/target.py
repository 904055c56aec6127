"""A fuzz target: what runs one input, and what counts as a failure."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module

from nnhal.base.errors import InvalidArgument
from nnhal.base.names import suggestion
from nnhal.conformance.suites.fuzz.inputs import changed, corpus_of
from nnhal.conformance.suites.suite import SuiteRun

_WHERE = "nnhal.conformance.suites.fuzz.targets"
# Targets by name: module and class.
TARGETS = {
    "wire": f"{_WHERE}.wire:WireTarget",
    "queue": f"{_WHERE}.queue:QueueTarget",
    "model": f"{_WHERE}.models:ModelTarget",
    "tflite": f"{_WHERE}.importers:TfliteTarget",
    "onnx": f"{_WHERE}.importers:OnnxTarget",
    "cache": f"{_WHERE}.cache:CacheTarget",
    "driver": f"{_WHERE}.driver:DriverTarget",
}

BLIND = frozenset(("queue", "driver"))  # their code under test is not Python: no coverage guides them
# Inputs of each target at scale 1: about a minute for all on two cores.
EXECUTIONS = {
    "wire": 200_000,
    "queue": 20_000,
    "model": 2_000,
    "tflite": 400,
    "onnx": 400,
    "cache": 300,
    "driver": 300,
}


class WrongAnswer(Exception):
    """An input had an effect that it must not have; the text describes it."""


class DriverEnded(Exception):
    """An input ended the driver's process; the text describes it."""


class ProcessSpent(Exception):
    """The input is right, but left work behind in this process: the next one needs a new process. It has the outcome."""


class FuzzTarget(ABC):
    """A target. An exception that leaves `run` is a failure, and so is the end of the process.

    seconds: of processor time that one input may take. patience: seconds that it may
    take by the clock; 0 for the run's time limit. memory: bytes that the process may get beyond what it has before the
    first input. guided: packages whose coverage shows that an input is new.
    """

    name: str
    seconds = 2.0
    patience = 30.0
    memory = 1 << 30
    guided: Sequence[str] = ()

    def __init__(self, run: SuiteRun) -> None:
        """Prepare; NotSupported or NotApplicable if it cannot run here. run: the device under test, and the seed."""

    def seeds(self) -> Sequence[bytes]:
        """Return the inputs to begin with."""
        return corpus_of(self.name)

    def mutate(self, rng: random.Random, data: bytes, other: bytes) -> bytes:
        """Return a changed input. other: a second input, of which parts may be taken."""
        return changed(rng, data, other)

    @abstractmethod
    def run(self, data: bytes) -> str:
        """Run one input, and return how it ended, in a few words that many inputs share."""

    def recover(self) -> None:
        """Start the driver's process again after `DriverEnded`; no input's limits apply."""

    def close(self) -> None:
        """Release what the target holds."""


def target_of(name: str, run: SuiteRun) -> FuzzTarget:
    """Return a prepared target. name: one of `TARGETS`, or MODULE:CLASS.

    Raises:
        InvalidArgument: there is no such target.
        NotSupported, NotApplicable: it cannot run here.
    """
    module, colon, kind = TARGETS.get(name, name).partition(":")
    if not colon:
        like = suggestion(name, TARGETS) or f", must be one of {', '.join(TARGETS)}"
        raise InvalidArgument(f"target {name!r} is unknown{like}")
    target: FuzzTarget = getattr(import_module(module), kind)(run)
    return target
