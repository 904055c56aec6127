"""The device: verdicts, preparation, capabilities."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from nnhal.base.codes import DeviceType, OperandType
from nnhal.base.cores import usable_cores
from nnhal.base.errors import InvalidArgument
from nnhal.drivers.kit.proof import ProvedDevice
from nnhal.drivers.litert.engine import LitertModel, version
from nnhal.drivers.litert.flatbuffer import TENSOR_TYPES
from nnhal.drivers.litert.recipe import Settings, restore
from nnhal.hal.cache.files import CacheContent, CacheFiles
from nnhal.hal.device import Capabilities, Considered, Device, Hints, Performance, Prepared, Verdict
from nnhal.model.graph import Model

if TYPE_CHECKING:
    from nnhal.drivers.kit.lowering import LoweringTable
    from nnhal.drivers.litert.task import Task

MOST_THREADS = 4  # unless the application sets a number
STATED = Performance(exec_time=0.05, power_usage=0.05)  # measured: 0.03 to 0.06 on mobilenets, 0.16 on stacked LSTMs


class Litert(ProvedDevice):
    """The CPU through LiteRT and XNNPACK.

    Options:

    - `xnnpack` (bool, true): XNNPACK runs the operations that it supports; otherwise LiteRT's own kernels run
      everything.
    - `dynamic_range` (bool, false): a layer whose weights are the real values of an 8-bit constant uses the 8 bits, as
      files of dynamic-range quantisation have them. LiteRT then quantises the layer's input at each run. This is
      faster and uses a quarter of the memory, but exceeds NNAPI's tolerance, so the application must request it.

    Under exact `numerics` a model with 8-bit tensors runs on LiteRT's own kernels. The hints set the number of threads.
    The default is one for each core that the process may use, 4 at most.
    """

    name = "litert"
    type = DeviceType.CPU
    numerics = ("fast", "exact")
    relaxations = (
        "float16",
        "infinities",
        "long_sums",
        "subnormals",
    )  # by `graph`; by LiteRT's clipping; by the processor settings of XNNPACK

    @property
    def table(self) -> "LoweringTable[Task]":
        from nnhal.drivers.litert import lowering

        return lowering.TABLE

    def __init__(self) -> None:
        super().__init__(version())  # DeviceUnavailable if LiteRT is not installed

    def capabilities(self) -> Capabilities:
        types = [*TENSOR_TYPES, OperandType.UINT32]
        return Capabilities(dict.fromkeys(types, STATED), STATED, STATED)

    def supports(self, model: Model) -> Sequence[Verdict]:
        return self.consider(model, Hints()).verdicts

    def consider(self, model: Model, hints: Hints) -> Considered:
        from nnhal.drivers.litert.graph import has_eight_bits
        from nnhal.drivers.litert.lowering import consider

        forms, own = self.asked(hints)
        settings = _settings(own)
        if forms.exact and has_eight_bits(model):
            from nnhal.drivers.litert.own_kernels import kernel_difference

            if why := kernel_difference():
                return Considered([Verdict(False, why)] * len(model.main.operations))
        return consider(model, dynamic_range=settings.dynamic_range, forms=forms)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        from nnhal.drivers import reference
        from nnhal.drivers.kit.shapes import for_each_shape
        from nnhal.drivers.litert import lowering

        forms, own = self.asked(hints)
        settings = _settings(own)

        def make(known: Model) -> LitertModel:
            how = {"dynamic_range": settings.dynamic_range, "exact": forms.exact}
            before = lowering.cached_lowering(hints, **how) if known is model else None
            return LitertModel(lowering.recipe_of(known, settings, forms, before))

        return for_each_shape(model, make, partial(reference.Interpreter, exact=forms.exact))

    def number_of_cache_files(self) -> CacheFiles:
        return CacheFiles(model=1, data=1)

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        return LitertModel(restore(files, _settings(self.asked(hints)[1])))


def _settings(hints: Hints) -> Settings:
    known = [name for name in Settings.__struct_fields__ if name != "threads"]
    for name, value in hints.options.items():
        if name not in known:
            raise InvalidArgument(f"litert: option {name!r} is unknown, must be one of {', '.join(known)}")
        if not isinstance(value, bool):
            raise InvalidArgument(f"litert: option {name} is {value!r}, must be true or false")
    threads = hints.threads or min(MOST_THREADS, usable_cores())
    return Settings(threads, **hints.options)


def device() -> Device:
    """Return the driver's device; DeviceUnavailable if LiteRT is not installed."""
    return Litert()
