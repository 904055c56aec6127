"""OpenVINO's library and its settings; compiled models and their executions."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.errors import Closed, DeviceUnavailable, InvalidRequest, OperationFailed
from nnhal.base.installed import version_of
from nnhal.base.operands import Array
from nnhal.drivers.kit.native import left_alone_in_forks, unowned
from nnhal.drivers.kit.team import Member, Team
from nnhal.drivers.openvino.apart import keep_apart
from nnhal.hal.cache.files import CacheContent
from nnhal.hal.device import Prepared
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.ops.schema import show

TELEMETRY = "openvino_telemetry"
RESTORED = 200e6  # bytes of constants that are read, looked at and unpacked in a second
IN_PLACE = 1 << 22  # bytes of an argument from which its address is told; to copy less is 0.1 ms cheaper than that


@cache
def ov() -> Any:
    """OpenVINO; DeviceUnavailable where it is not installed.

    Its import tells a server that it was imported, by a package that it does without where that is not to be found.
    """
    silent = TELEMETRY not in sys.modules
    if silent:
        sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # what makes an import fail
    try:
        import openvino  # noqa: TID251
    except ImportError as error:
        what = f"openvino: it is not there ({error})"
        raise DeviceUnavailable(f"{what}, install it with: pip install 'nnhal[openvino]'") from error
    finally:
        if silent:
            del sys.modules[TELEMETRY]
    return openvino


def version() -> str:
    """OpenVINO's, which is not imported for that, and what its kernels are told to do without: others are right or wrong
    elsewhere. DeviceUnavailable where it is not installed.
    """
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA", "")
    return f"{version_of('openvino') or ov().__version__} {limit}".strip()


@cache
def opset() -> Any:
    """Its operations."""
    return import_module(f"{ov().__name__}.opset15")


@cache
def core() -> Any:
    """Its devices."""
    made = ov().Core()
    left_alone_in_forks(made)
    return made


def settings(threads: int, *, throughput: bool) -> dict[str, Any]:
    """Float32 computed as float32, integers as they are written: nothing that changes results behind one's back.

    throughput: for several executions at once, each by one thread, instead of one by all.
    """
    return {
        "INFERENCE_PRECISION_HINT": "f32",
        "EXECUTION_MODE_HINT": "ACCURACY",
        "LP_TRANSFORMS_MODE": "NO",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "CPU_DENORMALS_OPTIMIZATION": False,
        "PERFORMANCE_HINT": "THROUGHPUT" if throughput else "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,
    }


class Port(NamedTuple):
    """An input or output of a compiled model."""

    number: int
    dtype: Any
    shape: tuple[int, ...]


def arguments(ports: Sequence[Any]) -> list[Port]:
    """Of the inputs or outputs of a compiled model."""
    return [Port(n, p.get_element_type().to_dtype(), tuple(p.shape)) for n, p in enumerate(ports)]


class InferRequest(Member):
    """An infer request with memory of its own for small arguments. For one thread at a time.

    checks: how many of the last outputs say whether the execution failed.
    """

    def __init__(self, compiled: Any, inputs: Sequence[Port], outputs: Sequence[Port], checks: int) -> None:
        self._request, self._tensor = compiled.create_infer_request(), ov().Tensor
        plain: Any = super(type(self._request), self._request)  # what its `infer` does besides costs a third more
        self._infer = partial(plain.infer, {}, True, False)
        self._inputs = [(a, self._own(a, self._request.set_input_tensor)) for a in inputs]
        self._outputs = [(a, self._own(a, self._request.set_output_tensor)) for a in outputs]
        self._checks = [self._outputs.pop()[1] for _ in range(checks)]

    def _own(self, a: Port, tell: Any) -> Array | None:
        """Memory for a small argument, which OpenVINO is told of once."""
        array = np.zeros(a.shape, a.dtype)
        if array.nbytes >= IN_PLACE:
            return None
        tell(a.number, self._tensor(array, shared_memory=True))
        return array

    def run(self, request: Request, control: Control) -> int:
        """Execute; returns nanoseconds spent in OpenVINO."""
        given, kept = request.inputs, []
        for a, own in self._inputs:
            x = given[a.number]
            if x is None or x.shape != a.shape:
                state = "omitted" if x is None else f"of shape {show(x.shape)}"
                raise InvalidRequest(f"input {a.number} is {state}, must be of shape {show(a.shape)}")
            if own is not None:
                own[...] = x
                continue
            kept.append(x if x.flags.c_contiguous and x.flags.aligned else x.copy())
            self._request.set_input_tensor(a.number, self._tensor(unowned(kept[-1]), shared_memory=True))
        for a, own in self._outputs:
            if own is None:
                kept.append(request.outputs[a.number])
                room = kept[-1] if kept[-1] is not None else np.empty(a.shape, a.dtype)
                self._request.set_output_tensor(a.number, self._tensor(unowned(room), shared_memory=True))
        start = time.monotonic_ns()
        try:
            if control.bounded:
                with control.on_cancel(self._request.cancel):  # which ends what was started, and not `infer`
                    self._request.start_async()
                    self._request.wait()
            else:
                self._infer()
        except RuntimeError as error:
            control.check()
            raise OperationFailed(f"openvino: {error}") from error
        spent = time.monotonic_ns() - start
        if any(check is not None and check.any() for check in self._checks):
            raise OperationFailed("openvino: an index lies outside of the dimension that it picks from")
        for a, own in self._outputs:
            if own is not None:
                request.write(a.number, own)
        return spent


class OpenVINOModel(Prepared):
    """A model whose input shapes are known, compiled. kept: what its constants lie in. checks: as of `InferRequest`.

    seconds: that compiling took.
    """

    trimmable = True

    def __init__(self, compiled: Any, kept: Sequence[Array], checks: int, seconds: float = 0.0) -> None:
        self.compiled, self._kept, self._checks, self._seconds = compiled, kept, checks, seconds
        left_alone_in_forks(self)
        ends = arguments(compiled.inputs), arguments(compiled.outputs), checks
        self._team: Team[InferRequest] | None = Team(partial(InferRequest, compiled, *ends), "openvino: infer requests")

    def run(self, request: Request, control: Control) -> Timing | None:
        start = time.monotonic_ns()
        if control is not UNLIMITED:
            control.check()
        team = self._team
        if team is None:
            raise Closed("openvino: the prepared model was closed")
        instance = team.take(control)
        try:
            spent = instance.run(request, control)
        finally:
            team.give(instance)
        return Timing(spent, time.monotonic_ns() - start) if control.measure else None

    def trim(self, *, pressed: bool) -> None:
        """Infer requests but one, or all, and the memory of intermediates."""
        team = self._team
        if team is None:
            return
        team.trim(0 if pressed else 1)
        try:
            self.compiled.release_memory()
        except RuntimeError as error:
            raise OperationFailed(f"openvino: its memory cannot be released: {error}") from error

    def save(self, files: CacheContent) -> bool:
        """OpenVINO's own blob, which has the constants in it; nothing where reading them takes longer than compiling did."""
        if sum(array.nbytes for array in self._kept) > self._seconds * RESTORED:
            return False
        files.model[0]["compiled"] = self.compiled.export_model().getbuffer()
        files.model[0]["checks"] = self._checks.to_bytes(4, "little")
        return True

    def close(self) -> None:
        self._team = None


def compiled(
    inputs: Sequence[Any], outputs: Sequence[Any], constants: Mapping[str, Array], how: Mapping[str, Any]
) -> tuple[Any, list[Array]]:
    """Nodes compiled for the processor, and what the constants among them lie in; OperationFailed where OpenVINO cannot.

    constants: by name, of these nodes and of others. how: `settings`.
    """
    try:
        model = ov().Model([opset().result(node) for node in outputs], [node for node in inputs if node is not None])
        keep_apart(model, opset())
        kinds = {node.get_name(): node.get_type_name() for node in model.get_ops()}
        kept = [array for name, array in constants.items() if name in kinds]
        of_8_bits = {**how, "LP_TRANSFORMS_MODE": "YES"} if "FakeQuantize" in kinds.values() else how
        try:
            return core().compile_model(model, "CPU", of_8_bits), kept
        except RuntimeError:  # it may fail on a layer behind operations that it makes one, and takes each by itself
            return core().compile_model(model, "CPU", {**how, "SNIPPETS_MODE": "DISABLE"}), kept
    except RuntimeError as error:
        raise OperationFailed(f"openvino: the model cannot be compiled: {error}") from error


def restored(files: CacheContent, how: Mapping[str, Any]) -> OpenVINOModel:
    """What was saved; OperationFailed where OpenVINO does not take it."""
    blob = np.frombuffer(files.model[0]["compiled"], np.uint8)  # constants are read there as long as it lives
    try:
        made = core().import_model(ov().Tensor(unowned(blob), shared_memory=True), "CPU", how)
        return OpenVINOModel(made, [blob], int.from_bytes(files.model[0]["checks"], "little"))
    except RuntimeError as error:
        raise OperationFailed(f"openvino: what was kept cannot be restored: {error}") from error
