"""The device: verdicts, preparation, capabilities."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from nnhal.base.codes import DeviceType, OperandType, Preference
from nnhal.base.cores import usable_cores
from nnhal.base.errors import InvalidArgument
from nnhal.base.operands import quantised
from nnhal.drivers import reference
from nnhal.drivers.kit import for_each_shape, kept_graph
from nnhal.drivers.kit.operations import table_for
from nnhal.drivers.kit.operations.elementwise import EVERY
from nnhal.drivers.kit.proof import ProvedDevice
from nnhal.drivers.kit.real import FAST, FORMS, RealGraph, RealTask
from nnhal.drivers.kit.variants import Forms
from nnhal.drivers.openvino.engine import OpenVINOModel, SearchTooLong, compiled, restored, settings, version
from nnhal.drivers.openvino.maths import MathOperations
from nnhal.hal.cache.files import CacheContent, CacheFiles
from nnhal.hal.device import Capabilities, Considered, Device, Hints, Performance, Prepared, Verdict
from nnhal.model.graph import Model
from nnhal.ops.schema import Q8SYMM, Q16A, Q16S

ELSEWHERE = {"IF": "the runtime itself runs branches", "WHILE": "OpenVINO cannot end a loop at its timeout"}
CAST = {"CAST": EVERY | {Q8SYMM, Q16A, Q16S}}
TABLE = table_for(RealTask, "OpenVINO", ELSEWHERE, forms=FORMS, types=CAST)
MOST_THREADS = 4  # unless the application sets a number
STATED = Performance(exec_time=0.06, power_usage=0.06)  # LiteRT declares 0.05; the processor determines which is faster
EXACT = Performance(exec_time=0.1, power_usage=0.1)  # of quantised types, if they are computed in float32


class OpenVINO(ProvedDevice):
    """The CPU through OpenVINO. Its option is `forms`, see `ProvedDevice`.

    The hints set the number of threads. The default is one for each core that the process may use, 4 at most. One
    execution uses all of them. For SUSTAINED_SPEED, the number of concurrent executions is the one with the highest
    throughput.
    """

    name = "openvino"
    type = DeviceType.CPU
    numerics = ("fast", "exact")
    preferred_layout = "nchw"
    relaxations = ("clipped_nan", "float16", "infinities", "long_sums", "subnormals")
    processor_matters = True
    table = TABLE

    def __init__(self) -> None:
        super().__init__(version())  # DeviceUnavailable if OpenVINO is not installed

    def capabilities(self) -> Capabilities:
        untyped = OperandType.OEM, OperandType.TENSOR_OEM_BYTE, OperandType.SUBGRAPH
        slow = EXACT if all(proved.form != FAST for proved in self.forms.found.values()) else STATED
        types: dict[int, Performance] = {t: slow if quantised(t) else STATED for t in OperandType if t not in untyped}
        return Capabilities(types, STATED, STATED)

    def supports(self, model: Model) -> Sequence[Verdict]:
        return self.consider(model, Hints()).verdicts

    def consider(self, model: Model, hints: Hints) -> Considered:
        forms, own = self.asked(hints)
        settings_of(own)
        return TABLE.consider(model, RealGraph(model, MathOperations()), RealTask, forms)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        forms, own = self.asked(hints)
        how = settings_of(own)

        def lowered(known: Model, forms: Forms) -> RealGraph[Any]:
            graph = RealGraph(known, MathOperations())
            TABLE.lower(known, partial(RealTask, graph), forms)
            return graph

        def made_of(graph: RealGraph[Any]) -> Prepared:
            start = time.monotonic()
            made, kept = compiled(graph.inputs, graph.outputs(), graph.engine.constants, how)
            return OpenVINOModel(made, kept, len(graph.checks), time.monotonic() - start)

        def make(known: Model) -> Prepared:
            try:
                return made_of((kept_graph(hints, RealGraph) if known is model else None) or lowered(known, forms))
            except SearchTooLong:
                return made_of(lowered(known, forms.exact_only()))

        return for_each_shape(model, make, partial(reference.Interpreter, exact=forms.exact))

    def number_of_cache_files(self) -> CacheFiles:
        return CacheFiles(model=1)

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        return restored(files, settings_of(self.asked(hints)[1]))


def settings_of(hints: Hints) -> dict[str, Any]:
    """Return OpenVINO's settings for the application's hints; InvalidArgument for unknown options."""
    if hints.options:
        raise InvalidArgument(f"openvino: option {min(hints.options)!r} is unknown, must be omitted")
    threads = hints.threads or min(MOST_THREADS, usable_cores())
    return settings(threads, throughput=hints.preference is Preference.SUSTAINED_SPEED)


def device() -> Device:
    """Return the driver's device; DeviceUnavailable if OpenVINO is not installed."""
    return OpenVINO()
