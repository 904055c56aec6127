"""The device: what it can run, how it is prepared, what it says of its speed."""

import os
from collections.abc import Sequence
from functools import partial

from nnhal.base.codes import DeviceType
from nnhal.base.errors import InvalidArgument
from nnhal.drivers import reference
from nnhal.drivers.kit import for_each_shape, kept_graph
from nnhal.drivers.kit.forms import UNPROVED, Forms
from nnhal.drivers.kit.onnx import TABLE, OnnxGraph, OnnxTask
from nnhal.drivers.onnxruntime.kept import restore
from nnhal.drivers.onnxruntime.session import CPU, OnnxSession, engine
from nnhal.hal.cache.files import CacheContent, CacheFiles
from nnhal.hal.device import Capabilities, Considered, Device, Hints, Prepared, Verdict
from nnhal.model.graph import Model

MOST_THREADS = 4  # where the application states no number


class OnnxRuntime(Device):
    """ONNX Runtime.

    Options: `provider` (text, "CPUExecutionProvider"): which of its execution providers is asked first.
    Threads: as many as the hints say; by default one for each core that the process may use, 4 at most.
    """

    name = "onnxruntime"
    type = DeviceType.CPU
    relaxations = ("float16", "infinities")  # by `kit.onnx`; as MaxPool begins at the least finite number
    preferred_layout = "nchw"

    def __init__(self) -> None:
        self.version = str(engine().__version__)
        self.forms: Forms = UNPROVED

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(0.06)

    def supports(self, model: Model) -> Sequence[Verdict]:
        return TABLE.verdicts(model, partial(OnnxTask, OnnxGraph(model)), self.forms)

    def consider(self, model: Model, hints: Hints) -> Considered:
        _provider(hints)
        return TABLE.consider(model, OnnxGraph(model), OnnxTask, self.forms)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        settings = _threads(hints), _provider(hints)

        def make(known: Model) -> OnnxSession:
            graph = kept_graph(hints, OnnxGraph) if known is model else None
            if graph is None:
                graph = OnnxGraph(known)
                TABLE.lower(known, partial(OnnxTask, graph), self.forms)
            return OnnxSession(graph.finish(), *settings)

        return for_each_shape(model, make, reference.Interpreter)

    def number_of_cache_files(self) -> CacheFiles:
        return CacheFiles(model=1, data=1)

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        return OnnxSession(restore(files), _threads(hints), _provider(hints))


def _threads(hints: Hints) -> int:
    return hints.threads or min(MOST_THREADS, len(os.sched_getaffinity(0)))


def _provider(hints: Hints) -> str:
    """The execution provider that is asked for."""
    for name in hints.options:
        if name != "provider":
            raise InvalidArgument(f"onnxruntime: option {name!r} is unknown, must be provider")
    provider, there = hints.options.get("provider", CPU), engine().get_available_providers()
    if provider not in there:
        raise InvalidArgument(f"onnxruntime: option provider is {provider!r}, must be one of {', '.join(there)}")
    return str(provider)


def device() -> Device:
    """The driver's entry point; DeviceUnavailable where ONNX Runtime is not installed."""
    return OnnxRuntime()
