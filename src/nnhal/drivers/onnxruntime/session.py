"""Sessions and executions: one session for each set of input shapes, with memory bound for one execution at a time."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from nnhal.base.errors import Closed, DeviceUnavailable, InvalidRequest, OperationFailed
from nnhal.base.installed import version_of
from nnhal.base.operands import Array
from nnhal.drivers.kit import Member, Team
from nnhal.drivers.kit.engine_log import filter_stderr
from nnhal.drivers.kit.native import keep_alive_in_forks
from nnhal.drivers.kit.onnx import BuiltGraph
from nnhal.drivers.onnxruntime.cache_entry import save
from nnhal.hal.cache.files import CacheContent
from nnhal.hal.device import Prepared
from nnhal.hal.memory import MemoryUse
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.ops.schema import show

IN_PLACE = 1 << 16  # bytes from which an input is read in place: to bind its memory costs more than to copy a few bytes
CPU = "CPUExecutionProvider"
SHARING = "CommonSubexpressionElimination"  # it would let readers of real values share a DequantizeLinear again
RULES = "Level1_RuleBasedTransformer"  # it also loses tensors that are both an output and padded for a convolution
SHRINKING_NS = 500_000_000  # the longest time in nanoseconds for a run that only returns memory
TELEMETRY = "ORT_DISABLE_TELEMETRY"
_COLOUR = b"\x1b["  # the beginning of the engine's log lines


@cache
def engine() -> Any:
    """Import ONNX Runtime with its log silenced.

    DeviceUnavailable if it, or the package that writes its models, is not installed. That package is imported when it
    writes a model: its import takes longer than the engine's.
    """
    try:
        with _telemetry_off():
            filter_stderr(
                _imported, lambda line, whole: line.startswith(_COLOUR) and (b"onnxruntime" in line or not whole)
            )
        import onnxruntime  # noqa: TID251

        if find_spec("onnx") is None:
            raise ModuleNotFoundError("No module named 'onnx'", name="onnx")
    except (ImportError, ValueError) as error:
        # an extension raises this for an interrupt during its initialisation
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        missing = getattr(error, "name", None) or "onnx"
        what = f"onnxruntime: {missing} cannot be imported ({error})"
        raise DeviceUnavailable(f"{what}, install it with: pip install 'nnhal[onnxruntime]'") from error
    onnxruntime.disable_telemetry_events()
    onnxruntime.set_default_logger_severity(4)  # errors are also raised
    return onnxruntime


@contextmanager
def _telemetry_off() -> Iterator[None]:
    """Set the variable that the engine reads during its import, unless it is set; a driver leaves no variable changed."""
    given = os.environ.get(TELEMETRY)
    os.environ.setdefault(TELEMETRY, "1")
    try:
        yield
    finally:
        if given is None:
            os.environ.pop(TELEMETRY, None)


def version() -> str:
    """Return the engine's version without an import.

    DeviceUnavailable if it, or the package that writes its models, is not installed.
    """
    found = version_of("onnxruntime") if find_spec("onnx") is not None else None
    return str(engine().__version__) if found is None else found


def _imported() -> None:
    """Import the engine, without its log line about devices that a sandboxed process may not look for."""
    import onnxruntime  # noqa: F401, TID251


def options(
    built: BuiltGraph, threads: int, *, without: str = SHARING, optimised: bool = True
) -> tuple[Any, list[Any]]:
    """Return the session's options and its constants.

    They switch off what the engine's optimiser makes of quantised operations: its integer kernels saturate on some
    processors, and of two successive roundings it forgets the coarse one. The constants are read in place and must
    outlive the session.
    """
    ort = engine()
    found = ort.SessionOptions()
    found.log_severity_level = 4
    found.intra_op_num_threads, found.inter_op_num_threads = threads, 1
    found.add_session_config_entry("session.disable_quant_qdq", "1")
    found.add_session_config_entry("session.disable_double_qdq_remover", "1")
    found.add_session_config_entry("optimization.disable_specified_optimizers", without)
    if not optimised:
        found.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # after a run, so that other engines have the cores
    found.add_session_config_entry("session.force_spinning_stop", "1")
    weights = [ort.OrtValue.ortvalue_from_numpy(array) for array in built.arrays.values()]
    if weights:
        found.add_external_initializers(list(built.arrays), weights)
    return found, weights


def session(built: BuiltGraph, threads: int, provider: str) -> Any:
    """Return the engine's session, optimised as far as possible: the optimiser fails on some models."""
    why: Exception | None = None
    less: dict[str, Any]
    for less in ({}, {"without": f"{SHARING};{RULES}"}, {"optimised": False}):
        how, weights = options(built, threads, **less)
        try:
            made = engine().InferenceSession(built.model, how, list(dict.fromkeys([provider, CPU])))
        except Exception as error:  # the engine's exception types have no other common base
            why = why or error
        else:
            made.nnhal_weights = weights
            keep_alive_in_forks(made)
            return made
    raise OperationFailed(f"onnxruntime: the model cannot be prepared: {why}") from why


class BoundMemory(Member):
    """Memory for one execution at a time, bound to a session."""

    def __init__(self, made: Any, built: BuiltGraph) -> None:
        self._value, self._binding = engine().OrtValue.ortvalue_from_numpy, made.io_binding()
        self.inputs = [(n, name, np.zeros(shape, dtype)) for n, name, dtype, shape in built.inputs]
        self.outputs: list[Array] = []
        for _, name, room in self.inputs:
            self._binding.bind_ortvalue_input(name, self._value(room))
        for name, dtype, shape in built.outputs:
            self.outputs.append(np.zeros(shape, dtype))
            self._binding.bind_ortvalue_output(name, self._value(self.outputs[-1]))
        # The public call takes 1.5 times as long as this one.
        self.call: Callable[[Any], object] = partial(made._sess.run_with_iobinding, self._binding._iobinding)
        self._session = made

    def shrink(self) -> None:
        """Make the session's arenas release memory that no tensor uses.

        The engine does so at the end of a run, so this runs it on zeros, and stops after a while.
        """
        for _, name, room in self.inputs:  # not in the inputs' memory of the last execution
            room[...] = 0
            self._binding.bind_ortvalue_input(name, self._value(room))
        options = engine().RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        control = Control(time.monotonic_ns() + SHRINKING_NS)
        with suppress(RuntimeError, ValueError), control.on_cancel(partial(setattr, options, "terminate", True)):
            self.call(options)

    def read(self, given: Sequence[Array | None]) -> None:
        """Set the inputs. InvalidRequest if one does not have the session's shape."""
        for number, name, room in self.inputs:
            x = given[number]
            if x is None or x.shape != room.shape:
                state = "omitted" if x is None else f"of shape {show(x.shape)}"
                raise InvalidRequest(f"input {number} is {state}, must be of shape {show(room.shape)}")
            if x.dtype is not room.dtype:
                x = x.view(room.dtype)
            whole = x.flags.c_contiguous
            if room.nbytes < IN_PLACE or not whole:
                room[...] = x
            if room.nbytes >= IN_PLACE:
                self._binding.bind_ortvalue_input(name, self._value(x if whole else room))


class OnnxSession(Prepared):
    """A model whose input shapes are known, prepared with ONNX Runtime."""

    trimmable = True

    def __init__(self, built: BuiltGraph, threads: int, provider: str) -> None:
        made = session(built, threads, provider)
        self._built = built
        self._team: Team[BoundMemory] | None = Team(partial(BoundMemory, made, built), "onnxruntime: bindings")

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
            try:
                if control.bounded:
                    self._stoppable(bound, control)
                else:
                    bound.call(None)
            except (RuntimeError, ValueError) as error:
                control.check()  # if it was stopped
                raise OperationFailed(f"onnxruntime: {error}") from error
            end = time.monotonic_ns() if measure else 0
            number = 0
            for y in bound.outputs:
                dtype = request.signature.outputs[number].dtype
                request.write(number, y if y.dtype is dtype else y.view(dtype))
                number += 1  # noqa: SIM113  # counted by hand: it takes half as long
        finally:
            team.give(bound)
        return Timing(end - begin, time.monotonic_ns() - start) if measure else None

    def _stoppable(self, bound: BoundMemory, control: Control) -> None:
        options = engine().RunOptions()
        with control.on_cancel(partial(setattr, options, "terminate", True)):
            bound.call(options)

    def memory(self) -> MemoryUse:
        """Return unknown sizes: the engine does not report its packed weights and arenas."""
        return MemoryUse(weights_in_place=sum(array.nbytes for array in self._built.arrays.values()))

    def trim(self, *, pressed: bool) -> None:
        """Release all bound memory but one, or all of it, and the arenas of intermediates."""
        team = self._team
        if team is None:
            return
        team.trim(1)
        bound = team.take(UNLIMITED)
        try:
            bound.shrink()
        finally:
            team.give(bound)
        del bound
        if pressed:
            team.trim(0)

    def save(self, files: CacheContent) -> bool:
        save(self._built, files)
        return True

    def close(self) -> None:
        self._team = None
