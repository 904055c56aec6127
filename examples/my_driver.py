"""A whole driver: elementwise arithmetic on float32 tensors. Try it: nnhal run add4 --driver examples/my_driver.py"""

import numpy as np

from nnhal.base.codes import Activation, DeviceType, OperandType, OperationType
from nnhal.hal.device import Capabilities, Device, Prepared, each_operation
from nnhal.model.graph import CONSTANTS
from nnhal.model.validate import validate

KERNELS = {OperationType.ADD: np.add, OperationType.SUB: np.subtract, OperationType.MUL: np.multiply}


def judge(model, operation):
    if operation.type not in KERNELS:
        return "only ADD, SUB and MUL"
    a = validate(model).subgraphs[0].operations[model.main.operations.index(operation)]
    if a.T != OperandType.TENSOR_FLOAT32 or a.__dict__.get("activation") != Activation.NONE:
        return "only float32 without an activation"
    return ""


class Elementwise(Prepared):
    def __init__(self, model):
        self.main = model.main
        self.constants = {i: model.constant(o) for i, o in enumerate(model.main.operands) if o.lifetime in CONSTANTS}

    def run(self, request, control):
        arrays = self.constants | dict(zip(self.main.inputs, request.inputs, strict=True))
        for operation in self.main.operations:
            control.check()
            one, other = (arrays[i] for i in operation.inputs[:2])
            arrays[operation.outputs[0]] = KERNELS[operation.type](one, other)
        for place, index in enumerate(self.main.outputs):
            request.write(place, arrays[index])


class MyDevice(Device):
    name, version, type = "mine", "1", DeviceType.ACCELERATOR
    capabilities = staticmethod(lambda: Capabilities.uniform(0.5))
    supports = staticmethod(lambda model: each_operation(model, judge))
    prepare = staticmethod(lambda model, hints: Elementwise(model))


device = MyDevice
