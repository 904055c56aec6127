"""A driver that works something out, claims a group, and has an option that switches operations off."""

import json
import os

from nnhal.drivers.reference import Reference
from nnhal.hal.device import YES, Considered, OperationGroup, Performance, Verdict


class Made:
    """What is worked out; `made` and `gone` count."""

    made = gone = 0

    def __init__(self):
        Made.made += 1

    def __del__(self):
        Made.gone += 1


class Considering(Reference):
    """Tells in the first reason what it was told before: its counters, and what came with each preparation."""

    name = "considering"

    def __init__(self):
        self.came = []

    def consider(self, model, hints):
        if hints.options.get("die"):
            os._exit(3)
        count = len(model.main.operations)
        said = Verdict(False, json.dumps({"made": Made.made, "gone": Made.gone, "came": self.came}))
        if "tell" in hints.options:
            return Considered([said] * count)
        if hints.options.get("off"):
            return Considered([Verdict(False, "is switched off")] * count)
        if "fused" in hints.options:
            group = OperationGroup(hints.options["fused"], Performance(0.01, 0.5))
            return Considered([Verdict(False, "only as one")] * count, [group], Made())
        return Considered([YES] * count, worked_out=Made())

    def prepare(self, model, hints):
        found = hints.worked_out
        self.came.append(
            None
            if found is None
            else [type(found.given).__name__, list(found.operations), found.whole, found.model.main == model.main]
        )
        if hints.options.get("die later"):
            os._exit(4)
        return super().prepare(model, hints)


def device():
    return Considering()
