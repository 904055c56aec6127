"""Answers to queries that cannot be, that change, and that are not kept."""

import math
from itertools import count
from typing import Any

import numpy as np

from nnhal.hal.device import YES, Capabilities, Hints, Prepared, Verdict
from nnhal.model.graph import Model

from .faults import CONTRACT, VTS, fault
from .healthy import Engine, Healthy


@fault("verdict-too-few", "gives a verdict too few", "verdicts")
class VerdictTooFew(Healthy):
    def supports(self, model: Model) -> Any:
        return super().supports(model)[:-1]


@fault("verdict-too-many", "gives a verdict too many", "verdicts")
class VerdictTooMany(Healthy):
    def supports(self, model: Model) -> Any:
        return [*super().supports(model), YES]


@fault("verdicts-nothing", "gives None for verdicts", "verdicts")
class VerdictsNothing(Healthy):
    def supports(self, model: Model) -> Any:
        return None


@fault("verdicts-of-text", "gives texts for verdicts", "verdicts")
class VerdictsOfText(Healthy):
    def supports(self, model: Model) -> Any:
        return ["yes" if verdict.ok else "no" for verdict in super().supports(model)]


@fault("verdicts-change", "alternates between yes and no", "verdicts", (CONTRACT,))
class VerdictsChange(Healthy):
    def __init__(self) -> None:
        self.asked = count()

    def supports(self, model: Model) -> Any:
        verdicts = super().supports(model)
        return verdicts if next(self.asked) % 2 == 0 else [Verdict(False, "not today")] * len(verdicts)


@fault("supports-raises", "supports raises KeyError", "verdicts")
class SupportsRaises(Healthy):
    def supports(self, model: Model) -> Any:
        raise KeyError(model.main.operations[0].type)


@fault("supports-allocates", "a query takes a byte of memory for each element of the largest tensor", "", (VTS,))
class SupportsAllocates(Healthy):
    def supports(self, model: Model) -> Any:
        np.ones(max(math.prod(operand.dimensions) for operand in model.main.operands), np.uint8)
        return super().supports(model)


@fault("supports-exits", "supports raises SystemExit", "verdicts")
class SupportsExits(Healthy):
    def supports(self, model: Model) -> Any:
        raise SystemExit(3)


@fault("yes-and-no", "supports an operation and then cannot prepare it", "prepares")
class YesAndNo(Healthy):
    def prepare(self, model: Model, hints: Hints) -> Prepared:
        raise NotImplementedError("on the list")


@fault("yes-to-all", "supports every operation, also those without a kernel", "runs", operation="SUB")
class YesToAll(Healthy):
    def supports(self, model: Model) -> Any:
        return [YES] * len(model.main.operations)


@fault("prepare-raises", "prepare raises KeyError", "prepares")
class PrepareRaises(Healthy):
    def prepare(self, model: Model, hints: Hints) -> Prepared:
        raise KeyError("scale")


@fault("prepare-exits", "prepare raises SystemExit", "prepares")
class PrepareExits(Healthy):
    def prepare(self, model: Model, hints: Hints) -> Prepared:
        raise SystemExit(3)


@fault("prepare-nothing", "prepare gives None", "prepares")
class PrepareNothing(Healthy):
    def prepare(self, model: Model, hints: Hints) -> Any:
        return None


@fault("prepare-the-same", "prepare gives the same prepared model each time", "prepared-twice")
class PrepareTheSame(Healthy):
    kept: Any = None

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        self.kept = self.kept or super().prepare(model, hints)
        return self.kept


@fault("prepare-blames-options", "prepare raises InvalidArgument for hints that the caller did not give", "prepares")
class PrepareBlamesOptions(Healthy):
    def prepare(self, model: Model, hints: Hints) -> Prepared:
        from nnhal.base.errors import InvalidArgument

        raise InvalidArgument("the options are not to my liking")


@fault("capabilities-negative", "declares a negative performance", "capabilities", alone=True, operation="")
class CapabilitiesNegative(Healthy):
    def capabilities(self) -> Any:
        return Capabilities.uniform(-1.0)


@fault("capabilities-nan", "declares NaN as performance", "capabilities", alone=True, operation="")
class CapabilitiesNan(Healthy):
    def capabilities(self) -> Any:
        return Capabilities.uniform(math.nan)


@fault("capabilities-raise", "capabilities raises ZeroDivisionError", "capabilities", alone=True, operation="")
class CapabilitiesRaise(Healthy):
    def capabilities(self) -> Any:
        return Capabilities.uniform(1 / 0)


@fault("capabilities-change", "declares another performance on each call", "capabilities", (CONTRACT,), operation="")
class CapabilitiesChange(Healthy):
    def __init__(self) -> None:
        self.asked = count(1)

    def capabilities(self) -> Any:
        return Capabilities.uniform(1.0 / next(self.asked))


@fault("status-nonsense", "reports the status 42", "status", (CONTRACT,), operation="")
class StatusNonsense(Healthy):
    def status(self) -> Any:
        return 42


@fault("close-raises", "close of a prepared model raises", "close", (CONTRACT,))
class CloseRaises(Engine):
    def close(self) -> None:
        raise RuntimeError("was never open")
