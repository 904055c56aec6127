"""A driver on the reference kernels for a device that has NCHW only."""

from collections.abc import Sequence

from nnhal.base.errors import UnsupportedModel
from nnhal.drivers.reference import Reference
from nnhal.hal.device import YES, Capabilities, Hints, Prepared, Verdict
from nnhal.model.graph import Model
from nnhal.model.validate import validate
from nnhal.ops.schema import Bound


class OnlyNchw(Reference):
    """refused: names of operations that it does not take besides."""

    name = "only-nchw"
    preferred_layout = "nchw"
    refused: Sequence[str] = ()
    stated = 0.1

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(self.stated)

    def supports(self, model: Model) -> list[Verdict]:
        return [Verdict(False, why) if (why := self._why(a)) else YES for a in validate(model).subgraphs[0].operations]

    def _why(self, a: Bound | None) -> str:
        if a is None or a.op.name in self.refused:
            return "not this one"
        layout = any(argument.layout for argument in a.form)
        return "NCHW only" if layout and not a.nchw else ""

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        for graph in validate(model).subgraphs:
            for a in graph.operations:
                if why := self._why(a):
                    raise UnsupportedModel(f"{a and a.name}: {why}")
        return super().prepare(model, hints)


def device() -> OnlyNchw:
    return OnlyNchw()
