"""Requests for tests: one execution of a prepared model, or a request that no driver sees."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import nnhal
from nnhal.base.operands import Array
from nnhal.hal.device import Prepared
from nnhal.hal.request import UNLIMITED, Control, Request, Signature
from nnhal.model.graph import Model


def run(
    prepared: Prepared,
    inputs: Sequence[Array | None],
    control: Control = UNLIMITED,
    rooms: Sequence[Array | None] | None = None,
) -> Request:
    request = prepared.request(inputs, rooms)
    request.execute(prepared.run, control)
    return request


def outputs(prepared: Prepared, *inputs: Any) -> list[Any]:
    """Execute; the outputs."""
    return run(prepared, [None if x is None else np.asarray(x) for x in inputs]).results


def output(prepared: Prepared, *inputs: Any) -> Any:
    """Execute; the only output."""
    (result,) = outputs(prepared, *inputs)
    return result


def compute(model: Model, *arrays: Any, **how: Any) -> list[Any]:
    """Compile a model on devices that take all of it, and call it; the outputs. how: the arguments of `compile`."""
    with nnhal.compile(model, fallback="forbid", **how) as compiled:
        found = compiled(*arrays)
    return list(found) if isinstance(found, tuple) else [found]


def request_of(model: Model, inputs: Sequence[Array | None], rooms: Sequence[Array | None] | None = None) -> Request:
    signature = Signature.of(model)
    return signature.make(signature, inputs, rooms)
