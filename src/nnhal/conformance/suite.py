"""Runs vectors on a device and compares: passed, failed, unsupported; nothing is skipped."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.errors import ContractBroken, DriverFailed, LoopTimeout, NnhalError
from nnhal.base.levels import V1_2
from nnhal.base.operands import Array, dtype_of
from nnhal.conformance.vectors import Expected, Vector
from nnhal.conformance.ways import WAYS
from nnhal.hal.device import Device, Hints, prepared_by, verdicts_by
from nnhal.hal.request import Control
from nnhal.ops.common import FLOAT, HALF

ENDLESS_LOOP_TIMEOUT_NS = 1_000_000


@dataclass(frozen=True)
class Outcome:
    """What became of one vector: "passed", "failed" or "unsupported", and why."""

    id: str
    verdict: str
    reason: str = ""
    variant: str = ""
    primary: str = ""  # the operation under test
    nanoseconds: int = 0


def variants(vector: Vector, flags: Iterable[str]) -> Iterator[str]:
    """The ways to run a vector: as published, and again as its flags say."""
    yield ""
    if "dynamicOutputShape" in flags:
        yield "dynamic"
    if "quantCoupling" in flags:
        yield "signed"


def run_vector(vector: Vector, device: Device, variant: str = "", way: str = "plain") -> Outcome:
    """Build, prepare, execute in one of `WAYS` and compare one vector on one device."""

    def outcome(verdict: str, reason: str = "") -> Outcome:
        return Outcome(vector.id, verdict, reason, variant)

    try:
        model = vector.model(dynamic=variant == "dynamic", signed=variant == "signed")
        refused = [v.reason for v in verdicts_by(device, model) if not v.ok]
        if refused:
            return outcome("unsupported", refused[0])
        prepared = prepared_by(device, model, Hints())
        request = prepared.request(vector.inputs(signed=variant == "signed"), _room(vector, variant, way, device))
        endless = vector.expect_failure and "WHILE" in vector.operations
        control = Control(loop_timeout=ENDLESS_LOOP_TIMEOUT_NS) if endless else Control()
        WAYS[way](device, prepared, request, control)
    except (DriverFailed, ContractBroken) as error:  # no way to fail, whatever the vector wants
        return outcome("failed", f"{type(error).__name__}: {error}")
    except NnhalError as error:
        if vector.expect_failure and isinstance(error, LoopTimeout) == ("while_infinite_loop" in vector.id):
            return outcome("passed", f"fails as it must: {error}")
        return outcome("failed", f"{type(error).__name__}: {error}")
    except Exception as error:  # a driver's bug is a failed vector, not the end of the run
        return outcome("failed", f"{type(error).__name__} escaped: {error}")
    if vector.expect_failure:
        return outcome("failed", "ran, must end in an error")
    if request.small:
        return outcome("failed", f"room of outputs {list(request.small)} is too small for shapes {request.shapes}")
    if vector.multinomial:
        return outcome(*compare_frequencies(vector, request.given, request.results))
    return outcome(*compare_all(vector, request.results, vector.expected(signed=variant == "signed")))


def _room(vector: Vector, variant: str, way: str, device: Device) -> list[Array | None]:
    """Memory for the outputs: the driver's where that is allowed, else of the expected shapes."""
    expected = vector.expected(signed=variant == "signed")
    if way in ("plain", "callback") and device.level >= V1_2:
        return [None] * len(expected)
    return [np.empty(e.shape, dtype_of(e.type)) for e in expected]


def compare_all(vector: Vector, outputs: Sequence[Array | None], expected: Sequence[Expected]) -> tuple[str, str]:
    """Compare all outputs that count."""
    for index, (actual, wanted) in enumerate(zip(outputs, expected, strict=True)):
        if wanted.ignored:
            continue
        problem = compare(actual, wanted, half=vector.half_precision, mobilenet="mobilenet" in vector.id)
        if problem:
            return "failed", f"output {index}: {problem}"
    return "passed", ""


def compare(actual: Array | None, wanted: Expected, *, half: bool, mobilenet: bool = False) -> str:
    """The difference between an output and what is expected, "" where it is within the tolerance."""
    if actual is None:
        return "has no value"
    if actual.shape != wanted.shape:
        return f"has shape {list(actual.shape)}, must be {list(wanted.shape)}"
    if wanted.data is None or not actual.size:
        return ""
    atol, rtol = tolerance(wanted.type, half, mobilenet)
    a, e = actual.astype(np.float64), wanted.data.astype(np.float64)
    bad = ~((np.abs(a - e) <= atol + rtol * np.abs(e)) | (a == e))
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} elements differ, the first at {list(at)}: {a[at]:g}, must be {e[at]:g}"


def tolerance(kind: OperandType, half: bool, mobilenet: bool = False) -> tuple[float, float]:
    """Absolute and relative tolerance of an output, by the published harness."""
    if kind == OperandType.TENSOR_FLOAT16 or (half and kind == OperandType.TENSOR_FLOAT32):
        return HALF, HALF
    if kind in (OperandType.TENSOR_FLOAT32, OperandType.FLOAT32):
        return FLOAT
    if kind == OperandType.TENSOR_BOOL8:
        return 0.0, 0.0
    return (3.0 if mobilenet else 1.0), 0.0


def compare_frequencies(
    vector: Vector, inputs: Sequence[Array | None], outputs: Sequence[Array | None]
) -> tuple[str, str]:
    """For random outputs: the share of samples of each class against the softmax of the input."""
    logits, samples = inputs[0], outputs[0]
    if logits is None or samples is None:
        return "failed", "has no value"
    x = logits.astype(np.float64)
    p = np.exp(x - x.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    share = np.stack([np.bincount(row, minlength=x.shape[1]) / len(row) for row in samples])
    worst = float(np.abs(share - p).max())
    if worst <= vector.multinomial:
        return "passed", ""
    return "failed", f"class frequencies are off by {worst:.3f}, must be within {vector.multinomial}"
