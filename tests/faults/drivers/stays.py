"""A driver that does not end by itself: `driver_options={"stays": {"how": "close" | "held" | "deaf"}}`.

gate: a path that an execution waits for, instead of a second. It prints a line to stderr once it stays.
"""

import ctypes
import sys
import time
from pathlib import Path
from typing import Any

from nnhal.hal.device import YES, Device, Hints, Prepared
from nnhal.hal.request import Control, Request, Timing


def say(how: str) -> None:
    print(how, file=sys.stderr, flush=True)


class Stays(Prepared):
    def __init__(self, how: str, gate: str) -> None:
        self.how, self.gate = how, gate

    def run(self, request: Request, control: Control) -> Timing | None:
        (x,) = request.inputs
        assert x is not None
        if self.how == "held":
            say("held")
            ctypes.PyDLL(None).sleep(600)  # keeps the interpreter
        if self.how in ("deaf", "polite"):
            say(self.how)
            end = time.monotonic() + 1
            while not Path(self.gate).exists() if self.gate else time.monotonic() < end:
                if self.how == "polite":
                    control.check()
                time.sleep(0.001)
            request.write(0, x * 0 + 99)
            return None
        request.write(0, x * 2)
        return None

    def close(self) -> None:
        if self.how == "close":
            say("close")
            time.sleep(600)


class StaysDevice(Device):
    name = "stays"

    def supports(self, model: Any) -> list[Any]:
        return [YES] * len(model.main.operations)

    def prepare(self, model: Any, hints: Hints) -> Prepared:
        return Stays(hints.options.get("how", ""), hints.options.get("gate", ""))


def device() -> Device:
    return StaysDevice()
