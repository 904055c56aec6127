"""A driver that keeps its clients waiting. Options of `prepare`: "prepare" and "run" are seconds to sleep there, "fork" has
it leave a child behind that holds every descriptor for some seconds more than the process itself lives.
"""

import os
import time

from nnhal.drivers.reference import Reference
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model

LINGER = 3.0  # seconds that the child outlives its parent


class WaitingPrepared(Prepared):
    """A prepared model that sleeps before it runs."""

    def __init__(self, inner: Prepared, seconds: float) -> None:
        self._inner, self._seconds = inner, seconds

    def run(self, request: Request, control: Control) -> Timing | None:
        """Sleep, then run."""
        time.sleep(self._seconds)
        return self._inner.run(request, control)


class Waiting(Reference):
    """The device."""

    name = "waiting"

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """Do what the options say."""
        if hints.options.get("fork"):
            fork_holder()
        time.sleep(hints.options.get("prepare", 0))
        return WaitingPrepared(super().prepare(model, hints), hints.options.get("run", 0))


def fork_holder() -> None:
    """A child that does nothing but hold what it inherited."""
    parent = os.getpid()
    if os.fork():
        return
    while os.getppid() == parent:
        time.sleep(0.01)
    time.sleep(LINGER)
    os._exit(0)


def device() -> Device:
    """The entry point."""
    return Waiting()
