"""A whole driver written against NN HAL 1.0: ADD, MUL on float32. Try: nnhal run add4 --driver examples/my_hal_driver.py"""

import numpy as np

from nnhal.driver import DeviceStatus, ErrorStatus, OldCapabilities, OperandType, OperationType, Performance, validate

KERNELS = {OperationType.ADD: np.add, OperationType.MUL: np.multiply}


class PreparedModel:
    def __init__(self, model):
        self.model = model

    def execute(self, request, callback):
        m, places = self.model, (*request.inputs, *request.outputs)
        ends = zip((*m.input_indexes, *m.output_indexes), places, strict=True)
        views = {i: request.pools[p.pool].view(p.offset, p.length, "<f4", m.operands[i].dimensions) for i, p in ends}
        for o in m.operations:
            one, other = (views[i] if i in views else m.constant(m.operands[i]) for i in o.inputs[:2])
            views[o.outputs[0]] = KERNELS[o.type](one, other, out=views.get(o.outputs[0]))
        callback.notify(ErrorStatus.NONE)
        return ErrorStatus.NONE


class device:  # noqa: N801 - it is found by this name
    getStatus = staticmethod(lambda: DeviceStatus.AVAILABLE)
    getCapabilities = staticmethod(lambda: (ErrorStatus.NONE, OldCapabilities(*[Performance(0.5, 0.5)] * 2)))

    def getSupportedOperations(self, model):
        return ErrorStatus.NONE, [
            a.op.code in KERNELS and a.T == OperandType.TENSOR_FLOAT32 and not a.deferred and a.activation == 0
            for a in validate(model).subgraphs[0].operations  # arguments, decoded; deferred: not all are known yet
        ]

    def prepareModel(self, model, callback):
        callback.notify(ErrorStatus.NONE, PreparedModel(model))
        return ErrorStatus.NONE
