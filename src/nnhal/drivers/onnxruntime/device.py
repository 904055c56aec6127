"""The device: verdicts, preparation, capabilities."""

from collections.abc import Sequence
from functools import partial

from nnhal.base.codes import DeviceType
from nnhal.base.cores import usable_cores
from nnhal.base.errors import InvalidArgument
from nnhal.drivers import reference
from nnhal.drivers.kit import for_each_shape, kept_graph
from nnhal.drivers.kit.onnx import TABLE, OnnxGraph, OnnxTask
from nnhal.drivers.kit.proof import ProvedDevice
from nnhal.drivers.kit.variants import UNPROVED, Forms
from nnhal.drivers.onnxruntime.cache_entry import restore
from nnhal.drivers.onnxruntime.session import CPU, OnnxSession, engine, version
from nnhal.hal.cache.files import CacheContent, CacheFiles
from nnhal.hal.device import Capabilities, Considered, Device, Hints, Prepared, Verdict
from nnhal.model.graph import Model

MOST_THREADS = 4  # unless the application sets a number


class OnnxRuntime(ProvedDevice):
    """ONNX Runtime.

    The option `provider` (text, "CPUExecutionProvider") is the execution provider that runs the operations that it
    supports. The hints set the number of threads. The default is one for each core that the process may use, 4 at most.
    """

    name = "onnxruntime"
    type = DeviceType.CPU
    numerics = ("fast", "exact")
    relaxations = ("float16", "infinities", "long_sums")  # by `kit.onnx`; MaxPool begins at the least finite number
    preferred_layout = "nchw"
    table = TABLE

    def __init__(self) -> None:
        super().__init__(version())  # DeviceUnavailable if ONNX Runtime is not installed

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(0.06)

    def supports(self, model: Model) -> Sequence[Verdict]:
        return TABLE.verdicts(model, partial(OnnxTask, OnnxGraph(model)), self.forms)

    def consider(self, model: Model, hints: Hints) -> Considered:
        forms, hints = self.chosen(hints)
        return TABLE.consider(model, OnnxGraph(model), OnnxTask, forms)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        forms, own = self.chosen(hints)
        settings = _threads(own), _provider(own)

        def make(known: Model) -> OnnxSession:
            graph = kept_graph(hints, OnnxGraph) if known is model else None
            if graph is None:
                graph = OnnxGraph(known)
                TABLE.lower(known, partial(OnnxTask, graph), forms)
            return OnnxSession(graph.finish(), *settings)

        return for_each_shape(model, make, partial(reference.Interpreter, exact=forms.exact))

    def number_of_cache_files(self) -> CacheFiles:
        return CacheFiles(model=1, data=1)

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        return OnnxSession(restore(files), _threads(hints), _provider(self.asked(hints)[1]))

    def chosen(self, hints: Hints) -> tuple[Forms, Hints]:
        """Return the kernel variants, verified only for the CPU, and the hints with the driver's own options."""
        forms, own = self.asked(hints)
        return (forms if forms.exact or _provider(own) == CPU else UNPROVED), own


def _threads(hints: Hints) -> int:
    return hints.threads or min(MOST_THREADS, usable_cores())


def _provider(hints: Hints) -> str:
    """Return the execution provider that the hints name."""
    for name in hints.options:
        if name != "provider":
            raise InvalidArgument(f"onnxruntime: option {name!r} is unknown, must be 'provider'")
    provider = hints.options.get("provider", CPU)
    if provider != CPU and provider not in (there := engine().get_available_providers()):
        raise InvalidArgument(f"onnxruntime: option provider is {provider!r}, must be one of {', '.join(there)}")
    return str(provider)


def device() -> Device:
    """Return the driver's device; DeviceUnavailable if ONNX Runtime is not installed."""
    return OnnxRuntime()
