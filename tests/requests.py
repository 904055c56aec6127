"""Requests for tests: one execution of a prepared model, or a request that no driver sees."""

from collections.abc import Sequence

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


def request_of(model: Model, inputs: Sequence[Array | None], rooms: Sequence[Array | None] | None = None) -> Request:
    signature = Signature.of(model)
    return signature.make(signature, inputs, rooms)
