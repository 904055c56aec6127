"""Sessions and executions: one session for a set of input shapes, whose executions each have memory bound to it."""

import ctypes
import os
import time
from functools import cache, partial
from typing import Any

import numpy as np

from nnhal.base.errors import Closed, DeviceUnavailable, InvalidRequest, OperationFailed
from nnhal.base.operands import Array
from nnhal.drivers.kit import Member, Team
from nnhal.drivers.onnxruntime.graph import Built
from nnhal.hal.device import Prepared
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.ops.schema import show

IN_PLACE = 1 << 16  # bytes from which an input is read where it lies


@cache
def engine() -> Any:
    """ONNX Runtime, told to be silent; DeviceUnavailable where it, or what writes its models, is not installed."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # looked at when it is imported
    try:
        import onnx  # noqa: F401, TID251
        import onnxruntime  # noqa: TID251
    except ImportError as error:
        what = f"onnxruntime: {error.name or error} is not there ({error})"
        raise DeviceUnavailable(f"{what}, install it with: pip install 'nnhal[onnxruntime]'") from error
    onnxruntime.disable_telemetry_events()
    onnxruntime.set_default_logger_severity(4)  # what goes wrong is raised too
    return onnxruntime


def session(built: Built, threads: int, provider: str) -> Any:
    """An engine's session. What its optimiser would make of quantised operations by itself is switched off."""
    ort = engine()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry(
        "session.disable_quant_qdq", "1"
    )  # its integer kernels saturate on some processors
    names, values = list(built.arrays), [ort.OrtValue.ortvalue_from_numpy(x) for x in built.arrays.values()]
    if names:
        options.add_external_initializers(names, values)
    providers = list(dict.fromkeys([provider, "CPUExecutionProvider"]))
    try:
        made = ort.InferenceSession(built.model, options, providers)
    except Exception as error:
        raise OperationFailed(f"onnxruntime: the model cannot be prepared: {error}") from error
    made.nnhal_weights = values  # they are read where they lie, for as long as it lives
    return made


class Bound(Member):
    """Memory for one execution at a time, bound to a session."""

    def __init__(self, made: Any, built: Built) -> None:
        ort = engine()
        self._of = made
        self._ort_value, binding = ort.OrtValue.ortvalue_from_numpy, made.io_binding()
        self.inputs = [(n, name, np.zeros(shape, dtype)) for n, name, dtype, shape in built.inputs]
        self.outputs = [np.zeros(shape, dtype) for _, dtype, shape in built.outputs]
        for _, name, room in self.inputs:
            binding.bind_ortvalue_input(name, self._ort_value(room))
        for (name, *_), room in zip(built.outputs, self.outputs, strict=True):
            binding.bind_ortvalue_output(name, self._ort_value(room))
        self.binding, self._address = binding, dict.fromkeys((n for n, *_ in self.inputs), 0)
        self.call = partial(made._sess.run_with_iobinding, binding._iobinding)

    def read(self, given: Any) -> None:
        """Take the inputs: large ones where they lie, which costs more than to copy few bytes."""
        for number, name, room in self.inputs:
            x = given[number]
            if x is None or x.shape != room.shape:
                state = "omitted" if x is None else f"of shape {show(x.shape)}"
                raise InvalidRequest(f"input {number} is {state}, must be of shape {show(room.shape)}")
            if x.dtype is not room.dtype:
                x = x.view(room.dtype)
            if room.nbytes < IN_PLACE or not x.flags.c_contiguous:
                room[...] = x
                continue
            self.binding.bind_ortvalue_input(name, self._ort_value(x))


_ = ctypes, Array


class OnnxSession(Prepared):
    """A model whose input shapes are known, prepared with ONNX Runtime."""

    def __init__(self, built: Built, threads: int, provider: str) -> None:
        self._built = built
        made = session(built, threads, provider)
        self._team: Team[Bound] | None = Team(lambda: Bound(made, built), "onnxruntime: bindings")

    def run(self, request: Request, control: Control) -> Timing | None:
        measure = control.measure
        start = time.monotonic_ns() if measure else 0
        if control is not UNLIMITED:
            control.check()
        team = self._team
        if team is None:
            raise Closed("onnxruntime: the prepared model was closed")
        bound = team.take(control)
        try:
            bound.read(request.inputs)
            begin = time.monotonic_ns() if measure else 0
            self._call(bound, control)
            end = time.monotonic_ns() if measure else 0
            for number, (dtype, y) in enumerate(zip(request.signature.outputs, bound.outputs, strict=True)):
                request.write(number, y if y.dtype is dtype.dtype else y.view(dtype.dtype))
        finally:
            team.give(bound)
        return Timing(end - begin, time.monotonic_ns() - start) if measure else None

    def _call(self, bound: Bound, control: Control) -> None:
        try:
            if not control.bounded:
                bound.call(None)
                return
            options = engine().RunOptions()
            with control.on_cancel(partial(setattr, options, "terminate", True)):
                bound.call(options)
        except RuntimeError as error:
            control.check()  # where it was stopped
            raise OperationFailed(f"onnxruntime: {error}") from error

    def close(self) -> None:
        self._team = None
