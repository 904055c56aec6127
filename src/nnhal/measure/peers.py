"""Engines called directly, without nnhal, for comparison; each has its fastest settings that give correct results."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from nnhal import api
from nnhal.base.errors import BadFile, DeviceUnavailable, InvalidArgument
from nnhal.base.operands import Array
from nnhal.frontends.python import Builder
from nnhal.frontends.source import IDENTIFIER


class Peer(ABC):
    """An engine with a model.

    Attributes:
        load_ns: The time of reading the model, in nanoseconds.
        compile_ns: The time of preparing it, in nanoseconds.
    """

    load_ns = compile_ns = 0

    @property
    @abstractmethod
    def shapes(self) -> list[list[int]]:
        """The shapes of the inputs; -1 for an open dimension."""

    @abstractmethod
    def resize(self, shapes: Sequence[Sequence[int]]) -> None:
        """Sets the shapes of the inputs."""

    @abstractmethod
    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Sets the inputs, runs, and returns the outputs."""


@cache
def _greeted() -> None:
    """LiteRT's first interpreter in a process writes a line to stderr; the driver's first one keeps that off."""
    b = Builder("greeting")
    x = b.input((1,))
    api.compile(b.finish([x], [b.floor(x)]), devices="litert", cache_dir=False).close()


class LiteRT(Peer):
    """LiteRT's interpreter on a `.tflite` file."""

    def __init__(self, source: Path | bytes, threads: int, *, xnnpack: bool = True) -> None:
        with require_engine("litert", "ai-edge-litert"):
            from ai_edge_litert import interpreter as litert  # noqa: TID251 (a peer is an engine)
        _greeted()
        resolver = litert.OpResolverType.AUTO if xnnpack else litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        where = {"model_content": source} if isinstance(source, bytes) else {"model_path": str(source)}
        start = time.perf_counter_ns()
        try:
            self._engine: Any = litert.Interpreter(**where, num_threads=threads, experimental_op_resolver_type=resolver)
        except (RuntimeError, ValueError) as error:
            raise BadFile(f"litert cannot read the model: {str(error).strip().splitlines()[-1]}") from None
        self.load_ns = time.perf_counter_ns() - start  # the file read; what follows prepares it
        start = time.perf_counter_ns()
        self._engine.allocate_tensors()
        self.compile_ns = time.perf_counter_ns() - start
        self.inputs: list[dict[str, Any]] = self._engine.get_input_details()
        self.outputs: list[dict[str, Any]] = self._engine.get_output_details()
        self._in = [d["index"] for d in self.inputs]
        self._out = [d["index"] for d in self.outputs]

    @property
    def shapes(self) -> list[list[int]]:
        """As of `Peer`."""
        return [[int(size) for size in d["shape"]] for d in self._engine.get_input_details()]

    def resize(self, shapes: Sequence[Sequence[int]]) -> None:
        """As of `Peer`."""
        for index, shape in zip(self._in, shapes, strict=True):
            self._engine.resize_tensor_input(index, list(shape))
        self._engine.allocate_tensors()

    def reset(self) -> None:
        """Resets variable tensors and resource variables."""
        self._engine.reset_all_variables()

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """As of `Peer`."""
        for index, array in zip(self._in, inputs, strict=True):
            self._engine.set_tensor(index, array)
        self._engine.invoke()
        return [self._engine.get_tensor(index) for index in self._out]


class OpenVINOPeer(Peer):
    """OpenVINO's CPU plugin on a `.tflite` or `.onnx` file: float32 as float32, 8-bit products where they are exact."""

    def __init__(self, source: Path | bytes, threads: int) -> None:
        with require_engine("openvino", "openvino"):
            import openvino  # noqa: TID251 (a peer is an engine)
        self._core: Any = openvino.Core()
        self._settings = {
            "INFERENCE_PRECISION_HINT": "f32",  # bfloat16 otherwise, on processors that have it
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
        }
        if "vnni" not in Path("/proc/cpuinfo").read_text("ascii", "replace"):
            self._settings["LP_TRANSFORMS_MODE"] = "NO"  # they saturate
        start = time.perf_counter_ns()
        try:
            self._model: Any = self._core.read_model(source if isinstance(source, bytes) else str(source))
        except RuntimeError as error:
            raise BadFile(f"openvino cannot read the model: {str(error).strip().splitlines()[-1]}") from None
        self.load_ns = time.perf_counter_ns() - start
        self._prepare()

    def _prepare(self) -> None:
        start = time.perf_counter_ns()
        compiled = self._core.compile_model(self._model, "CPU", self._settings)
        self._request: Any = compiled.create_infer_request()
        self._ins: list[Any] = []  # views of the tensors, made for the first run: one of open shape has none before
        self._out = range(len(compiled.outputs))
        self.compile_ns = time.perf_counter_ns() - start

    @property
    def shapes(self) -> list[list[int]]:
        """As of `Peer`."""
        return [[d.get_length() if d.is_static else -1 for d in each.partial_shape] for each in self._model.inputs]

    def resize(self, shapes: Sequence[Sequence[int]]) -> None:
        """As of `Peer`."""
        self._model.reshape(dict(zip(self._model.inputs, map(list, shapes), strict=True)))
        self._prepare()

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """As of `Peer`."""
        if not self._ins:
            self._ins = [self._request.get_input_tensor(n).data for n in range(len(inputs))]
        for view, array in zip(self._ins, inputs, strict=True):
            view[...] = array
        self._request.infer()
        return [self._request.get_output_tensor(n).data.copy() for n in self._out]


class ONNXRuntimePeer(Peer):
    """ONNX Runtime's CPU provider on an `.onnx` file, its inputs and outputs bound to memory."""

    def __init__(self, source: Path | bytes, threads: int) -> None:
        with require_engine("onnxruntime", "onnxruntime"):
            import onnxruntime  # noqa: TID251 (a peer is an engine)
        self._ort: Any = onnxruntime
        onnxruntime.disable_telemetry_events()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
        start = time.perf_counter_ns()
        try:
            given = source if isinstance(source, bytes) else str(source)
            self._session: Any = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise BadFile(f"onnxruntime cannot read the model: {str(error).strip().splitlines()[-1]}") from None
        self.compile_ns = time.perf_counter_ns() - start  # reading is part of it
        self._shapes = [[d if isinstance(d, int) else -1 for d in each.shape] for each in self._session.get_inputs()]
        self._in = [each.name for each in self._session.get_inputs()]
        self._out = [each.name for each in self._session.get_outputs()]
        self._bound: Any = None
        self._binds = True

    @property
    def shapes(self) -> list[list[int]]:
        """As of `Peer`."""
        return self._shapes

    def resize(self, shapes: Sequence[Sequence[int]]) -> None:
        """As of `Peer`: a session accepts what its open dimensions allow."""
        self._shapes, self._bound = [list(shape) for shape in shapes], None

    def _run(self, inputs: Sequence[Array]) -> list[Array]:
        found: list[Array] = self._session.run(self._out, dict(zip(self._in, inputs, strict=True)))
        return found

    def _bind(self, inputs: Sequence[Array]) -> list[Array]:
        found = self._run(inputs)
        self._bound = self._session.io_binding()
        self._ins = [np.array(x) for x in inputs]  # its own memory, bound once
        self._outs = [np.empty_like(y) for y in found]
        for name, x in zip(self._in, self._ins, strict=True):
            self._bound.bind_input(name, "cpu", 0, x.dtype, x.shape, x.ctypes.data)
        for name, y in zip(self._out, self._outs, strict=True):
            self._bound.bind_output(name, "cpu", 0, y.dtype, y.shape, y.ctypes.data)
        try:
            self._session.run_with_iobinding(self._bound)
        except RuntimeError:  # binding fails if outputs have another rank than the file declares
            self._bound, self._binds = None, False
        return found

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """As of `Peer`. Every run must have the output shapes of the first one."""
        if self._bound is None:
            return self._bind(inputs) if self._binds else self._run(inputs)
        for mine, array in zip(self._ins, inputs, strict=True):
            mine[...] = array
        self._session.run_with_iobinding(self._bound)
        return [y.copy() for y in self._outs]


KINDS: dict[str, type[LiteRT] | type[OpenVINOPeer] | type[ONNXRuntimePeer]] = {
    "litert": LiteRT,
    "openvino": OpenVINOPeer,
    "onnxruntime": ONNXRuntimePeer,
}
PEERS = tuple(KINDS)
READS = {"litert": ".tflite", "onnxruntime": ".onnx"}  # the only format of an engine


@contextmanager
def require_engine(name: str, package: str) -> Iterator[None]:
    """Raises DeviceUnavailable with the package to install if the import of an engine fails."""
    try:
        yield
    except ImportError:
        raise DeviceUnavailable(f"the peer {name} needs {package}: pip install 'nnhal[{name}]'") from None


def peer(name: str, source: Path | bytes, threads: int) -> Peer:
    """Opens a model in an engine.

    Args:
        name: One of `PEERS`.
        source: The model's file or its bytes.
        threads: The number of threads.

    Raises:
        InvalidArgument: The name is unknown, or the engine does not read models of this format.
        BadFile: The engine cannot read the model.
        DeviceUnavailable: The engine is not installed.
    """
    if name not in KINDS:
        raise InvalidArgument(f"peer is {name!r}, must be one of {', '.join(PEERS)}")
    if name in READS and (found := _format(source)) not in (READS[name], ""):
        others = " or ".join(each for each in PEERS if READS.get(each, found) == found)
        raise InvalidArgument(f"{name} reads {READS[name]} models, this is {found}: compare with {others}")
    return KINDS[name](source, threads)


def _format(source: Path | bytes) -> str:
    """Returns ".tflite" or ".onnx"; "" if the file has no mark."""
    if isinstance(source, Path):
        if source.suffix in (".tflite", ".onnx"):
            return source.suffix
        try:
            with source.open("rb") as file:
                source = file.read(8)
        except OSError:
            return ""
    return ".tflite" if source[4:8] == IDENTIFIER else ""
