"""Sessions and executions: a session for each set of input shapes, memory bound to it for each execution at a time."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from nnhal.base.errors import Closed, DeviceUnavailable, InvalidRequest, OperationFailed
from nnhal.base.installed import version_of
from nnhal.base.operands import Array
from nnhal.drivers.kit import Member, Team
from nnhal.drivers.kit.native import left_alone_in_forks
from nnhal.drivers.kit.onnx import Built
from nnhal.drivers.kit.quiet import without_lines
from nnhal.drivers.onnxruntime.kept import save
from nnhal.hal.cache.files import CacheContent
from nnhal.hal.device import Prepared
from nnhal.hal.memory_use import MemoryUse
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.ops.schema import show

IN_PLACE = 1 << 16  # bytes from which an input is read where it lies: to bind its memory costs more than to copy few
CPU = "CPUExecutionProvider"
SHARING = "CommonSubexpressionElimination"  # which would have readers of real values share a DequantizeLinear again
RULES = "Level1_RuleBasedTransformer"  # which loses tensors that are an output and padded for a convolution, too
SHRINKING_NS = 500_000_000  # nanoseconds that a run may take whose only end is to give memory back
_COLOUR = b"\x1b["  # with which a line of the engine's begins


@cache
def engine() -> Any:
    """ONNX Runtime, told to be silent; DeviceUnavailable where it, or what writes its models, is not installed.

    That is imported where it writes one: it takes longer than the engine.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # looked at when it is imported
    try:
        without_lines(_imported, lambda line, whole: line.startswith(_COLOUR) and (b"onnxruntime" in line or not whole))
        import onnxruntime  # noqa: TID251

        if find_spec("onnx") is None:
            raise ModuleNotFoundError("No module named 'onnx'", name="onnx")
    except (ImportError, ValueError) as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # an extension makes this of one while it is initialised
            raise error.__cause__ from None
        missing = getattr(error, "name", None) or "onnx"
        what = f"onnxruntime: {missing} is not there ({error})"
        raise DeviceUnavailable(f"{what}, install it with: pip install 'nnhal[onnxruntime]'") from error
    onnxruntime.disable_telemetry_events()
    onnxruntime.set_default_logger_severity(4)  # what goes wrong is raised too
    return onnxruntime


def version() -> str:
    """The engine's, which is not imported for that; DeviceUnavailable where it, or what writes its models, is not there."""
    found = version_of("onnxruntime") if find_spec("onnx") is not None else None
    return str(engine().__version__) if found is None else found


def _imported() -> None:
    """It looks for devices where a confined process may not, and says so."""
    import onnxruntime  # noqa: F401, TID251


def options(built: Built, threads: int, *, without: str = SHARING, optimised: bool = True) -> tuple[Any, list[Any]]:
    """How a session is made. What the engine's optimiser would make of quantised operations by itself is switched off: its
    integer kernels saturate on some processors, and of two roundings in a row it forgets the coarse one. Also the constants,
    which are read where they lie for as long as they live.
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
    found.add_session_config_entry("session.force_spinning_stop", "1")  # after a run: other engines have the cores then
    weights = [ort.OrtValue.ortvalue_from_numpy(array) for array in built.arrays.values()]
    if weights:
        found.add_external_initializers(list(built.arrays), weights)
    return found, weights


def session(built: Built, threads: int, provider: str) -> Any:
    """The engine's session: optimised as far as its optimiser, which fails on some models, lets it be."""
    why: Exception | None = None
    less: dict[str, Any]
    for less in ({}, {"without": f"{SHARING};{RULES}"}, {"optimised": False}):
        how, weights = options(built, threads, **less)
        try:
            made = engine().InferenceSession(built.model, how, list(dict.fromkeys([provider, CPU])))
        except Exception as error:  # the engine's own types have no common base but this
            why = why or error
        else:
            made.nnhal_weights = weights
            left_alone_in_forks(made)
            return made
    raise OperationFailed(f"onnxruntime: the model cannot be prepared: {why}") from why


class BoundMemory(Member):
    """Memory for one execution at a time, bound to a session."""

    def __init__(self, made: Any, built: Built) -> None:
        self._value, self._binding = engine().OrtValue.ortvalue_from_numpy, made.io_binding()
        self.inputs = [(n, name, np.zeros(shape, dtype)) for n, name, dtype, shape in built.inputs]
        self.outputs: list[Array] = []
        for _, name, room in self.inputs:
            self._binding.bind_ortvalue_input(name, self._value(room))
        for name, dtype, shape in built.outputs:
            self.outputs.append(np.zeros(shape, dtype))
            self._binding.bind_ortvalue_output(name, self._value(self.outputs[-1]))
        # The public call costs half as much again as the call itself.
        self.call: Callable[[Any], object] = partial(made._sess.run_with_iobinding, self._binding._iobinding)
        self._session = made

    def shrink(self) -> None:
        """Have the session's arenas give back what no tensor is in.

        The engine does so at the end of a run: of one on zeros, which is given up after a while.
        """
        for _, name, room in self.inputs:  # not where the inputs of the last execution were
            room[...] = 0
            self._binding.bind_ortvalue_input(name, self._value(room))
        options = engine().RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        control = Control(time.monotonic_ns() + SHRINKING_NS)
        with suppress(RuntimeError, ValueError), control.on_cancel(partial(setattr, options, "terminate", True)):
            self.call(options)

    def read(self, given: Sequence[Array | None]) -> None:
        """Take the inputs. InvalidRequest where one does not have the shape that the session was made for."""
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

    def __init__(self, built: Built, threads: int, provider: str) -> None:
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
                control.check()  # where it was stopped
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
        """How much the engine packs and how large its arenas are, it does not tell."""
        return MemoryUse(weights_in_place=sum(array.nbytes for array in self._built.arrays.values()))

    def trim(self, *, pressed: bool) -> None:
        """What is bound but once, or at all, and the arenas of intermediates."""
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
