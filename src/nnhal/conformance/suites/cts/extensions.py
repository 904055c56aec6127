"""Vendor extensions: a device that does not declare one rejects its operations, and works beside one that does."""

from functools import partial

import numpy as np

import nnhal
from nnhal.base.extensions import register_extension
from nnhal.base.levels import V1_2
from nnhal.conformance.suites.cts.area import AreaTrial, area
from nnhal.conformance.suites.cts.neighbours import Partial
from nnhal.conformance.suites.suite import NotApplicable, NotSupported
from nnhal.ops import OPS
from nnhal.ops.schema import F32, Form, Op, T, arg, out, register
from nnhal.runtime import discovery

NAME, OPERATION = "org.nnhal.cts", "org.nnhal.cts.TWICE"


def _registered() -> None:
    """Register the extension, with an operation that doubles."""
    register_extension(NAME, operations=["TWICE"])
    if OPERATION not in OPS:
        kind = {F32: V1_2}
        form = Form(arg("input", T, "batch length"))
        result = out("output", kind, "batch length")
        register(Op(OPERATION, kind, (form,), (result,), lambda a, x: np.float32(2) * x, doc="Doubles."))


def _model() -> nnhal.Model:
    _registered()
    b = nnhal.Builder("extended")
    x = b.input([2, 5])
    return b.finish([x], [b.add(b.operation(OPERATION, b.add(x, x)), np.float32(1))])


@area("extension/rejected", "once")
def rejected(trial: AreaTrial) -> None:
    """The device rejects an extension that it does not declare; the error names operation and device."""
    _registered()
    if NAME in trial.device.extensions:
        raise NotApplicable("the device runs every registered extension")
    b = nnhal.Builder("extended")
    x = b.input([2, 5])
    model = b.finish([x], [b.operation(OPERATION, x)])
    error = trial.must_raise(
        nnhal.UnsupportedModel,
        "a model of an extension that the device does not declare",
        lambda: trial.compile(model, fallback="forbid"),
    )
    trial.require("TWICE" in str(error), f"the error does not name the operation: {error}")


@area("extension/beside", "once")
def beside(trial: AreaTrial) -> None:
    """The operation of the extension runs on a device that declares it; those around it on the device under test."""
    model = _model()
    other = Partial(discovery.cpu(), "extended", lambda n: n == 1)
    other.extensions = (NAME,)
    try:
        compiled = trial.compile(
            model, devices=[trial.device, other], fallback="forbid", placement=_around(trial.label)
        )
    except nnhal.UnsupportedModel as why:
        trial.idle()
        raise NotSupported(str(why)) from why
    devices = compiled.placement.devices()
    trial.require(devices == {trial.label: 2, "extended": 1}, f"placement is {devices}")
    for _ in range(2):
        x = trial.rng.uniform(-3, 3, (2, 5)).astype("f4")
        (y,) = trial.execute(partial(compiled, x))
        trial.require(
            np.allclose(y, 4 * x + 1, 1e-5, 1e-5), f"result is {y.ravel()[:4]}, must be {(4 * x + 1).ravel()[:4]}"
        )


def _around(label: str) -> list[nnhal.Rule]:
    return [nnhal.Rule("extended", "#1"), nnhal.Rule(label, "#0"), nnhal.Rule(label, "#2")]
