"""A driver that has CONV_2D by itself, and RELU only where it is fused with the CONV_2D before it."""

from nnhal.base.codes import OperationType
from nnhal.drivers.reference import Reference
from nnhal.hal.device import YES, Capabilities, Considered, OperationGroup, Performance, Verdict
from nnhal.model.graph import consumers


class Fusing(Reference):
    """The groups are worked out by `consider`; `prepare` sees to it that each came whole."""

    name = "fusing"

    def capabilities(self):
        return Capabilities.uniform(0.5)

    def consider(self, model, hints):
        main, readers = model.main, consumers(model.main)
        writer = {i: n for n, o in enumerate(main.operations) for i in o.outputs}
        verdicts, groups = [], []
        for n, operation in enumerate(main.operations):
            verdicts.append(YES if operation.type == OperationType.CONV_2D else Verdict(False, "is no CONV_2D"))
            before, x = writer.get(operation.inputs[0]), operation.inputs[0]
            follows = before is not None and main.operations[before].type == OperationType.CONV_2D
            if operation.type == OperationType.RELU and follows and readers[x] == 1 and x not in main.outputs:
                groups.append(OperationGroup((before, n), Performance(0.05)))
        return Considered(verdicts, groups, {n for group in groups for n in group.operations})

    def prepare(self, model, hints):
        found = hints.worked_out
        grouped = set() if found is None else found.given
        for n, operation in enumerate(model.main.operations):
            alone = operation.type == OperationType.CONV_2D
            assert alone or (found is not None and found.operations[n] in grouped), "a RELU came alone"
        return super().prepare(model, hints)


def device():
    return Fusing()
