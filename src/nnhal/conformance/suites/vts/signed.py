"""Signed 8-bit operations: a driver of HAL 1.3 that supports an unsigned one supports the signed one, with equal results."""

import numpy as np

from nnhal.base.codes import type_name
from nnhal.base.errors import InvalidModel, NnhalError
from nnhal.base.levels import V1_3
from nnhal.base.operands import Array, Value
from nnhal.base.records import replace
from nnhal.conformance.control import CONTROL
from nnhal.conformance.differential import arrays_of, model_of
from nnhal.conformance.draw import Call
from nnhal.conformance.suites.vts.promise import OPERATION, Probe, named, promise
from nnhal.conformance.validate.trial import RequirementNotMet
from nnhal.ops.schema import Q8, Q8S, bind

OFFSET = 128
# By Android's documentation of NN HAL 1.3: results need not be equal. A fifth, QUANTIZED_16BIT_LSTM, has no signed
# variant in its record.
OTHER_RESULTS = frozenset(("CAST", "HASHTABLE_LOOKUP", "LSH_PROJECTION", "PAD_V2"))
MOST = 10  # calls


@promise(
    "signed",
    "A driver of HAL 1.3 that supports an operation on TENSOR_QUANT8_ASYMM supports it on TENSOR_QUANT8_ASYMM_SIGNED; "
    "the results are equal but for the offset of 128, within the tolerance.",
    OPERATION,
    unseen="no supported call has a tensor of TENSOR_QUANT8_ASYMM and a signed variant",
)
def signed(probe: Probe) -> int:
    probe.since(V1_3, "signed 8-bit operations")
    seen = 0
    for call, _ in probe.calls.taken():
        other = None if probe.operation in CONTROL else _signed(call)
        if other is None:
            continue
        probe.types.at(type_name(other.cell.kind))
        verdict = probe.calls.verdict(model_of(other))
        if not verdict.ok:
            raise RequirementNotMet(
                f"supports() accepts {call.cell}, and rejects the same call on signed tensors: {verdict.reason}",
                probe.place("supports"),
            )
        seen += 1
        if not probe.calls.random and probe.operation not in OTHER_RESULTS:
            _compared(probe, call, other)
        if seen == probe.count(MOST):
            break
    return seen


def _compared(probe: Probe, call: Call, other: Call) -> None:
    try:
        results = probe.alone(model_of(call), arrays_of(call))
    except NnhalError:  # the contract's checks report that
        return
    try:
        actual = probe.alone(model_of(other), arrays_of(other))
    except NnhalError as error:
        raise RequirementNotMet(
            f"{call.cell} runs, and the same call on signed tensors fails: {named(error)}"
        ) from error
    wanted = [_shifted(out, result) for out, result in zip(call.outputs, results, strict=True)]
    problem = probe.differs(other, wanted, actual)  # AOSP's own kernels round ties of averages differently
    if problem:
        raise RequirementNotMet(f"{call.cell} on signed tensors: {problem}", probe.place())


def _shifted(out: Value, result: Array | None) -> Array | None:
    if result is None or out.type != Q8:
        return result
    return (result.astype(np.int16) - OFFSET).astype(np.int8)


def _signed(call: Call) -> Call | None:
    """Return the call with signed tensors for all unsigned ones; None if there are none, or no such signature."""
    inputs, outputs = [_other(value) for value in call.inputs], [_other(value) for value in call.outputs]
    if not any(value is not None and value.type == Q8 for value in (*call.inputs, *call.outputs)):
        return None
    kind = Q8S if call.cell.kind == Q8 else call.cell.kind
    try:
        bound = bind(call.cell.op, inputs, outputs)
    except InvalidModel:
        return None
    return replace(
        call,
        cell=replace(call.cell, kind=kind),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        bound=bound,
    )


def _other(value: Value | None) -> Value | None:
    if value is None or value.type != Q8:
        return value
    data = (
        value.data if not isinstance(value.data, np.ndarray) else (value.data.astype(np.int16) - OFFSET).astype(np.int8)
    )
    return replace(value, type=Q8S, zero_point=value.zero_point - OFFSET, data=data)
