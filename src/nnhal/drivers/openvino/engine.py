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
from nnhal.drivers.kit.instance_pool import Member, Team
from nnhal.drivers.kit.native import borrowed_array, keep_alive_in_forks
from nnhal.drivers.openvino.unwritten_memory import copy_shared_transpose_inputs
from nnhal.drivers.openvino.workarounds import keep_constants_apart, keep_fused_apart, keep_ranks, searches_too_long
from nnhal.hal.cache.files import CacheContent
from nnhal.hal.device import Prepared
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.ops.schema import show

TELEMETRY = "openvino_telemetry"
RESTORED = 200e6  # bytes of constants that are read, checked and unpacked in a second
IN_PLACE = 1 << 22  # bytes of an argument from which its address is passed; to copy a smaller one is 0.1 ms cheaper


@cache
def ov() -> Any:
    """Import OpenVINO; DeviceUnavailable if it is not installed.

    Its import reports itself to a server, through a package that it does without if it cannot be found.
    """
    silent = TELEMETRY not in sys.modules
    if silent:
        sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # what makes an import fail
    try:
        import openvino  # noqa: TID251
    except ImportError as error:
        what = f"openvino: the library cannot be imported ({error})"
        raise DeviceUnavailable(f"{what}, install it with: pip install 'nnhal[openvino]'") from error
    finally:
        if silent:
            del sys.modules[TELEMETRY]
    return openvino


def version() -> str:
    """Return OpenVINO's version without an import, and the instructions that its kernels are set to avoid.

    Other kernels are right or wrong for other operations. DeviceUnavailable if OpenVINO is not installed.
    """
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA", "")
    return f"{version_of('openvino') or ov().__version__} {limit}".strip()


@cache
def opset() -> Any:
    """Return the module of OpenVINO's operations."""
    return import_module(f"{ov().__name__}.opset15")


@cache
def core() -> Any:
    """Return the object that owns OpenVINO's devices."""
    made = ov().Core()
    keep_alive_in_forks(made)
    return made


def settings(threads: int, *, throughput: bool) -> dict[str, Any]:
    """Return settings that compute float32 as float32 and integers as written.

    OpenVINO must not change results by itself. throughput: for several executions at once, each by one thread, instead
    of one by all.
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
    """Return the ports of a compiled model's inputs or outputs."""
    return [Port(n, p.get_element_type().to_dtype(), tuple(p.shape)) for n, p in enumerate(ports)]


class InferRequest(Member):
    """An infer request with its own memory for small arguments. For one thread at a time.

    checks: the number of last outputs that report whether the execution failed.
    """

    def __init__(self, compiled: Any, inputs: Sequence[Port], outputs: Sequence[Port], checks: int) -> None:
        self._request, self._tensor = compiled.create_infer_request(), ov().Tensor
        plain: Any = super(type(self._request), self._request)  # the other work of its `infer` costs a third more
        self._infer = partial(plain.infer, {}, True, False)
        self._inputs = [(a, self._own(a, self._request.set_input_tensor)) for a in inputs]
        self._outputs = [(a, self._own(a, self._request.set_output_tensor)) for a in outputs]
        self._checks = [self._outputs.pop()[1] for _ in range(checks)]

    def _own(self, a: Port, tell: Any) -> Array | None:
        """Return memory for a small argument, which OpenVINO receives once."""
        array = np.zeros(a.shape, a.dtype)
        if array.nbytes >= IN_PLACE:
            return None
        tell(a.number, self._tensor(array, shared_memory=True))
        return array

    def run(self, request: Request, control: Control) -> int:
        """Execute; return the nanoseconds spent in OpenVINO."""
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
            self._request.set_input_tensor(a.number, self._tensor(borrowed_array(kept[-1]), shared_memory=True))
        for a, own in self._outputs:
            if own is None:
                kept.append(request.outputs[a.number])
                room = kept[-1] if kept[-1] is not None else np.empty(a.shape, a.dtype)
                self._request.set_output_tensor(a.number, self._tensor(borrowed_array(room), shared_memory=True))
        start = time.monotonic_ns()
        try:
            if control.bounded:
                with control.on_cancel(self._request.cancel):  # it ends a started request, but not `infer`
                    self._request.start_async()
                    self._request.wait()
            else:
                self._infer()
        except RuntimeError as error:
            control.check()
            raise OperationFailed(f"openvino: {error}") from error
        spent = time.monotonic_ns() - start
        if any(check is not None and check.any() for check in self._checks):
            raise OperationFailed("openvino: an index is outside its dimension")
        for a, own in self._outputs:
            if own is not None:
                request.write(a.number, own)
        return spent


class OpenVINOModel(Prepared):
    """A compiled model whose input shapes are known.

    kept: the arrays that hold its constants. checks: as of `InferRequest`. seconds: the time of the compilation.
    """

    trimmable = True

    def __init__(self, compiled: Any, kept: Sequence[Array], checks: int, seconds: float = 0.0) -> None:
        self.compiled, self._kept, self._checks, self._seconds = compiled, kept, checks, seconds
        keep_alive_in_forks(self)
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
        """Drop all infer requests but one, or all, and the memory of intermediates."""
        team = self._team
        if team is None:
            return
        team.trim(0 if pressed else 1)
        try:
            self.compiled.release_memory()
        except RuntimeError as error:
            raise OperationFailed(f"openvino: cannot release memory: {error}") from error

    def save(self, files: CacheContent) -> bool:
        """Save OpenVINO's blob, which includes the constants; nothing if reading them takes longer than compiling did."""
        if sum(array.nbytes for array in self._kept) > self._seconds * RESTORED:
            return False
        files.model[0]["compiled"] = self.compiled.export_model().getbuffer()
        files.model[0]["checks"] = self._checks.to_bytes(4, "little")
        return True

    def close(self) -> None:
        self._team = None


class SearchTooLong(Exception):
    """OpenVINO would take too long to choose kernels for nodes with 8 bits."""


def compiled(
    inputs: Sequence[Any], outputs: Sequence[Any], constants: Mapping[str, Array], how: Mapping[str, Any]
) -> tuple[Any, list[Array]]:
    """Compile nodes for the processor; return the model and the arrays of its constants.

    OperationFailed if OpenVINO cannot, SearchTooLong if the nodes have to be written without 8-bit variants.
    constants: by name, of these nodes and of others. how: `settings`.
    """
    try:
        model = ov().Model([opset().result(node) for node in outputs], [node for node in inputs if node is not None])
        copy_shared_transpose_inputs(model, opset())
        keep_ranks(model, opset())
        keep_constants_apart(model, opset())
        keep_fused_apart(model, opset())
        kinds = {node.get_name(): node.get_type_name() for node in model.get_ops()}
        kept = [array for name, array in constants.items() if name in kinds]
        eight_bits = "FakeQuantize" in kinds.values()
        if eight_bits and searches_too_long(model):
            raise SearchTooLong
        of_8_bits = {**how, "LP_TRANSFORMS_MODE": "YES"} if eight_bits else how
        try:
            return core().compile_model(model, "CPU", of_8_bits), kept
        except RuntimeError:  # it may fail on a layer after operations that it merges, but compile each by itself
            return core().compile_model(model, "CPU", {**how, "SNIPPETS_MODE": "DISABLE"}), kept
    except RuntimeError as error:
        raise OperationFailed(f"openvino: cannot compile the model: {error}") from error


def restored(files: CacheContent, how: Mapping[str, Any]) -> OpenVINOModel:
    """Return the saved model; OperationFailed if OpenVINO rejects the blob."""
    # OpenVINO reads constants there as long as the model lives
    blob = np.frombuffer(files.model[0]["compiled"], np.uint8)
    try:
        made = core().import_model(ov().Tensor(borrowed_array(blob), shared_memory=True), "CPU", how)
        return OpenVINOModel(made, [blob], int.from_bytes(files.model[0]["checks"], "little"))
    except RuntimeError as error:
        raise OperationFailed(f"openvino: cannot restore the cache entry: {error}") from error
